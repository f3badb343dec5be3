//! Rows of activations as integers of 16 bits, for products with codes that are integers too.
//!
//! Each [`UNIT`] neighbours share a unit, `x = unit * q`, and `q = 256 * high + low` is held as two signed bytes: the sum of
//! products with unsigned codes is then exact, and `x` is off by at most 2^-16 of the largest of its neighbours.
//!
//! The order is that of the codes. A register of 64 bytes of packed codes unpacks to `vectors` registers of 64 codes, where
//! byte `b` of register `v` is element `b * vectors + v`; a lane of 32 bits thus sums `4 * vectors` neighbours. For such a
//! chunk of `64 * vectors` elements there are `vectors` pairs of 64 high and 64 low bytes, 16 units, one per lane, and 16 sums
//! of the activations of a lane.
#![allow(clippy::indexing_slicing, reason = "one check before a loop, where the compiler wants it")]

/// Activations that share a unit.
pub const UNIT: usize = 16;
/// Bytes of a register, and codes of an unpacked one.
pub const REGISTER: usize = 64;
/// Lanes of a register.
pub const LANES: usize = 16;
/// The largest integer: one more would not fit `high`.
const LARGEST: f32 = 127.0 * 256.0;
/// Added to a float below 2^22, it leaves the nearest integer in the lower bits.
const ROUNDER: f32 = 1.5 * 8_388_608.0;
/// Neighbours that are all smaller count as zeros.
const SMALLEST_UNIT: f32 = 7.888_609e-31;
/// Rows that are all smaller are left to floats.
const SMALLEST_ROW: f32 = 5.421_011e-20;

/// How a row of activations is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Registers of codes that a register of packed codes unpacks to: 1, 2 or 4.
    pub vectors: usize,
    /// Rows whose chunks lie side by side.
    pub rows: usize,
}

impl Layout {
    /// Bytes of the codes of a row of so many activations, and floats of its units and of its sums.
    pub fn sizes(self, length: usize) -> [usize; 2] {
        let chunks = length.div_ceil(REGISTER * self.vectors);
        [chunks * 2 * REGISTER * self.vectors, chunks * LANES]
    }
}

/// Sixteen activations that share a unit.
struct Unit {
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
    let (mut high, mut low, mut sums) = ([0; UNIT], [0; UNIT], [0_i32; 4]);
    for at in 0..UNIT {
        // Of numbers that are not finite this makes anything, without trapping.
        let integer = (x[at] * factor + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits()).cast_signed();
        let upper = integer.wrapping_add(128) >> 8;
        sums[at / 4] = sums[at / 4].wrapping_add(integer);
        high[at] = upper as u8;
        low[at] = integer.wrapping_sub(upper << 8) as u8;
    }
    Unit { high, low, unit: size / LARGEST, sums, largest }
}

#[inline(always)]
fn row<const VECTORS: usize>(
    x: &[f32],
    layout: Layout,
    row: usize,
    codes: &mut [u8],
    units: &mut [f32],
    sums: &mut [f32],
) -> bool {
    let (mut largest, lanes, bytes) = (0, UNIT / (4 * VECTORS), UNIT / VECTORS);
    for (number, x) in x.chunks(REGISTER * VECTORS).enumerate() {
        let place = number * layout.rows + row;
        let codes = &mut codes[place * 2 * REGISTER * VECTORS..][..2 * REGISTER * VECTORS];
        let units = &mut units[place * LANES..][..LANES];
        let sums = &mut sums[place * LANES..][..LANES];
        if x.len() < REGISTER * VECTORS {
            codes.fill(0);
            units.fill(0.0);
            sums.fill(0.0);
        }
        for (at, x) in x.as_chunks::<UNIT>().0.iter().enumerate() {
            let unit = unit(x);
            largest = largest.max(unit.largest);
            units[at * lanes..][..lanes].fill(unit.unit);
            for (lane, sum) in sums[at * lanes..][..lanes].iter_mut().enumerate() {
                let integers = &unit.sums[lane * VECTORS..][..VECTORS];
                *sum = unit.unit * integers.iter().fold(0, |sum: i32, integer| sum.wrapping_add(*integer)) as f32;
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
    let size = f32::from_bits(largest);
    size.is_finite() && (size == 0.0 || size >= SMALLEST_ROW)
}

kernel! {
    /// Writes row number `number` of `layout.rows` between the others, `x` being whole units. False, with anything written,
    /// if the row holds something that is not finite, or only numbers so small that floats should take it.
    pub fn quantize(
        x: &[f32],
        layout: Layout,
        number: usize,
        codes: &mut [u8],
        units: &mut [f32],
        sums: &mut [f32],
    ) -> bool {
        match layout.vectors {
            1 => row::<1>(x, layout, number, codes, units, sums),
            2 => row::<2>(x, layout, number, codes, units, sums),
            _ => row::<4>(x, layout, number, codes, units, sums),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    #[test]
    fn integers_are_close_and_lie_in_the_order_of_the_codes() {
        let x: Vec<f32> = (0..5 * 64_u16).map(|at| (f32::from(at * 37 % 101) - 50.0) * f32::from(at / 16)).collect();
        for (isa, vectors) in Isa::available().into_iter().flat_map(|isa| [1, 2, 4].map(|vectors| (isa, vectors))) {
            let (layout, chunks) = (Layout { vectors, rows: 3 }, x.len().div_ceil(64 * vectors));
            let mut codes = vec![9; 3 * chunks * vectors * 128];
            let (mut units, mut sums) = (vec![9.0; 3 * chunks * 16], vec![9.0; 3 * chunks * 16]);
            assert!(quantize(isa, &x, layout, 1, &mut codes, &mut units, &mut sums));
            for at in 0..chunks * 64 * vectors {
                let (chunk, at_chunk) = (3 * (at / (64 * vectors)) + 1, at % (64 * vectors));
                let pair = (chunk * vectors + at_chunk % vectors) * 128 + at_chunk / vectors;
                let integer = 256 * i32::from(codes[pair].cast_signed()) + i32::from(codes[pair + 64].cast_signed());
                let unit = units[chunk * 16 + at_chunk / vectors / 4];
                let (found, expected) = (unit * integer as f32, x.get(at).copied().unwrap_or(0.0));
                assert!((found - expected).abs() <= unit * 0.51, "{isa:?} {vectors}: {at}: {found} for {expected}");
            }
            assert!(codes.chunks_exact(vectors * 128).step_by(3).all(|other| other.iter().all(|code| *code == 9)));
            for (chunk, sums) in sums.chunks(16).skip(1).step_by(3).enumerate() {
                for (lane, sum) in sums.iter().enumerate() {
                    let start = (chunk * 16 + lane) * 4 * vectors;
                    let expected: f32 = x.iter().skip(start).take(4 * vectors).sum();
                    assert!((expected - sum).abs() < 0.2, "{isa:?} {vectors}: {sum} for {expected}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_or_tiny_is_left_to_floats() {
        let layout = Layout { vectors: 2, rows: 1 };
        let fits = |x: &[f32]| quantize(Isa::best(), x, layout, 0, &mut [0; 256], &mut [0.0; 16], &mut [0.0; 16]);
        assert!(fits(&[0.0; 32]) && fits(&[1e-19; 32]) && fits(&[f32::MAX; 32]));
        assert!(!fits(&[1e-20; 32]) && !fits(&[f32::MIN_POSITIVE; 32]));
        assert!(![f32::NAN, f32::INFINITY, -f32::INFINITY, -f32::NAN].into_iter().any(|special| {
            let mut x = [1.0; 32];
            x[20] = special;
            fits(&x)
        }));
    }
}
