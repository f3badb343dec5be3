//! Rows of activations as integers of 16 bits, for products with codes that are integers too.
//!
//! Each [`UNIT`] neighbours share a unit, `x = unit * q`, and `q = 256 * high + low` is held as two signed bytes: the sum of
//! products with unsigned codes is then exact, and `x` is off by at most 2^-16 of the largest of its neighbours.
//!
//! The order is that of the codes, see [`Order`]: the integers of a chunk, then the unit of each of its lanes, then the lane's
//! sum, see [`Sums`].
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]

/// Activations that share a unit.
pub(crate) const UNIT: usize = 16;
/// Bytes of a register, and codes of an unpacked one.
pub(crate) const REGISTER: usize = 64;
/// Lanes of a register.
pub(crate) const LANES: usize = 16;
/// Numbers of 16 bits of a chunk.
pub(crate) const WORDS: usize = 64;
/// Lanes of a register of 16 such numbers.
pub(crate) const WORD_LANES: usize = 8;
/// The largest integer: one more would not fit `high`.
const LARGEST: f32 = 127.0 * 256.0;
/// Added to a float below 2^22, it leaves the nearest integer in the lower bits.
const ROUNDER: f32 = 1.5 * 8_388_608.0;
/// Neighbours that are all smaller count as zeros.
const SMALLEST_UNIT: f32 = 7.888_609e-31;
/// Rows that are all smaller are left to floats.
const SMALLEST_ROW: f32 = 5.421_011e-20;

/// How the integers of a chunk lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Registers of 64 bytes, high ones and low ones in turn. One of packed codes unpacks to `vectors` (1, 2 or 4) registers of
    /// codes, where byte `b` of register `v` is element `b * vectors + v` of `64 * vectors`; each of 16 lanes thus sums
    /// `4 * vectors` neighbours.
    Bytes {
        /// Registers of codes.
        vectors: usize,
    },
    /// Four registers of 16 numbers of 16 bits, for 64 elements in 8 lanes of 8 neighbours: number `w` of register `v` is
    /// element `4 * w + v`.
    Fours,
    /// Likewise, but number `w` of the first two is element `2 * w + v` of the first and the third sixteen, and that of the last
    /// two is from the second and the fourth: sums of neighbouring lanes are then the lanes of eight.
    Twos,
}

impl Order {
    /// Elements of a chunk.
    const fn elements(self) -> usize {
        match self {
            Self::Bytes { vectors } => REGISTER * vectors,
            Self::Fours | Self::Twos => WORDS,
        }
    }

    /// Floats of a chunk of a row.
    const fn floats(self) -> usize {
        match self {
            Self::Bytes { vectors } => (2 * vectors + 2) * LANES,
            Self::Fours | Self::Twos => WORDS / 2 + 2 * WORD_LANES,
        }
    }
}

/// What stands for a lane beside its integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sums {
    /// The sum of its activations, to be multiplied with what is added to each weight whatever its code.
    Floats,
    /// The sum of its integers times so much, below zero, as an integer: what products start from whose codes lie so much too
    /// high. They are then exact, and those of weights that are zero are zero.
    Offset(i32),
}

impl Sums {
    #[inline(always)]
    fn of(self, unit: f32, integers: i32) -> f32 {
        match self {
            Self::Floats => unit * integers as f32,
            Self::Offset(offset) => f32::from_bits(integers.wrapping_mul(-offset).cast_unsigned()),
        }
    }
}

/// How a row of activations is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Of a chunk.
    pub(crate) order: Order,
    /// Of its lanes.
    pub(crate) sums: Sums,
    /// Rows whose chunks lie side by side.
    pub(crate) rows: usize,
}

impl Layout {
    /// Registers of a chunk of a row in bytes.
    pub(crate) const fn registers(vectors: usize) -> usize {
        Order::Bytes { vectors }.floats() / LANES
    }

    /// Floats of a row of so many activations.
    pub(crate) fn floats(self, length: usize) -> usize {
        length.div_ceil(self.order.elements()) * self.order.floats()
    }
}

/// Sixteen activations that share a unit.
struct Unit {
    integers: [i16; UNIT],
    high: [u8; UNIT],
    low: [u8; UNIT],
    unit: f32,
    /// Of each four integers.
    sums: [i32; 4],
    /// The magnitude of the largest, as bits: larger for what is not finite than for what is.
    largest: u32,
}

// Loops over arrays, not adapters of iterators: those the compiler makes functions of their own, for the plainest machine.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "parts of a number of 16 bits")]
fn unit(x: &[f32; UNIT]) -> Unit {
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.to_bits() & 0x7FFF_FFFF);
    }
    let size = f32::from_bits(largest);
    let factor = if size < SMALLEST_UNIT { 0.0 } else { LARGEST / size };
    let (mut integers, mut high, mut low, mut sums) = ([0; UNIT], [0; UNIT], [0; UNIT], [0_i32; 4]);
    for at in 0..UNIT {
        // Of numbers that are not finite this makes anything, without trapping.
        let integer = (x[at] * factor + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed();
        let upper = integer.wrapping_add(128) >> 8;
        sums[at / 4] = sums[at / 4].wrapping_add(integer);
        integers[at] = integer as i16;
        high[at] = upper as u8;
        low[at] = integer.wrapping_sub(upper << 8) as u8;
    }
    Unit { integers, high, low, unit: size / LARGEST, sums, largest }
}

#[inline(always)]
fn row_of_bytes<const VECTORS: usize>(x: &[f32], layout: Layout, row: usize, to: &mut [f32]) -> bool {
    let (mut largest, lanes, bytes) = (0, UNIT / (4 * VECTORS), UNIT / VECTORS);
    let length = Layout::registers(VECTORS) * LANES;
    for (number, x) in x.chunks(REGISTER * VECTORS).enumerate() {
        let chunk = &mut to[(number * layout.rows + row) * length..][..length];
        if x.len() < REGISTER * VECTORS {
            chunk.fill(0.0);
        }
        let (codes, floats) = chunk.split_at_mut(2 * VECTORS * LANES);
        let (codes, (units, sums)) = (bytemuck::cast_slice_mut::<f32, u8>(codes), floats.split_at_mut(LANES));
        for (at, x) in x.as_chunks::<UNIT>().0.iter().enumerate() {
            let unit = unit(x);
            largest = largest.max(unit.largest);
            units[at * lanes..][..lanes].fill(unit.unit);
            for (lane, sum) in sums[at * lanes..][..lanes].iter_mut().enumerate() {
                let integers = &unit.sums[lane * VECTORS..][..VECTORS];
                let integers = integers.iter().fold(0, |sum: i32, integer| sum.wrapping_add(*integer));
                *sum = layout.sums.of(unit.unit, integers);
            }
            for vector in 0..VECTORS {
                let pair = &mut codes[vector * 2 * REGISTER..][..2 * REGISTER];
                let (high, low) = pair.split_at_mut(REGISTER);
                let (high, low) = (&mut high[at * bytes..][..bytes], &mut low[at * bytes..][..bytes]);
                for byte in 0..bytes {
                    high[byte] = unit.high[byte * VECTORS + vector];
                    low[byte] = unit.low[byte * VECTORS + vector];
                }
            }
        }
    }
    fits(largest)
}

#[inline(always)]
fn row_of_words(x: &[f32], layout: Layout, row: usize, to: &mut [f32]) -> bool {
    const LENGTH: usize = Order::Fours.floats();
    let mut largest = 0;
    for (number, x) in x.chunks(WORDS).enumerate() {
        let chunk = &mut to[(number * layout.rows + row) * LENGTH..][..LENGTH];
        if x.len() < WORDS {
            chunk.fill(0.0);
        }
        let (words, floats) = chunk.split_at_mut(WORDS / 2);
        let (words, (units, sums)) = (bytemuck::cast_slice_mut::<f32, i16>(words), floats.split_at_mut(WORD_LANES));
        for (at, x) in x.as_chunks::<UNIT>().0.iter().enumerate() {
            let unit = unit(x);
            largest = largest.max(unit.largest);
            for lane in 0..2 {
                units[2 * at + lane] = unit.unit;
                let integers = unit.sums[2 * lane].wrapping_add(unit.sums[2 * lane + 1]);
                sums[2 * at + lane] = layout.sums.of(unit.unit, integers);
            }
            if layout.order == Order::Fours {
                for (vector, words) in words.as_chunks_mut::<UNIT>().0.iter_mut().enumerate() {
                    for (word, to) in words[4 * at..][..4].iter_mut().enumerate() {
                        *to = unit.integers[4 * word + vector];
                    }
                }
            } else {
                let pair = &mut words[at % 2 * 2 * UNIT..][..2 * UNIT];
                for (vector, words) in pair.as_chunks_mut::<UNIT>().0.iter_mut().enumerate() {
                    for (word, to) in words[at / 2 * 8..][..8].iter_mut().enumerate() {
                        *to = unit.integers[2 * word + vector];
                    }
                }
            }
        }
    }
    fits(largest)
}

/// Whether integers can hold a row, by the bits of its largest magnitude.
#[inline(always)]
fn fits(largest: u32) -> bool {
    let size = f32::from_bits(largest);
    size.is_finite() && (size == 0.0 || size >= SMALLEST_ROW)
}

kernel! {
    /// Writes row number `number` of `layout.rows` between the others, `x` being whole units. False, with anything written, if
    /// the row holds something that is not finite, or only numbers so small that floats should take it.
    pub(crate) fn quantize(x: &[f32], layout: Layout, number: usize, to: &mut [f32]) -> bool {
        match layout.order {
            Order::Bytes { vectors: 1 } => row_of_bytes::<1>(x, layout, number, to),
            Order::Bytes { vectors: 2 } => row_of_bytes::<2>(x, layout, number, to),
            Order::Bytes { .. } => row_of_bytes::<4>(x, layout, number, to),
            Order::Fours | Order::Twos => row_of_words(x, layout, number, to),
        }
    }
}

kernel! {
    /// What [`quantize`] takes away of `x`, which is whole units.
    pub(crate) fn residual(x: &[f32], to: &mut [f32]) {
        for (x, to) in x.as_chunks::<UNIT>().0.iter().zip(to.as_chunks_mut::<UNIT>().0) {
            let unit = unit(x);
            for at in 0..UNIT {
                to[at] = (-unit.unit).mul_add(f32::from(unit.integers[at]), x[at]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    /// The place of an element of a chunk among its integers.
    fn place(order: Order, at: usize) -> usize {
        match order {
            Order::Bytes { .. } => unreachable!("two places"),
            Order::Fours => at % 4 * 16 + at / 4,
            Order::Twos => (at / 16 % 2 * 2 + at % 2) * 16 + at / 32 * 8 + at % 16 / 2,
        }
    }

    fn integer(order: Order, chunk: &[f32], at: usize) -> i32 {
        if let Order::Bytes { vectors } = order {
            let codes: &[i8] = bytemuck::cast_slice(chunk);
            let pair = at % vectors * 128 + at / vectors;
            256 * i32::from(codes[pair]) + i32::from(codes[pair + 64])
        } else {
            i32::from(bytemuck::cast_slice::<f32, i16>(chunk)[place(order, at)])
        }
    }

    #[test]
    fn integers_are_close_and_lie_in_the_order_of_the_codes() {
        let x: Vec<f32> =
            (0..5 * 64_u16 - 16).map(|at| (f32::from(at * 37 % 101) - 50.0) * f32::from(at / 16)).collect();
        let bytes = [1, 2, 4].map(|vectors| Order::Bytes { vectors });
        let orders = [bytes.as_slice(), &[Order::Fours, Order::Twos]].concat();
        for (isa, order) in Isa::available().into_iter().flat_map(|isa| orders.iter().map(move |order| (isa, *order))) {
            let layout = Layout { order, sums: Sums::Floats, rows: 3 };
            let (length, elements) = (order.floats(), order.elements());
            let mut to = vec![9.0; 3 * layout.floats(x.len())];
            let mut offset = to.clone();
            assert!(quantize(isa, &x, Layout { sums: Sums::Offset(12), ..layout }, 1, &mut offset));
            assert!(quantize(isa, &x, layout, 1, &mut to));
            assert!(
                to.chunks(length).enumerate().all(|(at, chunk)| at % 3 == 1 || chunk.iter().all(|other| *other == 9.0))
            );
            let chunks = to.chunks(length).zip(offset.chunks(length)).skip(1).step_by(3);
            for (number, (chunk, offset)) in chunks.enumerate() {
                let lanes = if let Order::Bytes { .. } = order { LANES } else { WORD_LANES };
                let (units, sums) = chunk[length - 2 * lanes..].split_at(lanes);
                let element = |at: usize| x.get(number * elements + at).copied().unwrap_or(0.0);
                for at in 0..elements {
                    let (unit, expected) = (units[at * lanes / elements], element(at));
                    let found = unit * integer(order, chunk, at) as f32;
                    assert!((found - expected).abs() <= unit * 0.51, "{isa:?} {order:?}: {at}: {found} for {expected}");
                }
                for (lane, (sum, offset)) in sums.iter().zip(&offset[length - lanes..]).enumerate() {
                    let neighbours = elements / lanes;
                    let integers: i32 = (0..neighbours).map(|at| integer(order, chunk, lane * neighbours + at)).sum();
                    assert_eq!(offset.to_bits().cast_signed(), -12 * integers, "{isa:?} {order:?}");
                    let expected: f32 = (0..neighbours).map(|at| element(lane * neighbours + at)).sum();
                    assert!((expected - sum).abs() < 0.2, "{isa:?} {order:?}: {sum} for {expected}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_or_tiny_is_left_to_floats() {
        let layout = Layout { order: Order::Bytes { vectors: 2 }, sums: Sums::Floats, rows: 1 };
        let fits = |x: &[f32]| quantize(Isa::best(), x, layout, 0, &mut [0.0; 96]);
        assert!(fits(&[0.0; 32]) && fits(&[1e-19; 32]) && fits(&[f32::MAX; 32]));
        assert!(!fits(&[1e-20; 32]) && !fits(&[f32::MIN_POSITIVE; 32]));
        assert!(![f32::NAN, f32::INFINITY, -f32::INFINITY, -f32::NAN].into_iter().any(|special| {
            let mut x = [1.0; 32];
            x[20] = special;
            fits(&x)
        }));
    }
}
