//! Shapes of convolutions, shared by devices.

use crate::Fault;

/// The parameters of a convolution, as in `Prim::Conv`.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a> {
    /// Strides, by spatial axis.
    pub stride: &'a [i64],
    /// Padding before the first element, by spatial axis.
    pub padding: &'a [i64],
    /// Distances between taps, by spatial axis.
    pub dilation: &'a [i64],
    /// The number of groups.
    pub groups: i64,
    /// Computes the transposed convolution.
    pub transposed: bool,
}

impl Conv<'_> {
    /// Returns the number of filters per group.
    ///
    /// # Errors
    /// If the shapes of input, filters and output do not fit each other.
    pub fn filters_per_group(&self, x: &[usize], w: &[usize], out: &[usize]) -> Result<usize, Fault> {
        const FIT: Fault = Fault::Contract("filters, channels and batches of a convolution fit each other");
        let ([batches, .., all_channels], [filters, .., channels]) = (x, w) else { return Err(FIT) };
        let groups = usize::try_from(self.groups).unwrap_or(0);
        let per_group = filters.checked_div(groups).unwrap_or(0);
        let is_divided = groups.checked_mul(*channels) == Some(*all_channels) && per_group * groups == *filters;
        let fits = out.first() == Some(batches) && out.last() == Some(filters) && [w.len(), out.len()] == [x.len(); 2];
        if is_divided && fits { Ok(per_group) } else { Err(FIT) }
    }

    /// The index in the input that a tap of the filter reads for an index in the output, along a spatial axis of `size` elements;
    /// `None` in the padding.
    #[inline]
    pub fn source(&self, axis: usize, at: usize, tap: usize, size: usize) -> Option<usize> {
        let of = |parameters: &[i64]| parameters.get(axis).copied();
        let (at, tap) = (i64::try_from(at).ok()?, i64::try_from(tap).ok()?);
        let (stride, padding, reach) = (of(self.stride)?, of(self.padding)?, tap.checked_mul(of(self.dilation)?)?);
        let source = if self.transposed {
            // The `source` with `at == source * stride - padding + reach`, if there is one.
            let scaled = at.checked_add(padding)?.checked_sub(reach)?;
            (scaled.checked_rem(stride)? == 0).then_some(scaled / stride)?
        } else {
            at.checked_mul(stride)?.checked_sub(padding)?.checked_add(reach)?
        };
        usize::try_from(source).ok().filter(|&source| source < size)
    }
}
