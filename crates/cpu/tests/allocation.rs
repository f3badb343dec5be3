//! Checks that after the first call, a run allocates no memory (S1.3), with an allocator that counts. It counts for the whole
//! process, so this test has no harness, whose threads would be counted too.

use ptero_backend::{Backend, OutputValue};
use ptero_cpu::Cpu;
use ptero_cpu::profile::Profiler;
use ptero_cpu::simd::Isa;
use ptero_plan::graph::Graph;
use ptero_plan::plan::PlanStep;
use ptero_plan::prim::{Prim, ViewId};
use ptero_plan::{Arena, bufferize};
use ptero_reference::suite::{Case, PRIMITIVES};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Returns `true` if rows of quantized weights are not contiguous or are reversed, as in no file: every run copies those.
fn has_scattered_weights(graph: &Graph) -> bool {
    let plan = bufferize(graph, Arena::aligned(64)).expect("the graph is sound");
    let steps = plan.blocks.iter().flat_map(|block| &block.steps);
    let mut weights = steps.filter_map(|step| match step {
        PlanStep::Device(Prim::QuantMatMul { w, .. } | Prim::Dequantize { w, .. }) => Some(w),
        _ => None,
    });
    let view = |id: &ViewId| plan.views.get(id.0 as usize).expect("a step uses views of its plan");
    let is_scattered = |id: &ViewId| {
        let (last, others) = view(id).strides.split_last().expect("weights have rows");
        !last.is(1) || others.iter().any(|stride| stride.as_fixed().is_some_and(|stride| stride < 0))
    };
    weights.any(|w| [&w.codes].into_iter().chain(&w.scales).chain(&w.biases).any(is_scattered))
}

/// The number of allocations of each of [`CALLS`] equal calls, which are recorded if there are profilers.
fn counts(cpu: &Cpu, profilers: &Receiver<Arc<Profiler>>, case: &Case) -> Vec<usize> {
    let executable = cpu.compile(Arc::clone(case.graph())).expect("it is sound");
    profilers.try_iter().for_each(|profiler| profiler.start());
    let mut state = executable.state(1).expect("there is memory");
    let (mut counts, mut value) = (Vec::with_capacity(CALLS), OutputValue::Int(0));
    for _ in 0..CALLS {
        let region = Region::new(COUNTING);
        if case.call(executable.as_ref(), state.as_mut(), 0).is_err() {
            break;
        }
        for output in 0..case.graph().outputs.len() {
            state.read_into(output, &mut value).expect("it ran");
        }
        let change = region.change();
        counts.push(change.allocations + change.reallocations);
    }
    counts
}

/// Calls of a case.
const CALLS: usize = 12;

fn main() {
    // Any thread may take any task, so with two threads, the other's memory may grow in a few later runs.
    for (threads, most, is_profiled) in [(1, 0, false), (2, 4, false), (1, 0, true)] {
        let (sender, profilers) = mpsc::channel();
        let cpu = Cpu::with(threads, Isa::best());
        let cpu = if is_profiled { cpu.profiled(sender) } else { cpu };
        for (primitive, number) in
            PRIMITIVES.iter().flat_map(|primitive| (0..40).map(move |number| (primitive, number)))
        {
            let case = Case::new(primitive, 3, number);
            if !has_scattered_weights(case.graph()) {
                let counts = counts(&cpu, &profilers, &case);
                let later = counts.iter().skip(1).filter(|count| **count > 0).count();
                assert!(later <= most, "`{primitive}`, case {number}, {threads} threads: {counts:?}");
            }
        }
    }
}
