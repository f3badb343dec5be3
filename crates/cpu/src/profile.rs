//! Records where the time of a program's steps goes.
//!
//! A step takes `ns` on the calling thread. Its parallel jobs take `job_ns` of that, in which all threads together spend
//! `busy_ns` on tasks; outside its jobs, the other threads wait. So with `t` threads, of the step's time
//!
//! ```text
//! busy_ns / t                        is work on all threads,
//! job_ns - busy_ns / t               is waiting inside jobs: waking up, uneven tasks,
//! (ns - job_ns) / t                  is work on the calling thread alone,
//! (ns - job_ns) * (t - 1) / t        is the other threads' waiting for it.
//! ```
//!
//! Invariant: recording changes no result, and allocates nothing while steps run.

use crate::pool::Pool;
use ptero_plan::bound::{Bound, Sizes};
use ptero_plan::plan::{Block, Plan, PlanStep};
use ptero_plan::prim::ViewId;
use ptero_plan::{MemoryRead, StepBytes};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Gives access to the recorder of the program that a [`crate::Cpu`] compiled last.
#[derive(Debug, Default)]
pub struct Profiler(Mutex<Option<Arc<Recorder>>>);

impl Profiler {
    /// The recorder of the program that was compiled last.
    pub fn latest(&self) -> Option<Arc<Recorder>> {
        lock(&self.0).clone()
    }

    /// A recorder for a program that is being compiled.
    pub(crate) fn recorder(&self, plan: &Arc<Plan>, pool: &Arc<Pool>) -> Arc<Recorder> {
        let recorder = Arc::new(Recorder::new(Arc::clone(plan), Arc::clone(pool)));
        *lock(&self.0) = Some(Arc::clone(&recorder));
        recorder
    }
}

/// What a step took since the last [`Recorder::take`]: sums over its calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// How often it ran.
    pub calls: u64,
    /// Nanoseconds that it took.
    pub ns: u64,
    /// The number of its parallel jobs.
    pub jobs: u64,
    /// Nanoseconds of these jobs.
    pub job_ns: u64,
    /// Nanoseconds that threads spent on tasks of these jobs, summed over the threads.
    pub busy_ns: u64,
    /// The bytes that it read: of weights those that one lane reads, of state those of all lanes.
    pub bytes: StepBytes,
}

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// By block and step. Only primitives take time of their own.
    pub steps: Vec<Vec<StepTimes>>,
    /// Nanoseconds that recording itself took, which belong to no step.
    pub recording_ns: u64,
}

/// Records the steps of one program while it is on. Times are meaningful if one session runs at a time.
#[derive(Debug)]
pub struct Recorder {
    plan: Arc<Plan>,
    pool: Arc<Pool>,
    /// By block and step.
    reads: Vec<Vec<Vec<MemoryRead>>>,
    record: Mutex<Record>,
}

#[derive(Debug)]
struct Record {
    recorded: Recorded,
    /// By block and step: the sizes of the step's views when it last ran.
    sizes: Vec<Vec<Vec<(ViewId, Sizes)>>>,
}

impl Recorder {
    fn new(plan: Arc<Plan>, pool: Arc<Pool>) -> Self {
        let reads = |step: &PlanStep| {
            let PlanStep::Device(prim) = step else { return Vec::new() };
            plan.memory_reads(prim)
        };
        let sizes = |step: &PlanStep| {
            let PlanStep::Device(prim) = step else { return Vec::new() };
            let views = prim.reads().into_iter().chain(prim.writes().into_iter().copied());
            views.map(|view| (view, Sizes::new())).collect()
        };
        let record = Record { recorded: Recorded::empty(&plan), sizes: by_step(&plan, sizes) };
        Self { reads: by_step(&plan, reads), record: Mutex::new(record), plan, pool }
    }

    /// The plan whose steps are recorded.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Starts recording.
    pub fn start(&self) {
        self.pool.times().is_on.store(true, Ordering::Relaxed);
    }

    /// Stops recording.
    pub fn stop(&self) {
        self.pool.times().is_on.store(false, Ordering::Relaxed);
    }

    /// Returns what was recorded since the last call, and starts at zero.
    pub fn take(&self) -> Recorded {
        std::mem::replace(&mut lock(&self.record).recorded, Recorded::empty(&self.plan))
    }

    /// The sizes of a view of a step when the step last ran; none if it never ran.
    pub fn sizes(&self, (block, step): (usize, usize), view: ViewId) -> Vec<usize> {
        let record = lock(&self.record);
        let mut views = record.sizes.get(block).and_then(|steps| steps.get(step)).into_iter().flatten();
        views.find(|(found, _)| *found == view).map(|(_, sizes)| sizes.to_vec()).unwrap_or_default()
    }

    /// Begins a step, if recording is on.
    pub(crate) fn begin(&self) -> Option<Recording<'_>> {
        let times = self.pool.times();
        times.is_on().then(|| Recording { recorder: self, before: times.totals(), start: Instant::now() })
    }
}

/// A step that is being recorded.
pub(crate) struct Recording<'a> {
    recorder: &'a Recorder,
    before: [u64; 3],
    start: Instant,
}

impl Recording<'_> {
    /// Ends the step, which ran with these numbers: those of each lane.
    pub(crate) fn end<'a>(self, (block, step): (usize, usize), lanes: impl Iterator<Item = &'a Bound>) {
        let Self { recorder, before, start } = self;
        let (end, after) = (Instant::now(), recorder.pool.times().totals());
        let mut record = lock(&recorder.record);
        let Record { recorded, sizes } = &mut *record;
        let at = recorded.steps.get_mut(block).and_then(|steps| steps.get_mut(step));
        let reads = recorder.reads.get(block).and_then(|steps| steps.get(step));
        let sizes = sizes.get_mut(block).and_then(|steps| steps.get_mut(step));
        if let (Some(sum), Some(reads), Some(sizes)) = (at, reads, sizes) {
            let ([jobs, job_ns, busy_ns], ns) = (differences(after, before), nanoseconds(start, end));
            sum.calls += 1;
            sum.ns += ns;
            sum.jobs += jobs;
            sum.job_ns += job_ns.min(ns);
            sum.busy_ns += busy_ns;
            for (lane, bound) in lanes.enumerate() {
                let bytes = |read: &MemoryRead| match read.bytes(bound) {
                    // All lanes share them.
                    StepBytes { state, .. } if lane > 0 => StepBytes { weights: 0, state },
                    bytes => bytes,
                };
                reads.iter().for_each(|read| sum.bytes += bytes(read));
                for (view, sizes) in &mut *sizes {
                    sizes.clear();
                    sizes.extend_from_slice(&bound.view(*view).shape);
                }
            }
        }
        recorded.recording_ns += nanoseconds(end, Instant::now());
    }
}

impl Recorded {
    fn empty(plan: &Plan) -> Self {
        Self { steps: by_step(plan, |_| StepTimes::default()), recording_ns: 0 }
    }
}

/// A value for each block and step.
fn by_step<T>(plan: &Plan, of: impl Fn(&PlanStep) -> T) -> Vec<Vec<T>> {
    plan.blocks.iter().map(|Block { steps, .. }| steps.iter().map(&of).collect()).collect()
}

/// What was added to sums between two looks at them.
fn differences(after: [u64; 3], before: [u64; 3]) -> [u64; 3] {
    let ([a, b, c], [x, y, z]) = (after, before);
    [a.saturating_sub(x), b.saturating_sub(y), c.saturating_sub(z)]
}

fn nanoseconds(start: Instant, end: Instant) -> u64 {
    u64::try_from(end.duration_since(start).as_nanos()).unwrap_or(u64::MAX)
}

/// A panic of a step leaves sums that are still sums.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The times of a pool's parallel jobs, counted while recording is on.
#[derive(Debug, Default)]
pub(crate) struct JobTimes {
    is_on: AtomicBool,
    jobs: AtomicU64,
    job_ns: AtomicU64,
    busy_ns: AtomicU64,
}

impl JobTimes {
    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Jobs, their nanoseconds, and those of all threads in tasks.
    fn totals(&self) -> [u64; 3] {
        [&self.jobs, &self.job_ns, &self.busy_ns].map(|total| total.load(Ordering::Relaxed))
    }

    /// Times a job until the guard is dropped.
    pub(crate) fn job(&self) -> Timed<'_> {
        let timed = self.timed(&self.job_ns);
        if timed.since.is_some() {
            self.jobs.fetch_add(1, Ordering::Relaxed);
        }
        timed
    }

    /// Times a thread's tasks until the guard is dropped.
    pub(crate) fn tasks(&self) -> Timed<'_> {
        self.timed(&self.busy_ns)
    }

    fn timed<'a>(&self, total: &'a AtomicU64) -> Timed<'a> {
        Timed { total, since: self.is_on().then(Instant::now) }
    }
}

/// Adds the time until it is dropped.
pub(crate) struct Timed<'a> {
    total: &'a AtomicU64,
    since: Option<Instant>,
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            self.total.fetch_add(nanoseconds(since, Instant::now()), Ordering::Relaxed);
        }
    }
}
