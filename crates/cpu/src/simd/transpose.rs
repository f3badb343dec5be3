//! Columns that lie one after another, made rows of a panel.
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]

/// As many columns are turned at once.
pub const AT_ONCE: usize = 16;

#[inline(always)]
fn turn<const COUNT: usize>(from: &[f32], length: usize, to: &mut [f32], stride: usize) {
    let columns: [&[f32]; COUNT] = std::array::from_fn(|column| &from[column * length..][..length]);
    for (k, to) in to.chunks_mut(stride).take(length).enumerate() {
        for (cell, column) in to[..COUNT].iter_mut().zip(columns) {
            *cell = column[k];
        }
    }
}

kernel! {
    /// `to[k * stride + column] = from[column * length + k]` for the columns of `from`, of which there are at most
    /// [`AT_ONCE`].
    pub fn transpose(from: &[f32], length: usize, to: &mut [f32], stride: usize) {
        match from.len().checked_div(length).unwrap_or(0) {
            0 => {}
            16 => turn::<16>(from, length, to, stride),
            12 => turn::<12>(from, length, to, stride),
            8 => turn::<8>(from, length, to, stride),
            6 => turn::<6>(from, length, to, stride),
            4 => turn::<4>(from, length, to, stride),
            _ => {
                for (k, to) in to.chunks_mut(stride).take(length).enumerate() {
                    to.iter_mut().zip(from.chunks_exact(length)).for_each(|(cell, column)| *cell = column[k]);
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
