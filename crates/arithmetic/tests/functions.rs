//! The functions against those of the standard library for f64, and the bits that every machine must give.

use ptero_arithmetic::*;

/// A function of one number: its name, ours, and the true one.
type Function = (&'static str, fn(f32) -> f32, fn(f64) -> f64);

const FUNCTIONS: [Function; 21] = [
    ("exp_m1", exp_m1, f64::exp_m1),
    ("ln_1p", ln_1p, f64::ln_1p),
    ("log2", log2, f64::log2),
    ("log10", log10, f64::log10),
    ("sin", sin, f64::sin),
    ("cos", cos, f64::cos),
    ("tan", tan, f64::tan),
    ("asin", asin, f64::asin),
    ("acos", acos, f64::acos),
    ("atan", atan, f64::atan),
    ("sinh", sinh, f64::sinh),
    ("cosh", cosh, f64::cosh),
    ("asinh", asinh, f64::asinh),
    ("acosh", acosh, f64::acosh),
    ("atanh", atanh, f64::atanh),
    ("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
    ("tanh", tanh, f64::tanh),
    ("rsqrt", rsqrt, |x| 1.0 / x.sqrt()),
    ("exp", exp, f64::exp),
    ("ln", ln, f64::ln),
    ("erf", erf, true_erf),
];

/// Near zero by the series without subtractions (Abramowitz and Stegun 7.1.6), elsewhere by the continued fraction of the
/// complement (7.1.14).
fn true_erf(x: f64) -> f64 {
    let magnitude = x.abs();
    let scale = (-magnitude * magnitude).exp() / std::f64::consts::PI.sqrt();
    let result = if magnitude < 2.0 {
        let mut term = magnitude;
        let terms = (1..60).map(|n| {
            term *= 2.0 * magnitude * magnitude / f64::from(2 * n + 1);
            term
        });
        2.0 * scale * (magnitude + terms.sum::<f64>())
    } else {
        let fraction = (1..100).rev().fold(magnitude, |tail, n| magnitude + f64::from(n) / 2.0 / tail);
        1.0 - scale / fraction
    };
    result.copysign(x)
}

#[test]
fn the_true_error_function_is_true() {
    let known = [
        (0.125, 0.1403162048013338),
        (0.5, 0.5204998778130465),
        (1.984375, 0.9949890660500735),
        (3.0, 0.9999779095030014),
    ];
    for (x, expected) in known {
        assert!((true_erf(x) - expected).abs() < 1e-15, "{x}");
    }
}

/// Numbers from everywhere, and all the edges.
fn numbers() -> impl Iterator<Item = f32> {
    let edges =
        [0.0, f32::MIN_POSITIVE, 0.25, 0.5, 0.625, 1.0, 2.0, 4.0, 88.7, 104.0, f32::MAX, f32::INFINITY, f32::NAN];
    let near = edges.into_iter().flat_map(|edge: f32| (-9..=9).map(move |off| edge.to_bits().wrapping_add_signed(off)));
    let signed = near.flat_map(|bits| [bits, bits ^ 0x8000_0000]);
    (0..=u32::MAX).step_by(4099).chain(signed).map(f32::from_bits)
}

/// The distance from the truth in units of the last place of an f32 as large as that.
fn ulps(ours: f32, truth: f64) -> f64 {
    #[allow(clippy::cast_possible_truncation, reason = "what a function should give")]
    let nearest = truth as f32;
    if ours == nearest || ours.is_nan() && nearest.is_nan() {
        return if ours.is_infinite() || ours.is_nan() { 0.0 } else { distance(ours, truth) };
    }
    distance(ours, truth)
}

fn distance(ours: f32, truth: f64) -> f64 {
    let step = f64::from(nearest_magnitude(truth).next_up()) - f64::from(nearest_magnitude(truth));
    (f64::from(ours) - truth).abs() / step
}

#[allow(clippy::cast_possible_truncation, reason = "a magnitude")]
fn nearest_magnitude(truth: f64) -> f32 {
    (truth.abs() as f32).min(f32::MAX.next_down())
}

#[test]
fn functions_are_as_near_to_the_truth_as_they_say() {
    for (name, ours, truth) in FUNCTIONS {
        let most = match name {
            "exp" | "ln" => 1.0 + 1e-6,
            "sigmoid" | "tanh" => 3.0,
            "rsqrt" => 1.5,
            "erf" => 0.51,
            _ => 0.500_01,
        };
        let error = |x: f32| ulps(ours(x), truth(x.into()));
        let worst =
            numbers().map(|x| (error(x), x)).fold((0.0, 0.0), |a, b| if b.0 > a.0 || b.0.is_nan() { b } else { a });
        println!("{name}: {:.4} units at {:e}", worst.0, worst.1);
        assert!(worst.0 <= most, "{name}({:e}) = {:e} is off by {}", worst.1, ours(worst.1), worst.0);
    }
}

#[test]
fn zeros_keep_their_signs_where_the_function_is_odd() {
    for function in [exp_m1, ln_1p, sin, tan, asin, atan, sinh, asinh, atanh, tanh, erf, sign] {
        assert_eq!(function(0.0).to_bits(), 0);
        assert_eq!(function(-0.0).to_bits(), 0x8000_0000);
    }
}

#[test]
fn functions_of_two_numbers_are_those_of_ieee_754() {
    let edges = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 1e-30, 7e20, 16_777_217.0, f32::MAX, f32::INFINITY];
    let edges: Vec<f32> = edges.iter().flat_map(|x| [*x, -x]).chain([f32::NAN]).collect();
    for (&a, &b) in edges.iter().flat_map(|a| edges.iter().map(move |b| (a, b))) {
        let (wide_a, wide_b) = (f64::from(a), f64::from(b));
        for (name, ours, truth) in
            [("power", power(a, b), wide_a.powf(wide_b)), ("atan2", atan2(a, b), wide_a.atan2(wide_b))]
        {
            #[allow(clippy::cast_possible_truncation, reason = "what it should give")]
            let nearest = truth as f32;
            let is_same = ours.to_bits() == nearest.to_bits() || ours.is_nan() && nearest.is_nan();
            assert!(is_same, "{name}({a:e}, {b:e}) = {ours:e}, not {nearest:e}");
        }
    }
    assert_eq!(log_add_exp(f32::NEG_INFINITY, f32::NEG_INFINITY), f32::NEG_INFINITY);
    assert_eq!((log_add_exp(f32::INFINITY, 0.0), log_add_exp(f32::NEG_INFINITY, 3.0)), (f32::INFINITY, 3.0));
    assert_eq!(
        (log_add_exp(1000.0, 1000.0), log_add_exp(0.0, f32::NEG_INFINITY)),
        (1000.0 + std::f32::consts::LN_2, 0.0)
    );
    assert!(log_add_exp(f32::NAN, 1.0).is_nan() && log_add_exp(1.0, f32::NAN).is_nan());
    assert_eq!((remainder(5.5, 2.0), remainder(-5.5, 2.0), remainder(5.5, -2.0)), (1.5, 0.5, -0.5));
    assert_eq!((floor_div(-5.5, 2.0), sign(-3.0), sign(7.0)), (-3.0, -1.0, 1.0));
    assert!(
        [max(f32::NAN, 1.0), max(1.0, f32::NAN), min(f32::NAN, 1.0), min(1.0, f32::NAN), sign(f32::NAN)]
            .iter()
            .all(|x| x.is_nan())
    );
}

#[test]
fn powers_are_rounded_from_the_true_ones() {
    let mut state = 1_u64;
    let mut next = |low: f32, high: f32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (high - low) * (state >> 40) as f32 / 16_777_216.0
    };
    for _ in 0..200_000 {
        let (a, b) = (next(0.0, 20.0), next(-30.0, 30.0));
        let truth = f64::from(a).powf(b.into());
        if truth > f64::from(f32::MIN_POSITIVE) && truth < f64::from(f32::MAX) {
            assert!(ulps(power(a, b), truth) <= 0.500_01, "{a}^{b}");
        }
    }
}

/// A digest of bits, in order; all NaNs count as one.
fn digest(bits: impl Iterator<Item = f32>) -> u64 {
    let canonical = |x: f32| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() };
    bits.fold(0xcbf2_9ce4_8422_2325, |hash, x| (hash ^ u64::from(canonical(x))).wrapping_mul(0x0100_0000_01b3))
}

/// The digests that every machine and every instruction set must give. They change only with the definitions.
const DIGESTS: [(&str, u64); 22] = [
    ("exp_m1", 0x371d_27e9_cfde_8892),
    ("ln_1p", 0xd792_3868_4c14_0457),
    ("log2", 0xec3a_f066_9e9a_05d5),
    ("log10", 0x74ad_db80_2d93_bad5),
    ("sin", 0x23d5_dca0_dac4_0956),
    ("cos", 0x3035_db51_16e9_ad28),
    ("tan", 0x3f50_498a_7a73_11d8),
    ("asin", 0x023e_5e3a_deb7_499d),
    ("acos", 0xd29f_04cc_3e19_d50b),
    ("atan", 0xf575_c48f_4750_ea62),
    ("sinh", 0xdf87_b4f3_3b32_3594),
    ("cosh", 0x07eb_46c2_0352_b3bb),
    ("asinh", 0x5f0f_a738_041f_df85),
    ("acosh", 0x9ebc_e899_7247_804d),
    ("atanh", 0x29e3_9aaf_5ee2_b1fc),
    ("sigmoid", 0x0e55_5d4a_01b3_c409),
    ("tanh", 0x4a1e_ba8d_b3dd_a5ca),
    ("rsqrt", 0x5a86_ebc8_ea1f_b76f),
    ("exp", 0x8a29_7f26_bcfa_5eaf),
    ("ln", 0xf071_e35e_21cb_079a),
    ("erf", 0xae34_cccb_6560_79cd),
    ("power", 0x0d71_7351_42d3_9c1d),
];

#[test]
fn every_machine_gives_the_same_bits() {
    let of_one = FUNCTIONS.into_iter().map(|(name, function, _)| (name, digest(numbers().map(function))));
    let pairs = || numbers().zip(numbers().skip(123_457));
    let power = ("power", digest(pairs().map(|(a, b)| power(a.abs(), b))));
    let found: Vec<(&str, u64)> = of_one.chain([power]).collect();
    assert_eq!(found.as_slice(), &DIGESTS[..]);
}
