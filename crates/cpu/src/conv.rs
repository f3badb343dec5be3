//! Convolutions over any number of spatial axes: every place of the output meets one patch of the input, which is laid out as
//! the filters are, so that each filter is one product of rows.

use crate::lines::each_line;
use crate::run::Context;
use crate::simd::{Isa, rows};
use crate::window::{Sizes, Tensor};
use ptero_backend::Fault;
use ptero_plan::prim::View;

/// The parameters of a convolution.
pub(crate) struct Conv<'a> {
    pub(crate) stride: &'a [i64],
    pub(crate) padding: &'a [i64],
    pub(crate) dilation: &'a [i64],
    pub(crate) groups: i64,
    pub(crate) transposed: bool,
}

pub(crate) fn conv(context: &mut Context<'_>, out: &View, x: &View, w: &View, conv: &Conv<'_>) -> Result<(), Fault> {
    let isa = context.isa;
    let mut filters = std::mem::take(context.staging);
    let (target, sources, mut workers) = context.open(out)?;
    let (x, w) = (sources.tensor(x)?, sources.tensor(w)?);
    let last = x.window.shape.len().saturating_sub(1);
    let (channels, count) = (w.window.size(last), w.window.size(0));
    let groups = usize::try_from(conv.groups).unwrap_or(0);
    let per_group = count.checked_div(groups).unwrap_or(0);
    let is_divided = groups.checked_mul(channels) == Some(x.window.size(last)) && per_group * groups == count;
    let is_met = target.window.size(0) == x.window.size(0) && target.window.size(last) == count && last > 0;
    if !is_divided || !is_met || w.window.shape.len() != x.window.shape.len() {
        return Err(Fault::Contract("filters, channels and batches of a convolution fit each other"));
    }
    let patch = w.window.shape.iter().skip(1).product::<usize>();
    filters.resize(count * patch, 0.0);
    let (w_outer, w_line) = w.window.lines(last);
    for (number, row) in filters.chunks_exact_mut(channels.max(1)).enumerate() {
        w.read(isa, w_outer.offset_of(number), w_line.stride, row);
    }
    let shape: Sizes = target.window.shape.iter().take(last).copied().collect();
    let kernel: Sizes = w.window.shape.iter().take(last).skip(1).copied().collect();
    let patches = Patches { isa, conv, x: &x, shape, kernel, channels, last };
    each_line(&mut workers, isa, target, (last, count * patch / groups.max(1)), |number, out: &mut [f32], scratch| {
        let [copy] = scratch.floats([patch]);
        for (group, out) in out.chunks_mut(per_group.max(1)).enumerate() {
            patches.fill(number, group * channels, copy);
            let filters = filters.get(group * per_group * patch..).unwrap_or_default();
            for (filter, out) in
                out.iter_mut().enumerate().map(|(at, out)| (filters.get(at * patch..(at + 1) * patch), out))
            {
                *out = rows::dot(isa, copy, filter.unwrap_or_default());
            }
        }
    });
    *context.staging = filters;
    Ok(())
}

/// What the filters meet at each place of the output.
struct Patches<'a> {
    isa: Isa,
    conv: &'a Conv<'a>,
    x: &'a Tensor<'a>,
    /// Of the output, without channels.
    shape: Sizes,
    /// Spatial sizes of a filter.
    kernel: Sizes,
    channels: usize,
    last: usize,
}

impl Patches<'_> {
    /// The patch at a place of the output, of channels from `channel` on; zeros in the padding.
    fn fill(&self, number: usize, channel: usize, patch: &mut [f32]) {
        let (window, stride) = (&self.x.window, self.x.window.stride(self.last));
        for (tap, part) in patch.chunks_exact_mut(self.channels.max(1)).enumerate() {
            let (mut rest, mut tap_rest) = (number, tap);
            let mut start = Some(window.offset.wrapping_add_signed(channel.cast_signed() * stride));
            for axis in (1..self.last).rev() {
                let (size, taps) =
                    (self.shape.get(axis).copied().unwrap_or(1), self.kernel.get(axis - 1).copied().unwrap_or(1));
                let source = self.conv.source(axis - 1, rest % size, tap_rest % taps, window.size(axis));
                let step = source.map(|source| source.cast_signed() * window.stride(axis));
                start = start.zip(step).map(|(start, step)| start.wrapping_add_signed(step));
                (rest, tap_rest) = (rest / size, tap_rest / taps);
            }
            match start {
                // What is left of the number is the batch.
                Some(start) => {
                    let start = start.wrapping_add_signed(rest.cast_signed() * window.stride(0));
                    self.x.read(self.isa, start, stride, part);
                }
                None => part.fill(0.0),
            }
        }
    }
}

impl Conv<'_> {
    /// The place of the input that meets this tap of the filter at this place of the output, along a spatial axis.
    fn source(&self, axis: usize, at: usize, tap: usize, size: usize) -> Option<usize> {
        let of = |parameters: &[i64]| parameters.get(axis).copied();
        let (at, tap) = (i64::try_from(at).ok()?, i64::try_from(tap).ok()?);
        let (stride, padding, reach) = (of(self.stride)?, of(self.padding)?, tap.checked_mul(of(self.dilation)?)?);
        let source = if self.transposed {
            // The `source` with `at == source * stride - padding + reach`, if there is one.
            let scaled = at.checked_add(padding)?.checked_sub(reach)?;
            (scaled % stride == 0).then_some(scaled / stride)?
        } else {
            at.checked_mul(stride)?.checked_sub(padding)?.checked_add(reach)?
        };
        usize::try_from(source).ok().filter(|&source| source < size)
    }
}
