//! Floats in the registers of an instruction set, for kernels where the compiler, left alone, splits or scatters them.
//!
//! A kernel is a function of any [`Lanes`], sixteen floats at a time in as many registers as they need, which `lanes_kernel!`
//! compiles for every instruction set; or of any [`Register`]. The value that stands for an instruction set is made only where
//! its instructions run; so having one is the proof that they may be used.
#![allow(unsafe_code, reason = "loads, stores and arithmetic of registers")]
#![allow(clippy::indexing_slicing, reason = "of arrays, by constants, or checked as documented")]

#[cfg(target_arch = "x86_64")]
mod transpose;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;

use super::numeric::convert::{from_bf16, from_f16};
use super::numeric::element::Float;
use super::strands::fold;
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// The number of floats of [`Lanes`].
pub(crate) const LANES: usize = 16;

/// Sixteen columns of sixteen floats.
pub(crate) type Square = [[f32; LANES]; LANES];

/// Sixteen floats. All versions give the same bits.
pub(crate) trait Lanes: Copy {
    /// Sixteen floats.
    type Floats: Copy;

    /// How many times sixteen floats the registers hold.
    const REGISTERS: usize;

    fn splat(self, number: f32) -> Self::Floats;
    fn load(self, from: &[f32; LANES]) -> Self::Floats;
    fn load_f16(self, from: &[f16; LANES]) -> Self::Floats;
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::Floats;
    fn store(self, floats: Self::Floats, to: &mut [f32; LANES]);

    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// `a * b + c`, rounded once.
    fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// The larger of each pair of lanes; `best`, which is never NaN, where `x` is NaN.
    fn larger(self, best: Self::Floats, x: Self::Floats) -> Self::Floats;

    /// Same as [`Lanes::larger`] in lanes whose bit is 1; `best` in the others.
    fn larger_where(self, bits: u16, best: Self::Floats, x: Self::Floats) -> Self::Floats;

    /// The largest lane; none is NaN.
    fn largest(self, floats: Self::Floats) -> f32;

    /// The sum over lanes of each, halves added to halves until one is left.
    fn totals(self, floats: &[Self::Floats; 4]) -> [f32; 4];

    /// `to[column][row] = from[row * stride + column]`, widened.
    ///
    /// # Panics
    ///
    /// If the last row is not complete.
    fn transpose<T: Loaded>(self, from: &[T], stride: usize, to: &mut Square);
}

/// Floats that lanes can load.
pub(crate) trait Loaded: Float {
    /// +0.
    const ZERO: Self;

    /// Sixteen of them, widened.
    fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::Floats;

    /// Four elements from `a` and four from `b`, widened.
    ///
    /// # Safety
    ///
    /// The machine has AVX2 and F16C, and four elements can be read from both.
    #[cfg(target_arch = "x86_64")]
    unsafe fn fours(a: *const Self, b: *const Self) -> __m256;
}

macro_rules! loaded {
    ($($float:ty, $zero:expr, $load:ident, |$a:ident, $b:ident| $fours:expr;)*) => { $(
        impl Loaded for $float {
            const ZERO: Self = $zero;

            #[inline(always)]
            fn load<L: Lanes>(lanes: L, from: &[Self; LANES]) -> L::Floats {
                lanes.$load(from)
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn fours($a: *const Self, $b: *const Self) -> __m256 {
                // SAFETY: the caller's.
                unsafe { $fours }
            }
        }
    )* };
}

loaded! {
    f32, 0.0, load, |a, b| _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b));
    f16, f16::ZERO, load_f16, |a, b| _mm256_cvtph_ps(transpose::load_fours(a, b));
    bf16, bf16::ZERO, load_bf16, |a, b| transpose::widen_bf16(transpose::load_fours(a, b));
}

/// One register of floats, or of as many integers of 32 bits. All versions give the same bits.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "some kernels exist for x86-64 only"))]
pub(crate) trait Register: Copy {
    type Floats: Copy;
    type Integers: Copy;

    /// Floats of a register.
    const LANES: usize;

    fn splat(self, number: f32) -> Self::Floats;

    /// Loads the first [`Register::LANES`] floats.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    fn load(self, from: &[f32]) -> Self::Floats;

    /// Stores into the first [`Register::LANES`] floats.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    fn store(self, floats: Self::Floats, to: &mut [f32]);

    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// `a * b + c`, rounded once.
    fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// The sum over lanes of each, halves added to halves until one is left.
    fn totals(self, floats: [Self::Floats; 4]) -> [f32; 4];

    /// The bits of floats.
    fn bits(self, floats: Self::Floats) -> Self::Integers;

    /// The nearest floats.
    fn to_floats(self, integers: Self::Integers) -> Self::Floats;

    fn subtract(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// `256 * high + low`.
    fn join(self, high: Self::Integers, low: Self::Integers) -> Self::Integers;

    /// `sums + a * b`, where a lane of `a` and of `b` is two integers of 16 bits, whose products are added.
    fn add_products(self, sums: Self::Integers, a: Self::Integers, b: Self::Integers) -> Self::Integers;
}

/// Whatever the compiler makes of arrays.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

/// Applies a function of two numbers, lane by lane.
#[inline(always)]
fn pairs<const N: usize>(mut a: [f32; N], b: [f32; N], function: impl Fn(f32, f32) -> f32) -> [f32; N] {
    a.iter_mut().zip(b).for_each(|(a, b)| *a = function(*a, b));
    a
}

/// `a * b + c`, rounded once.
#[inline(always)]
fn fused<const N: usize>(a: [f32; N], b: [f32; N], mut c: [f32; N]) -> [f32; N] {
    c.iter_mut().zip(a).zip(b).for_each(|((c, a), b)| *c = a.mul_add(b, *c));
    c
}

/// Methods whose bodies are one expression each.
macro_rules! plain {
    ($( fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $body:expr; )*) => { $(
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) -> $ret {
            $body
        }
    )* };
}

impl Lanes for Plain {
    type Floats = [f32; LANES];

    const REGISTERS: usize = if cfg!(target_arch = "aarch64") { 8 } else { 4 };

    plain! {
        fn splat(number: f32) -> Self::Floats = [number; LANES];
        fn load(from: &[f32; LANES]) -> Self::Floats = *from;
        fn load_f16(from: &[f16; LANES]) -> Self::Floats = from.map(from_f16);
        fn load_bf16(from: &[bf16; LANES]) -> Self::Floats = from.map(from_bf16);
        fn store(floats: Self::Floats, to: &mut [f32; LANES]) -> () = *to = floats;
        fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats = pairs(a, b, |a, b| a + b);
        fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats = pairs(a, b, |a, b| a * b);
        fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats = fused(a, b, c);
        fn larger(best: Self::Floats, x: Self::Floats) -> Self::Floats = pairs(best, x, larger);
        fn larger_where(bits: u16, best: Self::Floats, x: Self::Floats) -> Self::Floats =
            std::array::from_fn(|at| if bits >> at & 1 > 0 { larger(best[at], x[at]) } else { best[at] });
        fn largest(floats: Self::Floats) -> f32 = fold(floats, larger);
        fn totals(floats: &[Self::Floats; 4]) -> [f32; 4] = floats.map(|floats| fold(floats, |a, b| a + b));
    }

    #[inline(always)]
    fn transpose<T: Loaded>(self, from: &[T], stride: usize, to: &mut Square) {
        for (column, to) in to.iter_mut().enumerate() {
            for (row, to) in to.iter_mut().enumerate() {
                *to = from[row * stride + column].float();
            }
        }
    }
}

#[inline(always)]
fn larger(best: f32, x: f32) -> f32 {
    if x > best { x } else { best }
}

/// The two integers of 16 bits of a lane.
#[inline(always)]
fn halves(lane: i32) -> [i32; 2] {
    [lane << 16 >> 16, lane >> 16]
}

impl Register for Plain {
    type Floats = [f32; 4];
    type Integers = [i32; 4];

    const LANES: usize = 4;

    plain! {
        fn splat(number: f32) -> Self::Floats = [number; 4];
        fn load(from: &[f32]) -> Self::Floats = from.as_chunks().0[0];
        fn store(floats: Self::Floats, to: &mut [f32]) -> () = to.as_chunks_mut().0[0] = floats;
        fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats = pairs(a, b, |a, b| a + b);
        fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats = pairs(a, b, |a, b| a * b);
        fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats = fused(a, b, c);
        fn totals(floats: [Self::Floats; 4]) -> [f32; 4] = floats.map(|floats| fold(floats, |a, b| a + b));
        fn bits(floats: Self::Floats) -> Self::Integers = floats.map(|float| float.to_bits().cast_signed());
        fn to_floats(integers: Self::Integers) -> Self::Floats = integers.map(|integer| integer as f32);
    }

    #[inline(always)]
    fn subtract(self, mut a: Self::Integers, b: Self::Integers) -> Self::Integers {
        a.iter_mut().zip(b).for_each(|(a, b)| *a -= b);
        a
    }

    #[inline(always)]
    fn join(self, high: Self::Integers, mut low: Self::Integers) -> Self::Integers {
        low.iter_mut().zip(high).for_each(|(low, high)| *low += high << 8);
        low
    }

    #[inline(always)]
    fn add_products(self, mut sums: Self::Integers, a: Self::Integers, b: Self::Integers) -> Self::Integers {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            let ([a, next_a], [b, next_b]) = (halves(a), halves(b));
            *sum += a * b + next_a * next_b;
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    /// Transposes a square of numbers that all differ, and writes the bits.
    #[inline(always)]
    fn transposed<L: Lanes, T: Loaded>(lanes: L, mut number: T, next: impl Fn(T) -> T, bits: &mut Vec<u32>) {
        let mut rows = [[number; LANES]; LANES];
        for cell in rows.as_flattened_mut() {
            *cell = number;
            number = next(number);
        }
        let mut square = [[0.0; LANES]; LANES];
        lanes.transpose(rows.as_flattened(), LANES, &mut square);
        for (row, from) in rows.iter().enumerate() {
            assert!((0..LANES).all(|column| square[column][row] == from[column].float()));
        }
        bits.extend(square.as_flattened().iter().map(|x| x.to_bits()));
    }

    lanes_kernel! {
        /// Writes the bits of everything that lanes can do.
        fn all_bits(lanes, all: &mut Vec<u32>) {
            let numbers: [f32; 64] = std::array::from_fn(|at| 1.0 / (at as f32 - 20.3));
            let mut bits = 0x3555_u16;
            let halves = [0x0217; LANES].map(|step| {
                bits += step;
                bits
            });
            let (quarters, _) = numbers.as_chunks::<LANES>();
            let mut floats = [0, 1, 2, 3].map(|at: usize| lanes.load(&quarters[at]));
            let (f16s, bf16s) = (halves.map(f16::from_bits), halves.map(bf16::from_bits));
            floats[0] = lanes.multiply_add(floats[0], lanes.load_f16(&f16s), floats[1]);
            floats[2] = lanes.multiply_add(lanes.splat(0.3), lanes.load_bf16(&bf16s), floats[3]);
            floats[3] = lanes.multiply(floats[0], floats[3]);
            let mut stored = [0.0; LANES];
            for floats in floats {
                lanes.store(floats, &mut stored);
                all.extend(stored.map(f32::to_bits));
            }
            all.extend(lanes.totals(&floats).map(f32::to_bits));
            let mut with_none = stored;
            with_none[5] = f32::NAN;
            let larger = lanes.larger(floats[1], lanes.load(&with_none));
            lanes.store(larger, &mut stored);
            all.extend(stored.map(f32::to_bits));
            all.push(lanes.largest(larger).to_bits());
            lanes.store(lanes.larger_where(0xa5c3, floats[1], lanes.load(&with_none)), &mut stored);
            all.extend(stored.map(f32::to_bits));
            lanes.store(lanes.add(floats[0], larger), &mut stored);
            all.extend(stored.map(f32::to_bits));
            transposed(lanes, 1.0_f32, |x| x * 1.37, all);
            transposed(lanes, f16::ONE, |x| f16::from_bits(x.to_bits() + 7), all);
            transposed(lanes, bf16::ONE, |x| bf16::from_bits(x.to_bits() + 1), all);
        }
    }

    #[test]
    fn all_instruction_sets_give_the_same_bits() {
        let results = Isa::available().into_iter().map(|isa| {
            let mut bits = Vec::new();
            all_bits(isa, &mut bits);
            bits
        });
        let results: Vec<Vec<u32>> = results.collect();
        assert!(results[0].len() == 85 + 32 + 3 * 256 && results.iter().all(|bits| *bits == results[0]), "{results:?}");
    }
}
