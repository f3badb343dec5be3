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

#[test]
fn every_primitive_agrees_with_the_reference() {
    let only = std::env::var("PTERO_SUITE_ONLY").ok();
    let wanted = PRIMITIVES.iter().filter(|name| only.as_ref().is_none_or(|only| only == *name));
    let failures: Vec<String> = wanted
        .filter_map(|primitive| check(&Mlx, primitive, cases(), seed()).err())
        .map(|failure| failure.to_string())
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_fork_continues_as_its_original_does() {
    for primitive in PRIMITIVES {
        check_forks(&Mlx, primitive, cases() / 10, seed()).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn lanes_run_as_if_each_were_alone() {
    check_lanes(&Mlx).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn random_programs_agree_with_the_reference() {
    check_programs(&Mlx, cases(), seed()).unwrap_or_else(|failure| panic!("{failure}"));
}
