//! Walks the blocks of a plan, the same way for every device that runs step by step.

use crate::error::{Error, Fault, Place, Result};
use crate::inputs::Inputs;
use ptero_plan::bound::Bound;
use ptero_plan::plan::{Plan, PlanStep};
use ptero_plan::prim::{Prim, ViewId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The steps that a device runs itself.
pub trait Device {
    /// Runs the primitive at this block and step.
    fn prim(&mut self, prim: &Prim, at: (usize, usize), bound: &Bound) -> Result<(), Fault>;

    /// The one element of an integer or bool tensor, cut to 32 bits and sign-extended.
    fn item(&mut self, view: ViewId, bound: &Bound) -> Result<i64, Fault>;
}

/// The numbers of a session: a binding for each of the most recent sets of sizes.
#[derive(Debug)]
pub struct Numbers {
    plan: Arc<Plan>,
    /// The most recently used comes first.
    bindings: Vec<Bound>,
    /// The host values that inputs give, by number.
    given: Vec<i64>,
}

/// The number of bindings that a session keeps: prompts come in few sizes, and decoding in one.
const MOST_BINDINGS: usize = 8;

impl Numbers {
    /// Nothing is bound yet.
    pub fn new(plan: Arc<Plan>) -> Self {
        Self { given: vec![0; plan.host.len()], plan, bindings: Vec::new() }
    }

    /// Computes the numbers of a step, and notes that it starts. If it fails, nothing has changed.
    ///
    /// # Errors
    /// When an input was never given, a check does not hold, or a view does not lie in its buffer.
    pub fn start(&mut self, inputs: &mut Inputs) -> Result<()> {
        inputs.start(&mut self.given)?;
        let found = self.bindings.iter().position(|bound| bound.fits(&self.plan, &self.given));
        let index = match found {
            Some(index) => index,
            None => {
                self.bindings.truncate(MOST_BINDINGS - 1);
                self.bindings.push(self.plan.bind(&self.given).map_err(misfit)?);
                self.bindings.len() - 1
            }
        };
        if let Some(recent) = self.bindings.get_mut(..=index) {
            recent.rotate_right(1);
        }
        let bound = self.bindings.first_mut().ok_or(NOT_BOUND)?;
        bound.advance(&self.plan, &self.given, inputs).map_err(misfit)?;
        keep(&self.plan, bound, inputs, false);
        Ok(())
    }

    /// Runs a block and those it calls, with the numbers of the step that was started.
    ///
    /// # Errors
    /// The fault of the first step that fails, with its instruction; or that the run was stopped.
    pub fn run(&mut self, block: usize, inputs: &Inputs, device: &mut impl Device, stop: &AtomicBool) -> Result<()> {
        let bound = self.bindings.first_mut().ok_or(NOT_BOUND)?;
        let mut drive = Drive { plan: &self.plan, bound, inputs, stop };
        drive.block(block, device)
    }

    /// Notes that the step has succeeded.
    pub fn finish(&mut self, inputs: &mut Inputs) {
        if let Some(bound) = self.bindings.first() {
            keep(&self.plan, bound, inputs, true);
        }
    }

    /// The numbers of the last step.
    pub fn bound(&self) -> Option<&Bound> {
        self.bindings.first()
    }

    /// Computes the numbers of the init block, which has no inputs.
    ///
    /// # Errors
    /// As [`Numbers::start`].
    pub fn start_init(&mut self) -> Result<()> {
        let bound = self.plan.bind_init().map_err(misfit)?;
        self.bindings.insert(0, bound);
        Ok(())
    }
}

const NOT_BOUND: Fault = Fault::Contract("a step is started before it runs");

/// Updates the integers that a session keeps, as the plan says.
fn keep(plan: &Plan, bound: &Bound, inputs: &mut Inputs, is_done: bool) {
    for (int, rule) in inputs.session_ints_mut().iter_mut().zip(&plan.session_ints) {
        *int = if is_done { &rule.at_end } else { &rule.at_start }.eval(&bound.values);
    }
}

struct Drive<'a> {
    plan: &'a Plan,
    bound: &'a mut Bound,
    inputs: &'a Inputs,
    stop: &'a AtomicBool,
}

impl Drive<'_> {
    fn block(&mut self, index: usize, device: &mut impl Device) -> Result<()> {
        let plan = self.plan;
        let block = plan.blocks.get(index).ok_or(Fault::Contract("a block exists"))?;
        for (at, (step, origin)) in block.steps.iter().zip(&block.origin).enumerate() {
            let here = |fault: Fault| fault.at(Place::Step { origin: *origin, name: step.name() });
            if self.stop.load(Ordering::Relaxed) {
                return Err(here(Fault::Cancelled));
            }
            self.bound.refresh(plan, index, at).map_err(|fault| here(fault.into()))?;
            match step {
                PlanStep::Device(prim) => device.prim(prim, (index, at), self.bound).map_err(here)?,
                PlanStep::Host(var) => self.bound.compute(plan, *var, self.inputs),
                PlanStep::Item(var, view) => {
                    let item = device.item(*view, self.bound).map_err(here)?;
                    self.bound.set(*var, item);
                }
                PlanStep::Check(check) => check.hold(&self.bound.values).map_err(|fault| here(fault.into()))?,
                PlanStep::If { condition, then, otherwise } => {
                    let is_true = condition.eval(&self.bound.values) != 0;
                    self.block(if is_true { *then } else { *otherwise }, device)?;
                }
                PlanStep::Loop { index, count, body } => {
                    for turn in 0..count.eval(&self.bound.values) {
                        self.bound.set(*index, turn);
                        self.block(*body, device)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn misfit((origin, name, fault): ptero_plan::bound::Misfit) -> Error {
    Fault::from(fault).at(Place::Step { origin, name })
}
