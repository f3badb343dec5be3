//! Picks the elements that reach a bound out of a slice, in order, with their positions.
#![allow(unsafe_code, reason = "instructions of AVX2 and AVX-512 that the compiler does not find")]

use crate::simd::Isa;

/// The number of elements that are compared together.
pub(crate) const LANES: usize = 16;

/// Writes the elements of `x` that are at least `low`, and their positions counted from `first`, and returns how many there are. NaN
/// never is. After those, up to [`LANES`] elements of both slices may be overwritten.
///
/// # Panics
/// If either slice is shorter than `x.len() + LANES`.
pub(crate) fn reaching(isa: Isa, x: &[f32], low: f32, first: u32, positions: &mut [u32], values: &mut [f32]) -> usize {
    let room = positions.len().min(values.len());
    assert!(room >= x.len() + LANES, "{} elements and a register need more room than {room}", x.len());
    let (chunks, rest) = x.as_chunks::<LANES>();
    let chunks = Chunks { x: chunks, low, first, positions: &mut *positions, values: &mut *values };
    // The versions for x86-64 need the room that was asserted.
    let found = by_level!(isa, plain(chunks), x86::avx2(chunks), x86::avx512(chunks));
    let start = first.wrapping_add(short(x.len() - rest.len()));
    found + pick(rest, low, start, positions.split_at_mut(found).1, values.split_at_mut(found).1)
}

/// Whole chunks of elements, and where those that reach the bound go.
struct Chunks<'a> {
    x: &'a [[f32; LANES]],
    low: f32,
    first: u32,
    positions: &'a mut [u32],
    values: &'a mut [f32],
}

#[allow(clippy::cast_possible_truncation, reason = "positions have 32 bits")]
fn short(length: usize) -> u32 {
    length as u32
}

/// Picks one by one.
fn pick(x: &[f32], low: f32, first: u32, positions: &mut [u32], values: &mut [f32]) -> usize {
    let picked = x.iter().zip(first..).filter(|(x, _)| **x >= low);
    let room = positions.iter_mut().zip(values);
    picked.zip(room).map(|((x, at), (position, value))| (*position, *value) = (at, *x)).count()
}

fn plain(chunks: Chunks<'_>) -> usize {
    let Chunks { x, low, first, positions, values } = chunks;
    let mut found = 0;
    for (chunk, start) in x.iter().zip((first..).step_by(LANES)) {
        if chunk.iter().fold(false, |any, x| any | (*x >= low)) {
            found += pick(chunk, low, start, positions.split_at_mut(found).1, values.split_at_mut(found).1);
        }
    }
    found
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Chunks, LANES, short};
    use std::arch::x86_64::*;

    /// # Safety
    /// There is room for as many elements as there are.
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    pub(super) unsafe fn avx2(chunks: Chunks<'_>) -> usize {
        let Chunks { x, low, first, positions, values } = chunks;
        let bound = _mm256_set1_ps(low);
        let mut found = 0;
        for (number, chunk) in x.iter().enumerate() {
            // SAFETY: the two halves of the chunk.
            let halves = unsafe { [_mm256_loadu_ps(chunk.as_ptr()), _mm256_loadu_ps(chunk.as_ptr().add(8))] };
            let [a, b] = halves.map(|half| _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(half, bound)));
            let mut mask = (a | b << 8).cast_unsigned();
            while mask > 0 {
                let lane = mask.trailing_zeros();
                // SAFETY: a lane of the chunk; and no more are found than there are elements, for which there is room.
                unsafe {
                    *positions.get_unchecked_mut(found) = first.wrapping_add(short(LANES * number)).wrapping_add(lane);
                    *values.get_unchecked_mut(found) = *chunk.get_unchecked(lane as usize);
                }
                found += 1;
                mask &= mask - 1;
            }
        }
        found
    }

    /// # Safety
    /// There is room for as many elements as there are, and for a register more.
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2,popcnt")]
    pub(super) unsafe fn avx512(chunks: Chunks<'_>) -> usize {
        let Chunks { x, low, first, positions, values } = chunks;
        let (bound, step) = (_mm512_set1_ps(low), _mm512_set1_epi32(16));
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let mut position = _mm512_add_epi32(lanes, _mm512_set1_epi32(first.cast_signed()));
        let mut found = 0;
        for chunk in x {
            // SAFETY: a chunk is a register long.
            let x = unsafe { _mm512_loadu_ps(chunk.as_ptr()) };
            let mask = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, bound);
            // SAFETY: before this chunk, no more were found than there were elements; so there is room for a register.
            unsafe {
                let to = positions.as_mut_ptr().add(found).cast();
                _mm512_storeu_epi32(to, _mm512_maskz_compress_epi32(mask, position));
                _mm512_storeu_ps(values.as_mut_ptr().add(found), _mm512_maskz_compress_ps(mask, x));
            }
            found += mask.count_ones() as usize;
            position = _mm512_add_epi32(position, step);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reaches_the_bound_is_picked_in_order_on_every_instruction_set() {
        for isa in Isa::available() {
            for length in [0, 1, 15, 16, 17, 64, 200] {
                let number = |at: usize| if at % 7 == 3 { f32::NAN } else { ((at * 37) % 11) as f32 - 5.0 };
                let x: Vec<f32> = (0..length).map(number).collect();
                for low in [f32::NEG_INFINITY, -5.0, 0.0, 4.5, 5.0, f32::INFINITY] {
                    let (mut positions, mut values) = (vec![0; length + LANES], vec![0.0; length + LANES]);
                    let found = reaching(isa, &x, low, 7, &mut positions, &mut values);
                    let expected: Vec<(u32, f32)> = (7..).zip(x.iter().copied()).filter(|(_, x)| *x >= low).collect();
                    let picked: Vec<(u32, f32)> = positions.into_iter().zip(values).take(found).collect();
                    assert_eq!(picked, expected, "{length} {low}");
                }
            }
        }
    }
}
