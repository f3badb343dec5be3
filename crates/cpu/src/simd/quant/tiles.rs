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
/// Floats of memory that [`Tiles::multiply`] needs: the products of two cells.
pub(crate) const MEMORY: usize = 2 * CELL / 16 * PRODUCTS;

/// A unit that multiplies tiles, ready for use by this thread.
pub(crate) trait Unit {
    /// Writes the products of a group: of 32 rows of codes, which start `stride` bytes apart, and 16 rows of activations.
    fn products(&self, codes: &[u8], stride: usize, x: &[f32], to: &mut [f32; PRODUCTS]);
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

/// Codes of 32 rows, and their factors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes<'a> {
    /// All chunks: see the head of the file.
    pub(crate) floats: &'a [f32],
    pub(crate) columns: usize,
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

    /// Writes the products of 16 rows of activations with several times 32 rows of codes, to `[row of codes][row of activations]`.
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
    let (memory, _) = memory.as_chunks_mut::<{ MEMORY / 2 }>();
    let [memory, next, ..] = memory else { return };
    let blocks = codes.floats.chunks_exact(code_floats(codes.columns, codes.group).max(1));
    for (floats, sums) in blocks.zip(sums.as_chunks_mut::<{ ROWS * SIDE }>().0) {
        sums.fill(0.0);
        let mut cells = Cells { left, codes: Codes { floats, ..codes }, column: 0 };
        let mut cell = cells.next();
        if let Some(cell) = &cell {
            cell.products(unit, memory);
        }
        let (mut products, mut others) = (&mut *memory, &mut *next);
        let AlignedSums(chunk) = &mut AlignedSums([0.0; ROWS * SIDE]);
        // The unit multiplies the next cell while floats of this one are computed.
        while let Some(this) = cell {
            cell = cells.next();
            if let Some(next) = &cell {
                next.products(unit, others);
            }
            match this.groups {
                1 => add::<R, 1>(register, &this, products, chunk),
                2 => add::<R, 2>(register, &this, products, chunk),
                3 => add::<R, 3>(register, &this, products, chunk),
                _ => add::<R, 4>(register, &this, products, chunk),
            }
            if this.ends_chunk {
                for (sums, chunk) in sums.chunks_exact_mut(R::LANES).zip(chunk.chunks_exact_mut(R::LANES)) {
                    register.store(register.add(register.load(sums), register.load(chunk)), sums);
                    register.store(register.splat(0.0), chunk);
                }
            }
            std::mem::swap(&mut products, &mut others);
        }
    }
}

/// Sums that no load or store splits between two lines of the cache.
#[repr(align(64))]
struct AlignedSums([f32; ROWS * SIDE]);

/// The cells of 32 rows of codes and 16 of activations, in ascending order.
struct Cells<'a> {
    left: Panel<'a>,
    codes: Codes<'a>,
    /// The first column of the next cell.
    column: usize,
}

/// A cell; the last may have fewer groups than others.
struct Cell<'a> {
    group: usize,
    groups: usize,
    /// Bytes of the first row of codes from this cell on, and of others `stride` apart.
    bytes: &'a [u8],
    stride: usize,
    /// The same of scales and biases.
    scales: &'a [f32],
    biases: &'a [f32],
    /// Activations, and their factors.
    words: &'a [f32],
    factors: &'a [f32],
    ends_chunk: bool,
}

impl<'a> Cells<'a> {
    #[inline(always)]
    fn next(&mut self) -> Option<Cell<'a>> {
        let Codes { columns, group, floats, .. } = self.codes;
        let column = self.column;
        if column >= columns {
            return None;
        }
        self.column = columns.min(column + CELL);
        let start = column / CHUNK * CHUNK;
        let stride = CHUNK.min(columns - start);
        let (bytes, factors) = floats[code_floats(start, group)..].split_at(ROWS * stride / 4);
        let (scales, biases) = factors.split_at(ROWS * (stride / group));
        let (first, biases) = ((column - start) / group, &biases[..ROWS * (stride / group)]);
        Some(Cell {
            group,
            groups: (self.column - column) / group,
            bytes: &bytemuck::cast_slice(bytes)[column - start..],
            stride,
            scales: &scales[first..],
            biases: &biases[first..],
            words: &self.left.words[SIDE / 2 * column..],
            factors: &self.left.factors[2 * SIDE * (column / group)..],
            ends_chunk: self.column == start + stride,
        })
    }
}

impl Cell<'_> {
    /// Writes the products of all groups.
    #[inline(always)]
    fn products(&self, unit: &impl Unit, to: &mut [f32; MEMORY / 2]) {
        let to = to.as_chunks_mut::<PRODUCTS>().0.iter_mut().take(self.groups);
        for (number, to) in to.enumerate() {
            let (bytes, words) = (&self.bytes[number * self.group..], &self.words[SIDE / 2 * self.group * number..]);
            unit.products(bytes, self.stride, words, to);
        }
    }
}

/// Adds a cell of `GROUPS` groups to the sums of its chunk.
#[inline(always)]
fn add<R: Register, const GROUPS: usize>(
    register: R,
    cell: &Cell<'_>,
    products: &[f32; MEMORY / 2],
    chunk: &mut [f32; ROWS * SIDE],
) {
    let count = cell.stride / cell.group;
    let (scales, biases) = (cell.scales, cell.biases);
    assert!(scales.len() >= (ROWS - 1) * count + GROUPS && biases.len() >= (ROWS - 1) * count + GROUPS);
    let factors = &cell.factors[..2 * SIDE * GROUPS];
    for part in (0..SIDE).step_by(R::LANES) {
        let mut rows = [[register.splat(0.0); 2]; GROUPS];
        for (group, rows) in rows.iter_mut().enumerate() {
            let factors = &factors[2 * SIDE * group + part..];
            *rows = [register.load(factors), register.load(&factors[SIDE..])];
        }
        for row in 0..ROWS {
            let mut total = register.splat(0.0);
            for (group, [step, sum]) in rows.iter().enumerate() {
                let at = group * PRODUCTS + row / SIDE * (2 * SIDE * SIDE) + row % SIDE * SIDE + part;
                let high = register.bits(register.load(&products[at..at + R::LANES]));
                let low = register.bits(register.load(&products[at + SIDE * SIDE..at + SIDE * SIDE + R::LANES]));
                let product = register.to_floats(register.join(high, low));
                let scale = register.multiply(register.splat(scales[row * count + group]), *step);
                total = register.multiply_add(scale, product, total);
                total = register.multiply_add(register.splat(biases[row * count + group]), *sum, total);
            }
            let chunk = &mut chunk[row * SIDE + part..][..R::LANES];
            register.store(register.add(register.load(chunk), total), chunk);
        }
    }
}

#[cfg(test)]
mod tests;
