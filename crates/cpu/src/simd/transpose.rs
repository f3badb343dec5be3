//! Columns that lie one after another, made rows of a panel.
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]

/// As many columns are turned at once.
pub const AT_ONCE: usize = 16;

/// The side of the squares that are turned in registers.
const SIDE: usize = 4;

/// Turns as many whole squares of the next columns as there are; gives how much of the columns that is.
#[inline(always)]
fn squares(from: &[f32], length: usize, to: &mut [f32], stride: usize) -> usize {
    let columns = from.split_at(length).0;
    let (second, third, fourth) =
        (&from[length..][..length], &from[2 * length..][..length], &from[3 * length..][..length]);
    let whole = length / SIDE * SIDE;
    for k in (0..whole).step_by(SIDE) {
        let (a, b): (&[f32; SIDE], &[f32; SIDE]) = (square(columns, k), square(second, k));
        let (c, d): (&[f32; SIDE], &[f32; SIDE]) = (square(third, k), square(fourth, k));
        let to = &mut to[k * stride..][..3 * stride + SIDE];
        for at in 0..SIDE {
            to[at * stride..][..SIDE].copy_from_slice(&[a[at], b[at], c[at], d[at]]);
        }
    }
    whole
}

#[inline(always)]
fn square(column: &[f32], k: usize) -> &[f32; SIDE] {
    column[k..].first_chunk().unwrap_or(&[0.0; SIDE])
}

kernel! {
    /// `to[k * stride + column] = from[column * length + k]` for the columns of `from`, of which there are at most
    /// [`AT_ONCE`].
    pub fn transpose(from: &[f32], length: usize, to: &mut [f32], stride: usize) {
        let count = from.len().checked_div(length).unwrap_or(0);
        for first in (0..count).step_by(SIDE) {
            let (from, to, count) = (&from[first * length..], &mut to[first..], SIDE.min(count - first));
            let done = if count == SIDE { squares(from, length, to, stride) } else { 0 };
            for k in done..length {
                for column in 0..count {
                    to[k * stride + column] = from[column * length + k];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    #[test]
    fn columns_become_rows() {
        for isa in Isa::available() {
            for (count, length, stride) in
                [(16, 5, 32), (8, 16, 8), (3, 4, 8), (1, 1, 8), (16, 256, 16), (0, 3, 8), (3, 0, 8)]
            {
                let from: Vec<f32> = (0..count * length).map(|at| at as f32).collect();
                let mut to = vec![-1.0; length * stride];
                transpose(isa, &from, length, &mut to, stride);
                for (at, cell) in to.iter().enumerate() {
                    let (k, column) = (at / stride, at % stride);
                    assert_eq!(*cell, if column < count { (column * length + k) as f32 } else { -1.0 });
                }
            }
        }
    }
}
