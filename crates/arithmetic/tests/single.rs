//! `ln` and `exp` over every f32 there is.

use ptero_arithmetic::{ULPS, exp, ln};
use std::f64::consts::{LN_2, SQRT_2};
use std::ops::RangeInclusive;
use std::thread;

/// The distance from the true value in units of the last place of an f32 as large as that; subnormal ones are a step apart.
fn ulps(ours: f32, truth: f64) -> f64 {
    const SMALLEST_STEP: u64 = (1023 - 149) << 52;
    if truth.abs() >= BEYOND {
        return if ours.is_infinite() { 0.0 } else { f64::INFINITY };
    }
    // The power of two at or below the truth is 2^23 steps.
    let power = truth.to_bits() & f64::INFINITY.to_bits();
    let step = power.saturating_sub(23 << 52).max(SMALLEST_STEP);
    // One over a power of two, exactly.
    let steps = f64::from_bits((2046 << 52) - step);
    (f64::from(ours) - truth).abs() * steps
}

/// From here on the nearest f32 is infinite.
const BEYOND: f64 = 340_282_356_779_733_661_637_539_395_458_142_568_448.0;

/// A distance, and the number at which it is.
type Error = (f64, f32);

/// The largest error over numbers from `first` to `last`, looked at by all threads of the machine.
fn worst(numbers: RangeInclusive<u32>, of: impl Fn(u32) -> Error + Sync) -> Error {
    let threads = thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
    let (first, last) = (*numbers.start(), *numbers.end());
    let share = (last - first) / threads + 1;
    let parts = thread::scope(|scope| {
        let part = |thread: u32| {
            let of = &of;
            let start = first.saturating_add(thread.saturating_mul(share));
            let end = last.min(start.saturating_add(share - 1));
            scope.spawn(move || (start..=end).map(of).fold((0.0, 0.0), larger))
        };
        let parts: Vec<_> = (0..threads).map(part).collect();
        parts.into_iter().map(|part| part.join().expect("no panic")).collect::<Vec<_>>()
    });
    parts.into_iter().reduce(larger).expect("a thread at least")
}

fn larger(one: Error, other: Error) -> Error {
    if other.0 > one.0 || other.0.is_nan() { other } else { one }
}

fn error_of(bits: u32, ours: fn(f32) -> f32, truth: fn(f64) -> f64) -> Error {
    let x = f32::from_bits(bits);
    (ulps(ours(x), truth(f64::from(x))), x)
}

#[test]
fn the_logarithm_of_every_positive_number_is_within_its_bound() {
    let subnormal = worst(1..=f32::MIN_POSITIVE.to_bits() - 1, |bits| error_of(bits, ln, f64::ln));
    // One true logarithm per mantissa, between √½ and √2, serves all exponents: the sum is as exact as an f64 can be, because
    // whole multiples of ln 2 are never near to minus the logarithm of such a mantissa.
    let normal = worst(0..=(1 << 23) - 1, |mantissa| {
        let whole = f64::from(f32::from_bits(1.0_f32.to_bits() | mantissa));
        let (centred, lift) = if whole > SQRT_2 { (whole / 2.0, 1) } else { (whole, 0) };
        let logarithm = centred.ln();
        let at = |exponent: u32| {
            let x = f32::from_bits(exponent << 23 | mantissa);
            let power = f64::from(exponent) - 127.0 + f64::from(lift);
            (ulps(ln(x), logarithm + power * LN_2), x)
        };
        (1..255).map(at).fold((0.0, 0.0), larger)
    });
    for (error, at) in [subnormal, normal] {
        println!("ln: {error:.4} ulp at {at:e}");
        assert!(error <= ULPS, "{error} ulp at {at:e}");
    }
}

#[test]
fn the_exponential_of_every_number_is_within_its_bound() {
    // Nearer to 0 than this the reduced argument is `x` itself, and 1 and anything twice as large as it rounds to 1: no need to try
    // all of the 1.7 billion such numbers, most of which are slow because their squares are subnormal.
    let near = (f32::EPSILON / 8.0).to_bits();
    for bits in (0..=near).step_by(1009).chain([near]) {
        assert_eq!((exp(f32::from_bits(bits)), exp(-f32::from_bits(bits))), (1.0, 1.0), "{bits:#x}");
    }
    let error = |bits| error_of(bits, exp, f64::exp);
    // Beyond these both are 0 or infinite.
    let positive = worst(near..=100.0_f32.to_bits(), error);
    let negative = worst(0x8000_0000 | near..=(-110.0_f32).to_bits(), error);
    for (error, at) in [positive, negative] {
        println!("exp: {error:.4} ulp at {at:e}");
        assert!(error <= ULPS, "{error} ulp at {at:e}");
    }
}

#[test]
fn special_values_are_those_of_mathematics() {
    assert_eq!(ln(0.0), f32::NEG_INFINITY);
    assert_eq!(ln(-0.0), f32::NEG_INFINITY);
    assert_eq!(ln(1.0).to_bits(), 0);
    assert_eq!(ln(f32::INFINITY), f32::INFINITY);
    assert!(ln(-1.0).is_nan() && ln(f32::NEG_INFINITY).is_nan() && ln(f32::NAN).is_nan());
    assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0));
    assert_eq!((exp(f32::INFINITY), exp(f32::NEG_INFINITY)), (f32::INFINITY, 0.0));
    assert_eq!((exp(89.0), exp(-104.5)), (f32::INFINITY, 0.0));
    assert!(exp(f32::NAN).is_nan());
}

#[test]
fn the_exponential_never_falls_up_to_zero() {
    // Samplers compare probabilities by comparing logits. Nearer to 0 than 2^-27 all powers are 1, below -104 all are 0.
    let [nearest, farthest] = [-f32::from_bits((127 - 27) << 23), -104.0].map(f32::to_bits);
    let (fall, at) = worst(nearest..=farthest, |bits| {
        let (x, below) = (f32::from_bits(bits), f32::from_bits(bits + 1));
        (f64::from(exp(below)) - f64::from(exp(x)), x)
    });
    assert_eq!((exp(f32::from_bits(nearest)), exp(-104.0)), (1.0, 0.0));
    assert!(fall <= 0.0, "{fall} at {at:e}");
}
