//! Transposes columns into the rows of a panel.
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]

/// The most columns that are transposed at once.
pub(crate) const AT_ONCE: usize = 16;

/// The side of the squares that are transposed in registers.
const SIDE: usize = 4;

/// Transposes the whole squares of the first four columns; returns how many elements of each column that is.
#[inline(always)]
fn squares(from: &[f32], length: usize, to: &mut [f32], stride: usize) -> usize {
    let (first, second) = (&from[..length], &from[length..][..length]);
    let (third, fourth) = (&from[2 * length..][..length], &from[3 * length..][..length]);
    let squares =
        first.as_chunks().0.iter().zip(second.as_chunks().0).zip(third.as_chunks().0.iter().zip(fourth.as_chunks().0));
    for (((a, b), (c, d)), to) in squares.zip(to.chunks_mut(SIDE * stride)) {
        for (row, to) in transposed([*a, *b, *c, *d]).iter().zip(to.chunks_mut(stride)) {
            to[..SIDE].copy_from_slice(row);
        }
    }
    length / SIDE * SIDE
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unsafe_code, reason = "instructions that all machines of the architecture have")]
fn transposed(square: [[f32; SIDE]; SIDE]) -> [[f32; SIDE]; SIDE] {
    use std::arch::x86_64::{_mm_movehl_ps, _mm_movelh_ps, _mm_unpackhi_ps, _mm_unpacklo_ps};
    let [a, b, c, d] = square.map(bytemuck::cast);
    // SAFETY: every machine of this architecture has SSE.
    unsafe {
        let (low, high) = (_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
        let (other_low, other_high) = (_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
        [
            bytemuck::cast(_mm_movelh_ps(low, other_low)),
            bytemuck::cast(_mm_movehl_ps(other_low, low)),
            bytemuck::cast(_mm_movelh_ps(high, other_high)),
            bytemuck::cast(_mm_movehl_ps(other_high, high)),
        ]
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn transposed([a, b, c, d]: [[f32; SIDE]; SIDE]) -> [[f32; SIDE]; SIDE] {
    std::array::from_fn(|at| [a[at], b[at], c[at], d[at]])
}

kernel! {
    /// Sets `to[k * stride + column] = from[column * length + k]` for the columns of `from`, at most [`AT_ONCE`].
    pub(crate) fn transpose(from: &[f32], length: usize, to: &mut [f32], stride: usize) {
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
