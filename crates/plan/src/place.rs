//! Places temporaries in an arena: those that are never alive at the same time share memory. Offsets are computed before
//! anything runs, from the largest sizes that the program declares, so a call allocates nothing.

use crate::host::{Interval, intervals};
use crate::plan::{BufferKind, Output, Plan, PlanStep};
use crate::prim::ViewId;
use std::ops::Range;

/// From this many elements, a buffer counts as unbounded: a host value without a declared limit can be this large.
const UNBOUNDED: i64 = i32::MAX as i64;

/// How a device wants temporaries to share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Each starts at a multiple of this many bytes.
    pub align: u64,
    /// For how many more steps memory is not used again: a device that does several steps at once still reads it.
    pub lingering: usize,
}

impl Arena {
    /// For a device that does steps one by one.
    pub const fn aligned(align: u64) -> Self {
        Self { align, lingering: 0 }
    }
}

/// The offsets of a plan's temporaries in one arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The size of the arena.
    pub arena_bytes: u64,
    /// Its size if no two temporaries shared memory.
    pub unshared_bytes: u64,
    /// By buffer: its bytes in the arena; `None` if it is no temporary, is never used, or has no largest size.
    pub places: Vec<Option<Range<u64>>>,
    /// The number of temporaries without a largest size, which are allocated when a call runs.
    pub unbounded: usize,
}

/// A temporary: its number, its size, and the first and last step that use it.
struct Lifetime {
    buffer: usize,
    bytes: u64,
    first: usize,
    last: usize,
}

impl Plan {
    /// Places the temporaries.
    pub(crate) fn place(&self, arena: Arena) -> Placement {
        let sizes = self.largest_bytes(arena.align);
        let mut walk = Walk { plan: self, spans: vec![None; self.buffers.len()], at: 0 };
        walk.block(self.main, 0);
        self.outputs.iter().filter_map(Output::tensor).for_each(|view| walk.touch(view));
        let (mut lives, mut unbounded) = (Vec::new(), 0);
        for (buffer, (span, bytes)) in walk.spans.into_iter().zip(sizes).enumerate() {
            match (self.buffers.get(buffer).map(|buffer| &buffer.kind), span, bytes) {
                (Some(BufferKind::Temporary), Some((first, last)), Some(bytes)) => {
                    lives.push(Lifetime { buffer, bytes, first, last: last + arena.lingering });
                }
                (Some(BufferKind::Temporary), Some(_), None) => unbounded += 1,
                _ => {}
            }
        }
        let unshared_bytes = lives.iter().map(|life| life.bytes).sum();
        let (arena_bytes, places) = assign_offsets(lives, self.buffers.len());
        Placement { arena_bytes, unshared_bytes, places, unbounded }
    }

    /// The most bytes each buffer can need, rounded up to a multiple of `align`.
    fn largest_bytes(&self, align: u64) -> Vec<Option<u64>> {
        let bounds = intervals(&self.host);
        let largest = |buffer: &crate::plan::Buffer| {
            let elements =
                Some(Interval::of(&buffer.elements, &bounds).high.max(0)).filter(|most| *most < UNBOUNDED)?;
            Some((u64::try_from(elements).ok()? * buffer.dtype.bytes()).next_multiple_of(align))
        };
        self.buffers.iter().map(largest).collect()
    }
}

/// A walk through the steps in the order in which they run, which numbers them.
struct Walk<'a> {
    plan: &'a Plan,
    spans: Vec<Option<(usize, usize)>>,
    at: usize,
}

impl Walk<'_> {
    fn touch(&mut self, view: ViewId) {
        let at = self.at;
        let buf = self.plan.view(view).buf;
        if let Some(span) = self.spans.get_mut(buf.0 as usize) {
            *span = Some(span.map_or((at, at), |(first, last)| (first.min(at), last.max(at))));
        }
    }

    /// Blocks nest no deeper than chains of a verified program; the limit is for plans made by hand.
    fn block(&mut self, block: usize, depth: usize) {
        let plan = self.plan;
        let Some(block) = plan.blocks.get(block).filter(|_| depth < 256) else { return };
        for step in &block.steps {
            self.at += 1;
            match step {
                PlanStep::Device(_) | PlanStep::Item(..) | PlanStep::Host(_) | PlanStep::Check(_) => {
                    step.views().into_iter().for_each(|view| self.touch(view));
                }
                PlanStep::If { then, otherwise, .. } => {
                    self.block(*then, depth + 1);
                    self.block(*otherwise, depth + 1);
                }
                PlanStep::Loop { body, .. } => self.round(*body, depth + 1),
            }
        }
        self.at += 1;
    }

    /// Buffers used in a loop live through all its rounds: one round may read what the last wrote.
    fn round(&mut self, body: usize, depth: usize) {
        let start = self.at;
        self.block(body, depth);
        let end = self.at;
        for (first, last) in self.spans.iter_mut().flatten() {
            if *last >= start {
                (*first, *last) = ((*first).min(start), (*last).max(end));
            }
        }
    }
}

/// Places the largest first, each at the lowest offset that is free during its lifetime.
fn assign_offsets(mut lives: Vec<Lifetime>, buffers: usize) -> (u64, Vec<Option<Range<u64>>>) {
    lives.sort_by_key(|life| (std::cmp::Reverse(life.bytes), life.first, life.buffer));
    let mut placed: Vec<(u64, Lifetime)> = Vec::with_capacity(lives.len());
    let mut places = vec![None; buffers];
    for life in lives {
        let together = |other: &Lifetime| other.first <= life.last && life.first <= other.last;
        let mut taken: Vec<(u64, u64)> =
            placed.iter().filter(|(_, other)| together(other)).map(|(at, other)| (*at, at + other.bytes)).collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if offset + life.bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        let place = offset..offset + life.bytes;
        places.get_mut(life.buffer).into_iter().for_each(|entry| *entry = Some(place.clone()));
        placed.push((offset, life));
    }
    (placed.iter().map(|(offset, life)| offset + life.bytes).max().unwrap_or(0), places)
}
