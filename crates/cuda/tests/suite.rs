//! Compares every primitive with the reference, over random shapes, to the bit [S0.3]. Needs a GPU, or the emulated one
//! (`just cuda-emulated`).

#![allow(clippy::panic, reason = "a test fails by panicking")]

use ptero_backend::Backend;
use ptero_cuda::Cuda;
use ptero_reference::suite::{CHAINS, PRIMITIVES, check, check_forks, check_lanes, check_programs};

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

/// The primitives or chains to compare: all, or those that `PTERO_SUITE_ONLY` names.
fn wanted(all: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
    let only = std::env::var("PTERO_SUITE_ONLY").ok();
    let is_wanted = move |name: &&str| only.as_ref().is_none_or(|only| only.split(',').any(|wanted| wanted == *name));
    all.iter().copied().filter(is_wanted)
}

fn cuda() -> Cuda {
    Cuda::new().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
#[ignore = "needs an NVIDIA GPU: just cuda"]
fn every_primitive_gives_the_bits_of_the_reference() {
    let cuda = cuda();
    let mut failures = Vec::new();
    for primitive in wanted(PRIMITIVES) {
        let start = std::time::Instant::now();
        let checked = check(&cuda, primitive, cases(), seed());
        println!("{primitive}: {} cases in {:.1} s, {}", cases(), start.elapsed().as_secs_f64(), checked.is_ok());
        failures.extend(checked.err().map(|failure| failure.to_string()));
    }
    assert!(failures.is_empty(), "on {}:\n{}", cuda.name(), failures.join("\n"));
}

#[test]
#[ignore = "needs an NVIDIA GPU: just cuda"]
fn chains_of_primitives_give_the_bits_of_the_reference_and_some_steps_are_joined() {
    let cuda = cuda();
    let mut failures = Vec::new();
    for chain in wanted(CHAINS) {
        let (start, before) = (std::time::Instant::now(), cuda.joined_steps());
        failures.extend(check(&cuda, chain, cases(), seed()).err().map(|failure| failure.to_string()));
        let joined = cuda.joined_steps() - before;
        println!("{chain}: {} cases in {:.1} s, {joined} joined steps", cases(), start.elapsed().as_secs_f64());
        // In few cases, those may all be ones that cannot be joined.
        assert!(joined > 0 || cases() < 20, "no step of {chain} was joined");
    }
    assert!(failures.is_empty(), "on {}:\n{}", cuda.name(), failures.join("\n"));
}

#[test]
#[ignore = "needs an NVIDIA GPU: just cuda"]
fn random_programs_give_the_bits_of_the_reference() {
    check_programs(&cuda(), cases(), seed()).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
#[ignore = "needs an NVIDIA GPU: just cuda"]
fn forks_of_a_state_go_their_own_ways() {
    let cuda = cuda();
    for primitive in wanted(PRIMITIVES).chain(wanted(CHAINS)) {
        check_forks(&cuda, primitive, cases() / 4, 6).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: just cuda"]
fn lanes_run_together_as_each_runs_alone() {
    check_lanes(&cuda()).unwrap_or_else(|failure| panic!("{failure}"));
}
