//! Every primitive against the reference, over random shapes, on every instruction set of this machine (S0.3).

use ptero_backend::suite::{PRIMITIVES, check};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;

#[test]
fn every_primitive_agrees_with_the_reference() {
    let best = Isa::best();
    for isa in Isa::available() {
        let cpu = Cpu::with(3, isa);
        let cases = if isa == best { 200 } else { 60 };
        let failures: Vec<String> = PRIMITIVES
            .iter()
            .filter_map(|primitive| check(&cpu, primitive, cases, 1).err())
            .map(|failure| failure.to_string())
            .collect();
        assert!(failures.is_empty(), "on {}:\n{}", isa.name(), failures.join("\n"));
    }
}
