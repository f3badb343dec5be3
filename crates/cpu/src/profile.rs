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
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What a step took: sums over its calls.
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

impl AddAssign for StepTimes {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.ns += other.ns;
        self.jobs += other.jobs;
        self.job_ns += other.job_ns;
        self.busy_ns += other.busy_ns;
        self.bytes += other.bytes;
    }
}

/// What the steps of a program took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramTimes {
    /// By block and step. Only primitives take time of their own.
    pub steps: Vec<Vec<StepTimes>>,
    /// Nanoseconds that recording itself took, which belong to no step.
    pub recording_ns: u64,
}

impl AddAssign<&Self> for ProgramTimes {
    /// Adds times of the same program.
    fn add_assign(&mut self, other: &Self) {
        self.recording_ns += other.recording_ns;
        self.steps.iter_mut().flatten().zip(other.steps.iter().flatten()).for_each(|(sum, times)| *sum += *times);
    }
}

/// Records the steps of one program while it is on. Times are meaningful if one session runs at a time.
#[derive(Debug)]
pub struct Profiler {
    plan: Arc<Plan>,
    pool: Arc<Pool>,
    /// What `StepTimes::ns` of a running clock counts from.
    epoch: Instant,
    /// By block and step.
    steps: Mutex<Vec<Vec<StepRecord>>>,
    recording_ns: AtomicU64,
}

/// What is known of a step.
#[derive(Debug)]
struct StepRecord {
    reads: Vec<MemoryRead>,
    /// The sizes of its views when it last ran.
    sizes: Vec<(ViewId, Sizes)>,
    times: StepTimes,
}

impl StepRecord {
    fn new(plan: &Plan, step: &PlanStep) -> Self {
        let PlanStep::Device(prim) = step else {
            return Self { reads: Vec::new(), sizes: Vec::new(), times: StepTimes::default() };
        };
        let views = prim.reads().into_iter().chain(prim.writes().into_iter().copied());
        let sizes = views.map(|view| (view, Sizes::new())).collect();
        Self { reads: plan.memory_reads(prim), sizes, times: StepTimes::default() }
    }

    /// Adds the bytes that a lane reads, and notes its sizes.
    fn add_lane(&mut self, lane: usize, bound: &Bound) {
        for read in &self.reads {
            let StepBytes { weights, state } = read.bytes(bound);
            // All lanes share weights.
            self.times.bytes += StepBytes { weights: if lane == 0 { weights } else { 0 }, state };
        }
        for (view, sizes) in &mut self.sizes {
            sizes.clear();
            sizes.extend_from_slice(&bound.view(*view).shape);
        }
    }
}

#[allow(clippy::indexing_slicing, reason = "blocks and steps are those of the plan, and each has a record")]
impl Profiler {
    pub(crate) fn new(plan: Arc<Plan>, pool: Arc<Pool>) -> Self {
        let records = |block: &Block| block.steps.iter().map(|step| StepRecord::new(&plan, step)).collect();
        let steps = Mutex::new(plan.blocks.iter().map(records).collect());
        Self { steps, plan, pool, epoch: Instant::now(), recording_ns: AtomicU64::new(0) }
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
    pub fn take(&self) -> ProgramTimes {
        let take = |steps: &mut Vec<StepRecord>| steps.iter_mut().map(|step| std::mem::take(&mut step.times)).collect();
        let steps = self.lock().iter_mut().map(take).collect();
        ProgramTimes { steps, recording_ns: self.recording_ns.swap(0, Ordering::Relaxed) }
    }

    /// The sizes of a view of a step when the step last ran; none if it never ran.
    ///
    /// # Panics
    /// If the plan has no such step.
    pub fn sizes(&self, (block, step): (usize, usize), view: ViewId) -> Vec<usize> {
        let steps = self.lock();
        let found = steps[block][step].sizes.iter().find(|(found, _)| *found == view);
        found.map_or_else(Vec::new, |(_, sizes)| sizes.to_vec())
    }

    /// Begins a step, if recording is on: the sums so far.
    pub(crate) fn begin(&self) -> Option<StepTimes> {
        self.pool.times().is_on().then(|| self.sums())
    }

    /// Ends a step, which ran with these numbers: those of each lane.
    pub(crate) fn end<'a>(
        &self,
        before: StepTimes,
        (block, step): (usize, usize),
        lanes: impl Iterator<Item = &'a Bound>,
    ) {
        let after = self.sums();
        let mut steps = self.lock();
        let record = &mut steps[block][step];
        let ns = after.ns - before.ns;
        record.times += StepTimes {
            calls: 1,
            ns,
            jobs: after.jobs - before.jobs,
            job_ns: (after.job_ns - before.job_ns).min(ns),
            busy_ns: after.busy_ns - before.busy_ns,
            bytes: StepBytes::default(),
        };
        lanes.enumerate().for_each(|(lane, bound)| record.add_lane(lane, bound));
        self.recording_ns.fetch_add(nanoseconds(self.epoch) - after.ns, Ordering::Relaxed);
    }

    /// The time, and the jobs of the pool.
    fn sums(&self) -> StepTimes {
        let [jobs, job_ns, busy_ns] = self.pool.times().totals();
        StepTimes { ns: nanoseconds(self.epoch), jobs, job_ns, busy_ns, ..StepTimes::default() }
    }

    /// A panic of a step leaves sums that are still sums.
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<StepRecord>>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
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
            self.total.fetch_add(nanoseconds(since), Ordering::Relaxed);
        }
    }
}
