//! Products of bytes in tiles: sums are exact within a group, and floats from there on; `docs/ARITHMETIC.md`, "QuantMatMul".
//!
//! A unit of the machine multiplies 32 rows of codes with 16 rows of activations, each of which is two bytes, `256 * high + low`,
//! and stores a sum for each of these. The two are joined in integers, and become floats as in `panel.rs`.
//!
//! ```text
//! activations   [group][high, low][column / 4][row][column % 4]   bytes of 16 rows
//!               [group][step, sum][row]                           floats
//! codes         [chunk][row][column]                              bytes of 32 rows, for each chunk followed by
//!               [cell][row][group of the cell][scale, bias]       floats
//! sums          [row of codes][row of activations]
//! ```
#![allow(unsafe_code, reason = "calls into versions for one instruction set")]
#![allow(clippy::indexing_slicing, reason = "of slices whose lengths are checked before, by counters of loops")]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_variables, reason = "other architectures have no tiles")
)]

use super::activation::{CELL, CHUNK};
use super::panel::Panel;
use crate::simd::Isa;
#[cfg(test)]
use crate::simd::lanes::Plain;
use crate::simd::lanes::Register;

/// Rows of a tile, and columns of a tile of sums.
pub(crate) const SIDE: usize = 16;
/// Rows of codes that are multiplied together.
pub(crate) const ROWS: usize = 2 * SIDE;
/// Sums of two tiles of codes and both bytes of activations: `[tile][high, low][row of codes][row of activations]`.
pub(crate) const PRODUCTS: usize = 4 * SIDE * SIDE;
/// Floats of memory that [`Tiles::multiply`] needs: the products of a cell.
pub(crate) const MEMORY: usize = CELL / 16 * PRODUCTS;

/// A unit that multiplies tiles, ready for use by this thread.
pub(crate) trait Unit {
    /// Writes the products of up to four groups: of 32 rows of codes, which start `stride` bytes apart, and 16 rows of activations.
    fn products(&self, codes: &[u8], stride: usize, x: &[f32], groups: usize, to: &mut [f32; MEMORY]);
}

/// A machine with such a unit; having a value is the proof.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles(Kind);

#[derive(Clone, Copy, Debug)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(test)]
    Plain(Isa),
}

/// A chunk of codes of several times 32 rows, and of their factors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes<'a> {
    /// All chunks: see the head of the file.
    pub(crate) floats: &'a [f32],
    pub(crate) columns: usize,
    /// The first column of the chunk.
    pub(crate) start: usize,
    pub(crate) group: usize,
    /// `true` if bytes have a sign.
    pub(crate) is_signed: bool,
}

/// Floats of 32 rows of codes and their factors.
pub(crate) fn code_floats(columns: usize, group: usize) -> usize {
    ROWS * (columns / 4 + 2 * (columns / group))
}

impl Tiles {
    pub(crate) fn of(isa: Isa) -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if isa.has_tiles() {
            return Some(Self(Kind::Amx));
        }
        let _ = isa;
        None
    }

    /// Plain code in place of tiles, for tests.
    #[cfg(test)]
    pub(crate) fn plain(isa: Isa) -> Self {
        Self(Kind::Plain(isa))
    }

    /// Adds the products of a chunk of 16 rows of activations and of several times 32 rows of codes to
    /// `[row of codes][row of activations]`.
    pub(crate) fn multiply(self, left: Panel<'_>, codes: Codes<'_>, memory: &mut [f32], sums: &mut [f32]) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this kind exists only on machines that have tiles, and AVX-512 too.
            Kind::Amx => unsafe { amx(left, codes, memory, sums) },
            #[cfg(test)]
            Kind::Plain(isa) => {
                let unit = &tests::PlainUnit { group: codes.group, is_signed: codes.is_signed };
                by_level!(
                    isa,
                    multiply_with(Plain, unit, left, codes, memory, sums),
                    tests::avx2(unit, left, codes, memory, sums),
                    tests::avx512(unit, left, codes, memory, sums)
                );
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2")]
fn amx(left: Panel<'_>, codes: Codes<'_>, memory: &mut [f32], sums: &mut [f32]) {
    // SAFETY: called only on machines that have tiles; and the only session of this thread, since it ends with this function,
    // which calls no other that has one.
    let session = unsafe { super::amx::ConfiguredTiles::new(codes.group, codes.is_signed) };
    multiply_with(crate::simd::lanes::x86::Avx512::new(), &session, left, codes, memory, sums);
}

/// [`Tiles::multiply`] with the registers of an instruction set. It must be inlined, so that it is compiled for it.
#[inline(always)]
fn multiply_with<R: Register>(
    register: R,
    unit: &impl Unit,
    left: Panel<'_>,
    codes: Codes<'_>,
    memory: &mut [f32],
    sums: &mut [f32],
) {
    let Some(products) = memory.first_chunk_mut::<MEMORY>() else { return };
    let Codes { columns, group, start, .. } = codes;
    let (length, slots) = (CHUNK.min(columns - start), CELL / group);
    let (words, steps) = (&left.words[SIDE / 2 * start..], &left.factors[2 * SIDE * (start / group)..]);
    let blocks = codes.floats.chunks_exact(code_floats(columns, group).max(1));
    for (floats, sums) in blocks.zip(sums.as_chunks_mut::<{ ROWS * SIDE }>().0) {
        let (bytes, factors) = floats[code_floats(start, group)..].split_at(ROWS * length / 4);
        let bytes: &[u8] = bytemuck::cast_slice(bytes);
        let AlignedSums(chunk) = &mut AlignedSums([0.0; ROWS * SIDE]);
        for (cell, column) in (0..length).step_by(CELL).enumerate() {
            let groups = slots.min(length / group - cell * slots);
            unit.products(&bytes[column..], length, &words[SIDE / 2 * column..], groups, products);
            let (factors, steps) = (&factors[2 * ROWS * slots * cell..], &steps[2 * SIDE * slots * cell..]);
            match groups {
                1 => add::<R, 1>(register, products, steps, factors, chunk),
                2 => add::<R, 2>(register, products, steps, factors, chunk),
                3 => add::<R, 3>(register, products, steps, factors, chunk),
                _ => add::<R, 4>(register, products, steps, factors, chunk),
            }
        }
        for (sums, chunk) in sums.chunks_exact_mut(R::LANES).zip(chunk.chunks_exact(R::LANES)) {
            register.store(register.add(register.load(sums), register.load(chunk)), sums);
        }
    }
}

/// Sums that no load or store splits between two lines of the cache.
#[repr(align(64))]
struct AlignedSums([f32; ROWS * SIDE]);

/// Adds a cell of `GROUPS` groups to the sums of its chunk.
#[inline(always)]
fn add<R: Register, const GROUPS: usize>(
    register: R,
    products: &[f32; MEMORY],
    steps: &[f32],
    factors: &[f32],
    chunk: &mut [f32; ROWS * SIDE],
) {
    let products: &[[[[[f32; SIDE]; SIDE]; 2]; 2]; CELL / 16] = bytemuck::cast_ref(products);
    let tiles = chunk.as_chunks_mut::<SIDE>().0.as_chunks_mut::<SIDE>().0;
    let factors = factors.as_chunks::<2>().0.as_chunks::<GROUPS>().0.as_chunks::<SIDE>().0;
    for part in (0..SIDE).step_by(R::LANES) {
        let mut lanes = [[register.splat(0.0); 2]; GROUPS];
        for (lanes, rows) in lanes.iter_mut().zip(steps.as_chunks::<SIDE>().0.as_chunks::<2>().0) {
            *lanes = [register.load(&rows[0][part..]), register.load(&rows[1][part..])];
        }
        for ((tile, chunk), factors) in tiles.iter_mut().enumerate().zip(factors) {
            for ((row, chunk), factors) in chunk.iter_mut().enumerate().zip(factors) {
                let mut total = register.splat(0.0);
                for group in 0..GROUPS {
                    let ([high, low], [step, sum], [scale, bias]) =
                        (&products[group][tile], lanes[group], factors[group]);
                    let (high, low) = (register.load(&high[row][part..]), register.load(&low[row][part..]));
                    let product = register.to_floats(register.join(register.bits(high), register.bits(low)));
                    let scale = register.multiply(register.splat(scale), step);
                    total = register.multiply_add(scale, product, total);
                    total = register.multiply_add(register.splat(bias), sum, total);
                }
                let chunk = &mut chunk[part..];
                register.store(register.add(register.load(chunk), total), chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests;
