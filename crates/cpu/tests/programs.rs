//! Compares random programs of exact operations with the reference (see `ptero_reference::suite::check_programs`).

use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_reference::suite::check_programs;

/// `PTERO_SUITE_CASES` sets the number of cases.
#[test]
fn random_programs_give_the_bits_of_the_reference() {
    let cases = std::env::var("PTERO_SUITE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300);
    let cpu = Cpu::with(2, Isa::best());
    for seed in 1..4 {
        check_programs(&cpu, cases, seed).unwrap_or_else(|failure| panic!("{failure}"));
    }
}
