//! Recording steps: what is recorded, and that it changes nothing. No test compares a time with a constant.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use ptero_backend::{Backend, Executable, OutputValue, State};
use ptero_cpu::Cpu;
use ptero_cpu::profile::{Profiler, ProgramTimes, StepTimes};
use ptero_cpu::simd::Isa;
use ptero_plan::plan::{Plan, PlanStep};
use ptero_reference::suite::{Case, PRIMITIVES};
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// A compiled case with a state of its own.
struct Compiled {
    executable: Box<dyn Executable>,
    state: Box<dyn State>,
}

impl Compiled {
    fn new(cpu: &Cpu, case: &Case) -> Self {
        let executable = cpu.compile(Arc::clone(case.graph())).unwrap();
        let state = executable.state(1).unwrap();
        Self { executable, state }
    }

    /// Runs it once; all outputs, or the fault.
    fn run(&mut self, case: &Case, call: usize) -> Result<Vec<OutputValue>, String> {
        case.call(self.executable.as_ref(), self.state.as_mut(), call).map_err(|error| error.to_string())?;
        Ok((0..case.graph().outputs.len()).map(|output| self.state.read(output).unwrap()).collect())
    }
}

fn profiled(threads: usize, case: &Case) -> (Compiled, Arc<Profiler>) {
    let (sender, profilers) = mpsc::channel();
    let compiled = Compiled::new(&Cpu::with(threads, Isa::best()).profiled(sender), case);
    (compiled, profilers.recv().unwrap())
}

/// The steps of the main block that a device runs, with what was recorded for them.
fn device_steps(plan: &Plan, recorded: &[Vec<StepTimes>]) -> Vec<StepTimes> {
    let steps = plan.blocks[plan.main].steps.iter().zip(&recorded[plan.main]);
    steps.filter(|(step, _)| matches!(step, PlanStep::Device(_))).map(|(_, times)| *times).collect()
}

#[test]
fn every_step_is_recorded_once_per_call_and_changes_no_result() {
    for (primitive, number) in PRIMITIVES.iter().flat_map(|primitive| (0..6).map(move |number| (primitive, number))) {
        let case = Case::new(primitive, 7, number);
        let mut plain = Compiled::new(&Cpu::with(2, Isa::best()), &case);
        let (mut compiled, profiler) = profiled(2, &case);
        profiler.start();
        for call in 0..2 {
            let start = Instant::now();
            let result = compiled.run(&case, call);
            let wall = start.elapsed().as_nanos();
            assert_eq!(result, plain.run(&case, call), "`{primitive}`, case {number}");
            let recorded = profiler.take();
            if result.is_ok() {
                let steps = device_steps(profiler.plan(), &recorded.steps);
                assert!(steps.iter().all(|times| times.calls == 1), "`{primitive}`, case {number}: {steps:?}");
            }
            let all = || recorded.steps.iter().flatten();
            let sum: u64 = all().map(|times| times.ns).sum();
            assert!(u128::from(sum + recorded.recording_ns) <= wall, "`{primitive}`: {sum} of {wall}");
            assert!(all().all(|times| times.job_ns <= times.ns && (times.jobs > 0 || times.busy_ns == 0)));
        }
    }
}

#[test]
fn nothing_is_recorded_before_start_and_after_stop() {
    let case = Case::new("matmul", 7, 0);
    let (mut compiled, profiler) = profiled(2, &case);
    let mut recorded = || {
        compiled.run(&case, 0).unwrap();
        profiler.take()
    };
    let is_empty = |recorded: &ProgramTimes| {
        recorded.recording_ns == 0 && recorded.steps.iter().flatten().all(|times| *times == StepTimes::default())
    };
    assert!(is_empty(&recorded()));
    profiler.start();
    assert!(!is_empty(&recorded()));
    profiler.stop();
    assert!(is_empty(&recorded()));
}

#[test]
fn sizes_and_bytes_are_those_of_the_call() {
    let (mut found, mut with_weights) = (0, 0);
    for number in 0..20 {
        let case = Case::new("quant-matmul", 7, number);
        let (mut compiled, profiler) = profiled(1, &case);
        profiler.start();
        if compiled.run(&case, 0).is_err() {
            continue;
        }
        let (plan, recorded) = (profiler.plan(), profiler.take());
        for (at, step) in plan.blocks[plan.main].steps.iter().enumerate() {
            let PlanStep::Device(prim) = step else { continue };
            let sizes = |view| profiler.sizes((plan.main, at), view);
            let label = plan.label(prim, sizes);
            assert!(label.contains('[') && label.ends_with(|c: char| c != ' '), "{label}");
            for view in prim.reads() {
                assert_eq!(sizes(view).len(), plan.view(view).shape.len());
            }
            let elements = |view| sizes(view).iter().product::<usize>() as u64 * plan.view(view).dtype.bytes();
            let most: u64 = prim.reads().into_iter().map(elements).sum();
            let bytes = recorded.steps[plan.main][at].bytes;
            assert!(bytes.weights + bytes.state <= most, "{label}: {bytes:?}, {most}");
            (found, with_weights) = (found + 1, with_weights + usize::from(bytes.weights > 0));
        }
    }
    assert!(found > 0 && with_weights > 0, "{found} {with_weights}");
}
