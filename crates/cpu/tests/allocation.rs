//! Checks that after the first call, a run allocates no memory (S1.3), with an allocator that counts. It counts for the whole
//! process, so this test has no harness, whose threads would be counted too.

use ptero_backend::{Backend, Error, Executable, Lane, OutputValue, State, Steps};
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
use std::sync::atomic::AtomicBool;
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

/// The number of allocations of each of [`CALLS`] equal calls of some lanes, which are recorded if there are profilers.
fn counts(cpu: &Cpu, profilers: &Receiver<Arc<Profiler>>, case: &Case, lanes: usize) -> Vec<usize> {
    let executable = cpu.compile(Arc::clone(case.graph())).expect("it is sound");
    profilers.try_iter().for_each(|profiler| profiler.start());
    let mut states: Vec<_> = (0..lanes).map(|_| executable.state(1).expect("there is memory")).collect();
    let (mut counts, mut value) = (Vec::with_capacity(CALLS), OutputValue::Int(0));
    for _ in 0..CALLS {
        let Ok(count) = call(case, executable.as_ref(), &mut states, &mut value) else { break };
        counts.push(count);
    }
    counts
}

fn count(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.allocations + change.reallocations
}

/// The number of allocations of a call; the list of lanes is the caller's.
fn call(
    case: &Case,
    executable: &dyn Executable,
    states: &mut [Box<dyn State>],
    value: &mut OutputValue,
) -> Result<usize, Error> {
    let region = Region::new(COUNTING);
    states.iter_mut().try_for_each(|state| case.write(state.as_mut(), 0))?;
    let written = count(&region);
    let mut lanes: Vec<_> = states.iter_mut().map(|state| Lane::new(state.as_mut())).collect();
    let region = Region::new(COUNTING);
    executable.run(&mut lanes, &Steps { count: 1, follow: None, stop: &AtomicBool::new(false) })?;
    let ran = count(&region);
    lanes.into_iter().try_for_each(|lane| lane.fault.map_or(Ok(()), Err))?;
    let region = Region::new(COUNTING);
    for state in states {
        (0..case.graph().outputs.len()).try_for_each(|output| state.read_into(output, value))?;
    }
    Ok(written + ran + count(&region))
}

/// Calls of a case.
const CALLS: usize = 12;
/// Lanes of a run: more than any list has room for without memory of its own, and fewer.
const LANES: [usize; 4] = [1, 2, 8, 17];

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
            if has_scattered_weights(case.graph()) {
                continue;
            }
            // More lanes in fewer cases, which have every kind of weights.
            for lanes in LANES.iter().take(if number < 10 { LANES.len() } else { 1 }) {
                let counts = counts(&cpu, &profilers, &case, *lanes);
                let later = counts.iter().skip(1).filter(|count| **count > 0).count();
                assert!(later <= most, "`{primitive}`, case {number}, {threads} threads, {lanes} lanes: {counts:?}");
            }
        }
    }
}
