//! Functions of single numbers in `kernels/scalar.cuh`, compiled for the host, give the bits of the crate `arithmetic`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use ptero_arithmetic as arithmetic;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

type Unary = fn(f32) -> f32;
type Binary = fn(f32, f32) -> f32;

const UNARY: [(&str, Unary); 31] = [
    ("f_neg", |x| -x),
    ("f_abs", f32::abs),
    ("f_sign", arithmetic::sign),
    ("f_square", |x| x * x),
    ("f_sqrt", f32::sqrt),
    ("f_rsqrt", arithmetic::rsqrt),
    ("f_reciprocal", |x| 1.0 / x),
    ("f_exp", arithmetic::exp),
    ("f_expm1", arithmetic::exp_m1),
    ("f_log", arithmetic::ln),
    ("f_log2", arithmetic::log2),
    ("f_log10", arithmetic::log10),
    ("f_log1p", arithmetic::ln_1p),
    ("f_sin", arithmetic::sin),
    ("f_cos", arithmetic::cos),
    ("f_tan", arithmetic::tan),
    ("f_arcsin", arithmetic::asin),
    ("f_arccos", arithmetic::acos),
    ("f_arctan", arithmetic::atan),
    ("f_sinh", arithmetic::sinh),
    ("f_cosh", arithmetic::cosh),
    ("f_tanh", arithmetic::tanh),
    ("f_arcsinh", arithmetic::asinh),
    ("f_arccosh", arithmetic::acosh),
    ("f_arctanh", arithmetic::atanh),
    ("f_erf", arithmetic::erf),
    ("f_sigmoid", arithmetic::sigmoid),
    ("f_floor", f32::floor),
    ("f_ceil", f32::ceil),
    ("f_round", f32::round_ties_even),
    ("f_trunc", f32::trunc),
];

const BINARY: [(&str, Binary); 11] = [
    ("f_add", |a, b| a + b),
    ("f_sub", |a, b| a - b),
    ("f_mul", |a, b| a * b),
    ("f_div", |a, b| a / b),
    ("f_floor_div", arithmetic::floor_div),
    ("f_remainder", arithmetic::remainder),
    ("f_power", arithmetic::power),
    ("f_max", arithmetic::max),
    ("f_min", arithmetic::min),
    ("f_atan2", arithmetic::atan2),
    ("f_log_add_exp", arithmetic::log_add_exp),
];

/// Compiles the functions for the host.
fn program() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("arithmetic");
    let status = Command::new("g++")
        .args(["-std=c++20", "-O2", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-unknown-pragmas"])
        .arg(format!("-I{}", root.join("src/kernels/shared").display()))
        .arg(root.join("tests/host/arithmetic.cpp"))
        .arg("-o")
        .arg(&to)
        .status()
        .unwrap();
    assert!(status.success());
    to
}

/// The results of a function of the program for pairs of numbers.
fn results(program: &Path, name: &str, pairs: &[(f32, f32)]) -> Vec<f32> {
    let mut child = Command::new(program).arg(name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let bytes: Vec<u8> = pairs.iter().flat_map(|(a, b)| [a.to_le_bytes(), b.to_le_bytes()]).flatten().collect();
    let mut input = child.stdin.take().unwrap();
    let writer = thread::spawn(move || input.write_all(&bytes).unwrap());
    let mut output = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success(), "{name}");
    output.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// NaN has no bits of its own.
fn bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

fn compare(program: &Path, name: &str, pairs: &[(f32, f32)], expected: impl Fn(f32, f32) -> f32) {
    let found = results(program, name, pairs);
    assert_eq!(found.len(), pairs.len(), "{name}");
    for (&(a, b), found) in pairs.iter().zip(found) {
        let expected = expected(a, b);
        assert_eq!(bits(found), bits(expected), "{name}({a:e}, {b:e}) is {found:e}, not {expected:e}");
    }
}

/// Zeros, infinities, NaN, subnormal and whole numbers, and where functions change from one formula to another.
fn special() -> Vec<f32> {
    let magnitudes = [
        0.0,
        f32::from_bits(1),
        1.0e-40,
        f32::MIN_POSITIVE,
        1.0e-20,
        0.1,
        0.25,
        0.5,
        0.625,
        std::f32::consts::FRAC_PI_4,
        1.0,
        1.5,
        2.0,
        3.0,
        4.0,
        std::f32::consts::PI,
        17.0,
        88.0,
        89.0,
        104.0,
        200.0,
        65504.0,
        16_777_216.0,
        1.0e30,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let around = magnitudes.into_iter().flat_map(|x: f32| [x.next_down(), x, x.next_up()]);
    around.flat_map(|x| [x, -x]).collect()
}

#[test]
#[ignore = "needs g++: just cuda-host"]
fn functions_of_floats_are_those_of_the_crate_to_the_bit() {
    let program = program();
    let special = special();
    // A prime step visits every exponent and sign with changing mantissas.
    let spread = (0..u32::MAX).step_by(4099).map(f32::from_bits);
    let near = (0..400_000_u32).map(|at| f32::from_bits(0x3a00_0000 + at * 331)).flat_map(|x| [x, -x]);
    let ones: Vec<(f32, f32)> = special.iter().copied().chain(spread).chain(near).map(|x| (x, 0.0)).collect();
    for (name, function) in UNARY {
        compare(&program, name, &ones, |x, _| function(x));
    }
    let mut pairs: Vec<(f32, f32)> = special.iter().flat_map(|&a| special.iter().map(move |&b| (a, b))).collect();
    let mut state = 1_u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 32).unwrap()
    };
    for _ in 0..500_000 {
        let (a, b) = (next(), next());
        pairs.push((f32::from_bits(a), f32::from_bits(b)));
        // Of similar sizes, where sums and quotients are not trivial.
        pairs.push((f32::from_bits(0x3a00_0000 + (a >> 4)), f32::from_bits(0x3a00_0000 + (b >> 4))));
        pairs.push((f32::from_bits(a % 0x5000_0000), f32::from(i16::try_from(b % 41).unwrap() - 20) * 0.5));
    }
    for (name, function) in BINARY {
        compare(&program, name, &pairs, function);
    }
}
