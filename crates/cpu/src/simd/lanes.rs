//! Sixteen floats in the registers of an instruction set, for kernels where the compiler, left alone, splits or scatters them.
//!
//! A kernel is a [`Job`], written once for any [`Lanes`]. The value that stands for an instruction set is made in one place,
//! for a machine that has it; so having one is the proof that its instructions may be used.
#![allow(unsafe_code, reason = "loads, stores and arithmetic of registers")]

mod turn;

use super::numeric::convert::{from_bf16, from_f16};
use super::{Isa, Level};
use half::{bf16, f16};
pub(crate) use turn::{Square, Turn};

/// How many floats.
pub(crate) const LANES: usize = 16;

/// What can be done with sixteen floats. All versions give the same bits.
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

    /// The larger ones; where `x` is not a number, `best`, which is one.
    fn larger(self, best: Self::Floats, x: Self::Floats) -> Self::Floats;

    /// The largest lane of numbers.
    fn largest(self, floats: Self::Floats) -> f32;

    /// The sum over lanes of each, halves added to halves until one is left.
    fn totals(self, floats: &[Self::Floats; 4]) -> [f32; 4];

    /// `to[column][row] = from[row * stride + column]`, widened.
    ///
    /// # Panics
    ///
    /// If the last row is not complete.
    fn turn<T: Turn>(self, from: &[T], stride: usize, to: &mut Square);
}

/// Work for any lanes. Its function must be inlined, so that it is compiled for the instruction set.
pub(crate) trait Job {
    fn run<L: Lanes>(self, lanes: L);
}

/// Runs a job with the lanes of an instruction set.
pub(crate) fn with_lanes(isa: Isa, job: impl Job) {
    match isa.level() {
        Level::Baseline => job.run(Plain),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only on a machine that has these instructions.
        Level::Avx2 => unsafe { x86::avx2(job) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: likewise.
        Level::Avx512 => unsafe { x86::avx512(job) },
    }
}

/// Whatever the compiler makes of arrays.
#[derive(Clone, Copy)]
struct Plain;

impl Lanes for Plain {
    type Floats = [f32; LANES];

    const REGISTERS: usize = if cfg!(target_arch = "aarch64") { 8 } else { 4 };

    #[inline(always)]
    fn splat(self, number: f32) -> Self::Floats {
        [number; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::Floats {
        *from
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Self::Floats {
        from.map(from_f16)
    }

    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::Floats {
        from.map(from_bf16)
    }

    #[inline(always)]
    fn store(self, floats: Self::Floats, to: &mut [f32; LANES]) {
        *to = floats;
    }

    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        let mut sums = a;
        sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += b);
        sums
    }

    #[inline(always)]
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        let mut products = a;
        products.iter_mut().zip(b).for_each(|(product, b)| *product *= b);
        products
    }

    #[inline(always)]
    fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        let mut sums = c;
        sums.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum = a.mul_add(b, *sum));
        sums
    }

    #[inline(always)]
    fn larger(self, best: Self::Floats, x: Self::Floats) -> Self::Floats {
        let mut larger = best;
        larger.iter_mut().zip(x).for_each(|(best, x)| *best = if x > *best { x } else { *best });
        larger
    }

    #[inline(always)]
    fn largest(self, mut floats: Self::Floats) -> f32 {
        let mut width = LANES / 2;
        while width > 0 {
            let (low, high) = floats.split_at_mut(width);
            low.iter_mut().zip(high.iter()).for_each(|(low, high)| *low = if high > low { *high } else { *low });
            width /= 2;
        }
        let [first, ..] = floats;
        first
    }

    #[inline(always)]
    fn totals(self, floats: &[Self::Floats; 4]) -> [f32; 4] {
        floats.map(|mut lanes| {
            let mut width = LANES / 2;
            while width > 0 {
                let (low, high) = lanes.split_at_mut(width);
                low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
                width /= 2;
            }
            let [first, ..] = lanes;
            first
        })
    }

    #[inline(always)]
    fn turn<T: Turn>(self, from: &[T], stride: usize, to: &mut Square) {
        turn::plain(from, stride, to);
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{totals_of_eight, totals_of_sixteen};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Job, LANES, Lanes, Square, Turn, turn};
    use half::{bf16, f16};
    use std::arch::x86_64::*;

    /// Two registers. Made only by [`avx2`].
    #[derive(Clone, Copy)]
    pub(super) struct Avx2(());

    /// One register. Made only by [`avx512`].
    #[derive(Clone, Copy)]
    pub(super) struct Avx512(());

    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    pub(super) fn avx2(job: impl Job) {
        job.run(Avx2(()));
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2")]
    pub(super) fn avx512(job: impl Job) {
        job.run(Avx512(()));
    }

    /// The sums over the lanes of four registers, halves added to halves.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn totals_of_eight(a: __m256, b: __m256, c: __m256, d: __m256) -> [f32; 4] {
        let ab = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
        let cd = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, d), _mm256_permute2f128_ps::<0x31>(c, d));
        let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
        let (low, high) = (_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd));
        // Two lanes each, in the order a, c, b, d.
        let pairs = _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high));
        let sums = _mm256_add_ps(pairs, _mm256_movehdup_ps(pairs));
        let (ac, bd) = (_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
        let (low, high) = (_mm_unpacklo_ps(ac, bd), _mm_unpackhi_ps(ac, bd));
        let mut totals = [0.0; 4];
        // SAFETY: the array has the size of the register.
        unsafe { _mm_storeu_ps(totals.as_mut_ptr(), _mm_movelh_ps(low, high)) };
        totals
    }

    /// The sums over the lanes of four registers, halves added to halves.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn totals_of_sixteen(a: __m512, b: __m512, c: __m512, d: __m512) -> [f32; 4] {
        let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
        let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
        // A quarter of the register each.
        let fours = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd));
        let pairs = _mm512_add_ps(fours, _mm512_permute_ps::<0b01_00_11_10>(fours));
        let sums = _mm512_add_ps(pairs, _mm512_permute_ps::<0b10_11_00_01>(pairs));
        let mut totals = [0.0; 4];
        // SAFETY: the array has the size of the register.
        unsafe { _mm_storeu_ps(totals.as_mut_ptr(), _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums))) };
        totals
    }

    /// The largest of eight lanes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn largest(floats: __m256) -> f32 {
        let four = _mm_max_ps(_mm256_castps256_ps128(floats), _mm256_extractf128_ps::<1>(floats));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }

    // Of every block below:
    // SAFETY: `self` exists only where `avx2` or `avx512` runs, on a machine that has the instructions. Pointers are those of
    // arrays as long as what is read or written.

    impl Lanes for Avx2 {
        type Floats = [__m256; 2];

        const REGISTERS: usize = 8;

        #[inline(always)]
        fn splat(self, number: f32) -> Self::Floats {
            // SAFETY: see above.
            unsafe { [_mm256_set1_ps(number); 2] }
        }

        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> Self::Floats {
            // SAFETY: see above.
            unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
        }

        #[inline(always)]
        fn load_f16(self, from: &[f16; LANES]) -> Self::Floats {
            let from: *const __m128i = from.as_ptr().cast();
            // SAFETY: see above.
            unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from.add(1)))] }
        }

        #[inline(always)]
        fn load_bf16(self, from: &[bf16; LANES]) -> Self::Floats {
            let from: *const __m128i = from.as_ptr().cast();
            // SAFETY: see above.
            unsafe {
                let (low, high) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
                let (low, high) = (_mm256_cvtepu16_epi32(low), _mm256_cvtepu16_epi32(high));
                let (low, high) = (_mm256_slli_epi32::<16>(low), _mm256_slli_epi32::<16>(high));
                [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
            }
        }

        #[inline(always)]
        fn store(self, [low, high]: Self::Floats, to: &mut [f32; LANES]) {
            // SAFETY: see above.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), low);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), high);
            }
        }

        #[inline(always)]
        fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
            let ([a, c], [b, d]) = (a, b);
            // SAFETY: see above.
            unsafe { [_mm256_add_ps(a, b), _mm256_add_ps(c, d)] }
        }

        #[inline(always)]
        fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
            let ([a, c], [b, d]) = (a, b);
            // SAFETY: see above.
            unsafe { [_mm256_mul_ps(a, b), _mm256_mul_ps(c, d)] }
        }

        #[inline(always)]
        fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
            let ([a, d], [b, e], [c, f]) = (a, b, c);
            // SAFETY: see above.
            unsafe { [_mm256_fmadd_ps(a, b, c), _mm256_fmadd_ps(d, e, f)] }
        }

        #[inline(always)]
        fn larger(self, best: Self::Floats, x: Self::Floats) -> Self::Floats {
            let ([a, c], [b, d]) = (x, best);
            // SAFETY: see above.
            unsafe { [_mm256_max_ps(a, b), _mm256_max_ps(c, d)] }
        }

        #[inline(always)]
        fn largest(self, [low, high]: Self::Floats) -> f32 {
            // SAFETY: see above.
            unsafe { largest(_mm256_max_ps(low, high)) }
        }

        #[inline(always)]
        fn totals(self, [a, b, c, d]: &[Self::Floats; 4]) -> [f32; 4] {
            // SAFETY: see above.
            unsafe {
                let (a, b) = (_mm256_add_ps(a[0], a[1]), _mm256_add_ps(b[0], b[1]));
                let (c, d) = (_mm256_add_ps(c[0], c[1]), _mm256_add_ps(d[0], d[1]));
                totals_of_eight(a, b, c, d)
            }
        }

        #[inline(always)]
        fn turn<T: Turn>(self, from: &[T], stride: usize, to: &mut Square) {
            assert!(from.len() >= turn::reach(stride), "sixteen rows are turned");
            // SAFETY: see above; and there are as many elements.
            unsafe { turn::avx2(from, stride, to) }
        }
    }

    impl Lanes for Avx512 {
        type Floats = __m512;

        const REGISTERS: usize = 32;

        #[inline(always)]
        fn splat(self, number: f32) -> Self::Floats {
            // SAFETY: see above.
            unsafe { _mm512_set1_ps(number) }
        }

        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> Self::Floats {
            // SAFETY: see above.
            unsafe { _mm512_loadu_ps(from.as_ptr()) }
        }

        #[inline(always)]
        fn load_f16(self, from: &[f16; LANES]) -> Self::Floats {
            // SAFETY: see above.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
        }

        #[inline(always)]
        fn load_bf16(self, from: &[bf16; LANES]) -> Self::Floats {
            // SAFETY: see above.
            unsafe {
                let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
            }
        }

        #[inline(always)]
        fn store(self, floats: Self::Floats, to: &mut [f32; LANES]) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), floats) }
        }

        #[inline(always)]
        fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
            // SAFETY: see above.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
            // SAFETY: see above.
            unsafe { _mm512_mul_ps(a, b) }
        }

        #[inline(always)]
        fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
            // SAFETY: see above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        fn larger(self, best: Self::Floats, x: Self::Floats) -> Self::Floats {
            // SAFETY: see above.
            unsafe { _mm512_max_ps(x, best) }
        }

        #[inline(always)]
        fn largest(self, floats: Self::Floats) -> f32 {
            // SAFETY: see above.
            unsafe { largest(_mm256_max_ps(_mm512_castps512_ps256(floats), _mm512_extractf32x8_ps::<1>(floats))) }
        }

        #[inline(always)]
        fn totals(self, [a, b, c, d]: &[Self::Floats; 4]) -> [f32; 4] {
            // SAFETY: see above.
            unsafe { totals_of_sixteen(*a, *b, *c, *d) }
        }

        #[inline(always)]
        fn turn<T: Turn>(self, from: &[T], stride: usize, to: &mut Square) {
            assert!(from.len() >= turn::reach(stride), "sixteen rows are turned");
            // SAFETY: see above; and there are as many elements.
            unsafe { turn::avx512(from, stride, to) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the bits of everything that lanes can do.
    struct All<'a>(&'a mut Vec<u32>);

    impl All<'_> {
        /// Turns a square of numbers that all differ.
        #[inline(always)]
        fn turned<L: Lanes, T: Turn>(&mut self, lanes: L, mut number: T, next: impl Fn(T) -> T) {
            let mut rows = [[number; LANES]; LANES];
            for cell in rows.as_flattened_mut() {
                *cell = number;
                number = next(number);
            }
            let mut square = [[0.0; LANES]; LANES];
            lanes.turn(rows.as_flattened(), LANES, &mut square);
            for (row, from) in rows.iter().enumerate() {
                assert!((0..LANES).all(|column| square[column][row] == from[column].wide()));
            }
            self.0.extend(square.as_flattened().iter().map(|x| x.to_bits()));
        }
    }

    impl Job for All<'_> {
        #[inline(always)]
        fn run<L: Lanes>(mut self, lanes: L) {
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
                self.0.extend(stored.map(f32::to_bits));
            }
            self.0.extend(lanes.totals(&floats).map(f32::to_bits));
            let mut with_none = stored;
            with_none[5] = f32::NAN;
            let larger = lanes.larger(floats[1], lanes.load(&with_none));
            lanes.store(larger, &mut stored);
            self.0.extend(stored.map(f32::to_bits));
            self.0.push(lanes.largest(larger).to_bits());
            lanes.store(lanes.add(floats[0], larger), &mut stored);
            self.0.extend(stored.map(f32::to_bits));
            self.turned(lanes, 1.0_f32, |x| x * 1.37);
            self.turned(lanes, f16::ONE, |x| f16::from_bits(x.to_bits() + 7));
            self.turned(lanes, bf16::ONE, |x| bf16::from_bits(x.to_bits() + 1));
        }
    }

    #[test]
    fn all_instruction_sets_give_the_same_bits() {
        let results = Isa::available().into_iter().map(|isa| {
            let mut bits = Vec::new();
            with_lanes(isa, All(&mut bits));
            bits
        });
        let results: Vec<Vec<u32>> = results.collect();
        assert!(results[0].len() == 85 + 16 + 3 * 256 && results.iter().all(|bits| *bits == results[0]), "{results:?}");
    }
}
