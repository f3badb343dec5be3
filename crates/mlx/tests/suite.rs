//! Compares every primitive with the reference, over random shapes, within tolerances (S0.3).
#![cfg(feature = "link")]

use ptero_mlx::Mlx;
use ptero_reference::suite::{PRIMITIVES, check, check_forks, check_lanes, check_programs};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// The number of cases; `PTERO_SUITE_CASES` sets another.
fn cases() -> u64 {
    variable("PTERO_SUITE_CASES").unwrap_or(100)
}

/// The seed of the cases; `PTERO_SUITE_SEED` sets another.
fn seed() -> u64 {
    variable("PTERO_SUITE_SEED").unwrap_or(1)
}

/// Why MLX may be as far from the reference as `Prim::tolerance` allows. What is relative is so to the sum of the magnitudes of
/// the terms; the results of short floats may be a unit in the last place further apart, since two close numbers round to neighbours.
const TOLERANCES: &[(&str, &str)] = &[
    ("map", "2 units in the last place: MLX's functions and ours are each about one from the exact result"),
    ("reduce", "1e-5: MLX adds in another order, and each of a few thousand additions rounds by 6e-8"),
    ("arg-reduce", "exact: it compares, and of equal elements the first is wanted"),
    ("softmax", "1e-5: an exponential that is a unit off, and a sum in another order"),
    ("norm", "1e-5: a sum of squares in another order, and another reciprocal square root"),
    ("rope", "1e-4, and more for large angles: they are rounded to f32 before the sine is taken"),
    ("attention", "1e-4: two products and a softmax, each a sum in another order"),
    ("matmul", "1e-4: the order of sums is that of the BLAS that MLX was built with"),
    ("quant-matmul", "1e-4: MLX multiplies decoded weights in f32, and the reference adds codes and biases up apart"),
    ("dequantize", "exact: one multiplication and one addition"),
    ("conv", "1e-4: a product of matrices, in another order"),
    ("gather", "exact: it moves elements"),
    ("scatter", "exact: it moves elements, or adds one after the other"),
    ("sort", "exact: it compares and moves"),
    ("cumsum", "1e-5: MLX may add in blocks, and each addition rounds"),
    ("gated-delta", "1e-4: products of rows in another order, whose errors the state carries on"),
    ("random-bits", "exact: whole numbers"),
    ("sample", "exact: the fused head draws on the host, with the reference's own code"),
    ("concat", "exact: it moves elements"),
    ("update", "exact: it moves elements"),
    ("if", "exact: it adds twice at most, which IEEE 754 defines to the bit"),
    ("loop", "exact: its additions have an order"),
];

#[test]
fn every_primitive_agrees_with_the_reference() {
    assert!(TOLERANCES.iter().map(|(name, _)| name).eq(PRIMITIVES), "every primitive has a reason for its tolerance");
    let only = std::env::var("PTERO_SUITE_ONLY").ok();
    let wanted = TOLERANCES.iter().filter(|(name, _)| only.as_ref().is_none_or(|only| only == name));
    let failures: Vec<String> = wanted
        .filter_map(|(primitive, why)| {
            let failure = check(&Mlx::new(), primitive, cases(), seed()).err()?;
            Some(format!("{failure}\nits tolerance is {why}"))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_fork_continues_as_its_original_does() {
    for primitive in PRIMITIVES {
        check_forks(&Mlx::new(), primitive, cases() / 10, seed()).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn lanes_run_as_if_each_were_alone() {
    check_lanes(&Mlx::new()).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn random_programs_agree_with_the_reference() {
    check_programs(&Mlx::new(), cases(), seed()).unwrap_or_else(|failure| panic!("{failure}"));
}
