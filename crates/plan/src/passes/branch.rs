//! Walking a block backwards, from what a step writes to what it was computed from.

use crate::dim::{Dim, Var};
use crate::function::{Function, Part};
use crate::plan::{Block, BufferKind, Check, HostOp, Plan, PlanStep};
use crate::prim::{Buf, Prim, View};
use ptero_tensor::DType;

/// Why something is not fused, and the instruction that shows it.
#[derive(Debug)]
pub(super) struct Declined {
    pub(super) at: (u32, u32),
    pub(super) why: &'static str,
}

pub(super) type Matched<T> = Result<T, Declined>;

/// The instruction that a step came from.
pub(super) fn origin(plan: &Plan, block: usize, step: usize) -> (u32, u32) {
    plan.blocks.get(block).and_then(|block| block.origin.get(step)).copied().unwrap_or_default()
}

/// A block being walked, and which of its steps were found to belong to the pattern.
pub(super) struct Branch<'a> {
    plan: &'a Plan,
    pub(super) block: &'a Block,
    taken: Vec<bool>,
    /// Host values whose checks belong to the pattern too.
    checked: Vec<Dim>,
    /// The instruction that was reached last.
    at: (u32, u32),
}

impl<'a> Branch<'a> {
    pub(super) fn new(plan: &'a Plan, block: &'a Block, at: (u32, u32)) -> Self {
        Self { plan, block, taken: vec![false; block.steps.len()], checked: Vec::new(), at }
    }

    /// Declines at the instruction that was reached last.
    pub(super) fn decline<T>(&self, why: &'static str) -> Matched<T> {
        Err(Declined { at: self.at, why })
    }

    pub(super) fn ensure(&self, holds: bool, why: &'static str) -> Matched<()> {
        if holds { Ok(()) } else { self.decline(why) }
    }

    /// The step that writes a buffer, if it is the only one of the block.
    fn writer(&self, buf: Buf) -> Option<(usize, &'a Prim)> {
        let writes = |step: &'a PlanStep| match step {
            PlanStep::Device(prim) if prim.writes().iter().any(|out| out.buf == buf) => Some(prim),
            _ => None,
        };
        let mut writers = self.block.steps.iter().enumerate().filter_map(|(at, step)| Some((at, writes(step)?)));
        writers.next().filter(|_| writers.next().is_none())
    }

    /// What writes a buffer, without taking it.
    pub(super) fn peek(&self, buf: Buf) -> Option<&'a Prim> {
        self.writer(buf).map(|(_, prim)| prim)
    }

    /// Where the step stands that writes a buffer.
    pub(super) fn place(&self, buf: Buf) -> Option<usize> {
        self.writer(buf).map(|(at, _)| at)
    }

    /// What writes the buffer of a view, whichever part of it the view shows.
    pub(super) fn source(&mut self, view: &View, why: &'static str) -> Matched<&'a Prim> {
        let Some((at, prim)) = self.writer(view.buf) else { return self.decline(why) };
        self.take(at);
        Ok(prim)
    }

    /// What writes just this view.
    pub(super) fn whole(&mut self, view: &View, why: &'static str) -> Matched<&'a Prim> {
        let prim = self.source(view, why)?;
        self.ensure(prim.out() == view, why)?;
        Ok(prim)
    }

    /// The result and the operands of the elementwise step that writes a buffer, if it is that function of operands of these
    /// types.
    pub(super) fn function<const N: usize>(
        &self,
        buf: Buf,
        types: [DType; N],
        function: impl FnOnce(&mut Function, [Part; N]) -> Part,
    ) -> Option<(&'a View, [&'a View; N])> {
        let Prim::Map { out, ins, expr } = self.peek(buf)? else { return None };
        let (mut wanted, mut inputs) = (Function::default(), 0..);
        let parts = types.map(|dtype| wanted.load(inputs.next().unwrap_or(0), dtype));
        let result = function(&mut wanted, parts);
        let ins: [&View; N] = ins.iter().collect::<Vec<_>>().try_into().ok()?;
        (*expr == wanted.finish(result)).then_some((out, ins))
    }

    /// The operands, if it writes just this view.
    pub(super) fn peek_map<const N: usize>(
        &self,
        view: &View,
        types: [DType; N],
        function: impl FnOnce(&mut Function, [Part; N]) -> Part,
    ) -> Option<[&'a View; N]> {
        self.function(view.buf, types, function).filter(|(out, _)| *out == view).map(|(_, ins)| ins)
    }

    /// Likewise; it belongs to the pattern.
    pub(super) fn map<const N: usize>(
        &mut self,
        view: &View,
        types: [DType; N],
        function: impl FnOnce(&mut Function, [Part; N]) -> Part,
        why: &'static str,
    ) -> Matched<[&'a View; N]> {
        let found = self.peek_map(view, types, function);
        self.source(view, why)?;
        found.map_or_else(|| self.decline(why), Ok)
    }

    /// How the block fills a host value; that it does belongs to the pattern.
    pub(super) fn host(&mut self, var: Var) -> Option<&'a HostOp> {
        let op = |step: &'a PlanStep| match step {
            PlanStep::Host { out, op } if *out == var => Some(op),
            _ => None,
        };
        let (at, op) = self.block.steps.iter().enumerate().find_map(|(at, step)| Some((at, op(step)?)))?;
        self.take(at);
        Some(op)
    }

    /// Checks of this value belong to the pattern.
    pub(super) fn allow_checks_of(&mut self, value: Dim) {
        self.checked.push(value);
    }

    fn take(&mut self, at: usize) {
        self.taken.iter_mut().skip(at).take(1).for_each(|taken| *taken = true);
        self.at = self.block.origin.get(at).copied().unwrap_or_default();
    }

    /// That every step of the block belongs to the pattern.
    pub(super) fn nothing_else(&self, why: &'static str) -> Matched<()> {
        for ((step, taken), at) in self.block.steps.iter().zip(&self.taken).zip(&self.block.origin) {
            let is_checked = match step {
                PlanStep::Check(Check::Within { value, low, high, .. }) => {
                    self.checked.contains(value) && low.as_fixed().is_some() && high.as_fixed().is_some()
                }
                _ => false,
            };
            if !taken && !is_checked {
                return Err(Declined { at: *at, why });
            }
        }
        Ok(())
    }

    /// The float that all elements of a view are, if it is known now.
    pub(super) fn float(&self, view: &View) -> Option<f32> {
        let bytes = constant(self.plan, view, DType::F32)?;
        Some(f32::from_le_bytes(*bytes.first_chunk()?))
    }

    /// The integer that all elements of a view are, if it is known now.
    pub(super) fn int(&self, view: &View) -> Option<i64> {
        match view.dtype {
            DType::I64 => Some(i64::from_le_bytes(*constant(self.plan, view, DType::I64)?.first_chunk()?)),
            DType::I32 => Some(i32::from_le_bytes(*constant(self.plan, view, DType::I32)?.first_chunk()?).into()),
            _ => None,
        }
    }
}

/// The bytes from the element on that a view of a constant shows.
fn constant<'a>(plan: &'a Plan, view: &View, dtype: DType) -> Option<&'a [u8]> {
    let element = one_element(view).filter(|element| element.dtype == dtype)?;
    let BufferKind::Constant(bytes) = &plan.buffers.get(element.buf.0 as usize)?.kind else { return None };
    let start = usize::try_from(element.offset.as_fixed()?).ok()?.checked_mul(usize::try_from(dtype.bytes()).ok()?)?;
    bytes.get(start..)
}

/// The element that a view shows, however often.
pub(super) fn one_element(view: &View) -> Option<View> {
    let mut axes = view.shape.iter().zip(&view.strides);
    let is_one = axes.all(|(size, stride)| size.is(1) || stride.is(0));
    is_one.then(|| View { shape: Vec::new(), strides: Vec::new(), ..view.clone() })
}

/// Whether two views show the same elements in the same order, axes of size one apart.
pub(super) fn is_same_line(a: &View, b: &View) -> bool {
    let axes = |view: &View| -> Vec<(Dim, Dim)> {
        let axes = view.shape.iter().cloned().zip(view.strides.iter().cloned());
        axes.filter(|(size, _)| !size.is(1)).collect()
    };
    a.buf == b.buf && a.dtype == b.dtype && a.offset == b.offset && axes(a) == axes(b)
}

/// Whether a matrix shows, in each row, one element over and over, and these lie as far apart as the rows of the other view.
pub(super) fn is_spread(view: &View, rows: &View) -> bool {
    let ([count, length], [row, along]) = (view.shape.as_slice(), view.strides.as_slice()) else {
        return false;
    };
    let is_apart = count.is(1) || rows.strides.first() == Some(row);
    is_apart && (length.is(1) || along.is(0)) && rows.shape.first() == Some(count)
}
