//! From buffers to numbers: a plan for one set of sizes.
//!
//! Numbers are of three kinds. Those that depend only on the sizes of the inputs are computed once, by [`Plan::bind`]. Those that
//! depend on positions and other integers from the caller are computed before each step, by [`Bound::advance`]. Those that depend
//! on the device or a loop are computed where they are needed, by [`Bound::refresh`]. Whenever a view gets its numbers, it is
//! checked to be inside its buffer.

mod view;

use crate::dim::{Dim, Var};
use crate::graph::Origin;
use crate::host::{HostInputs, HostOp, NumberFault, early};
use crate::plan::{Input, Plan, PlanStep};
use crate::prim::{Buf, View, ViewId};
pub use view::{BoundView, Line, Sizes, Strides};

/// The most bytes that one tensor or buffer may have.
pub const LIMIT_BYTES: u64 = 16 << 30;

/// A fault, with the instruction and the name of the step.
pub type Misfit = (Origin, &'static str, NumberFault);

/// When the numbers of a view or a buffer are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    Bound,
    Advanced,
    Late,
}

/// When the numbers of a plan are known.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// The sizes of inputs: host values that identify a binding.
    sizes: Vec<Var>,
    /// Views that depend only on the sizes.
    bound: Vec<ViewId>,
    /// Views whose numbers change from step to step.
    advanced: Vec<ViewId>,
    /// Views of the block that runs once.
    init: Vec<ViewId>,
    /// By block and step: views whose numbers are known only when the step runs.
    late: Vec<Vec<Vec<ViewId>>>,
    /// By view: the first step that uses it, for messages.
    origins: Vec<(Origin, &'static str)>,
    /// By buffer: when its length is known.
    lengths: Vec<When>,
    /// By host value: it depends only on the sizes.
    fixed: Vec<bool>,
}

impl Schedule {
    /// The schedule of a plan.
    pub(crate) fn of(plan: &Plan) -> Self {
        let early = early(&plan.host);
        let sizes = sizes(plan);
        let mut fixed = vec![false; plan.host.len()];
        for (var, op) in plan.host.iter().enumerate() {
            let is_fixed = |dim: &Dim| dim.vars().all(|var| fixed.get(var.0 as usize) == Some(&true));
            let is_known = match op {
                HostOp::Given { .. } => sizes.iter().any(|size| size.0 as usize == var),
                HostOp::Binary(..) => op.numbers().into_iter().all(is_fixed),
                _ => false,
            };
            fixed.get_mut(var).into_iter().for_each(|slot| *slot = is_known);
        }
        let when = |dim: &Dim| {
            let of = |var: Var| match (fixed.get(var.0 as usize), early.get(var.0 as usize)) {
                (Some(true), _) => When::Bound,
                (_, Some(true)) => When::Advanced,
                _ => When::Late,
            };
            dim.vars().map(of).max().unwrap_or(When::Bound)
        };
        let lengths: Vec<When> = plan.buffers.iter().map(|buffer| when(&buffer.elements)).collect();
        let of_view = |view: &View| {
            let numbers = view.shape.iter().chain(&view.strides).chain([&view.offset]).map(when).max();
            let length = lengths.get(view.buf.0 as usize).copied().unwrap_or(When::Late);
            numbers.unwrap_or(When::Bound).max(length)
        };
        let times: Vec<When> = plan.views.iter().map(of_view).collect();
        let views_at = |wanted: When| {
            let numbered = (0..).map(ViewId).zip(&times);
            numbered.filter(|(_, when)| **when == wanted).map(|(view, _)| view).collect::<Vec<_>>()
        };
        let is_late = |view: &ViewId| times.get(view.0 as usize) == Some(&When::Late);
        let late_of = |step: &PlanStep| step.views().into_iter().filter(is_late).collect::<Vec<_>>();
        let late = plan.blocks.iter().map(|block| block.steps.iter().map(late_of).collect()).collect();
        let (bound, advanced) = (views_at(When::Bound), views_at(When::Advanced));
        let init = plan.init.map(|block| views_under(plan, block)).unwrap_or_default();
        Self { sizes, bound, advanced, init, late, origins: origins(plan), lengths, fixed }
    }
}

/// The host values that are sizes of input tensors.
fn sizes(plan: &Plan) -> Vec<Var> {
    let shape = |input: &Input| match input {
        Input::Tensor { shape, .. } => shape.iter().filter_map(Dim::as_var).collect(),
        Input::Int(_) => Vec::new(),
    };
    let mut sizes: Vec<Var> = plan.inputs.iter().flat_map(shape).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// The views of a block and of the blocks it runs.
fn views_under(plan: &Plan, block: usize) -> Vec<ViewId> {
    let steps = plan.blocks.get(block).map(|block| block.steps.as_slice()).unwrap_or_default();
    let under = |step: &PlanStep| match step {
        PlanStep::If { then, otherwise, .. } => [views_under(plan, *then), views_under(plan, *otherwise)].concat(),
        PlanStep::Loop { body, .. } => views_under(plan, *body),
        PlanStep::Device(_) | PlanStep::Host(_) | PlanStep::Item(..) | PlanStep::Check(_) => step.views(),
    };
    steps.iter().flat_map(under).collect()
}

fn origins(plan: &Plan) -> Vec<(Origin, &'static str)> {
    let mut origins = vec![((0, 0), "output"); plan.views.len()];
    let steps = plan.blocks.iter().flat_map(|block| block.steps.iter().zip(&block.origin));
    // Backwards, so that the first step stays.
    for (step, origin) in steps.rev() {
        for view in step.views() {
            origins.get_mut(view.0 as usize).into_iter().for_each(|slot| *slot = (*origin, step.name()));
        }
    }
    origins
}

/// A plan with numbers for one set of sizes.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The host values, by number.
    pub values: Vec<i64>,
    /// The views, by number.
    views: Vec<BoundView>,
    /// The buffers' bytes, by number.
    lengths: Vec<usize>,
    /// The sizes it is for.
    sizes: Vec<i64>,
}

impl Plan {
    /// Returns `true` if a number depends only on the sizes of the inputs: then it stays while a binding does.
    pub fn follows_sizes(&self, number: &Dim) -> bool {
        number.vars().all(|var| self.schedule.fixed.get(var.0 as usize) == Some(&true))
    }

    /// Returns `true` if numbers of a step's views are known only when it runs.
    pub fn has_late_views(&self, block: usize, step: usize) -> bool {
        let late = self.schedule.late.get(block).and_then(|steps| steps.get(step));
        late.is_some_and(|views| !views.is_empty())
    }

    /// Computes everything that depends only on the sizes of the inputs, which are among these host values.
    ///
    /// # Errors
    /// If a size is negative or too large, or a view is not inside its buffer.
    pub fn bind(&self, given: &[i64]) -> Result<Bound, Misfit> {
        let mut bound = self.unbound(given);
        // Only sizes are known yet; host values that depend on more are computed again later.
        (0..).map(Var).take(self.host.len()).for_each(|var| bound.compute(self, var, &()));
        for (buf, _) in (0..).map(Buf).zip(&self.schedule.lengths).filter(|(_, length)| **length == When::Bound) {
            bound.measure(self, buf).map_err(|fault| ((0, 0), "buffer", fault))?;
        }
        self.schedule.bound.iter().try_for_each(|view| bound.place(self, *view))?;
        Ok(bound)
    }

    /// Computes what the block that runs once needs: it has no inputs.
    ///
    /// # Errors
    /// As [`Plan::bind`].
    pub fn bind_init(&self) -> Result<Bound, Misfit> {
        let mut bound = self.unbound(&vec![0; self.host.len()]);
        for view in &self.schedule.init {
            bound.measure(self, self.view(*view).buf).map_err(|fault| ((0, 0), "buffer", fault))?;
            bound.place(self, *view)?;
        }
        Ok(bound)
    }

    fn unbound(&self, given: &[i64]) -> Bound {
        Bound {
            values: given.to_vec(),
            views: self.views.iter().map(BoundView::empty).collect(),
            lengths: vec![0; self.buffers.len()],
            sizes: self.schedule.sizes.iter().map(|var| value(given, *var)).collect(),
        }
    }
}

fn value(values: &[i64], var: Var) -> i64 {
    values.get(var.0 as usize).copied().unwrap_or(0)
}

#[allow(clippy::indexing_slicing, reason = "the numbers of views and buffers come from the plan that was bound")]
impl Bound {
    /// Returns `true` if it is for these sizes.
    pub fn fits(&self, plan: &Plan, given: &[i64]) -> bool {
        plan.schedule.sizes.iter().zip(&self.sizes).all(|(var, size)| value(given, *var) == *size)
    }

    /// The sizes of inputs that it is for.
    pub fn sizes(&self) -> &[i64] {
        &self.sizes
    }

    /// Computes what changes from step to step, from what the caller gives and the session keeps, and makes the early checks.
    ///
    /// # Errors
    /// The first check that does not hold, or the first view that is not inside its buffer.
    pub fn advance(&mut self, plan: &Plan, given: &[i64], inputs: &impl HostInputs) -> Result<(), Misfit> {
        self.values.copy_from_slice(given);
        for (step, origin) in plan.advance.steps.iter().zip(&plan.advance.origin) {
            match step {
                PlanStep::Host(var) => self.compute(plan, *var, inputs),
                PlanStep::Check(check) => check.hold(&self.values).map_err(|fault| (*origin, step.name(), fault))?,
                PlanStep::Device(_) | PlanStep::Item(..) | PlanStep::If { .. } | PlanStep::Loop { .. } => {}
            }
        }
        plan.schedule.advanced.iter().try_for_each(|view| self.place(plan, *view))
    }

    /// Computes a host value from those before it; items and indices are set with [`Bound::set`].
    pub fn compute(&mut self, plan: &Plan, var: Var, inputs: &impl HostInputs) {
        let number = plan.host.get(var.0 as usize).and_then(|op| op.eval(&self.values, inputs));
        number.into_iter().for_each(|number| self.set(var, number));
    }

    /// Sets a host value.
    pub fn set(&mut self, var: Var, number: i64) {
        self.values.get_mut(var.0 as usize).into_iter().for_each(|slot| *slot = number);
    }

    /// Computes the numbers of a step's views that were not known before.
    ///
    /// # Errors
    /// The first view that is not inside its buffer.
    pub fn refresh(&mut self, plan: &Plan, block: usize, step: usize) -> Result<(), NumberFault> {
        let late = plan.schedule.late.get(block).and_then(|steps| steps.get(step));
        late.into_iter().flatten().try_for_each(|view| self.place(plan, *view).map_err(|(_, _, fault)| fault))
    }

    /// The numbers of a view.
    pub fn view(&self, view: ViewId) -> &BoundView {
        &self.views[view.0 as usize]
    }

    /// The length of a buffer in bytes.
    pub fn length(&self, buf: Buf) -> usize {
        self.lengths[buf.0 as usize]
    }

    fn place(&mut self, plan: &Plan, view: ViewId) -> Result<(), Misfit> {
        let index = view.0 as usize;
        let here = |fault| {
            let (origin, name) = plan.schedule.origins[index];
            (origin, name, fault)
        };
        let shown = plan.view(view);
        if plan.schedule.lengths[shown.buf.0 as usize] != When::Bound {
            self.measure(plan, shown.buf).map_err(here)?;
        }
        let elements = self.lengths[shown.buf.0 as usize] / shown.dtype.size();
        self.views[index].fill(shown, &self.values, elements).map_err(here)
    }

    fn measure(&mut self, plan: &Plan, buf: Buf) -> Result<(), NumberFault> {
        let buffer = plan.buffer(buf);
        let elements = buffer.elements.eval(&self.values);
        let elements = u64::try_from(elements).map_err(|_| NumberFault::NegativeSize(elements))?;
        let bytes = elements.checked_mul(buffer.dtype.bytes()).filter(|&bytes| bytes <= LIMIT_BYTES);
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).ok_or(NumberFault::TooLarge)?;
        // A size above the declared limit would overlap the next temporary.
        if let Some(Some(place)) = plan.placement.places.get(buf.0 as usize)
            && bytes as u64 > place.end - place.start
        {
            return Err(NumberFault::TooLarge);
        }
        self.lengths[buf.0 as usize] = bytes;
        Ok(())
    }
}
