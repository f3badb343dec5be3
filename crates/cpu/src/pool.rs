//! A thread pool whose threads share the tasks of one step.
//!
//! A decode is hundreds of steps of a few microseconds each, so an idle worker spins for a while before it sleeps. The result of a
//! step does not depend on the number of threads: no task reads what another writes, and no sum depends on how a step is cut
//! into tasks.
#![allow(
    unsafe_code,
    reason = "threads that outlive a step borrow it; disjoint parts of a slice go to different threads"
)]

mod ahead;
mod matrices;

pub(crate) use matrices::{MOST, SliceMemory, number};
pub use matrices::{Matrices, OutRows, Stripe};

use crate::profile::JobTimes;
use ahead::{Ahead, Fetched};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Spins of an idle worker before it sleeps: some tens of microseconds.
const SPINS: u32 = if cfg!(miri) { 10 } else { 20_000 };
/// Alignment of scratch memory: a cache line.
const LINE_BYTES: usize = 64;

/// Memory that tasks use freely. It grows to what the largest task needs and is never freed.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) floats: Bank<f32>,
    pub(crate) ints: Bank<i64>,
    /// Memory for `Workers::prepared`.
    shared: Option<Box<Scratch>>,
    /// Registers of elementwise functions.
    pub(crate) registers: crate::map::Registers,
    /// Buffers of sampling.
    pub(crate) sample: crate::sample::Buffers,
}

/// Scratch memory of one type.
#[derive(Debug, Default)]
pub(crate) struct Bank<T> {
    memory: Vec<T>,
    /// The line that `lines::each_line` computes.
    pub(crate) line: Vec<T>,
}

impl Scratch {
    /// Borrows one slice of floats per length, uninitialised and aligned to cache lines.
    pub fn floats<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [f32]; N] {
        self.floats.pieces(lengths)
    }

    /// Same as [`Scratch::floats`], for integers.
    pub fn ints<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [i64]; N] {
        self.ints.pieces(lengths)
    }
}

impl<T: Copy + Default> Bank<T> {
    /// Borrows one slice per length, uninitialised and aligned to cache lines.
    pub(crate) fn pieces<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [T]; N] {
        let line = LINE_BYTES / size_of::<T>();
        let total = line + lengths.iter().map(|length| length.next_multiple_of(line)).sum::<usize>();
        if self.memory.len() < total {
            self.memory.resize(total, T::default());
        }
        let before = self.memory.as_ptr().align_offset(LINE_BYTES).min(line);
        let mut rest = self.memory.split_at_mut(before).1;
        lengths.map(|length| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(length.next_multiple_of(line));
            rest = after;
            piece.split_at_mut(length).0
        })
    }
}

/// The function that runs a task, given its number.
type Work<'a> = dyn Fn(usize, &mut Scratch) + Sync + 'a;

/// A running step.
#[derive(Clone, Copy)]
struct Job {
    work: *const Work<'static>,
    tasks: usize,
    number: u64,
}

/// What a thread writes while it works, in cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Seat {
    /// The worker may use the job.
    has_joined: AtomicBool,
    /// The number of a job, and, in the lower bits, of the tasks that were taken from this thread's share of it, by itself or by
    /// others. With any other number of a job, it stands for none: nobody has to set it to zero, which would fetch the line.
    taken: AtomicU64,
}

/// Bits of the number of tasks that were taken.
const TAKEN_BITS: u32 = 24;

impl Seat {
    /// Takes the next of `count` tasks of this thread's share of a job.
    fn take(&self, job: u64, count: usize) -> Option<usize> {
        let (start, mask) = (job << TAKEN_BITS, (1 << TAKEN_BITS) - 1);
        let taken = |stored: u64| if stored & !mask == start { stored & mask } else { 0 };
        let next = |stored: u64| (taken(stored) < count as u64).then(|| start | (taken(stored) + 1));
        let before = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        before.ok().and_then(|stored| usize::try_from(taken(stored)).ok())
    }
}

/// What workers read when a job begins: one line of the cache.
#[derive(Default)]
#[repr(align(128))]
struct Entry {
    /// The number of the job, doubled, and one more while workers may join it.
    gate: AtomicU64,
    /// Written only while the gate is closed and no worker has joined; read only by workers that have joined.
    job: std::cell::UnsafeCell<Option<Job>>,
}

#[derive(Default)]
struct Shared {
    entry: Entry,
    /// One for each thread; the first is that of the thread that runs a step.
    seats: Vec<Seat>,
    ahead: Ahead,
    panicked: AtomicBool,
    stopped: AtomicBool,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    times: JobTimes,
}

// SAFETY: all fields but `entry.job` are `Sync`. `job` is written by the one thread that holds `Pool::busy`, while the gate is closed
// and no worker has joined, and read by workers between joining and leaving: gate and seats order the two.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` points to a `Sync` closure, and is dereferenced only while that is borrowed (see `Pool::run`).
unsafe impl Send for Shared {}

/// A thread pool; the thread that runs a step works too. Shared by any number of states.
pub struct Pool {
    shared: Arc<Shared>,
    /// `true` while a state uses the workers.
    busy: AtomicBool,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// Starts `threads` threads, counting the caller's. If the system refuses some, the pool is smaller; results are the same.
    pub fn new(threads: usize) -> Self {
        let seats = std::iter::repeat_with(Seat::default).take(threads.max(1)).collect();
        let shared = Arc::new(Shared { seats, ..Shared::default() });
        let start = |number| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("ptero-{number}")).spawn(move || shared.work(number)).ok()
        };
        let workers = (1..threads).map_while(start).collect();
        Self { shared, busy: AtomicBool::new(false), workers }
    }

    /// The number of threads, counting the caller's.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The times of jobs, for profiles.
    pub(crate) fn times(&self) -> &JobTimes {
        &self.shared.times
    }

    /// Tells workers which bytes a later step reads: while they have no tasks, each fetches its share of them into its caches.
    pub fn announce(&self, next: &[u8]) {
        if !self.workers.is_empty() {
            self.shared.ahead.announce(next);
        }
    }

    /// Runs all tasks on this thread and the workers, and returns when all are done. While another state uses the workers, this
    /// thread runs all tasks itself.
    pub fn run(&self, tasks: usize, own: &mut Scratch, work: &Work<'_>) {
        let is_alone = !(2..1 << TAKEN_BITS).contains(&tasks)
            || self.workers.is_empty()
            || self.busy.swap(true, Ordering::Acquire);
        if is_alone {
            (0..tasks).for_each(|task| work(task, own));
            return;
        }
        // Dropped last: waiting for the workers is part of the job.
        let _timed = self.shared.times.job();
        // Dropped even if a task on this thread panics: no worker may use `work` after this call.
        let _closed = CloseGuard { pool: self };
        // SAFETY: only the lifetime is erased, and no thread dereferences the pointer after `_closed` is dropped, which is before
        // this call returns: workers dereference it only while they have joined, and `CloseGuard` waits until all have left.
        let work: *const Work<'static> = unsafe { std::mem::transmute(std::ptr::from_ref(work)) };
        let entry = &self.shared.entry;
        let job = Job { work, tasks, number: entry.gate.load(Ordering::Relaxed) / 2 + 1 };
        // SAFETY: `busy` was false, so the last job was closed and left: no worker reads this now.
        unsafe { *entry.job.get() = Some(job) };
        // Sequentially consistent with `sleep_until_new`: either the worker sees the open gate or we see the sleeper.
        entry.gate.fetch_add(OPEN, Ordering::SeqCst);
        if self.shared.sleepers.load(Ordering::SeqCst) > 0 {
            self.shared.wake_all();
        }
        self.shared.run_tasks(0, job, own);
    }
}

/// Added to the gate, it opens the gate for a new job; added again, it closes the gate.
const OPEN: u64 = 1;

/// Returns `true` if the gate is open.
fn is_open(gate: u64) -> bool {
    gate % 2 == OPEN
}

/// Closes the gate when dropped, and waits until all workers have left.
struct CloseGuard<'a> {
    pool: &'a Pool,
}

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        let shared = &self.pool.shared;
        // Sequentially consistent with `Shared::join`: either the worker sees the closed gate or we see that it has joined.
        shared.entry.gate.fetch_add(OPEN, Ordering::SeqCst);
        let mut spins = 0_u32;
        for seat in &shared.seats {
            while seat.has_joined.load(Ordering::SeqCst) {
                spins = spins.saturating_add(1);
                // The system may have descheduled a worker: let it run.
                if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        self.pool.busy.store(false, Ordering::Release);
        assert!(!panicked || std::thread::panicking(), "a worker panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.wake_all();
        for worker in self.workers.drain(..) {
            // A worker catches its panics.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn wake_all(&self) {
        let _held = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_all();
    }

    /// Takes and runs tasks until there are none left: first those of the thread's own share, which are neighbours and the same
    /// in every run, so that what it fetched ahead is in its caches; then those that other threads have not come to. If there are
    /// few tasks, only the thread that runs the step looks for these: looking costs more than a task.
    fn run_tasks(&self, thread: usize, job: Job, scratch: &mut Scratch) {
        let (count, _timed) = (self.seats.len(), self.times.tasks());
        for (share, seat) in self.seats.iter().enumerate().cycle().skip(thread).take(count) {
            let tasks = share_of(share, count, job.tasks);
            if share != thread && thread > 0 && job.tasks <= 2 * count {
                return;
            }
            while let Some(taken) = seat.take(job.number, tasks.len()) {
                // SAFETY: the caller has joined the job or is the thread that runs it, so the closure is still borrowed.
                unsafe { (*job.work)(tasks.start + taken, scratch) };
            }
        }
    }

    /// The main loop of a worker.
    fn work(&self, thread: usize) {
        let Some(seat) = self.seats.get(thread) else { return };
        let mut scratch = Scratch::default();
        let (mut last, mut spins, mut ahead) = (0, 0, Fetched::default());
        while !self.stopped.load(Ordering::Relaxed) {
            if let Some(joined) = self.join(last, seat) {
                // SAFETY: this worker has joined: the job does not change until it leaves.
                if let Some(job) = unsafe { *self.entry.job.get() } {
                    let run = std::panic::AssertUnwindSafe(|| self.run_tasks(thread, job, &mut scratch));
                    if std::panic::catch_unwind(run).is_err() {
                        self.panicked.store(true, Ordering::Relaxed);
                    }
                }
                seat.has_joined.store(false, Ordering::Release);
                (last, spins) = (joined, 0);
            } else if self.ahead.fetch(&mut ahead, thread, self.seats.len()) {
                spins = 0;
            } else if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                self.sleep_until_new(last);
                spins = 0;
            }
        }
    }

    /// Joins the current job if the gate is open and has changed since it was `last`; returns the gate.
    fn join(&self, last: u64, seat: &Seat) -> Option<u64> {
        let gate = self.entry.gate.load(Ordering::Relaxed);
        if !is_open(gate) || gate == last {
            return None;
        }
        seat.has_joined.store(true, Ordering::SeqCst);
        if self.entry.gate.load(Ordering::SeqCst) == gate {
            return Some(gate);
        }
        seat.has_joined.store(false, Ordering::Release);
        None
    }

    /// Sleeps until there is another job or the pool is dropped.
    fn sleep_until_new(&self, last: u64) {
        let mut held = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let is_new = |gate: u64| is_open(gate) && gate != last;
        while !is_new(self.entry.gate.load(Ordering::SeqCst)) && !self.stopped.load(Ordering::SeqCst) {
            held = self.wake.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The tasks of a thread's share: shares differ by at most one task.
fn share_of(share: usize, threads: usize, tasks: usize) -> Range<usize> {
    let start = |share: usize| share * (tasks / threads) + share.min(tasks % threads);
    start(share)..start(share + 1)
}

/// A mutable slice whose disjoint parts go to different tasks.
#[derive(Debug)]
struct SharedSlice<'a, T> {
    start: *mut T,
    length: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a mutable slice, which is `Send` for the same `T`.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}

// SAFETY: a mutable slice whose parts go to several threads, each part to one: that needs `T: Send`.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), life: PhantomData }
    }

    /// # Safety
    /// While the part is borrowed, no overlapping part may be requested.
    #[allow(clippy::mut_from_ref, reason = "the caller guarantees that parts do not overlap")]
    unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "parts lie inside the slice");
        // SAFETY: inside the slice by the check above; the only reference to it by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}

/// The pool together with the scratch memory of one state.
#[derive(Debug)]
pub struct Workers<'a> {
    /// The threads.
    pub pool: &'a Pool,
    /// Scratch memory of the calling thread.
    pub scratch: &'a mut Scratch,
}

impl Workers<'_> {
    /// Runs tasks that write only to their scratch memory and to what `Sync` allows.
    pub fn each(&mut self, tasks: usize, work: impl Fn(usize, &mut Scratch) + Sync) {
        self.pool.run(tasks, self.scratch, &work);
    }

    /// Gives `work` scratch memory that tasks do not use, for data that is prepared once and read by all of them.
    pub fn prepared<R>(&mut self, work: impl FnOnce(&mut Scratch, &mut Workers<'_>) -> R) -> R {
        let mut shared = self.scratch.shared.take().unwrap_or_default();
        // Nested calls get memory of their own.
        self.scratch.shared = shared.shared.take();
        let result = work(&mut shared, self);
        shared.shared = self.scratch.shared.take();
        self.scratch.shared = Some(shared);
        result
    }

    /// Cuts a slice into chunks of `length` elements, the last of which may be shorter, and runs a task for each.
    pub fn chunks<T: Send>(
        &mut self,
        slice: &mut [T],
        length: usize,
        work: impl Fn(usize, &mut [T], &mut Scratch) + Sync,
    ) {
        self.chunk_pairs((slice, length), (&mut [(); 0], 0), |task, chunk, _, scratch| work(task, chunk, scratch));
    }

    /// Cuts two slices into chunks, each with its own length; a task gets one chunk of each. There are as many tasks as the first
    /// slice has chunks: extra chunks of the second are not visited, and missing ones are empty.
    pub fn chunk_pairs<T: Send, U: Send>(
        &mut self,
        (first, first_length): (&mut [T], usize),
        (second, second_length): (&mut [U], usize),
        work: impl Fn(usize, &mut [T], &mut [U], &mut Scratch) + Sync,
    ) {
        let (first_total, second_total, length) = (first.len(), second.len(), first_length.max(1));
        let (first, second) = (SharedSlice::new(first), SharedSlice::new(second));
        let range = |task: usize, length: usize, total: usize| {
            task.saturating_mul(length).min(total)..(task + 1).saturating_mul(length).min(total)
        };
        self.each(first_total.div_ceil(length), |task, scratch| {
            // SAFETY: tasks have different numbers, so their chunks are disjoint.
            let chunk = unsafe { first.part(range(task, length, first_total)) };
            // SAFETY: as above.
            let other = unsafe { second.part(range(task, second_length, second_total)) };
            work(task, chunk, other, scratch);
        });
    }

    /// The width of a stripe such that all threads get equal shares: a multiple of `unit`, and at most `most` rounded up to one.
    pub fn stripe_width(&self, columns: usize, unit: usize, most: usize) -> usize {
        let (units, threads) = (columns.div_ceil(unit.max(1)), self.pool.threads().max(1));
        let rounds = units.div_ceil(threads * (most / unit.max(1)).max(1)).max(1);
        units.div_ceil(threads * rounds).max(1) * unit
    }
}

#[cfg(test)]
mod tests;
