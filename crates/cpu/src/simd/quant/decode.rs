//! Quantized weights decoded to `f32`: a product and a sum, each rounded, as the contract has it.
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
        // As half as wide a number, of which a register holds twice as many.
        let mut raw = [0; 4];
        raw[..BITS].copy_from_slice(codes);
        u32::from_le_bytes(raw) >> (at * BITS) & mask
    } else {
        let mut raw = [0; 8];
        raw[..BITS].copy_from_slice(codes);
        (u64::from_le_bytes(raw) >> (at * BITS)) as u32 & mask
    }
}

/// Of one bit width: groups of a multiple of eight weights.
#[inline(always)]
fn groups<const BITS: usize>(
    codes: &[u8],
    group: usize,
    scales: &[f32],
    biases: &[f32],
    to: &mut [f32],
    weight: impl Fn(f32, u32, f32) -> f32,
) {
    let groups = codes.chunks_exact(group / 8 * BITS).zip(to.chunks_exact_mut(group));
    for ((codes, to), (scale, bias)) in groups.zip(scales.iter().zip(biases)) {
        for (codes, to) in codes.as_chunks::<BITS>().0.iter().zip(to.as_chunks_mut::<8>().0) {
            for (at, to) in to.iter_mut().enumerate() {
                *to = weight(*scale, code(codes, at), *bias);
            }
        }
    }
}

/// Of eight bits, which are bytes: any group.
#[inline(always)]
fn byte_groups(
    codes: &[u8],
    group: usize,
    scales: &[f32],
    biases: &[f32],
    to: &mut [f32],
    weight: impl Fn(f32, u32, f32) -> f32,
) {
    let groups = codes.chunks_exact(group).zip(to.chunks_exact_mut(group));
    for ((codes, to), (scale, bias)) in groups.zip(scales.iter().zip(biases)) {
        for (code, to) in codes.iter().zip(to) {
            *to = weight(*scale, u32::from(*code), *bias);
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
        match bits {
            1 => groups::<1>(codes, group, scales, biases, to, affine_weight),
            2 => groups::<2>(codes, group, scales, biases, to, affine_weight),
            3 => groups::<3>(codes, group, scales, biases, to, affine_weight),
            4 => groups::<4>(codes, group, scales, biases, to, affine_weight),
            5 => groups::<5>(codes, group, scales, biases, to, affine_weight),
            6 => groups::<6>(codes, group, scales, biases, to, affine_weight),
            7 => groups::<7>(codes, group, scales, biases, to, affine_weight),
            _ => byte_groups(codes, group, scales, biases, to, affine_weight),
        }
    }

    /// `scale * e2m1(code)`, likewise.
    pub(crate) fn e2m1(codes: &[u8], group: usize, scales: &[f32], to: &mut [f32]) {
        groups::<4>(codes, group, scales, scales, to, |scale, code, _| scale * from_e2m1(code));
    }

    /// `scale * e4m3(code)`, likewise.
    pub(crate) fn e4m3(codes: &[u8], group: usize, scales: &[f32], to: &mut [f32]) {
        byte_groups(codes, group, scales, scales, to, |scale, code, _| scale * from_e4m3(code));
    }

    /// A block of four bits with minima.
    pub(crate) fn q4k(block: &[u8; 144], to: &mut [f32; GGUF_BLOCK]) {
        let (head, low) = block.split_at(16);
        with_minima(head, &[0; 32], low, to);
    }

    /// A block of five bits with minima.
    pub(crate) fn q5k(block: &[u8; 176], to: &mut [f32; GGUF_BLOCK]) {
        let (head, codes) = block.split_at(16);
        let (fifth, low) = codes.split_at(32);
        with_minima(head, fifth, low, to);
    }

    /// A block of six bits.
    pub(crate) fn q6k(block: &[u8; 210], to: &mut [f32; GGUF_BLOCK]) {
        let scales = q6k_scales(block);
        for (half, to) in to.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let (low, high) = (&block[64 * half..][..64], &block[128 + 32 * half..][..32]);
            for (run, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let low = &low[run % 2 * 32..][..32];
                for (at, to) in to.iter_mut().enumerate() {
                    let code = (low[at] >> (run / 2 * 4) & 15) | (high[at] >> (2 * run) & 3) << 4;
                    *to = scales[8 * half + 2 * run + at / 16] * (f32::from(code) - 32.0);
                }
            }
        }
    }
}

#[inline(always)]
fn with_minima(head: &[u8], fifth: &[u8], low: &[u8], to: &mut [f32; GGUF_BLOCK]) {
    let (scales, minima) = scales_and_minima(head);
    for (group, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = &low[group / 2 * 32..][..32];
        for (at, to) in to.iter_mut().enumerate() {
            let code = (low[at] >> (group % 2 * 4) & 15) | (fifth[at] >> group & 1) << 4;
            *to = scales[group] * f32::from(code) - minima[group];
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
