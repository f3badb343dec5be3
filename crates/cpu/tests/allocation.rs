//! After the first call, a run takes no memory from the system (S1.3): its own allocator counts.

use ptero_backend::suite::{Case, PRIMITIVES};
use ptero_backend::{Backend, OutputValue};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_plan::plan::{Plan, PlanStep};
use ptero_plan::prim::{Prim, View};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::sync::Arc;

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Whether rows of quantized weights are not contiguous, as no file has them; those are copied by every run.
fn has_scattered_weights(plan: &Plan) -> bool {
    let steps = plan.blocks.iter().flat_map(|block| &block.steps);
    let mut weights = steps.filter_map(|step| match step {
        PlanStep::Device(Prim::QuantMatMul { w, .. } | Prim::Dequantize { w, .. }) => Some(w),
        _ => None,
    });
    let is_scattered = |view: &View| !view.strides.last().is_some_and(|stride| stride.is(1));
    weights.any(|w| [&w.codes].into_iter().chain(&w.scales).chain(&w.biases).any(is_scattered))
}

/// How often each of some equal calls allocates.
fn counts(cpu: &Cpu, case: &Case) -> Vec<usize> {
    let executable = cpu.compile(Arc::clone(case.plan())).expect("it is sound");
    let mut state = executable.state(1).expect("there is memory");
    let (mut counts, mut value) = (Vec::with_capacity(CALLS), OutputValue::Int(0));
    for _ in 0..CALLS {
        let region = Region::new(COUNTING);
        if case.call(state.as_mut(), 0).is_err() {
            break;
        }
        for output in 0..case.plan().outputs.len() {
            state.read_into(output, &mut value).expect("it ran");
        }
        let change = region.change();
        counts.push(change.allocations + change.reallocations);
    }
    counts
}

/// Of one case.
const CALLS: usize = 12;

#[test]
fn runs_after_the_first_take_no_memory() {
    // Which thread takes a task is not settled, so with two, the other's memory may grow in a few later runs.
    for (threads, most) in [(1, 0), (2, 4)] {
        let cpu = Cpu::with(threads, Isa::best());
        for (primitive, number) in
            PRIMITIVES.iter().flat_map(|primitive| (0..40).map(move |number| (primitive, number)))
        {
            let case = Case::new(primitive, 3, number);
            if !has_scattered_weights(case.plan()) {
                let counts = counts(&cpu, &case);
                let later = counts.iter().skip(1).filter(|count| **count > 0).count();
                assert!(later <= most, "`{primitive}`, case {number}, {threads} threads: {counts:?}");
            }
        }
    }
}
