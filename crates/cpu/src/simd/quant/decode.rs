//! Quantized weights decoded to `f32`: a product and a sum, each rounded.
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants or counters of loops of constant length")]

use crate::simd::numeric::convert::from_f16;
use crate::simd::numeric::small_float::{from_e2m1, from_e4m3};
use half::f16;

/// Weights of a block of GGUF.
pub(crate) const GGUF_BLOCK: usize = 256;

/// A code of eight that lie one after another, lowest first.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "codes have at most eight bits")]
pub(super) fn code<const BITS: usize>(codes: &[u8; BITS], at: usize) -> u32 {
    let mask = (1 << BITS) - 1;
    if BITS <= 4 {
        // Numbers of 32 bits: a register holds twice as many as of 64.
        let mut raw = [0; 4];
        raw[..BITS].copy_from_slice(codes);
        u32::from_le_bytes(raw) >> (at * BITS) & mask
    } else {
        let mut raw = [0; 8];
        raw[..BITS].copy_from_slice(codes);
        (u64::from_le_bytes(raw) >> (at * BITS)) as u32 & mask
    }
}

/// Groups of a multiple of eight weights, which share a scale and a bias.
struct Groups<'a> {
    codes: &'a [u8],
    group: usize,
    scales: &'a [f32],
    biases: &'a [f32],
    to: &'a mut [f32],
}

impl Groups<'_> {
    /// Decodes weights of one bit width.
    #[inline(always)]
    fn decode<const BITS: usize>(self, weight: impl Fn(f32, u32, f32) -> f32) {
        let groups = self.codes.chunks_exact(self.group / 8 * BITS).zip(self.to.chunks_exact_mut(self.group));
        for ((codes, to), (scale, bias)) in groups.zip(self.scales.iter().zip(self.biases)) {
            if BITS == 8 {
                codes.iter().zip(to).for_each(|(code, to)| *to = weight(*scale, u32::from(*code), *bias));
                continue;
            }
            for (codes, to) in codes.as_chunks::<BITS>().0.iter().zip(to.as_chunks_mut::<8>().0) {
                for (at, to) in to.iter_mut().enumerate() {
                    *to = weight(*scale, code(codes, at), *bias);
                }
            }
        }
    }
}

#[inline(always)]
fn affine_weight(scale: f32, code: u32, bias: f32) -> f32 {
    scale * code.cast_signed() as f32 + bias
}

kernel! {
    /// `scale * code + bias` for groups of a multiple of eight weights each.
    pub(crate) fn affine(codes: &[u8], bits: u8, group: usize, scales: &[f32], biases: &[f32], to: &mut [f32]) {
        let groups = Groups { codes, group, scales, biases, to };
        match bits {
            1 => groups.decode::<1>(affine_weight),
            2 => groups.decode::<2>(affine_weight),
            3 => groups.decode::<3>(affine_weight),
            4 => groups.decode::<4>(affine_weight),
            5 => groups.decode::<5>(affine_weight),
            6 => groups.decode::<6>(affine_weight),
            7 => groups.decode::<7>(affine_weight),
            _ => groups.decode::<8>(affine_weight),
        }
    }

    /// `scale * e2m1(code)` for groups of a multiple of eight weights each.
    pub(crate) fn e2m1(codes: &[u8], group: usize, scales: &[f32], to: &mut [f32]) {
        let groups = Groups { codes, group, scales, biases: scales, to };
        groups.decode::<4>(|scale, code, _| scale * from_e2m1(code));
    }

    /// `scale * e4m3(code)` for groups of a multiple of eight weights each.
    pub(crate) fn e4m3(codes: &[u8], group: usize, scales: &[f32], to: &mut [f32]) {
        let groups = Groups { codes, group, scales, biases: scales, to };
        groups.decode::<8>(|scale, code, _| scale * from_e4m3(code));
    }

    /// A block of four bits with minima.
    pub(crate) fn q4k(block: &[u8; 144], to: &mut [f32; GGUF_BLOCK]) {
        let (scales, minima) = scales_and_minima(block);
        q4k_codes(block, to, |group, code| scales[group] * f32::from(code) - minima[group]);
    }

    /// A block of five bits with minima.
    pub(crate) fn q5k(block: &[u8; 176], to: &mut [f32; GGUF_BLOCK]) {
        let (scales, minima) = scales_and_minima(block);
        q5k_codes(block, to, |group, code| scales[group] * f32::from(code) - minima[group]);
    }

    /// A block of six bits.
    pub(crate) fn q6k(block: &[u8; 210], to: &mut [f32; GGUF_BLOCK]) {
        let scales = q6k_scales(block);
        q6k_codes(block, to, |group, code| scales[group] * (f32::from(code) - 32.0));
    }
}

/// Writes what `weight` returns for each code of a block of four bits and the index of its group of 32.
#[inline(always)]
pub(super) fn q4k_codes<T>(block: &[u8; 144], to: &mut [T; GGUF_BLOCK], weight: impl Fn(usize, u8) -> T) {
    codes_with_fifth(&block[16..], &[0; 32], to, weight);
}

/// Writes what `weight` returns for each code of a block of five bits and the index of its group of 32.
#[inline(always)]
pub(super) fn q5k_codes<T>(block: &[u8; 176], to: &mut [T; GGUF_BLOCK], weight: impl Fn(usize, u8) -> T) {
    codes_with_fifth(&block[48..], &block[16..48], to, weight);
}

#[inline(always)]
fn codes_with_fifth<T>(low: &[u8], fifth: &[u8], to: &mut [T; GGUF_BLOCK], weight: impl Fn(usize, u8) -> T) {
    let fifth = &fifth[..32];
    for (group, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = &low[group / 2 * 32..][..32];
        for (at, to) in to.iter_mut().enumerate() {
            *to = weight(group, (low[at] >> (group % 2 * 4) & 15) | (fifth[at] >> group & 1) << 4);
        }
    }
}

/// Writes what `weight` returns for each code of a block of six bits and the index of its group of 16.
#[inline(always)]
pub(super) fn q6k_codes<T>(block: &[u8; 210], to: &mut [T; GGUF_BLOCK], weight: impl Fn(usize, u8) -> T) {
    for (half, to) in to.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let (low, high) = (&block[64 * half..][..64], &block[128 + 32 * half..][..32]);
        for (run, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = &low[run % 2 * 32..][..32];
            for (at, to) in to.iter_mut().enumerate() {
                let code = (low[at] >> (run / 2 * 4) & 15) | (high[at] >> (2 * run) & 3) << 4;
                *to = weight(8 * half + 2 * run + at / 16, code);
            }
        }
    }
}

#[inline(always)]
fn half_float(bytes: &[u8]) -> f32 {
    from_f16(f16::from_le_bytes([bytes[0], bytes[1]]))
}

/// Scales and minima of the groups of 32 of a block of four or five bits, from its first 16 bytes.
#[inline(always)]
pub(crate) fn scales_and_minima(head: &[u8]) -> ([f32; 8], [f32; 8]) {
    let (factor, minimum_factor, raw) = (half_float(head), half_float(&head[2..]), &head[4..16]);
    let (mut scales, mut minima) = ([0.0; 8], [0.0; 8]);
    for at in 0..4 {
        let (first, second, last) = (raw[at], raw[at + 4], raw[at + 8]);
        scales[at] = factor * f32::from(first & 63);
        minima[at] = minimum_factor * f32::from(second & 63);
        scales[at + 4] = factor * f32::from((last & 15) | first >> 6 << 4);
        minima[at + 4] = minimum_factor * f32::from((last >> 4) | second >> 6 << 4);
    }
    (scales, minima)
}

/// Scales of the groups of 16 of a block of six bits.
#[inline(always)]
pub(crate) fn q6k_scales(block: &[u8; 210]) -> [f32; 16] {
    let factor = half_float(&block[208..]);
    std::array::from_fn(|group| factor * f32::from(block[192 + group].cast_signed()))
}
