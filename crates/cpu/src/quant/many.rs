//! Many rows of bfloats times the transpose of quantized weights, on machines that multiply pairs of bfloats.
//!
//! The codes are packed into panels as they are, not the weights: bfloats hold them exactly. Scales come in once per group;
//! see `simd::bfloat`. A row of activations that holds something that is not finite, or only numbers so small that the
//! machine may take them for zeros, makes all its results not a number. Results that are not finite floats do again, since
//! what becomes of them depends on each single weight.

use super::{GROUPS, Packing, Weights};
use crate::finish::{Finish, Sums};
use crate::gemm::{BLOCK, Left, PASS_ROWS, Panels, STRIPE, part};
use crate::pool::{Scratch, Stripe, Workers};
use crate::simd::bfloat::{self, Bfloats, COLUMNS, ROWS, group_sums, pair};
use crate::simd::columns::are_finite;
use crate::simd::dot::dot_f32;
use crate::simd::element::Float;
use crate::simd::transpose::{AT_ONCE, transpose};
use crate::simd::{Isa, decode, prefetch, rows};
use std::ops::Range;

/// The largest of a row is at least this, unless all are zero.
const SMALLEST: f32 = 1e-25;

/// Weights whose codes are bfloats, and the instructions for them.
pub(super) struct Many<'a> {
    isa: Isa,
    bfloats: Bfloats,
    weights: &'a Weights<'a>,
    /// Weights that share a scale.
    group: usize,
}

impl<'a> Many<'a> {
    /// Nothing if the machine, the left operand or the weights are of another kind.
    pub(super) fn of(isa: Isa, left: &impl Left, weights: &'a Weights<'a>) -> Option<Self> {
        let bfloats = Bfloats::of(isa).filter(|_| left.is_bfloat())?;
        let group = match weights.packing {
            Packing::Affine { group, .. } | Packing::E2m1 { group, .. } | Packing::E4m3 { group, .. } => group,
            Packing::Gguf(_) => return None,
        };
        matches!(group, 16 | 32 | 64 | 128).then_some(Self { isa, bfloats, weights, group })
    }

    /// Writes the product, rounded once, in row-major order to `out`.
    pub(super) fn product<T: Float>(
        &self,
        workers: &mut Workers<'_>,
        m: usize,
        left: &impl Left,
        out: &mut [T],
        finish: &impl Finish,
    ) {
        let n = self.weights.rows;
        for (pass, out) in out.chunks_mut((PASS_ROWS * n).max(1)).enumerate() {
            let rows = pass * PASS_ROWS..(pass * PASS_ROWS + PASS_ROWS).min(m);
            workers.prepared(|shared, workers| {
                let [packed] = shared.floats([rows.len().div_ceil(ROWS) * self.panel_len()]);
                workers.chunks(packed, self.panel_len(), |panel, packed, scratch| {
                    let start = rows.start + panel * ROWS;
                    self.pack_left(left, start..(start + ROWS).min(rows.end), packed, scratch);
                });
                let packed = &*packed;
                let width = workers.stripe_width(n, COLUMNS, STRIPE);
                workers.stripes(out, n, width, |_, stripe, scratch| {
                    self.stripe((left, rows.start), packed, stripe, scratch, finish);
                });
            });
        }
    }

    /// Floats of a panel of the left operand: pairs, and sums of groups.
    fn panel_len(&self) -> usize {
        ROWS * self.weights.columns / 2 + ROWS * self.weights.columns / self.group
    }

    /// The left operand of a tile, of a block of `k`.
    fn left<'p>(&self, panel: &'p [f32], k: &Range<usize>) -> bfloat::Left<'p> {
        let (words, sums) = panel.split_at(ROWS * self.weights.columns / 2);
        let range = |share: usize| ROWS * k.start / share..ROWS * k.end / share;
        bfloat::Left { words: part(words, range(2)), sums: part(sums, range(self.group)) }
    }

    fn pack_left(&self, left: &impl Left, rows: Range<usize>, packed: &mut [f32], scratch: &mut Scratch) {
        let k = self.weights.columns;
        let [line, lines] = scratch.floats([k, ROWS * k / 2]);
        if rows.len() < ROWS {
            packed.fill(0.0);
        }
        let (words, sums) = packed.split_at_mut(ROWS * k / 2);
        for ((row, pairs), at) in rows.clone().zip(lines.chunks_exact_mut(k / 2)).zip(0..) {
            left.row(self.isa, row, 0..k, line);
            pair(self.isa, line, pairs);
            let sums = sums.split_at_mut(at).1;
            group_sums(self.isa, line, self.group, sums, ROWS);
            let most = rows::largest(self.isa, line).max(-rows::smallest(self.isa, line));
            if !most.is_finite() || most != 0.0 && most < SMALLEST {
                sums.iter_mut().step_by(ROWS).for_each(|sum| *sum = f32::NAN);
            }
        }
        transpose(self.isa, part(lines, 0..rows.len() * k / 2), k / 2, words, ROWS);
    }

    /// Some columns of the product.
    fn stripe<T: Float>(
        &self,
        (left, first_row): (&impl Left, usize),
        packed: &[f32],
        stripe: &mut Stripe<'_, T>,
        scratch: &mut Scratch,
        finish: &impl Finish,
    ) {
        let mut registers = std::mem::take(&mut scratch.registers);
        finish.begin(self.isa, &mut registers);
        let (k, width) = (self.weights.columns, stripe.width());
        let (padded, depth) = (width.next_multiple_of(COLUMNS), BLOCK.min(k));
        let [words, factors, sums, temporary, line] = scratch.floats([
            padded * depth / 2,
            2 * padded * depth / self.group,
            stripe.rows().next_multiple_of(ROWS) * padded,
            AT_ONCE * depth / 2,
            2 * k,
        ]);
        sums.fill(0.0);
        let columns = stripe.start()..stripe.start() + width;
        for start in (0..k).step_by(BLOCK) {
            let block = start..k.min(start + BLOCK);
            let [words_len, factors_len] = [COLUMNS * block.len() / 2, 2 * COLUMNS * block.len() / self.group];
            let words = words.split_at_mut(padded / COLUMNS * words_len).0;
            let factors = factors.split_at_mut(padded / COLUMNS * factors_len).0;
            self.pack_right(&block, &columns, words, factors, temporary, line);
            for (left, sums) in packed.chunks_exact(self.panel_len()).zip(sums.chunks_exact_mut(ROWS * padded)) {
                let left = self.left(left, &block);
                let rights = words.chunks_exact(words_len).zip(factors.chunks_exact(factors_len));
                for (number, (words, factors)) in rights.enumerate() {
                    let (right, sums) = (bfloat::Right { words, factors }, sums.split_at_mut(number * COLUMNS).1);
                    self.bfloats.multiply(left, right, self.group / 2, sums, padded);
                }
            }
        }
        if !are_finite(self.isa, sums) {
            self.repair(left, first_row..first_row + stripe.rows(), columns, (sums, padded), line);
        }
        finish.store(self.isa, first_row, Sums { floats: sums, stride: padded }, stripe, &mut registers);
        scratch.registers = registers;
    }

    /// Packs a block of some columns: pairs of codes as `[panel][pair][column]`, factors as `[panel][group][kind][column]`.
    fn pack_right(
        &self,
        block: &Range<usize>,
        columns: &Range<usize>,
        words: &mut [f32],
        factors: &mut [f32],
        temporary: &mut [f32],
        line: &mut [f32],
    ) {
        let (depth, groups) = (block.len() / 2, block.len() / self.group);
        if !columns.len().is_multiple_of(COLUMNS) {
            words.fill(0.0);
            factors.fill(0.0);
        }
        let line = line.split_at_mut(block.len()).0;
        let mut panels = Panels::new(words, depth, COLUMNS);
        for first in columns.clone().step_by(AT_ONCE) {
            let rows = first..columns.end.min(first + AT_ONCE);
            let pairs = temporary.split_at_mut(rows.len() * depth).0;
            for (row, pairs) in rows.zip(pairs.chunks_exact_mut(depth.max(1))) {
                self.weights.decode_codes(self.isa, row, block.start / self.group, line);
                prefetch(self.weights.codes_after(row, block.clone()));
                pair(self.isa, line, pairs);
                let (panel, column) = ((row - columns.start) / COLUMNS, (row - columns.start) % COLUMNS);
                let factors = factors.split_at_mut(panel * 2 * COLUMNS * groups + column).1;
                let factors = factors.chunks_mut(COLUMNS).map(|kind| kind.split_at_mut(1).0);
                self.weights.factors(row, block.start / self.group..block.end / self.group, factors.flatten());
            }
            panels.columns(self.isa, first - columns.start, pairs);
        }
    }

    /// Computes what is not finite again, in floats.
    fn repair(
        &self,
        left: &impl Left,
        rows: Range<usize>,
        columns: Range<usize>,
        (sums, padded): (&mut [f32], usize),
        line: &mut [f32],
    ) {
        let k = self.weights.columns;
        let (decoded, x) = line.split_at_mut(k);
        for (at, column) in columns.enumerate() {
            let cells = || sums.iter().skip(at).step_by(padded).take(rows.len());
            if cells().all(|sum| sum.is_finite()) {
                continue;
            }
            self.weights.decode(self.isa, column, 0, decoded);
            for (row, sum) in rows.clone().zip(sums.iter_mut().skip(at).step_by(padded)) {
                if !sum.is_finite() {
                    left.row(self.isa, row, 0..k, x);
                    *sum = dot_f32(self.isa, x, decoded);
                }
            }
        }
    }
}

impl Weights<'_> {
    /// What codes are counted from, so that most sums of products with them are small.
    fn middle(&self) -> f32 {
        match self.packing {
            Packing::Affine { bits, .. } => f32::from(1_u8 << bits.saturating_sub(1).min(7)),
            Packing::E2m1 { .. } | Packing::E4m3 { .. } | Packing::Gguf(_) => 0.0,
        }
    }

    /// Writes the codes of whole groups of a row, from some group on, as numbers.
    fn decode_codes(&self, isa: Isa, row: usize, first: usize, to: &mut [f32]) {
        let (group, ones, middle) = (self.unit(), [1.0; GROUPS], [-self.middle(); GROUPS]);
        for (number, to) in to.chunks_mut(GROUPS * group).enumerate() {
            let codes = self.codes_of(row, first + number * GROUPS, to.len() / group);
            match self.packing {
                Packing::Affine { bits, .. } => decode::affine(isa, codes, bits, group, &ones, &middle, to),
                Packing::E2m1 { .. } => decode::e2m1(isa, codes, group, &ones, to),
                Packing::E4m3 { .. } => decode::e4m3(isa, codes, group, &ones, to),
                Packing::Gguf(_) => {}
            }
        }
    }

    /// Of some groups of a row, what the sum of codes times activations is multiplied with, and what that of activations.
    fn factors<'t>(&self, row: usize, groups: Range<usize>, mut to: impl Iterator<Item = &'t mut f32>) {
        for group in groups {
            let (mut scale, mut bias) = ([0.0], [0.0]);
            match self.packing {
                Packing::Affine { scales, biases, .. } => {
                    scales.widen(row, group, &mut scale);
                    biases.into_iter().for_each(|biases| biases.widen(row, group, &mut bias));
                }
                Packing::E2m1 { scales, .. } | Packing::E4m3 { scales, .. } => scales.widen(row, group, &mut scale),
                Packing::Gguf(_) => {}
            }
            let ([scale], [bias]) = (scale, bias);
            let factors = [scale, self.middle().mul_add(scale, bias)];
            factors.into_iter().zip(to.by_ref()).for_each(|(factor, to)| *to = factor);
        }
    }
}
