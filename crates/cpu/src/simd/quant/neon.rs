//! Few rows of activations times four rows of quantized weights in integers, as in `vnni`, for ARM machines whose `sdot` adds four
//! products of signed bytes to a lane: codes of 4 bits, of 8 bits, and floats of 4 bits.
//!
//! A piece is 16 bytes of codes: the lanes of a row become one number per group, so that after a pairwise addition a lane is a row,
//! and floats begin. Codes of eight bits are moved down by 128 to have a sign, and what that takes away is added again.
#![allow(unsafe_code, reason = "loads of registers, and an instruction that has no stable intrinsic")]
#![allow(clippy::indexing_slicing, reason = "of slices of constant length, in loops of constant length")]

use super::activation::{CELL, CHUNK, ROWS, Sums};
use super::integer::{Activations, FourRows, WeightRows};
use crate::quant::Packing;
use std::arch::aarch64::*;
use std::arch::asm;

/// Bytes of a register, and codes of an unpacked one.
const REGISTER: usize = 16;
/// Registers of the integers of a chunk: high bytes and low bytes.
const WORDS: usize = 2 * CHUNK / REGISTER;
/// Registers of a run of high or low bytes: `Order::Bytes` has them 64 at a time.
const RUN: usize = 64 / REGISTER;
/// Cells of a chunk.
const CELLS: usize = CHUNK / CELL;

/// A function for machines with `sdot`.
macro_rules! dot {
    ($( $(#[$attribute:meta])* $vis:vis fn $name:ident $([$($generic:tt)*])? ($($arg:tt)*) $(-> $ret:ty)? $body:block )*) => { $(
        $(#[$attribute])*
        #[inline]
        #[target_feature(enable = "neon,dotprod")]
        $vis fn $name $(<$($generic)*>)? ($($arg)*) $(-> $ret)? $body
    )* };
}

dot! {
    /// Writes the products of all rows; see `Integers::products`. Formats are those that `Integers::layout` allows.
    pub(super) fn products[const M: usize](weights: &mut WeightRows<'_>) {
        let is_whole = weights.x.layout.group == CELL;
        match *weights.packing() {
            Packing::Affine { bits: 4, .. } if is_whole => rows::<M, 1, 2, 128, false>(weights, |codes| nibbles(codes)),
            Packing::Affine { bits: 4, .. } => rows::<M, 2, 2, 128, false>(weights, |codes| nibbles(codes)),
            Packing::Affine { bits: 8, .. } if is_whole => rows::<M, 1, 1, 256, true>(weights, |codes| [signed(codes)]),
            Packing::Affine { bits: 8, .. } => rows::<M, 2, 1, 256, true>(weights, |codes| [signed(codes)]),
            Packing::E2m1 { .. } => rows::<M, 2, 2, 128, false>(weights, |codes| e2m1(codes)),
            Packing::Affine { .. } | Packing::Gguf(_) | Packing::E4m3 { .. } => {}
        }
    }

    /// The even codes and the odd ones.
    fn nibbles(codes: uint8x16_t) -> [int8x16_t; 2] {
        [vreinterpretq_s8_u8(vandq_u8(codes, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8(codes, 4))]
    }

    /// Numbers of four bits, doubled and moved up: see `E2M1_OFFSET`.
    fn e2m1(codes: uint8x16_t) -> [int8x16_t; 2] {
        let values = load(&[12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0]);
        let [even, odd] = nibbles(codes);
        [
            vreinterpretq_s8_u8(vqtbl1q_u8(values, vreinterpretq_u8_s8(even))),
            vreinterpretq_s8_u8(vqtbl1q_u8(values, vreinterpretq_u8_s8(odd))),
        ]
    }

    /// Codes of eight bits, less 128.
    fn signed(codes: uint8x16_t) -> int8x16_t {
        vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(128)))
    }

    /// The products of all rows, four at a time; see [`four`].
    fn rows[const M: usize, const SLOTS: usize, const VECTORS: usize, const BYTES: usize, const IS_SIGNED: bool](
        weights: &mut WeightRows<'_>,
        unpack: impl Fn(uint8x16_t) -> [int8x16_t; VECTORS],
    ) {
        let x = weights.x;
        for at in (0..weights.count()).step_by(ROWS) {
            let totals = four::<M, SLOTS, VECTORS, BYTES, IS_SIGNED>(&weights.four(at), x, &unpack);
            weights.store(at, &totals);
        }
    }

    /// The products of four rows in chunks of `BYTES`, the last of which may be shorter. A register of bytes unpacks to `VECTORS` of
    /// codes; a cell has `SLOTS` groups.
    fn four[const M: usize, const SLOTS: usize, const VECTORS: usize, const BYTES: usize, const IS_SIGNED: bool](
        rows: &FourRows<'_>,
        x: &Activations<'_>,
        unpack: &impl Fn(uint8x16_t) -> [int8x16_t; VECTORS],
    ) -> [[f32; ROWS]; M] {
        let has_offset = matches!(x.layout.sums, Sums::Offset(_));
        let [(a, rest_a), (b, rest_b), (c, rest_c), (d, rest_d)] = rows.codes.map(|codes| codes.as_chunks::<BYTES>());
        assert!(b.len() == a.len() && c.len() == a.len() && d.len() == a.len(), "rows have the same length");
        // The last chunk, if it is not whole.
        let mut rests = [[0; BYTES]; ROWS];
        for (to, rest) in rests.iter_mut().zip([rest_a, rest_b, rest_c, rest_d]) {
            to[..rest.len()].copy_from_slice(rest);
        }
        let width = WORDS + 2 * SLOTS * CELLS;
        let table = x.floats.as_chunks::<ROWS>().0.chunks_exact(M * width);
        let scales = rows.scales.as_chunks::<ROWS>().0.chunks_exact(SLOTS * CELLS);
        let biases = rows.biases.as_chunks::<ROWS>().0.chunks_exact(SLOTS * CELLS);
        let mut results = [vdupq_n_f32(0.0); M];
        for (number, (x, (scales, biases))) in table.zip(scales.zip(biases)).enumerate() {
            let mut blocks = [&rests[0], &rests[1], &rests[2], &rests[3]];
            if number < a.len() {
                blocks = [&a[number], &b[number], &c[number], &d[number]];
            }
            rows.prefetch(number, BYTES * ROWS);
            for m in 0..M {
                let (words, floats) = x[m * width..][..width].split_at(WORDS);
                let mut chunk = vdupq_n_f32(0.0);
                for cell in 0..CELLS {
                    // Nothing is left of a last chunk that is not whole.
                    if number * CHUNK + cell * CELL >= rows.columns {
                        break;
                    }
                    let mut sum = vdupq_n_f32(0.0);
                    for slot in 0..SLOTS {
                        let group = cell * SLOTS + slot;
                        let products = products_of::<SLOTS, VECTORS, BYTES, IS_SIGNED>(&blocks, words, group, unpack);
                        let (step, extra) = (&floats[2 * slot * CELLS + cell], &floats[(2 * slot + 1) * CELLS + cell]);
                        let scale = vmulq_f32(load_floats(&scales[group]), load_floats(step));
                        if has_offset {
                            let products = vsubq_s32(products, vreinterpretq_s32_f32(load_floats(extra)));
                            sum = vfmaq_f32(sum, scale, vcvtq_f32_s32(products));
                        } else {
                            sum = vfmaq_f32(sum, scale, vcvtq_f32_s32(products));
                            sum = vfmaq_f32(sum, load_floats(&biases[group]), load_floats(extra));
                        }
                    }
                    chunk = vaddq_f32(chunk, sum);
                }
                results[m] = vaddq_f32(results[m], chunk);
            }
        }
        let mut totals = [[0.0; ROWS]; M];
        for (totals, results) in totals.iter_mut().zip(results) {
            // SAFETY: the array has the size of the register.
            unsafe { vst1q_f32(totals.as_mut_ptr(), results) };
        }
        totals
    }

    /// The sums of the products of a group, one lane for each of four rows.
    fn products_of[const SLOTS: usize, const VECTORS: usize, const BYTES: usize, const IS_SIGNED: bool](
        blocks: &[&[u8; BYTES]; ROWS],
        words: &[[f32; ROWS]],
        group: usize,
        unpack: &impl Fn(uint8x16_t) -> [int8x16_t; VECTORS],
    ) -> int32x4_t {
        let zero = vdupq_n_s32(0);
        let (mut highs, mut lows, mut high_sum, mut low_sum) = ([zero; ROWS], [zero; ROWS], zero, zero);
        // Registers of bytes of a group.
        let pieces = CELL / SLOTS / (REGISTER * VECTORS);
        for piece in group * pieces..(group + 1) * pieces {
            // Bytes of the activations come in runs of 64, high ones and low ones in turn, for each register of codes.
            let (run, at) = (piece / RUN * 2 * VECTORS, piece % RUN);
            let mut codes = [[vdupq_n_s8(0); VECTORS]; ROWS];
            for row in 0..ROWS {
                codes[row] = unpack(load_at(blocks[row], piece * REGISTER));
            }
            for vector in 0..VECTORS {
                let high = load_bytes(&words[(run + 2 * vector) * RUN + at]);
                let low = load_bytes(&words[(run + 2 * vector + 1) * RUN + at]);
                for row in 0..ROWS {
                    highs[row] = dot(highs[row], codes[row][vector], high);
                    lows[row] = dot(lows[row], codes[row][vector], low);
                }
                if IS_SIGNED {
                    high_sum = dot(high_sum, vdupq_n_s8(1), high);
                    low_sum = dot(low_sum, vdupq_n_s8(1), low);
                }
            }
        }
        let products = vaddq_s32(vshlq_n_s32(across(highs), 8), across(lows));
        if !IS_SIGNED {
            return products;
        }
        let sum = vaddq_s32(vshlq_n_s32(high_sum, 8), low_sum);
        vaddq_s32(products, vdupq_n_s32(vaddvq_s32(sum) << 7))
    }

    /// The sums of the lanes of four registers.
    fn across([a, b, c, d]: [int32x4_t; ROWS]) -> int32x4_t {
        vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d))
    }

    /// Adds the products of four bytes each to the lanes of `sums`.
    fn dot(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        let mut sums = sums;
        // SAFETY: the machine has the instruction, which only reads and writes these registers.
        unsafe {
            asm!(
                "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
                sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }

    fn load(bytes: &[u8; REGISTER]) -> uint8x16_t {
        // SAFETY: the array has the size of the register.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }

    /// Sixteen bytes from `start` on.
    fn load_at[const N: usize](bytes: &[u8; N], start: usize) -> uint8x16_t {
        let bytes = &bytes[start..start + REGISTER];
        // SAFETY: the slice has the size of the register.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }

    fn load_floats(floats: &[f32; ROWS]) -> float32x4_t {
        // SAFETY: the array has the size of the register.
        unsafe { vld1q_f32(floats.as_ptr()) }
    }

    fn load_bytes(floats: &[f32; ROWS]) -> int8x16_t {
        vreinterpretq_s8_f32(load_floats(floats))
    }
}
