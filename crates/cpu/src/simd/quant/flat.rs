//! One row of activations times rows of weights that follow each other in memory without gaps: one long run of cells, sixteen of
//! which are computed at a time, whatever rows they belong to.
#![allow(unsafe_code, reason = "the call into a version for one instruction set")]
#![allow(
    clippy::indexing_slicing,
    reason = "of tables of the size of the layout, and of rows that were found to be there"
)]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_variables, reason = "other architectures have no such instructions here yet")
)]

use super::activation::{CELL, Order, Quantized, arrange_integers};
use crate::quant::{Packing, Scales, Weights};
use crate::simd::{Isa, Level};
use std::ops::Range;

/// Cells that are computed at a time, and rows whose cells are added at a time.
pub(crate) const LANES: usize = 16;

/// Scales or biases of 16 bits, of rows that follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlatFactors<'a> {
    pub(super) bits: &'a [u16],
    /// `true` for bfloats, `false` for halves.
    pub(super) is_bfloat: bool,
}

impl<'a> FlatFactors<'a> {
    fn of(scales: &Scales<'a>, rows: usize, groups: usize) -> Option<Self> {
        let (stored, is_bfloat) = scales.short()?;
        Some(Self { bits: stored.run(rows, groups)?, is_bfloat })
    }

    fn part(self, rows: &Range<usize>, groups: usize) -> Self {
        Self { bits: &self.bits[rows.start * groups..rows.end * groups], ..self }
    }
}

/// Rows of weights that follow each other. Having a value is the proof that the machine has the instructions to multiply them:
/// AVX-512 with VNNI and permutations of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlatWeights<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scales: FlatFactors<'a>,
    pub(super) biases: Option<FlatFactors<'a>>,
    pub(super) layout: FlatLayout,
    row_bytes: usize,
}

/// The layout of a row of activations.
///
/// First come the registers of `Order::Bytes`, in sets for a register of packed codes. The row starts again after its end, until
/// sixteen cells from any set on follow each other. Then come the steps of the first groups of cells, the steps times the sums of
/// these groups, and the same for the second groups; here, too, the row starts again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlatLayout {
    /// Cells of a row.
    pub(super) cells: usize,
    /// Cells of a register of packed codes: 1 or 2.
    pub(super) vectors: usize,
    /// Groups of a cell: 1 or 2.
    pub(super) slots: usize,
}

/// A row of activations, quantized and laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlatTable<'a> {
    pub(super) registers: &'a [[f32; LANES]],
    pub(super) factors: &'a [f32],
}

impl FlatLayout {
    /// Sets after which the row starts again with the first cell of a set.
    pub(super) fn period(self) -> usize {
        if self.cells.is_multiple_of(self.vectors) { self.cells / self.vectors } else { self.cells }
    }

    /// Floats of the registers.
    fn register_floats(self) -> usize {
        (self.period() + LANES / self.vectors - 1) * self.vectors * CELL / 2
    }

    /// Steps of the first groups of cells.
    pub(super) fn steps(self) -> usize {
        self.cells + LANES - 1
    }

    /// Floats of a table.
    pub(crate) fn floats(self) -> usize {
        self.register_floats() + 2 * self.slots * self.steps()
    }

    /// Floats of memory that products need: the cells of sixteen rows.
    pub(crate) fn memory(self) -> usize {
        LANES * self.cells
    }

    /// Writes a quantized row.
    pub(crate) fn arrange(self, isa: Isa, row: &Quantized<'_>, to: &mut [f32]) {
        let order = Order::Bytes { vectors: self.vectors };
        let (registers, factors) = to.split_at_mut(self.register_floats());
        let words: &mut [i16] = bytemuck::cast_slice_mut(registers);
        let whole = row.integers.len() / (self.vectors * CELL) * self.vectors * CELL;
        let (before, after) = row.integers.split_at(whole);
        arrange_integers(isa, before, order, &mut words[..whole]);
        if !after.is_empty() {
            // The last cell shares a set with the first.
            let mut pair = [0; 2 * CELL];
            pair[..CELL].copy_from_slice(after);
            pair[CELL..].copy_from_slice(&row.integers[..CELL]);
            arrange_integers(isa, &pair, order, &mut words[whole..whole + 2 * CELL]);
            arrange_integers(isa, &row.integers[CELL..], order, &mut words[whole + 2 * CELL..2 * (whole + CELL)]);
        }
        let mut filled = self.period() * self.vectors * CELL;
        while filled < words.len() {
            let count = filled.min(words.len() - filled);
            words.copy_within(..count, filled);
            filled += count;
        }
        for (slot, floats) in factors.chunks_exact_mut(2 * self.steps()).enumerate() {
            let (steps, sums) = floats.split_at_mut(self.steps());
            for cell in 0..self.cells {
                let group = cell * self.slots + slot;
                (steps[cell], sums[cell]) = (row.steps[group], row.steps[group] * row.sums[group] as f32);
            }
            for cell in self.cells..self.steps() {
                (steps[cell], sums[cell]) = (steps[cell - self.cells], sums[cell - self.cells]);
            }
        }
    }

    /// A table that [`FlatLayout::arrange`] has written.
    pub(crate) fn table(self, floats: &[f32]) -> FlatTable<'_> {
        let (registers, factors) = floats.split_at(self.register_floats());
        FlatTable { registers: registers.as_chunks().0, factors }
    }
}

impl<'a> FlatWeights<'a> {
    /// Returns `None` if rows do not follow each other, or there are no instructions for their format. Activations have groups of
    /// `group`.
    pub(crate) fn of(isa: Isa, weights: &Weights<'a>, group: usize) -> Option<Self> {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx if is_x86_feature_detected!("avx512vbmi") => {}
            _ => return None,
        }
        let Packing::Affine { bits: bits @ (4 | 8), group: stored, scales, biases } = &weights.packing else {
            return None;
        };
        let (rows, columns, row_bytes) = (weights.rows, weights.columns, weights.row_bytes());
        if *stored != group || group < CELL / 2 || !columns.is_multiple_of(CELL) || columns == 0 {
            return None;
        }
        let layout = FlatLayout { cells: columns / CELL, vectors: usize::from(8 / bits), slots: CELL / group };
        let biases = match biases {
            Some(biases) => Some(FlatFactors::of(biases, rows, columns / group)?),
            None => None,
        };
        let scales = FlatFactors::of(scales, rows, columns / group)?;
        Some(Self { codes: weights.codes.run(rows, row_bytes)?, scales, biases, layout, row_bytes })
    }

    pub(crate) fn layout(&self) -> FlatLayout {
        self.layout
    }

    /// Writes the products of some rows. `memory` has the floats that the layout says.
    pub(crate) fn products(&self, rows: Range<usize>, x: FlatTable<'_>, memory: &mut [f32], sums: &mut [f32]) {
        let groups = self.layout.cells * self.layout.slots;
        let part = Self {
            codes: &self.codes[rows.start * self.row_bytes..rows.end * self.row_bytes],
            scales: self.scales.part(&rows, groups),
            biases: self.biases.map(|biases| biases.part(&rows, groups)),
            ..*self
        };
        // SAFETY: weights of this kind exist only on machines that have the instructions.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            super::vnni::flat::products(&part, x, memory, sums);
        }
    }
}
