//! Threads that work on the parts of one step together.
//!
//! A decode is hundreds of steps of a few microseconds each, so a worker that has run out of work looks for the next step for a
//! while before it sleeps. How a step is cut into tasks never depends on how many threads there are; that, and that no task
//! reads what another writes, is why the result does not either.
#![allow(
    unsafe_code,
    reason = "a step is borrowed by threads that outlive it; parts of a slice go to different threads"
)]

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// How often an idle worker looks before it sleeps: some tens of microseconds.
const LOOKS: u32 = if cfg!(miri) { 10 } else { 20_000 };
/// In the gate: how many workers have joined the job and not left.
const JOINED: u64 = OPEN - 1;
/// In the gate: workers may join.
const OPEN: u64 = 1 << 31;
/// In the gate: what is added for each job. So a worker that has found no more tasks does not join the same job again.
const JOB: u64 = 1 << 32;
/// Bytes of a cache line, at whose start pieces of scratch memory begin.
const LINE_BYTES: usize = 64;

/// Memory that a task may use as it likes. It grows to what the largest task needs, and stays.
#[derive(Debug, Default)]
pub struct Scratch {
    floats: Vec<f32>,
    ints: Vec<i64>,
    /// What `Workers::prepared` hands out.
    shared: Option<Box<Scratch>>,
    /// The line that is computed.
    pub(crate) float_line: Vec<f32>,
    /// Likewise.
    pub(crate) int_line: Vec<i64>,
    /// Of elementwise functions.
    pub(crate) registers: crate::map::Registers,
    /// Of sampling.
    pub(crate) sample: crate::sample::Buffers,
}

impl Scratch {
    /// So many floats in so many pieces, with anything in them.
    pub fn floats<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [f32]; N] {
        pieces(&mut self.floats, lengths)
    }

    /// Likewise integers.
    pub fn ints<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [i64]; N] {
        pieces(&mut self.ints, lengths)
    }

    /// Floats and integers at once.
    pub fn both<const N: usize, const M: usize>(
        &mut self,
        floats: [usize; N],
        ints: [usize; M],
    ) -> ([&mut [f32]; N], [&mut [i64]; M]) {
        (pieces(&mut self.floats, floats), pieces(&mut self.ints, ints))
    }
}

fn pieces<T: Copy + Default, const N: usize>(memory: &mut Vec<T>, lengths: [usize; N]) -> [&mut [T]; N] {
    let line = LINE_BYTES / size_of::<T>();
    let total = line + lengths.iter().map(|length| length.next_multiple_of(line)).sum::<usize>();
    if memory.len() < total {
        memory.resize(total, T::default());
    }
    let before = memory.as_ptr().align_offset(LINE_BYTES).min(line);
    let mut rest = memory.split_at_mut(before).1;
    lengths.map(|length| {
        let (piece, after) = std::mem::take(&mut rest).split_at_mut(length.next_multiple_of(line));
        rest = after;
        piece.split_at_mut(length).0
    })
}

/// What the tasks of a step do; called with the number of the task.
type Work<'a> = dyn Fn(usize, &mut Scratch) + Sync + 'a;

/// A step that is under way.
#[derive(Clone, Copy)]
struct Job {
    work: *const Work<'static>,
    tasks: usize,
}

struct Shared {
    /// The number of the job, whether it is `OPEN`, and how many have joined.
    gate: AtomicU64,
    /// Written only while the gate is closed and empty; read only by workers that have joined.
    job: std::cell::UnsafeCell<Option<Job>>,
    next_task: AtomicUsize,
    panicked: AtomicBool,
    stopped: AtomicBool,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: all fields but `job` are `Sync`. `job` is written by the one thread that holds `Pool::busy`, while the gate is closed
// and nobody has joined, and read by workers between joining and leaving: the gate orders the two (release, acquire).
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to something `Sync`, and is only followed while it is borrowed (see `Pool::run`).
unsafe impl Send for Shared {}

/// A team of threads; whoever runs a step joins in. Shared by any number of states.
pub struct Pool {
    shared: Arc<Shared>,
    /// Whether some state is using the workers.
    busy: AtomicBool,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// So many threads, the caller's included. If the system gives fewer, fewer work; the results are the same.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: None.into(),
            next_task: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let start = |number| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("ptero-{number}")).spawn(move || shared.work()).ok()
        };
        let workers = (1..threads).map_while(start).collect();
        Self { shared, busy: AtomicBool::new(false), workers }
    }

    /// How many threads work on a step.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs all tasks, on this thread and on those of the workers that are free, and returns when all are done. If another
    /// state has the workers, this thread does everything.
    pub fn run(&self, tasks: usize, own: &mut Scratch, work: &Work<'_>) {
        let is_alone = tasks < 2 || self.workers.is_empty() || self.busy.swap(true, Ordering::Acquire);
        if is_alone {
            (0..tasks).for_each(|task| work(task, own));
            return;
        }
        // Also when a task on this thread panics, nobody may go on using `work`.
        let _closed = Closed { pool: self };
        // SAFETY: only the lifetime is forgotten, and nobody follows the pointer after `_closed` is dropped, which is before
        // this call returns: workers follow it only while they have joined, and `Closed` waits until all have left.
        let work: *const Work<'static> = unsafe { std::mem::transmute(std::ptr::from_ref(work)) };
        // SAFETY: `busy` was false, so the last job was closed and left: no worker reads this now.
        unsafe { *self.shared.job.get() = Some(Job { work, tasks }) };
        self.shared.next_task.store(0, Ordering::Relaxed);
        // Sequentially consistent with the sleeper's side: either it sees the open gate or we see the sleeper.
        self.shared.gate.fetch_add(JOB + OPEN, Ordering::SeqCst);
        if self.shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _held = self.shared.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.wake.notify_all();
        }
        self.shared.tasks(Job { work, tasks }, own);
    }
}

/// Closes the gate when dropped, and waits until all workers have left.
struct Closed<'a> {
    pool: &'a Pool,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let shared = &self.pool.shared;
        shared.gate.fetch_and(!OPEN, Ordering::Relaxed);
        let mut looks = 0_u32;
        while shared.gate.load(Ordering::Acquire) & JOINED > 0 {
            looks = looks.saturating_add(1);
            // A worker that the system has put aside must get its turn.
            if looks < LOOKS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        self.pool.busy.store(false, Ordering::Release);
        assert!(!panicked || std::thread::panicking(), "a worker panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        {
            let _held = self.shared.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches its panics.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Takes tasks until there are none.
    fn tasks(&self, job: Job, scratch: &mut Scratch) {
        loop {
            let task = self.next_task.fetch_add(1, Ordering::Relaxed);
            if task >= job.tasks {
                return;
            }
            // SAFETY: the caller has joined the job, or is the thread that runs it: it is still borrowed.
            unsafe { (*job.work)(task, scratch) };
        }
    }

    /// The life of a worker.
    fn work(&self) {
        let mut scratch = Scratch::default();
        let (mut last, mut looks) = (0, 0);
        while !self.stopped.load(Ordering::Relaxed) {
            if let Some(joined) = self.join(last) {
                // SAFETY: this worker has joined: the job does not change until it leaves.
                if let Some(job) = unsafe { *self.job.get() } {
                    let run = std::panic::AssertUnwindSafe(|| self.tasks(job, &mut scratch));
                    if std::panic::catch_unwind(run).is_err() {
                        self.panicked.store(true, Ordering::Relaxed);
                    }
                }
                self.gate.fetch_sub(1, Ordering::Release);
                (last, looks) = (joined, 0);
            } else if looks < LOOKS {
                looks += 1;
                std::hint::spin_loop();
            } else {
                self.doze(last);
                looks = 0;
            }
        }
    }

    /// Joins the job under way, if the gate is open and it is not the one of that number; gives its number.
    fn join(&self, last: u64) -> Option<u64> {
        let join = |gate: u64| is_new(gate, last).then_some(gate + 1);
        self.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, join).ok().map(|gate| gate / JOB)
    }

    /// Sleeps until there is another job, or the end.
    fn doze(&self, last: u64) {
        let mut held = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !is_new(self.gate.load(Ordering::SeqCst), last) && !self.stopped.load(Ordering::SeqCst) {
            held = self.wake.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether a job is open that is not the one of that number.
fn is_new(gate: u64, last: u64) -> bool {
    gate & OPEN > 0 && gate / JOB != last
}

/// Hands parts of a slice to tasks.
struct Parts<'a, T> {
    start: *mut T,
    length: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a mutable slice whose parts go to several threads, each part to one: `T: Send` is what that needs.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), life: PhantomData }
    }

    /// # Safety
    /// While the part is in use, nobody else may get one that overlaps it.
    #[allow(clippy::mut_from_ref, reason = "the caller sees to it that parts do not overlap")]
    unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "parts lie inside the slice");
        // SAFETY: inside the slice by the check above; the only reference to it by this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}

/// The workers as one state sees them: with its own scratch memory.
#[derive(Debug)]
pub struct Workers<'a> {
    /// The threads.
    pub pool: &'a Pool,
    /// Of this thread.
    pub scratch: &'a mut Scratch,
}

impl Workers<'_> {
    /// Runs tasks that write nothing but their scratch memory and what they can share.
    pub fn each(&mut self, tasks: usize, work: impl Fn(usize, &mut Scratch) + Sync) {
        self.pool.run(tasks, self.scratch, &work);
    }

    /// Scratch memory beside that of the tasks, for what is prepared once and read by all of them.
    pub fn prepared<R>(&mut self, work: impl FnOnce(&mut Scratch, &mut Workers<'_>) -> R) -> R {
        let mut shared = self.scratch.shared.take().unwrap_or_default();
        // What is prepared within this gets memory beside it.
        self.scratch.shared = shared.shared.take();
        let result = work(&mut shared, self);
        shared.shared = self.scratch.shared.take();
        self.scratch.shared = Some(shared);
        result
    }

    /// Cuts a slice into chunks, the last of which may be shorter, each of which goes to a task.
    pub fn chunks<T: Send>(
        &mut self,
        slice: &mut [T],
        length: usize,
        work: impl Fn(usize, &mut [T], &mut Scratch) + Sync,
    ) {
        self.chunk_pairs((slice, length), (&mut [(); 0], 0), |task, chunk, _, scratch| work(task, chunk, scratch));
    }

    /// Cuts two slices into chunks, each slice by a length of its own; a task gets one chunk of each. There are as many tasks
    /// as the first slice has chunks; what is then left of the second stays alone, and what it lacks is empty.
    pub fn chunk_pairs<T: Send, U: Send>(
        &mut self,
        (first, first_length): (&mut [T], usize),
        (second, second_length): (&mut [U], usize),
        work: impl Fn(usize, &mut [T], &mut [U], &mut Scratch) + Sync,
    ) {
        let (first_total, second_total, length) = (first.len(), second.len(), first_length.max(1));
        let (first, second) = (Parts::new(first), Parts::new(second));
        let range = |task: usize, length: usize, total: usize| {
            task.saturating_mul(length).min(total)..(task + 1).saturating_mul(length).min(total)
        };
        self.each(first_total.div_ceil(length), |task, scratch| {
            // SAFETY: every task has another number, so its chunks are its own.
            let chunk = unsafe { first.part(range(task, length, first_total)) };
            // SAFETY: likewise.
            let other = unsafe { second.part(range(task, second_length, second_total)) };
            work(task, chunk, other, scratch);
        });
    }

    /// Columns of a task, at most `most` and a multiple of `unit` (which may make it more): all threads get equal shares.
    pub fn stripe_width(&self, columns: usize, unit: usize, most: usize) -> usize {
        let (units, threads) = (columns.div_ceil(unit.max(1)), self.pool.threads().max(1));
        let rounds = units.div_ceil(threads * (most / unit.max(1)).max(1)).max(1);
        units.div_ceil(threads * rounds).max(1) * unit
    }

    /// Cuts a matrix in row-major order into stripes of so many columns, the last of which may be narrower, each of which goes
    /// to a task. `columns` is the length of a row; what does not make a whole row is left alone.
    pub fn stripes<T: Send>(
        &mut self,
        matrix: &mut [T],
        columns: usize,
        width: usize,
        work: impl Fn(usize, &mut Stripe<'_, T>, &mut Scratch) + Sync,
    ) {
        let (rows, width) = (matrix.len().checked_div(columns).unwrap_or(0), width.max(1));
        let parts = Parts::new(matrix);
        self.each(columns.div_ceil(width), |task, scratch| {
            let start = task * width;
            let width = width.min(columns - start);
            work(task, &mut Stripe { parts: &parts, rows, columns, start, width }, scratch);
        });
    }
}

/// Some columns of a matrix: this task's alone.
pub struct Stripe<'a, T> {
    parts: &'a Parts<'a, T>,
    rows: usize,
    columns: usize,
    start: usize,
    width: usize,
}

impl<T> Stripe<'_, T> {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The first of its columns.
    pub fn start(&self) -> usize {
        self.start
    }

    /// How many columns it has.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Its part of a row.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "a row of the matrix");
        let start = row * self.columns + self.start;
        // SAFETY: stripes of different tasks have no column in common, and no two rows overlap, since a stripe lies between
        // column 0 and the row's length; within this task the part is borrowed mutably from the one stripe.
        unsafe { self.parts.part(start..start + self.width) }
    }
}

#[cfg(test)]
mod tests;
