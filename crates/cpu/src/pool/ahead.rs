//! Fetching what a later step reads while there are no tasks.
//!
//! Between two products of matrices, a token takes steps that are too small to share: norms, rotary embeddings. Workers use that
//! time to fetch the weights of the next product into their caches, each the part that its own tasks will read.

use crate::simd::prefetch_at;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Bytes that are fetched before a worker looks for tasks again.
const AT_ONCE: usize = 512;
/// The most bytes that a thread fetches ahead: half of a small L2 cache.
const MOST: usize = 256 << 10;
/// Bytes of a line of the cache.
const LINE: usize = 64;

/// The bytes that a later step reads.
#[derive(Default)]
pub(super) struct Ahead {
    /// Counts announcements.
    number: AtomicU64,
    start: AtomicPtr<u8>,
    length: AtomicUsize,
}

/// What a worker has fetched.
#[derive(Default)]
pub(super) struct Fetched {
    number: u64,
    bytes: usize,
}

impl Ahead {
    /// Sets the bytes to fetch. Threads that see half of a change fetch other bytes than they should: nothing depends on that.
    pub(super) fn announce(&self, bytes: &[u8]) {
        self.start.store(bytes.as_ptr().cast_mut(), Ordering::Relaxed);
        self.length.store(bytes.len(), Ordering::Relaxed);
        self.number.fetch_add(1, Ordering::Release);
    }

    /// Fetches a little of a thread's share; returns `false` if all of it was fetched.
    pub(super) fn fetch(&self, fetched: &mut Fetched, thread: usize, threads: usize) -> bool {
        let number = self.number.load(Ordering::Acquire);
        if number != fetched.number {
            *fetched = Fetched { number, bytes: 0 };
        }
        let share = super::share_of(thread, threads, self.length.load(Ordering::Relaxed));
        let end = share.len().min(MOST);
        if fetched.bytes >= end {
            return false;
        }
        let start = self.start.load(Ordering::Relaxed).wrapping_add(share.start);
        let next = end.min(fetched.bytes + AT_ONCE);
        (fetched.bytes..next).step_by(LINE).for_each(|at| prefetch_at(start.wrapping_add(at)));
        fetched.bytes = next;
        true
    }
}
