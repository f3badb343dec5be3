//! Rows of equal length at equal distances.
#![allow(clippy::indexing_slicing, reason = "a row that is not there is the caller's mistake")]

/// Rows of equal length at equal distances.
#[derive(Clone, Copy, Debug)]
pub struct Strip<'a, T> {
    /// From the first element of the first row on, to the last of the last row at least.
    pub elements: &'a [T],
    /// From a row to the next.
    pub stride: usize,
    /// The number of rows.
    pub count: usize,
    /// The number of elements of a row.
    pub length: usize,
}

impl<'a, T> Strip<'a, T> {
    /// No rows.
    pub(crate) const EMPTY: Self = Self { elements: &[], stride: 0, count: 0, length: 0 };

    #[inline(always)]
    pub(super) fn row(&self, number: usize) -> &'a [T] {
        &self.elements[number * self.stride..][..self.length]
    }
}
