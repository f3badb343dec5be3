//! Rows of activations as integers, for products with codes that are integers too; `docs/ARITHMETIC.md`, "QuantMatMul".
//!
//! [`quantize`] writes them in the order of the row. Kernels that read codes where they lie need them in the order in which
//! codes unpack: [`arrange`] writes a table of blocks of whole cells. A block holds the integers, and then, for each group of a
//! cell, the steps of that group in all cells of the block, four lanes each, and their sums (see [`Sums`]).
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]

use crate::simd::Isa;

#[cfg(target_arch = "x86_64")]
mod x86;

/// Columns whose products are added up to one float, before the floats of cells are added.
pub(crate) const CELL: usize = 64;
/// Columns of four cells.
pub(crate) const CHUNK: usize = 4 * CELL;
/// Rows of weights that kernels take together; each has a lane.
pub(crate) const ROWS: usize = 4;
/// The largest magnitude.
const LARGEST: f32 = 32639.0;
/// Groups whose elements are all smaller become zeros: 2^-96.
const SMALLEST: f32 = 1.262_177_4e-29;
/// Added to a float below 2^22, it leaves the nearest integer in the lower bits.
const ROUNDER: f32 = 1.5 * 8_388_608.0;

/// A quantized row: an integer for each element, and a step and a sum for each group.
#[derive(Debug)]
pub(crate) struct Quantized<'a> {
    pub(crate) integers: &'a mut [i16],
    pub(crate) steps: &'a mut [f32],
    pub(crate) sums: &'a mut [i32],
}

#[allow(clippy::cast_possible_truncation, reason = "at most 32639")]
fn quantize_groups<const GROUP: usize>(x: &[f32], to: Quantized<'_>) {
    let groups = x.as_chunks::<GROUP>().0.iter().zip(to.integers.as_chunks_mut::<GROUP>().0);
    for ((x, integers), (step, sum)) in groups.zip(to.steps.iter_mut().zip(to.sums)) {
        let mut largest = 0;
        for x in x {
            largest = largest.max(x.to_bits() & 0x7FFF_FFFF);
        }
        // As bits, what is not finite is larger than all that is.
        let size = f32::from_bits(largest);
        if !size.is_finite() {
            integers.fill(0);
            (*step, *sum) = (f32::NAN, 0);
            continue;
        }
        let inverse = if size < SMALLEST { 0.0 } else { LARGEST / size };
        let mut total = 0_i32;
        for at in 0..GROUP {
            let integer = (x[at] * inverse + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed();
            total = total.wrapping_add(integer);
            integers[at] = integer as i16;
        }
        (*step, *sum) = (if size < SMALLEST { 0.0 } else { size * (1.0 / LARGEST) }, total);
    }
}

/// Quantizes a row of whole groups of 16, 32 or 64.
#[allow(unsafe_code, reason = "the call into a version for one instruction set")]
pub(crate) fn quantize(isa: Isa, x: &[f32], group: usize, to: Quantized<'_>) {
    macro_rules! version {
        ($group:literal) => {
            by_level!(
                isa,
                quantize_groups::<$group>(x, to),
                x86::quantize::<$group>(x, to),
                x86::quantize::<$group>(x, to)
            )
        };
    }
    match group {
        16 => version!(16),
        32 => version!(32),
        _ => version!(64),
    }
}

kernel! {
    /// The rounding errors of [`quantize`]: what a row exceeds its quantized elements by.
    pub(crate) fn residual(x: &[f32], group: usize, integers: &[i16], steps: &[f32], to: &mut [f32]) {
        let groups = x.chunks_exact(group).zip(integers.chunks_exact(group)).zip(to.chunks_exact_mut(group));
        for (((x, integers), to), step) in groups.zip(steps) {
            for at in 0..group {
                to[at] = (-step).mul_add(f32::from(integers[at]), x[at]);
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "parts of a number of 16 bits")]
fn split_groups<const GROUP: usize>(integers: &[i16], to: &mut [u8]) {
    let groups = to.as_chunks_mut::<GROUP>().0.as_chunks_mut::<2>().0;
    for (integers, [high, low]) in integers.as_chunks::<GROUP>().0.iter().zip(groups) {
        for at in 0..GROUP {
            // At most 32639, so the sum fits 16 bits.
            high[at] = ((integers[at] + 128) >> 8) as u8;
            low[at] = integers[at] as u8;
        }
    }
}

kernel! {
    /// Splits integers into signed bytes, `256 * high + low`: of each group of 16, 32 or 64 the high ones, then the low ones.
    pub(crate) fn split_bytes(integers: &[i16], group: usize, to: &mut [u8]) {
        match group {
            16 => split_groups::<16>(integers, to),
            32 => split_groups::<32>(integers, to),
            _ => split_groups::<64>(integers, to),
        }
    }
}

/// The order of the integers of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "two orders are those of AVX2"))]
pub(crate) enum Order {
    /// A block is a chunk. Registers of 64 bytes, high ones and low ones in turn (`q = 256 * high + low`, both signed). One of
    /// packed codes unpacks to `vectors` (1, 2 or 4) registers of codes, where byte `b` of register `v` is element
    /// `b * vectors + v` of `64 * vectors`: each of 16 lanes thus sums `4 * vectors` neighbours.
    Bytes {
        /// Registers of codes.
        vectors: usize,
    },
    /// A block is two cells. A cell is four registers of 16 numbers of 16 bits, in 8 lanes of 8 neighbours: number `w` of
    /// register `v` is element `4 * w + v`.
    Fours,
    /// Same as `Fours`, but number `w` of the first two is element `2 * w + v` of the first and the third sixteen, and that of
    /// the last two is from the second and the fourth: sums of neighbouring lanes are then the lanes of eight.
    Twos,
}

/// The sum that a table holds for each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sums {
    /// The step times the sum of the integers, to be multiplied with the bias.
    Biased,
    /// Zero: there are no biases.
    Plain,
    /// The sum of the integers times this offset: what products with unsigned codes exceed those with signed codes by.
    Offset(i32),
}

/// The layout of a table of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableLayout {
    pub(crate) order: Order,
    pub(crate) sums: Sums,
    /// Elements that share a step: 16, 32 or 64.
    pub(crate) group: usize,
    /// Rows whose blocks lie side by side.
    pub(crate) rows: usize,
}

impl TableLayout {
    /// Columns of a block.
    pub(crate) const fn columns(self) -> usize {
        match self.order {
            Order::Bytes { .. } => CHUNK,
            Order::Fours | Order::Twos => 2 * CELL,
        }
    }

    /// Floats of a block of a row.
    pub(crate) const fn block(self) -> usize {
        let slots = CELL / self.group;
        self.columns() / 2 + 2 * slots * self.columns() / CELL * ROWS
    }

    /// Floats of a row of `length` elements.
    pub(crate) fn floats(self, length: usize) -> usize {
        length.div_ceil(self.columns()) * self.block()
    }
}

/// Writes the integers of a cell in an order.
fn arrange_words(integers: &[i16; CELL], order: Order, to: &mut [i16; CELL]) {
    for (at, integer) in integers.iter().enumerate() {
        let index = if order == Order::Fours {
            at % 4 * 16 + at / 4
        } else {
            (at / 16 % 2 * 2 + at % 2) * 16 + at / 32 * 8 + at % 16 / 2
        };
        to[index] = *integer;
    }
}

/// Writes integers as bytes.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "parts of a number of 16 bits")]
fn arrange_bytes<const VECTORS: usize>(integers: &[i16], to: &mut [u8]) {
    let registers = to.as_chunks_mut::<64>().0.chunks_exact_mut(2 * VECTORS);
    for (integers, registers) in integers.chunks_exact(64 * VECTORS).zip(registers) {
        for (at, integer) in integers.iter().enumerate() {
            let high = (i32::from(*integer) + 128) >> 8;
            registers[at % VECTORS * 2][at / VECTORS] = high as u8;
            registers[at % VECTORS * 2 + 1][at / VECTORS] = (i32::from(*integer) - (high << 8)) as u8;
        }
    }
}

/// Writes row number `number` of `layout.rows` into a table.
pub(crate) fn arrange(
    isa: Isa,
    integers: &[i16],
    (steps, sums): (&[f32], &[i32]),
    layout: TableLayout,
    number: usize,
    to: &mut [f32],
) {
    let (columns, length, groups) = (layout.columns(), layout.block(), layout.columns() / layout.group);
    for (block, integers) in integers.chunks(columns).enumerate() {
        let to = &mut to[(block * layout.rows + number) * length..][..length];
        let (words, floats) = to.split_at_mut(columns / 2);
        let words = bytemuck::cast_slice_mut(words);
        if integers.len() == columns {
            arrange_integers(isa, integers, layout.order, words);
        } else {
            let mut whole = [0; CHUNK];
            whole[..integers.len()].copy_from_slice(integers);
            arrange_integers(isa, &whole[..columns], layout.order, words);
        }
        let first = block * groups;
        let end = steps.len().min(first + groups);
        arrange_factors(&steps[first..end], &sums[first..end], layout, floats);
    }
}

/// Writes the integers of whole cells, of `Order::Bytes` those of whole sets of registers.
#[allow(unsafe_code, reason = "the call into a version for one instruction set")]
pub(crate) fn arrange_integers(isa: Isa, integers: &[i16], order: Order, to: &mut [i16]) {
    let is_done = by_level!(isa, false, x86::arrange(integers, order, to), x86::arrange(integers, order, to));
    let cells = integers.as_chunks::<CELL>().0.iter();
    match order {
        _ if is_done => {}
        Order::Fours | Order::Twos => {
            cells.zip(to.as_chunks_mut().0).for_each(|(integers, to)| arrange_words(integers, order, to));
        }
        Order::Bytes { vectors: 1 } => arrange_bytes::<1>(integers, bytemuck::cast_slice_mut(to)),
        Order::Bytes { vectors: 2 } => arrange_bytes::<2>(integers, bytemuck::cast_slice_mut(to)),
        Order::Bytes { .. } => arrange_bytes::<4>(integers, bytemuck::cast_slice_mut(to)),
    }
}

/// Writes the steps and sums of a block.
fn arrange_factors(steps: &[f32], sums: &[i32], layout: TableLayout, floats: &mut [f32]) {
    let (cells, slots) = (layout.columns() / CELL, CELL / layout.group);
    let fours = floats.as_chunks_mut::<ROWS>().0;
    for cell in 0..cells {
        for slot in 0..slots {
            let group = cell * slots + slot;
            let (step, sum) = if group < steps.len() { (steps[group], sums[group]) } else { (0.0, 0) };
            let sum = match layout.sums {
                Sums::Biased => step * sum as f32,
                Sums::Plain => 0.0,
                Sums::Offset(offset) => f32::from_bits((sum * offset).cast_unsigned()),
            };
            fours[2 * slot * cells + cell] = [step; ROWS];
            fours[(2 * slot + 1) * cells + cell] = [sum; ROWS];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantized(isa: Isa, x: &[f32], group: usize) -> (Vec<i16>, Vec<f32>, Vec<i32>) {
        let (mut integers, mut steps, mut sums) =
            (vec![7; x.len()], vec![7.0; x.len() / group], vec![7; x.len() / group]);
        quantize(isa, x, group, Quantized { integers: &mut integers, steps: &mut steps, sums: &mut sums });
        (integers, steps, sums)
    }

    fn numbers() -> Vec<f32> {
        (0..5 * 64_u16).map(|at| (f32::from(at * 37 % 101) - 50.0) * f32::from(at / 16)).collect()
    }

    #[test]
    fn whole_numbers_are_close_and_what_they_take_away_is_the_rest() {
        let x = numbers();
        for (isa, group) in Isa::available().into_iter().flat_map(|isa| [16, 32, 64].map(|group| (isa, group))) {
            let (integers, steps, sums) = quantized(isa, &x, group);
            let mut rest = vec![7.0; x.len()];
            residual(isa, &x, group, &integers, &steps, &mut rest);
            for (at, x) in x.iter().enumerate() {
                let (step, x) = (f64::from(steps[at / group]), f64::from(*x));
                let found = step * f64::from(integers[at]);
                let off = [(found - x).abs(), (found + f64::from(rest[at]) - x).abs()];
                assert!(off[0] <= 0.51 * step && off[1] <= 1e-4 * step, "{isa:?} {at}: {off:?}, {step}");
            }
            let whole: i32 = integers.iter().map(|integer| i32::from(*integer)).sum();
            assert_eq!(whole, sums.iter().sum::<i32>());
        }
    }

    #[test]
    fn groups_that_are_not_finite_have_no_step_and_tiny_ones_are_zeros() {
        for isa in Isa::available() {
            for special in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = [1.0; 64];
                x[20] = special;
                let (integers, steps, sums) = quantized(isa, &x, 32);
                assert!(steps[0].is_nan() && integers[..32].iter().all(|integer| *integer == 0) && sums[0] == 0);
                assert!(steps[1] > 0.0 && integers[32..].iter().all(|integer| *integer == 32639));
            }
            let (integers, steps, _) = quantized(isa, &[1e-29; 16], 16);
            assert_eq!((integers[3], steps[0]), (0, 0.0));
            let (integers, steps, _) = quantized(isa, &[f32::MAX; 16], 16);
            assert!(integers[3] == 32639 && steps[0].is_finite());
        }
    }

    #[test]
    fn bytes_make_the_integers_again() {
        let integers: Vec<i16> = (-32639..=32639).step_by(509).take(128).collect();
        for (isa, group) in Isa::available().into_iter().flat_map(|isa| [16, 32, 64].map(|group| (isa, group))) {
            let mut bytes = vec![0; 2 * integers.len()];
            split_bytes(isa, &integers, group, &mut bytes);
            for (at, integer) in integers.iter().enumerate() {
                let high = at / group * 2 * group + at % group;
                let [high, low] = [bytes[high], bytes[high + group]].map(|byte| i32::from(byte.cast_signed()));
                assert_eq!(256 * high + low, i32::from(*integer), "{isa:?} {group} {at}");
            }
        }
    }

    /// An integer of a block, by its index in the row.
    fn integer(order: Order, block: &[f32], at: usize) -> i32 {
        match order {
            Order::Bytes { vectors } => {
                let codes: &[i8] = bytemuck::cast_slice(block);
                let (set, at) = (at / (64 * vectors), at % (64 * vectors));
                let pair = (set * vectors + at % vectors) * 128 + at / vectors;
                256 * i32::from(codes[pair]) + i32::from(codes[pair + 64])
            }
            Order::Fours => {
                i32::from(bytemuck::cast_slice::<f32, i16>(block)[at / 64 * 64 + at % 4 * 16 + at % 64 / 4])
            }
            Order::Twos => {
                let (cell, at) = (at / 64 * 64, at % 64);
                let index = (at / 16 % 2 * 2 + at % 2) * 16 + at / 32 * 8 + at % 16 / 2;
                i32::from(bytemuck::cast_slice::<f32, i16>(block)[cell + index])
            }
        }
    }

    #[test]
    fn tables_hold_every_number_in_its_place() {
        let x = &numbers()[..5 * 64 - 32];
        let bytes = [1, 2, 4].map(|vectors| Order::Bytes { vectors });
        let orders = [bytes.as_slice(), &[Order::Fours, Order::Twos]].concat();
        for (isa, order) in Isa::available().into_iter().flat_map(|isa| orders.iter().map(move |order| (isa, *order))) {
            for sums in [Sums::Biased, Sums::Plain, Sums::Offset(12)] {
                let layout = TableLayout { order, sums, group: 32, rows: 3 };
                let (integers, steps, whole) = quantized(isa, x, 32);
                let mut table = vec![9.0; 3 * layout.floats(x.len())];
                arrange(isa, &integers, (&steps, &whole), layout, 1, &mut table);
                for (number, block) in table.chunks(layout.block()).enumerate() {
                    if number % 3 != 1 {
                        assert!(block.iter().all(|other| *other == 9.0));
                        continue;
                    }
                    let (first, lanes) = (number / 3 * layout.columns(), layout.columns() / 16);
                    for at in 0..layout.columns() {
                        let expected = integers.get(first + at).copied().unwrap_or(0);
                        assert_eq!(integer(order, block, at), i32::from(expected), "{isa:?} {order:?} {at}");
                        let (cell, slot) = (at / 64, at % 64 / 32);
                        let index = layout.columns() / 2 + 2 * slot * lanes + 4 * cell + at % 4;
                        let group = (first + at) / 32;
                        let (step, sum) = if group < steps.len() { (steps[group], whole[group]) } else { (0.0, 0) };
                        let wanted = match sums {
                            Sums::Biased => step * sum as f32,
                            Sums::Plain => 0.0,
                            Sums::Offset(offset) => f32::from_bits((offset * sum).cast_unsigned()),
                        };
                        assert_eq!(
                            (block[index], block[index + lanes].to_bits()),
                            (step, wanted.to_bits()),
                            "{order:?} {at}"
                        );
                    }
                }
            }
        }
    }
}
