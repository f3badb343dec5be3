//! Walks the blocks of a plan, the same way for every device that runs step by step.

use crate::error::{Error, Fault, Place, Result};
use crate::inputs::Inputs;
use crate::lanes::{RunningLane, StepState, split};
use ptero_plan::bound::Bound;
use ptero_plan::dim::{Dim, Var};
use ptero_plan::plan::{Plan, PlanStep};
use ptero_plan::prim::{Prim, ViewId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The steps that a device runs itself, with states `S`.
pub trait Device<S> {
    /// Runs a primitive for each lane. A fault is left in its lane, as `fault.at(step.place)`.
    fn prim(&mut self, step: &DeviceStep<'_>, lanes: &mut [RunningLane<'_, S>]);

    /// Runs the first of some steps, and as many of those after it as it takes together; returns their number. A lane takes no step
    /// after its fault.
    fn prims(&mut self, steps: &DeviceSteps<'_>, lanes: &mut [RunningLane<'_, S>]) -> usize {
        steps.iter().take(1).map(|step| self.prim(&step, lanes)).count()
    }

    /// The one element of an integer or bool tensor, cut to 32 bits and sign-extended.
    fn item(&mut self, view: ViewId, state: &mut S) -> Result<i64, Fault>;
}

/// A step of a plan that a device runs.
#[derive(Clone, Copy, Debug)]
pub struct DeviceStep<'a> {
    /// What it computes.
    pub prim: &'a Prim,
    /// Its block, and its index there.
    pub at: (usize, usize),
    /// Where its faults are found.
    pub place: Place,
}

/// Steps of a block that follow each other, and between which nothing else is to be done.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSteps<'a> {
    plan: &'a Plan,
    /// The first: its block, and its index there.
    first: (usize, usize),
}

impl<'a> DeviceSteps<'a> {
    /// The steps, of which there is at least one.
    pub fn iter(&self) -> impl Iterator<Item = DeviceStep<'a>> + Clone + Sync + use<'a> {
        let Self { plan, first: (index, first) } = *self;
        let block = plan.blocks.get(index).into_iter();
        let steps = block.flat_map(|block| block.steps.iter().zip(&block.origin)).enumerate().skip(first);
        steps.map_while(move |(at, (step, origin))| match step {
            // Views of a later step that are not known yet come first.
            PlanStep::Device(prim) if at == first || !plan.has_late_views(index, at) => {
                let place = Place::Step { origin: *origin, name: step.name() };
                Some(DeviceStep { prim, at: (index, at), place })
            }
            _ => None,
        })
    }
}

/// A state whose steps [`run_block`] runs.
pub trait DrivenState: StepState {
    /// The numbers of its step, and its inputs.
    fn numbers(&mut self) -> (&mut Numbers, &Inputs);
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

const NO_BLOCK: Fault = Fault::Contract("a block exists");
const NOT_BOUND: Fault = Fault::Contract("a step is started before it runs");

/// Updates the integers that a session keeps, as the plan says.
fn keep(plan: &Plan, bound: &Bound, inputs: &mut Inputs, is_done: bool) {
    for (int, rule) in inputs.session_ints_mut().iter_mut().zip(&plan.session_ints) {
        *int = if is_done { &rule.at_end } else { &rule.at_start }.eval(&bound.values);
    }
}

/// Runs a block and those it calls, with the numbers of the steps that were started: every step for all lanes, then the next.
/// Lanes that fail, or are stopped, get their fault and take no further step. Lanes may change places.
pub fn run_block<S: DrivenState>(
    plan: &Plan,
    block: usize,
    lanes: &mut [RunningLane<'_, S>],
    device: &mut impl Device<S>,
    stop: &AtomicBool,
) {
    Drive { plan, device, stop }.block(block, lanes);
}

struct Drive<'a, D> {
    plan: &'a Plan,
    device: &'a mut D,
    stop: &'a AtomicBool,
}

impl<D> Drive<'_, D> {
    fn block<S: DrivenState>(&mut self, index: usize, mut lanes: &mut [RunningLane<'_, S>])
    where
        D: Device<S>,
    {
        let Some(block) = self.plan.blocks.get(index) else {
            return lanes.iter_mut().for_each(|lane| *lane.fault = Some(NO_BLOCK.into()));
        };
        let mut done = 0;
        for (at, (step, origin)) in block.steps.iter().zip(&block.origin).enumerate() {
            if at < done {
                continue;
            }
            done = at + 1;
            let place = Place::Step { origin: *origin, name: step.name() };
            if self.stop.load(Ordering::Relaxed) {
                lanes.iter_mut().for_each(|lane| *lane.fault = Some(Fault::Cancelled.at(place)));
            }
            for lane in lanes.iter_mut().filter(|lane| lane.fault.is_none()) {
                let refreshed = lane.bound().and_then(|bound| Ok(bound.refresh(self.plan, index, at)?));
                *lane.fault = refreshed.err().map(|fault| fault.at(place));
            }
            lanes = split(lanes, |lane| lane.fault.is_none()).0;
            match step {
                _ if lanes.is_empty() => return,
                PlanStep::Device(_) => {
                    done = at + self.device.prims(&DeviceSteps { plan: self.plan, first: (index, at) }, lanes);
                }
                PlanStep::If { .. } | PlanStep::Loop { .. } => self.blocks(step, lanes),
                PlanStep::Host(_) | PlanStep::Item(..) | PlanStep::Check(_) => {
                    for lane in lanes.iter_mut() {
                        *lane.fault = self.number(step, lane.state).err().map(|fault| fault.at(place));
                    }
                }
            }
        }
    }

    /// A step that computes or checks a number of one lane.
    fn number<S: DrivenState>(&mut self, step: &PlanStep, state: &mut S) -> Result<(), Fault>
    where
        D: Device<S>,
    {
        match step {
            PlanStep::Host(var) => {
                let (numbers, inputs) = state.numbers();
                numbers.bindings.first_mut().ok_or(NOT_BOUND)?.compute(self.plan, *var, inputs);
            }
            PlanStep::Item(var, view) => {
                let item = self.device.item(*view, state)?;
                state.numbers().0.bindings.first_mut().ok_or(NOT_BOUND)?.set(*var, item);
            }
            PlanStep::Check(check) => check.hold(&state.numbers().0.bound().ok_or(NOT_BOUND)?.values)?,
            PlanStep::Device(_) | PlanStep::If { .. } | PlanStep::Loop { .. } => {}
        }
        Ok(())
    }

    /// A step that runs other blocks. Lanes that go different ways go one after the other.
    fn blocks<S: DrivenState>(&mut self, step: &PlanStep, mut lanes: &mut [RunningLane<'_, S>])
    where
        D: Device<S>,
    {
        match step {
            PlanStep::If { condition, then, otherwise } => {
                let (yes, no) = split(lanes, |lane| lane.value(condition) != 0);
                self.block(*then, yes);
                self.block(*otherwise, no);
            }
            PlanStep::Loop { index, count, body } => {
                while let Some(turns) = lanes.first_mut().map(|lane| lane.value(count)) {
                    let (same, others) = split(lanes, |lane| lane.value(count) == turns);
                    self.turns(*index, turns, *body, same);
                    lanes = others;
                }
            }
            PlanStep::Device(_) | PlanStep::Host(_) | PlanStep::Item(..) | PlanStep::Check(_) => {}
        }
    }

    /// The turns of a loop.
    fn turns<S: DrivenState>(&mut self, index: Var, turns: i64, body: usize, mut lanes: &mut [RunningLane<'_, S>])
    where
        D: Device<S>,
    {
        for turn in 0..turns {
            lanes = split(lanes, |lane| lane.fault.is_none()).0;
            lanes.iter_mut().filter_map(|lane| lane.bound().ok()).for_each(|bound| bound.set(index, turn));
            self.block(body, lanes);
        }
    }
}

impl<S: DrivenState> RunningLane<'_, S> {
    fn bound(&mut self) -> Result<&mut Bound, Fault> {
        self.state.numbers().0.bindings.first_mut().ok_or(NOT_BOUND)
    }

    fn value(&mut self, dim: &Dim) -> i64 {
        self.bound().map_or(0, |bound| dim.eval(&bound.values))
    }
}

fn misfit((origin, name, fault): ptero_plan::bound::Misfit) -> Error {
    Fault::from(fault).at(Place::Step { origin, name })
}
