//! Tests of sums and shares.

use super::*;

fn recorded(ns: &[u64]) -> ProgramTimes {
    let steps = ns.iter().map(|ns| StepTimes { calls: 1, ns: *ns, ..StepTimes::default() }).collect();
    ProgramTimes { steps: vec![steps], recording_ns: 1 }
}

#[test]
fn the_middle_half_by_time_is_summed_up() {
    let of = |times: &[u64]| Samples(times.iter().map(|ns| (*ns, recorded(&[*ns, 2 * ns]))).collect()).middle();
    // Of eight, the two shortest and the two longest are left out.
    let (ns, sum, count) = of(&[900, 1, 12, 10, 2, 14, 800, 16]);
    assert_eq!((ns, count, sum.recording_ns), (10 + 12 + 14 + 16, 4, 4));
    let sums: Vec<_> = sum.steps.iter().flatten().map(|times| (times.calls, times.ns)).collect();
    assert_eq!(sums, [(4, 52), (4, 104)]);
    assert_eq!(of(&[5]).2, 1);
    assert_eq!(of(&[]), (0, ProgramTimes::default(), 0));
}

#[test]
fn a_steps_time_is_memory_compute_and_waiting() {
    // On two threads: 10 µs, of which 6 in jobs, where the threads are busy for 6 and 2.
    let bytes = StepBytes { weights: 1500, state: 500 };
    let times = StepTimes { calls: 2, ns: 20_000, jobs: 4, job_ns: 12_000, busy_ns: 16_000, bytes };
    let spent = Spent::new(times, 2.0, 2.0, Some(1e9));
    let parts = [spent.memory_us, spent.compute_us, spent.waiting_us, spent.serial_us];
    assert_eq!((spent.calls, spent.jobs, spent.us, parts), (1.0, 2.0, 10.0, [1.0, 5.0, 2.0, 2.0]));
    assert_eq!(spent.gb_per_s(), Some(0.1));
    // Faster than memory: the bytes were in a cache.
    let cached = Spent::new(times, 2.0, 2.0, Some(1e6));
    assert_eq!([cached.memory_us, cached.compute_us], [6.0, 0.0]);
    // One thread does not wait.
    let alone = Spent::new(StepTimes { job_ns: 0, busy_ns: 0, jobs: 0, ..times }, 2.0, 1.0, None);
    assert_eq!([alone.memory_us, alone.compute_us, alone.waiting_us, alone.serial_us], [0.0, 10.0, 0.0, 0.0]);
}
