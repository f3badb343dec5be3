//! The registers of x86-64.
//!
//! Values of [`Avx2`] and [`Avx512`] exist only where the instructions run. That, and that pointers are those of arrays or
//! slices at least as long as what is read or written, makes the methods safe.

use super::{LANES, Lanes, Loaded, Register, Square, transpose};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// The sums over the lanes of four registers, halves added to halves.
#[inline]
#[target_feature(enable = "avx2")]
fn totals_of_eight([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
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
fn totals_of_sixteen([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
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

/// Methods whose bodies are one expression each, in instructions of x86-64.
macro_rules! instructions {
    ($( fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $body:expr; )*) => { $(
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) -> $ret {
            // SAFETY: see the head of the file.
            unsafe { $body }
        }
    )* };
}

impl Lanes for Avx2 {
    type Floats = [__m256; 2];

    const REGISTERS: usize = 8;

    instructions! {
        fn splat(number: f32) -> Self::Floats = [_mm256_set1_ps(number); 2];
        fn load(from: &[f32; LANES]) -> Self::Floats =
            [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))];
        fn load_f16(from: &[f16; LANES]) -> Self::Floats = {
            let from: *const __m128i = from.as_ptr().cast();
            [_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from.add(1)))]
        };
        fn load_bf16(from: &[bf16; LANES]) -> Self::Floats = {
            let from: *const __m128i = from.as_ptr().cast();
            [transpose::widen_bf16(_mm_loadu_si128(from)), transpose::widen_bf16(_mm_loadu_si128(from.add(1)))]
        };
        fn store(floats: Self::Floats, to: &mut [f32; LANES]) -> () = {
            _mm256_storeu_ps(to.as_mut_ptr(), floats[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), floats[1]);
        };
        fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats =
            [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])];
        fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats =
            [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])];
        fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats =
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])];
        fn larger(best: Self::Floats, x: Self::Floats) -> Self::Floats =
            [_mm256_max_ps(x[0], best[0]), _mm256_max_ps(x[1], best[1])];
        fn larger_where(bits: u16, best: Self::Floats, x: Self::Floats) -> Self::Floats = {
            let (bits, low) = (_mm256_set1_epi32(bits.into()), _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128));
            let where_set = |of: __m256i| _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(bits, of), of));
            let [low, high] = [where_set(low), where_set(_mm256_slli_epi32::<8>(low))];
            let x = [_mm256_blendv_ps(best[0], x[0], low), _mm256_blendv_ps(best[1], x[1], high)];
            [_mm256_max_ps(x[0], best[0]), _mm256_max_ps(x[1], best[1])]
        };
        fn largest(floats: Self::Floats) -> f32 = largest(_mm256_max_ps(floats[0], floats[1]));
        fn totals(floats: &[Self::Floats; 4]) -> [f32; 4] = {
            let [a, b, c, d] = floats;
            let (a, b) = (_mm256_add_ps(a[0], a[1]), _mm256_add_ps(b[0], b[1]));
            let (c, d) = (_mm256_add_ps(c[0], c[1]), _mm256_add_ps(d[0], d[1]));
            totals_of_eight([a, b, c, d])
        };
    }

    #[inline(always)]
    fn transpose<T: Loaded>(self, from: &[T], stride: usize, to: &mut Square) {
        assert!(from.len() >= (LANES - 1) * stride + LANES, "sixteen whole rows are transposed");
        // SAFETY: see the head of the file; and there are as many elements.
        unsafe { transpose::avx2(from, stride, to) }
    }
}

impl Lanes for Avx512 {
    type Floats = __m512;

    const REGISTERS: usize = 32;

    instructions! {
        fn splat(number: f32) -> Self::Floats = _mm512_set1_ps(number);
        fn load(from: &[f32; LANES]) -> Self::Floats = _mm512_loadu_ps(from.as_ptr());
        fn load_f16(from: &[f16; LANES]) -> Self::Floats = _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast()));
        fn load_bf16(from: &[bf16; LANES]) -> Self::Floats = {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        };
        fn store(floats: Self::Floats, to: &mut [f32; LANES]) -> () = _mm512_storeu_ps(to.as_mut_ptr(), floats);
        fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats = _mm512_add_ps(a, b);
        fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats = _mm512_mul_ps(a, b);
        fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats = _mm512_fmadd_ps(a, b, c);
        fn larger(best: Self::Floats, x: Self::Floats) -> Self::Floats = _mm512_max_ps(x, best);
        fn larger_where(bits: u16, best: Self::Floats, x: Self::Floats) -> Self::Floats =
            _mm512_mask_max_ps(best, bits, x, best);
        fn largest(floats: Self::Floats) -> f32 =
            largest(_mm256_max_ps(_mm512_castps512_ps256(floats), _mm512_extractf32x8_ps::<1>(floats)));
        fn totals(floats: &[Self::Floats; 4]) -> [f32; 4] = totals_of_sixteen(*floats);
    }

    #[inline(always)]
    fn transpose<T: Loaded>(self, from: &[T], stride: usize, to: &mut Square) {
        assert!(from.len() >= (LANES - 1) * stride + LANES, "sixteen whole rows are transposed");
        // SAFETY: see the head of the file; and there are as many elements.
        unsafe { transpose::avx512(from, stride, to) }
    }
}

/// A register of one instruction set: its types, its lanes, its instructions.
macro_rules! register {
    ($isa:ident, $features:literal, $floats:ty, $integers:ty, $lanes:literal, $totals:ident, $splat:ident, $load:ident,
     $store:ident, $add:ident, $multiply:ident, $multiply_add:ident, $bits:ident, $to_floats:ident, $subtract:ident,
     $join:ident, $add_products:ident) => {
        #[doc = concat!("Registers of ", $lanes, " floats.")]
        #[derive(Clone, Copy)]
        pub(crate) struct $isa(());

        impl $isa {
            #[target_feature(enable = $features)]
            pub(crate) fn new() -> Self {
                Self(())
            }
        }

        impl Register for $isa {
            type Floats = $floats;
            type Integers = $integers;

            const LANES: usize = $lanes;

            instructions! {
                fn splat(number: f32) -> $floats = $splat(number);
                fn load(from: &[f32]) -> $floats = $load(from[..$lanes].as_ptr());
                fn store(floats: $floats, to: &mut [f32]) -> () = $store(to[..$lanes].as_mut_ptr(), floats);
                fn add(a: $floats, b: $floats) -> $floats = $add(a, b);
                fn multiply(a: $floats, b: $floats) -> $floats = $multiply(a, b);
                fn multiply_add(a: $floats, b: $floats, c: $floats) -> $floats = $multiply_add(a, b, c);
                fn totals(floats: [$floats; 4]) -> [f32; 4] = $totals(floats);
                fn bits(floats: $floats) -> $integers = $bits(floats);
                fn to_floats(integers: $integers) -> $floats = $to_floats(integers);
                fn subtract(a: $integers, b: $integers) -> $integers = $subtract(a, b);
                fn join(high: $integers, low: $integers) -> $integers = $join(high, low);
                fn add_products(sums: $integers, a: $integers, b: $integers) -> $integers = $add_products(sums, a, b);
            }
        }
    };
}

/// `256 * high + low`.
#[inline]
#[target_feature(enable = "avx2")]
fn join_eight(high: __m256i, low: __m256i) -> __m256i {
    _mm256_add_epi32(_mm256_slli_epi32::<8>(high), low)
}

/// `256 * high + low`.
#[inline]
#[target_feature(enable = "avx512f")]
fn join_sixteen(high: __m512i, low: __m512i) -> __m512i {
    _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low)
}

/// `sums + a * b`; see [`Register::add_products`].
#[inline]
#[target_feature(enable = "avx2")]
fn add_products(sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
    _mm256_add_epi32(sums, _mm256_madd_epi16(a, b))
}

register! {
    Avx2, "avx2,fma,f16c,bmi2", __m256, __m256i, 8, totals_of_eight, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps,
    _mm256_add_ps, _mm256_mul_ps, _mm256_fmadd_ps, _mm256_castps_si256, _mm256_cvtepi32_ps, _mm256_sub_epi32, join_eight,
    add_products
}
register! {
    Avx512, "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2",
    __m512, __m512i, 16, totals_of_sixteen, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps,
    _mm512_mul_ps, _mm512_fmadd_ps, _mm512_castps_si512, _mm512_cvtepi32_ps, _mm512_sub_epi32, join_sixteen,
    _mm512_dpwssd_epi32
}
