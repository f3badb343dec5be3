//! Sums in strands: `docs/ARITHMETIC.md` adds halves to halves until one strand is left.

/// Combines strands, halves with halves.
#[inline(always)]
pub(super) fn fold<T: Copy, const N: usize>(mut strands: [T; N], combine: impl Fn(T, T) -> T) -> T {
    let mut width = N / 2;
    while width > 0 {
        let (low, high) = strands.split_at_mut(width);
        low.iter_mut().zip(high).for_each(|(low, high)| *low = combine(*low, *high));
        width /= 2;
    }
    strands[0]
}

/// The sum of strands, halves added to halves.
#[inline(always)]
pub(super) fn total<const N: usize>(strands: [f32; N]) -> f32 {
    fold(strands, |a, b| a + b)
}
