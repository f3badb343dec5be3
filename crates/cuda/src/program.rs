//! A plan prepared for a device: where each buffer lies, and which numbers change from step to step.

#[cfg(test)]
mod tests;

use crate::capture::Graphs;
use crate::error::{Error, Result as CudaResult};
use crate::memory::Weights;
use crate::stream::Stream;
use ptero_backend::{Fault, InputTypes, LIMIT_BYTES, Loading, NumberFault, Place, Result};
use ptero_plan::bound::Bound;
use ptero_plan::dim::Dim;
use ptero_plan::host::early;
use ptero_plan::plan::{Buffer as PlanBuffer, BufferKind, Output, Plan, PlanStep};
use ptero_plan::prim::{Buf, Prim, View, ViewId};
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of every buffer: what the driver gives allocations, and more than any load needs.
pub(crate) const ALIGN: u64 = 256;
/// The most axes of a view: `MOST_AXES` in view.cuh.
pub(crate) const MOST_AXES: usize = 8;

/// Regions of memory: `SHARED_REGION` in view.cuh, and those of a lane.
pub(crate) const SHARED: u16 = 0;
pub(crate) const ARENA: u16 = 1;
pub(crate) const STATES: u16 = 2;
/// The first region that holds one buffer alone: an input, or a temporary without a largest size.
pub(crate) const FIRST_OWN: u16 = 3;

/// Where a buffer lies: in the region of weights at an address, in others at a distance from their start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) region: u16,
    pub(crate) start: u64,
}

/// A plan prepared for running, shared by all its states.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) plan: Arc<Plan>,
    pub(crate) types: Arc<InputTypes>,
    /// Constants and what the init block made of them. Freed with the program.
    pub(crate) weights: Weights,
    /// By buffer.
    sites: Vec<Site>,
    pub(crate) slots: Slots,
    /// By buffer: how often steps and outputs name it.
    mentions: Vec<u32>,
    /// By block, the number of its first step, where all steps of the plan are counted.
    first_steps: Vec<u32>,
    /// By region from [`FIRST_OWN`] on: its buffer.
    pub(crate) own: Vec<Buf>,
    pub(crate) arena_bytes: usize,
    pub(crate) state_bytes: usize,
    /// The launches of a call can be captured, and repeated for every call with the same sizes.
    pub(crate) is_capturable: bool,
    /// The kernels of its calls have been compiled: bit `n` is for up to 2^n lanes.
    pub(crate) rehearsed: AtomicU32,
    /// Its calls, captured.
    graphs: Mutex<Graphs>,
}

impl Program {
    /// Uploads the weights. What does not fit, with one lane, is refused before that.
    pub(crate) fn new(plan: Arc<Plan>, types: InputTypes, stream: &Stream, loading: &Loading) -> Result<Self> {
        check_plan(&plan)?;
        let mut layout = Layout::of(&plan)?;
        let arena_bytes =
            usize::try_from(plan.placement.arena_bytes).map_err(|_| Fault::from(NumberFault::TooLarge))?;
        let needed = [layout.shared_bytes, layout.state_bytes, arena_bytes as u64];
        let free = stream.device().free_bytes().map_err(device_fault)?;
        if needed.iter().sum::<u64>() > free {
            return Err(does_not_fit(needed, free).into());
        }
        let weights = Weights::upload(stream, &plan, &layout.sites, layout.shared_bytes, loading)?;
        for site in layout.sites.iter_mut().filter(|site| site.region == SHARED) {
            site.start += weights.address();
        }
        let mut first_steps = Vec::with_capacity(plan.blocks.len());
        let mut count = 0_u32;
        for block in &plan.blocks {
            first_steps.push(count);
            count += u32::try_from(block.steps.len()).unwrap_or(u32::MAX);
        }
        let state_bytes = usize::try_from(layout.state_bytes).map_err(|_| Fault::from(NumberFault::TooLarge))?;
        let slots = Slots::of(&plan);
        let Layout { sites, own, .. } = layout;
        let types = Arc::new(types);
        let (is_capturable, mentions) = (is_capturable(&plan), mentions(&plan));
        Ok(Self {
            plan,
            types,
            weights,
            sites,
            slots,
            mentions,
            first_steps,
            own,
            arena_bytes,
            state_bytes,
            is_capturable,
            rehearsed: AtomicU32::new(0),
            graphs: Mutex::default(),
        })
    }

    pub(crate) fn graphs(&self) -> MutexGuard<'_, Graphs> {
        self.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn site(&self, buf: Buf) -> Site {
        self.sites.get(buf.0 as usize).copied().unwrap_or(Site { region: SHARED, start: 0 })
    }

    /// How often steps and outputs name a buffer.
    pub(crate) fn mentions(&self, buf: Buf) -> u32 {
        self.mentions.get(buf.0 as usize).copied().unwrap_or(u32::MAX)
    }

    /// Says what a further lane would need.
    pub(crate) fn no_room(&self, stream: &Stream) -> Fault {
        let needed = [self.weights.bytes(), self.state_bytes as u64, self.arena_bytes as u64];
        stream.device().free_bytes().map_or_else(device_fault, |free| does_not_fit(needed, free))
    }

    /// The number of a step, where all steps of the plan are counted.
    pub(crate) fn step_number(&self, (block, step): (usize, usize)) -> u32 {
        self.first_steps.get(block).copied().unwrap_or(0) + u32::try_from(step).unwrap_or(0)
    }

    /// The location of a step that has such a number.
    pub(crate) fn place_of_step(&self, number: u32) -> Option<Place> {
        let block = self.first_steps.partition_point(|first| *first <= number).checked_sub(1)?;
        let (block, first) = (self.plan.blocks.get(block)?, self.first_steps.get(block)?);
        let step = (number - first) as usize;
        let (origin, step) = (*block.origin.get(step)?, block.steps.get(step)?);
        Some(Place::Step { origin, name: step.name() })
    }
}

/// An error of the device, as a fault of a call.
pub(crate) fn device_fault(error: Error) -> Fault {
    match error {
        Error::OutOfMemory { bytes } => Fault::OutOfMemory { bytes },
        other => Fault::Device(other.to_string()),
    }
}

/// Turns an error of the device into a fault of a call.
pub(crate) fn device<T>(result: CudaResult<T>) -> Result<T, Fault> {
    result.map_err(device_fault)
}

/// Says what a program needs and what there is.
pub(crate) fn does_not_fit([weights, state, arena]: [u64; 3], free: u64) -> Fault {
    Fault::DoesNotFit { device: "cuda", weights, state, arena, free }
}

/// By buffer: how often steps and outputs name it.
fn mentions(plan: &Plan) -> Vec<u32> {
    let mut mentions = vec![0_u32; plan.buffers.len()];
    let in_steps = plan.blocks.iter().flat_map(|block| &block.steps).flat_map(PlanStep::views);
    for view in in_steps.chain(plan.outputs.iter().filter_map(Output::tensor)) {
        if let Some(count) = mentions.get_mut(plan.view(view).buf.0 as usize) {
            *count += 1;
        }
    }
    mentions
}

/// Refuses what kernels could not index.
fn check_plan(plan: &Plan) -> Result<(), Fault> {
    let steps = plan.blocks.iter().flat_map(|block| &block.steps);
    for view in steps
        .filter_map(|step| if let PlanStep::Device(prim) = step { Some(prim) } else { None })
        .flat_map(|prim| prim.reads().into_iter().chain(prim.writes().into_iter().copied()))
    {
        let view = plan.view(view);
        if view.shape.len() > MOST_AXES {
            return Err(Fault::WrongRank { found: view.shape.len(), wanted: MOST_AXES });
        }
        if view.dtype != plan.buffer(view.buf).dtype {
            return Err(Fault::Contract("a view has the element type of its buffer"));
        }
    }
    Ok(())
}

/// Returns `true` if all calls with the same sizes make the same launches: the host waits for nothing, and what it decides by
/// numbers depends on the sizes alone.
fn is_capturable(plan: &Plan) -> bool {
    let is_fixed = |view: &ViewId| {
        let View { shape, strides, offset, .. } = plan.view(*view);
        shape.iter().chain(strides).chain([offset]).all(|number| plan.follows_sizes(number))
    };
    let all_fixed = |prim: &Prim| prim.reads().iter().all(is_fixed) && prim.writes().into_iter().all(is_fixed);
    let fits = |step: &PlanStep| match step {
        PlanStep::Device(prim) => match prim {
            // Their kernels read all numbers themselves.
            Prim::Map { .. } | Prim::Reduce { .. } | Prim::ArgReduce { .. } | Prim::Gather { .. } => true,
            Prim::Cumsum { .. } | Prim::RandomBits { .. } | Prim::Rope { .. } | Prim::Attention { .. } => true,
            Prim::Softmax { .. } | Prim::Norm { .. } | Prim::MatMul { .. } | Prim::QuantMatMul { .. } => {
                all_fixed(prim)
            }
            Prim::Dequantize { .. } | Prim::Conv { .. } | Prim::Scatter { .. } | Prim::Sort { .. } => all_fixed(prim),
            Prim::GatedDelta(_) | Prim::Sample(_) => all_fixed(prim),
        },
        PlanStep::Host(_) | PlanStep::Item(..) | PlanStep::Check(_) | PlanStep::If { .. } | PlanStep::Loop { .. } => {
            false
        }
    };
    plan.blocks.get(plan.main).is_some_and(|block| block.steps.iter().all(fits))
}

/// Where buffers lie before weights have an address.
struct Layout {
    sites: Vec<Site>,
    own: Vec<Buf>,
    shared_bytes: u64,
    state_bytes: u64,
}

impl Layout {
    fn of(plan: &Plan) -> Result<Self> {
        let mut layout = Self { sites: Vec::new(), own: Vec::new(), shared_bytes: 0, state_bytes: 0 };
        for (index, buffer) in plan.buffers.iter().enumerate() {
            let site = layout.site(plan, index, buffer).map_err(|fault| fault.at(Place::Buffer(index)))?;
            layout.sites.push(site);
        }
        Ok(layout)
    }

    fn site(&mut self, plan: &Plan, index: usize, buffer: &PlanBuffer) -> Result<Site, Fault> {
        let placed = plan.placement.places.get(index).and_then(Option::as_ref);
        Ok(match (&buffer.kind, placed) {
            (BufferKind::Constant(bytes), _) => take(&mut self.shared_bytes, SHARED, bytes.len() as u64),
            (BufferKind::Derived, _) => take(&mut self.shared_bytes, SHARED, fixed_length(buffer)?),
            (BufferKind::State, _) => take(&mut self.state_bytes, STATES, fixed_length(buffer)?),
            (BufferKind::Temporary, Some(place)) => Site { region: ARENA, start: place.start },
            (BufferKind::Input(_), _) | (BufferKind::Temporary, None) => {
                let region = u16::try_from(self.own.len()).ok().and_then(|count| count.checked_add(FIRST_OWN));
                let region = region.ok_or(Fault::Contract("a plan has fewer than 65,000 inputs"))?;
                self.own.push(Buf(u32::try_from(index).unwrap_or(u32::MAX)));
                Site { region, start: 0 }
            }
        })
    }
}

fn take(used: &mut u64, region: u16, bytes: u64) -> Site {
    let start = *used;
    *used = (start + bytes).next_multiple_of(ALIGN);
    Site { region, start }
}

/// The bytes of a buffer of fixed size.
fn fixed_length(buffer: &PlanBuffer) -> Result<u64, Fault> {
    let elements = buffer.elements.as_fixed().ok_or_else(|| Fault::NotFixed(buffer.elements.clone()))?;
    let elements = u64::try_from(elements).map_err(|_| NumberFault::NegativeSize(elements))?;
    let bytes = elements.checked_mul(buffer.dtype.bytes()).filter(|&bytes| bytes <= LIMIT_BYTES);
    bytes.ok_or(NumberFault::TooLarge.into())
}

/// The numbers that kernels read from the table of a lane, because they change from step to step. Equal numbers share a slot.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    numbers: Vec<Dim>,
    by_number: HashMap<Dim, u32>,
    /// Those that are known only when the step that uses them runs.
    late: Vec<u32>,
}

impl Slots {
    fn of(plan: &Plan) -> Self {
        let early = early(&plan.host);
        let mut slots = Self::default();
        let in_views = plan.views.iter().flat_map(|View { shape, strides, offset, .. }| {
            shape.iter().chain(strides).chain([offset]).collect::<Vec<_>>()
        });
        let in_prims = plan.blocks.iter().flat_map(|block| &block.steps).flat_map(|step| match step {
            PlanStep::Device(prim) => prim.numbers(),
            PlanStep::Host(_)
            | PlanStep::Item(..)
            | PlanStep::Check(_)
            | PlanStep::If { .. }
            | PlanStep::Loop { .. } => Vec::new(),
        });
        for number in in_views.chain(in_prims).filter(|number| !plan.follows_sizes(number)) {
            if slots.by_number.contains_key(number) {
                continue;
            }
            let slot = u32::try_from(slots.numbers.len()).unwrap_or(u32::MAX);
            if !number.vars().all(|var| early.get(var.0 as usize) == Some(&true)) {
                slots.late.push(slot);
            }
            slots.by_number.insert(number.clone(), slot);
            slots.numbers.push(number.clone());
        }
        slots
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// The slot of a number that changes.
    pub(crate) fn slot(&self, number: &Dim) -> Option<u32> {
        self.by_number.get(number).copied()
    }

    /// Computes all slots. Returns `true` if one has changed.
    pub(crate) fn compute(&self, bound: &Bound, table: &mut [i64]) -> bool {
        let slots = self.numbers.iter().zip(table);
        slots.fold(false, |changed, (number, slot)| {
            let value = number.eval(&bound.values);
            std::mem::replace(slot, value) != value || changed
        })
    }

    /// Computes the slots that depend on the device or a loop. Returns `true` if one has changed.
    pub(crate) fn compute_late(&self, bound: &Bound, table: &mut [i64]) -> bool {
        self.late.iter().fold(false, |changed, &slot| {
            let (Some(number), Some(slot)) = (self.numbers.get(slot as usize), table.get_mut(slot as usize)) else {
                return changed;
            };
            let value = number.eval(&bound.values);
            std::mem::replace(slot, value) != value || changed
        })
    }
}
