//! Convolutions over any number of spatial axes.

use super::memory::Memory;
use super::number::Number;
use super::tensor::{evaluate_shape, places, signed};
use crate::error::Fault;
use ptero_plan::prim::View;

/// The parameters of a convolution.
pub(super) struct Conv<'a> {
    pub(super) stride: &'a [i64],
    pub(super) padding: &'a [i64],
    pub(super) dilation: &'a [i64],
    pub(super) groups: i64,
    pub(super) transposed: bool,
}

pub(super) fn conv(memory: &mut Memory, out: &View, x: &View, w: &View, conv: &Conv<'_>) -> Result<(), Fault> {
    let shape = evaluate_shape(out, &memory.values)?;
    let (x, w) = (memory.tensor(x)?, memory.tensor(w)?);
    let ([filters, kernel @ .., channels], [batches, sizes @ .., all_channels]) = (w.shape(), x.shape()) else {
        return Err(Fault::Contract("what a convolution reads has at least two axes"));
    };
    let groups = usize::try_from(conv.groups).unwrap_or(0);
    let filters_per_group = filters.checked_div(groups).unwrap_or(0);
    let is_divided = groups.checked_mul(*channels) == Some(*all_channels) && filters_per_group * groups == *filters;
    let is_met = shape.first() == Some(batches) && shape.last() == Some(filters) && kernel.len() == sizes.len();
    if !is_divided || !is_met {
        return Err(Fault::Contract("filters, channels and batches of a convolution fit each other"));
    }
    let mut numbers = Vec::new();
    for place in places(&shape) {
        let [batch, spatial @ .., filter] = place.as_slice() else {
            return Err(Fault::Contract("what a convolution writes has at least two axes"));
        };
        let first_channel = filter / filters_per_group * channels;
        let mut sum = 0.0;
        for tap in places(kernel) {
            let Some(source) = conv.source(spatial, &tap, sizes) else { continue };
            for channel in 0..*channels {
                let element = x.at(&[&[*batch], source.as_slice(), &[first_channel + channel]].concat());
                let weight = w.at(&[&[*filter], tap.as_slice(), &[channel]].concat());
                sum += element.float() * weight.float();
            }
        }
        numbers.push(Number::Float(sum));
    }
    memory.store(out, numbers)
}

impl Conv<'_> {
    /// What is wrong with the parameters whatever they are applied to.
    pub(super) fn check(&self, out: &View) -> Result<(), Fault> {
        let spatial = out.shape.len().checked_sub(2);
        let per_axis = [self.stride.len(), self.padding.len(), self.dilation.len()];
        if per_axis.iter().any(|&count| Some(count) != spatial) {
            return Err(Fault::Contract("a convolution has one stride, padding and dilation per spatial axis"));
        }
        if self.stride.iter().any(|&stride| stride < 1) || self.groups < 1 {
            return Err(Fault::Contract("strides and groups of a convolution are positive"));
        }
        Ok(())
    }

    /// The place in the operand that meets this tap of the filter at this place of the result; none in the padding.
    fn source(&self, place: &[usize], tap: &[usize], sizes: &[usize]) -> Option<Vec<usize>> {
        let parameters = self.stride.iter().zip(self.padding).zip(self.dilation);
        let axes = place.iter().zip(tap).zip(sizes).zip(parameters);
        axes.map(|(((&at, &tap), &size), ((&stride, &padding), &dilation))| {
            let (at, reach) = (signed(at), signed(tap).checked_mul(dilation)?);
            let source = if self.transposed {
                // The `source` with `at == source * stride - padding + reach`, if there is one.
                let scaled = at.checked_add(padding)?.checked_sub(reach)?;
                (scaled % stride == 0).then_some(scaled / stride)?
            } else {
                at.checked_mul(stride)?.checked_sub(padding)?.checked_add(reach)?
            };
            usize::try_from(source).ok().filter(|&source| source < size)
        })
        .collect()
    }
}
