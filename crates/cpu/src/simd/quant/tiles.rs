//! Products of bytes in tiles: sums are exact within a group, and floats from there on; `docs/ARITHMETIC.md`, "QuantMatMul".
//!
//! A unit of the machine multiplies 32 rows of codes with 16 rows of activations, each of which is two bytes, `256 * high + low`,
//! and stores a sum for each of these. The two are joined in integers, and become floats as in `panel.rs`.
//!
//! ```text
//! activations   [group][high, low][column / 4][row][column % 4]   bytes of 16 rows
//!               [group][step, sum][row]                           floats
//! codes         [chunk][row][column]                              bytes of 32 rows, for each chunk followed by
//!               [row][group]                                      the scales, and as many biases
//! sums          [row of codes][row of activations]
//! ```
#![allow(unsafe_code, reason = "calls into versions for one instruction set")]
#![allow(clippy::indexing_slicing, reason = "of slices whose lengths are checked before, by counters of loops")]

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
    let session = unsafe { super::amx::Session::new(codes.group, codes.is_signed) };
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
    let blocks = codes.floats.chunks_exact(code_floats(columns, group).max(1));
    for (floats, sums) in blocks.zip(sums.as_chunks_mut::<{ ROWS * SIDE }>().0) {
        let stride = CHUNK.min(columns - start);
        let (bytes, factors) = floats[code_floats(start, group)..].split_at(ROWS * stride / 4);
        let (scales, biases) = factors.split_at(ROWS * (stride / group));
        let bytes: &[u8] = bytemuck::cast_slice(bytes);
        let AlignedSums(chunk) = &mut AlignedSums([0.0; ROWS * SIDE]);
        for column in (0..stride).step_by(CELL) {
            let (groups, first) = (CELL.min(stride - column) / group, column / group);
            let words = &left.words[SIDE / 2 * (start + column)..];
            unit.products(&bytes[column..], stride, words, groups, products);
            let cell = Cell {
                products,
                factors: &left.factors[2 * SIDE * (start / group + first)..],
                scales: &scales[first..],
                biases: &biases[first..],
                stride: stride / group,
            };
            match groups {
                1 => add::<R, 1>(register, &cell, chunk),
                2 => add::<R, 2>(register, &cell, chunk),
                3 => add::<R, 3>(register, &cell, chunk),
                _ => add::<R, 4>(register, &cell, chunk),
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

/// A cell of 32 rows of codes and 16 of activations; the last of a row may have fewer groups than others.
struct Cell<'a> {
    /// The products of each group.
    products: &'a [f32; MEMORY],
    /// Steps and sums of the activations.
    factors: &'a [f32],
    /// The scales of the first row, and of others `stride` apart.
    scales: &'a [f32],
    biases: &'a [f32],
    stride: usize,
}

/// Adds a cell of `GROUPS` groups to the sums of its chunk.
#[inline(always)]
fn add<R: Register, const GROUPS: usize>(register: R, cell: &Cell<'_>, chunk: &mut [f32; ROWS * SIDE]) {
    let Cell { products, scales, biases, stride, .. } = *cell;
    let factors = &cell.factors[..2 * SIDE * GROUPS];
    for part in (0..SIDE).step_by(R::LANES) {
        let mut rows = [[register.splat(0.0); 2]; GROUPS];
        for (group, rows) in rows.iter_mut().enumerate() {
            let factors = &factors[2 * SIDE * group + part..];
            *rows = [register.load(factors), register.load(&factors[SIDE..])];
        }
        for row in 0..ROWS {
            let mut total = register.splat(0.0);
            let (scales, biases) = (&scales[row * stride..][..GROUPS], &biases[row * stride..][..GROUPS]);
            for (group, [step, sum]) in rows.iter().enumerate() {
                let at = group * PRODUCTS + row / SIDE * (2 * SIDE * SIDE) + row % SIDE * SIDE + part;
                let high = register.bits(register.load(&products[at..at + R::LANES]));
                let low = register.bits(register.load(&products[at + SIDE * SIDE..at + SIDE * SIDE + R::LANES]));
                let product = register.to_floats(register.join(high, low));
                let scale = register.multiply(register.splat(scales[group]), *step);
                total = register.multiply_add(scale, product, total);
                total = register.multiply_add(register.splat(biases[group]), *sum, total);
            }
            let chunk = &mut chunk[row * SIDE + part..][..R::LANES];
            register.store(register.add(register.load(chunk), total), chunk);
        }
    }
}

#[cfg(test)]
mod tests;
