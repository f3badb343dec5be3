//! Every primitive against the reference, over random shapes, on every instruction set of this machine (S0.3).

use ptero_backend::suite::{CALLS, Case, PRIMITIVES, check};
use ptero_backend::{Backend, OutputValue};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use std::sync::Arc;

/// More with `PTERO_SUITE_CASES`.
fn cases() -> u64 {
    std::env::var("PTERO_SUITE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(100)
}

#[test]
fn every_primitive_agrees_with_the_reference() {
    for isa in Isa::available() {
        let cpu = Cpu::with(3, isa);
        let failures: Vec<String> = PRIMITIVES
            .iter()
            .filter_map(|primitive| check(&cpu, primitive, cases(), 1).err())
            .map(|failure| failure.to_string())
            .collect();
        assert!(failures.is_empty(), "on {}:\n{}", isa.name(), failures.join("\n"));
    }
}

/// The outputs of all calls, or what went wrong.
fn outputs(case: &Case, cpu: &Cpu) -> Vec<Result<OutputValue, String>> {
    let mut state = cpu.compile(Arc::clone(case.plan())).unwrap().state(1).unwrap();
    let mut found = Vec::new();
    for call in 0..CALLS {
        match case.call(state.as_mut(), call) {
            Ok(()) => found.extend((0..case.plan().outputs.len()).map(|output| Ok(state.read(output).unwrap()))),
            Err(error) => found.push(Err(error.to_string())),
        }
    }
    found
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let isa = Isa::best();
    let [one, two, five] = [1, 2, 5].map(|threads| Cpu::with(threads, isa));
    for primitive in PRIMITIVES {
        for number in 0..cases() / 4 {
            let case = Case::new(primitive, 2, number);
            let expected = outputs(&case, &one);
            assert_eq!(expected, outputs(&case, &two), "`{primitive}`, case {number}");
            assert_eq!(expected, outputs(&case, &five), "`{primitive}`, case {number}");
        }
    }
}
