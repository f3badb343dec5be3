//! Convolutions over any number of spatial axes.

use crate::matmul::dot;
use crate::memory::Memory;
use crate::tensor::{coordinates, signed};
use ptero_backend::Fault;
use ptero_backend::number::Number;
use ptero_plan::graph::Value;

/// The parameters of a convolution.
pub(crate) struct Conv<'a> {
    pub(crate) stride: &'a [i64],
    pub(crate) padding: &'a [i64],
    pub(crate) dilation: &'a [i64],
    pub(crate) groups: i64,
    pub(crate) transposed: bool,
}

pub(crate) fn conv(memory: &mut Memory<'_>, out: Value, x: Value, w: Value, conv: &Conv<'_>) -> Result<(), Fault> {
    let shape = memory.shape(out)?;
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
    for at in coordinates(&shape) {
        let [batch, spatial @ .., filter] = at.as_slice() else {
            return Err(Fault::Contract("what a convolution writes has at least two axes"));
        };
        let first_channel = filter / filters_per_group * channels;
        let (mut patch, mut weights) = (Vec::new(), Vec::new());
        // Without channels there is nothing to add, however many taps there are.
        for tap in coordinates(if *channels == 0 { &[0] } else { kernel }) {
            let source = conv.source(spatial, &tap, sizes);
            for channel in 0..*channels {
                let element = |source: &Vec<usize>| {
                    x.at(&[&[*batch], source.as_slice(), &[first_channel + channel]].concat()).float()
                };
                patch.push(source.as_ref().map_or(0.0, element));
                weights.push(w.at(&[&[*filter], tap.as_slice(), &[channel]].concat()).float());
            }
        }
        numbers.push(Number::Float(dot(&patch, &weights)));
    }
    memory.store(out, numbers)
}

impl Conv<'_> {
    /// The coordinates in the operand that this tap of the filter reads for this element of the result; `None` in the padding.
    fn source(&self, out: &[usize], tap: &[usize], sizes: &[usize]) -> Option<Vec<usize>> {
        let parameters = self.stride.iter().zip(self.padding).zip(self.dilation);
        let axes = out.iter().zip(tap).zip(sizes).zip(parameters);
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
