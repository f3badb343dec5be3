//! What stands around the loop: copies of the state before and after it, and conversions and repetitions of operands. The
//! primitive reads and writes the originals.

use super::Round;
use super::body::copy_of;
use super::pattern::Found;
use crate::dim::Dim;
use crate::passes::{Uses, tidy};
use crate::plan::{Block, BufferKind, HostOp, Plan, PlanStep};
use crate::prim::{Buf, GatedDelta, Prim, View};
use ptero_tensor::DType;
use std::collections::BTreeSet;

/// What becomes of the loop.
pub(super) struct Changes {
    /// In its place.
    pub(super) steps: Vec<PlanStep>,
    /// Steps of the block around it that are no longer needed.
    pub(super) gone: Vec<usize>,
    /// Buffers that perhaps nothing reads any more.
    pub(super) unread: BTreeSet<Buf>,
}

/// The rule on the originals of what the loop worked on.
pub(super) fn outside(plan: &Plan, round: &Round, found: Found) -> Changes {
    let Found { rule, checks } = found;
    let Some(block) = plan.blocks.get(round.block) else { return in_place(rule, checks) };
    let around = Around { plan, block, round, uses: Uses::of(plan), inside: Uses::of_blocks(plan, &[round.body]) };
    let mut unread = BTreeSet::new();
    let mut original = |view: &View, is_grouped: bool| {
        let mut view = view.clone();
        while let Some((source, copy)) = around.source(&view, is_grouped) {
            unread.insert(copy);
            view = source;
        }
        view
    };
    let (q, k) = (original(&one_head(&rule.q), true), original(&one_head(&rule.k), true));
    // Both have as many heads, or both are left as the loop saw them.
    let (q, k) = if q.shape.get(2) == k.shape.get(2) { (q, k) } else { (rule.q.clone(), rule.k.clone()) };
    let [v, g, beta] = [&rule.v, &rule.g, &rule.beta].map(|view| original(view, false));
    let mut rule = GatedDelta { q, k, v, g, beta, ..rule };
    let mut gone = Vec::new();
    if let Some((state, step)) = around.state_before(&rule.state) {
        rule.state = state;
        gone.push(step);
    }
    if let Some((state, step)) = around.state_after(&rule) {
        rule.state_out = state;
        gone.push(step);
    }
    Changes { gone, unread, ..in_place(rule, checks) }
}

fn in_place(rule: GatedDelta, checks: Vec<PlanStep>) -> Changes {
    let rule = PlanStep::Device(Prim::GatedDelta(Box::new(rule)));
    Changes { steps: checks.into_iter().chain([rule]).collect(), gone: Vec::new(), unread: BTreeSet::new() }
}

/// Heads that are all the same, as one.
fn one_head(view: &View) -> View {
    let mut view = view.clone();
    if view.stride(2).is(0) {
        view.shape.iter_mut().skip(2).take(1).for_each(|heads| *heads = Dim::fixed(1));
    }
    view
}

/// Whether a conversion loses nothing, so that the primitive may do it.
fn is_exact(from: DType, to: DType) -> bool {
    from == to || to == DType::F32 && matches!(from, DType::F16 | DType::Bf16)
}

/// A loop and the block it stands in.
struct Around<'a> {
    plan: &'a Plan,
    block: &'a Block,
    round: &'a Round,
    uses: Uses,
    inside: Uses,
}

impl<'a> Around<'a> {
    /// What a copy into a buffer before the loop shows, if it is still there when the loop ends, and where the copy stands.
    fn copy_before(&self, buf: Buf) -> Option<(&'a View, &'a View, usize)> {
        let before = self.block.steps.get(..self.round.step)?;
        let copy = |step: &'a PlanStep| match step {
            PlanStep::Device(prim) => copy_of(prim).filter(|(out, _)| out.buf == buf),
            _ => None,
        };
        let (at, (out, from)) = before.iter().enumerate().find_map(|(at, step)| Some((at, copy(step)?)))?;
        let since = self.block.steps.get(at + 1..=self.round.step)?;
        let is_unchanged = since.iter().all(|step| !self.writes(step, from.buf));
        (is_unchanged && is_exact(from.dtype, out.dtype)).then_some((out, from, at))
    }

    /// What an operand was copied from, and the copy. With `is_grouped`, heads may have been repeated.
    fn source(&self, view: &View, is_grouped: bool) -> Option<(View, Buf)> {
        let kind = self.plan.buffers.get(view.buf.0 as usize).map(|buffer| &buffer.kind);
        if !matches!(kind, Some(BufferKind::Temporary)) || self.uses.writes(view.buf) != 1 {
            return None;
        }
        let (out, from, _) = self.copy_before(view.buf)?;
        Some((through(out, from, view, is_grouped)?, view.buf))
    }

    /// The state that was copied before the loop, and the copy, if only the loop reads it.
    fn state_before(&self, carry: &View) -> Option<(View, usize)> {
        // By the copy and by the loop.
        if self.uses.writes(carry.buf) != 2 || self.inside.writes(carry.buf) != 1 {
            return None;
        }
        let (out, from, at) = self.copy_before(carry.buf)?;
        if out != carry {
            return None;
        }
        let between = self.block.steps.get(at + 1..self.round.step)?;
        let is_unread = between.iter().all(|step| !self.reads(step, carry.buf));
        // A part of the buffer that the loop leaves alone would be lost.
        (is_unread && self.is_whole(carry)).then(|| (from.clone(), at))
    }

    /// Where the state is copied to after the loop, if nobody else reads it and the place is free until then.
    fn state_after(&self, rule: &GatedDelta) -> Option<(View, usize)> {
        let carry = &rule.state_out;
        let kind = self.plan.buffers.get(carry.buf.0 as usize).map(|buffer| &buffer.kind);
        if !matches!(kind, Some(BufferKind::Temporary))
            || self.uses.reads(carry.buf) != self.inside.reads(carry.buf) + 1
            || self.uses.writes(carry.buf) > 2
        {
            return None;
        }
        let first = self.round.step + 1;
        let at = first + self.block.steps.get(first..)?.iter().position(|step| self.reads(step, carry.buf))?;
        let between = self.block.steps.get(first..at)?;
        let PlanStep::Device(prim) = self.block.steps.get(at)? else { return None };
        let (out, from) = copy_of(prim)?;
        // A type that the state passed through rounded it.
        let is_copy = from == carry && (from.dtype == out.dtype || from.dtype == DType::F32);
        let is_free = |step: &PlanStep| !self.reads(step, out.buf) && !self.writes(step, out.buf);
        let vars = tidy::vars(out);
        let is_known = |step: &PlanStep| !matches!(step, PlanStep::Host { out, .. } if vars.contains(out));
        let GatedDelta { out: result, q, k, v, g, beta, state, .. } = rule;
        let is_apart = [result, q, k, v, g, beta].iter().all(|view| view.buf != out.buf);
        let is_sound = is_apart && (state.buf != out.buf || state == out);
        (is_copy && is_sound && between.iter().all(|step| is_free(step) && is_known(step))).then(|| (out.clone(), at))
    }

    /// Whether a view shows all of its buffer.
    fn is_whole(&self, view: &View) -> bool {
        let elements = self.plan.buffers.get(view.buf.0 as usize).map(|buffer| &buffer.elements);
        view.is_row_major() && view.offset.is(0) && elements == Some(&count(&view.shape))
    }

    fn reads(&self, step: &PlanStep, buf: Buf) -> bool {
        match step {
            PlanStep::Device(prim) => prim.reads().iter().any(|view| view.buf == buf),
            PlanStep::Host { op: HostOp::Item(view), .. } => view.buf == buf,
            PlanStep::Host { .. } | PlanStep::Check(_) => false,
            PlanStep::If { .. } | PlanStep::Loop { .. } => self.any_inside(step, |inner| self.reads(inner, buf)),
        }
    }

    fn writes(&self, step: &PlanStep, buf: Buf) -> bool {
        match step {
            PlanStep::Device(prim) => prim.writes().iter().any(|view| view.buf == buf),
            PlanStep::Host { .. } | PlanStep::Check(_) => false,
            PlanStep::If { .. } | PlanStep::Loop { .. } => self.any_inside(step, |inner| self.writes(inner, buf)),
        }
    }

    fn any_inside(&self, step: &PlanStep, is_it: impl Fn(&PlanStep) -> bool) -> bool {
        let blocks = tidy::called(step).into_iter().filter_map(|block| self.plan.blocks.get(block));
        blocks.flat_map(|block| &block.steps).any(is_it)
    }
}

fn count(shape: &[Dim]) -> Dim {
    shape.iter().fold(Dim::fixed(1), |product, size| &product * size)
}

/// A view of a copy as a view of what was copied, if both show all of it in one order. With `is_grouped`, elements that lie
/// behind each other on the third axis and are the same become one.
fn through(out: &View, from: &View, view: &View, is_grouped: bool) -> Option<View> {
    let is_plain = |view: &View| view.is_row_major() && view.offset.is(0);
    if !is_plain(out) || !is_plain(view) || count(&out.shape) != count(&view.shape) {
        return None;
    }
    let mut axes = from.shape.iter().zip(&from.strides).filter(|(size, _)| !size.is(1));
    let mut found = View { shape: Vec::new(), strides: Vec::new(), ..from.clone() };
    for (axis, size) in view.shape.iter().enumerate() {
        let (mut run, mut length) = (Vec::new(), Dim::fixed(1));
        while length != *size {
            let (size, stride) = axes.next()?;
            length = &length * size;
            run.push((size.clone(), stride.clone()));
        }
        // The innermost repeats: so many heads in a row share one.
        while is_grouped && axis == 2 && run.last().is_some_and(|(_, stride)| stride.is(0)) {
            run.pop();
        }
        let (size, stride) = joined(&run)?;
        found.shape.push(size);
        found.strides.push(stride);
    }
    axes.next().is_none().then_some(found)
}

/// Axes as one, if they lie so.
fn joined(run: &[(Dim, Dim)]) -> Option<(Dim, Dim)> {
    let Some((mut size, stride)) = run.last().cloned() else { return Some((Dim::fixed(1), Dim::fixed(0))) };
    for (outer_size, outer_stride) in run.iter().rev().skip(1) {
        if *outer_stride != &size * &stride {
            return None;
        }
        size = &size * outer_size;
    }
    Some((size, stride))
}
