//! Runs the steps of a plan, for one lane or several: `LaneStep` says how lanes share a step, and `run` has one line per
//! primitive.

use crate::CpuState;
use crate::attention::{Attention, attention};
use crate::conv::conv;
use crate::delta::gated_delta;
use crate::index::{gather, scatter};
use crate::map::{Function, map};
use crate::matmul::{LaneLists, Stack, dequantize, map_parts, matmul};
use crate::memory::{Memory, SharedBuffers, Sources};
use crate::order::{cumsum, sort};
use crate::pool::{Pool, Scratch, Workers};
use crate::profile::Profiler;
use crate::random::random_bits;
use crate::reduce::{arg_reduce, reduce};
use crate::rows::{Rope, Turns, norm, rope, softmax};
use crate::sample::sample;
use crate::simd::Isa;
use crate::view::{BoundView, Target};
use ptero_backend::{Conv, Device, DeviceStep, DeviceSteps, Fault, InputTypes, Place, Result, RunningLane};
use ptero_plan::bound::Bound;
use ptero_plan::plan::{BufferKind, Plan, PlanStep};
use ptero_plan::prim::{Buf, Prim, ViewId};
use ptero_sampling::threefry::KeySequence;
use std::sync::Arc;

/// A plan prepared for running, shared by all its states.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) buffers: SharedBuffers,
    pub(crate) types: Arc<InputTypes>,
    /// By block and step.
    prepared: Vec<Vec<Prepared>>,
    /// Records steps, if the program was compiled for that.
    pub(crate) profiler: Option<Arc<Profiler>>,
}

/// What is computed once per step of a plan.
#[derive(Debug, Default)]
struct Prepared {
    /// The function of a map, or of the epilogue of a product.
    function: Option<Function>,
    /// The step reads from a buffer that it writes to.
    reads_own_buffer: bool,
    /// The views of the right matrices of a product that all states share; empty for others.
    weights: Vec<ViewId>,
    /// After a product: the buffer with the weights of the next one.
    next: Option<Buf>,
}

impl Program {
    pub(crate) fn new(plan: Arc<Plan>, types: InputTypes, isa: Isa) -> Result<Self> {
        let prepare = |step: &PlanStep| {
            let PlanStep::Device(prim) = step else { return Prepared::default() };
            let function = match prim {
                Prim::Map { expr, .. } => Some(Function::new(expr)),
                Prim::MatMul { epilogue, .. } | Prim::QuantMatMul { epilogue, .. } => {
                    epilogue.as_ref().map(|fused| Function::new(&fused.expr))
                }
                _ => None,
            };
            let reads_own_buffer = plan.reads_own_buffer(prim);
            let weights = if reads_own_buffer { Vec::new() } else { shared_weights(&plan, prim) };
            Prepared { function, reads_own_buffer, weights, next: None }
        };
        let mut prepared: Vec<Vec<Prepared>> =
            plan.blocks.iter().map(|block| block.steps.iter().map(prepare).collect()).collect();
        for (block, prepared) in plan.blocks.iter().zip(&mut prepared) {
            note_next_weights(&plan, &block.steps, prepared);
        }
        Ok(Self { buffers: SharedBuffers::new(plan, isa)?, types: Arc::new(types), prepared, profiler: None })
    }

    /// What is computed once for a step, by its block and index.
    fn prepared(&self, (block, index): (usize, usize)) -> Option<&Prepared> {
        self.prepared.get(block)?.get(index)
    }
}

/// Notes after each product which weights the next one reads; after the last, the first, for the next token. Of experts, it is not
/// known which are chosen.
fn note_next_weights(plan: &Plan, steps: &[PlanStep], prepared: &mut [Prepared]) {
    let chooses = |step: &PlanStep| match step {
        PlanStep::Device(Prim::MatMul { rhs, .. } | Prim::QuantMatMul { rhs, .. }) => rhs.is_some(),
        _ => false,
    };
    let buffer = |view: &ViewId| plan.views.get(view.0 as usize).map(|view| view.buf);
    let weights =
        |(step, prepared): (&PlanStep, &Prepared)| prepared.weights.first().filter(|_| !chooses(step)).and_then(buffer);
    let mut next = steps.iter().zip(&*prepared).find_map(weights);
    for (step, prepared) in steps.iter().zip(prepared).rev() {
        let own = weights((step, prepared));
        if !prepared.weights.is_empty() {
            prepared.next = next;
        }
        next = own.or(next);
    }
}

/// The views of the right matrices of a product, if all states share them.
fn shared_weights(plan: &Plan, prim: &Prim) -> Vec<ViewId> {
    let views = match prim {
        Prim::MatMul { b, .. } => vec![*b],
        Prim::QuantMatMul { w, .. } => [Some(w.codes), w.scales, w.biases].into_iter().flatten().collect(),
        _ => Vec::new(),
    };
    let is_shared = |view: &ViewId| {
        let buffer = plan.views.get(view.0 as usize).and_then(|view| plan.buffers.get(view.buf.0 as usize));
        buffer.is_some_and(|buffer| matches!(buffer.kind, BufferKind::Constant(_) | BufferKind::Derived))
    };
    if views.iter().all(is_shared) { views } else { Vec::new() }
}

/// Memory and keys of one state, for primitives to use.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) memory: Memory,
    pub(crate) scratch: Scratch,
    /// Floats that all threads share. A primitive that takes them puts them back, and leaves at least as many as it found: filling
    /// more with zeros for the next one takes one thread's time.
    pub(crate) staging: Vec<f32>,
    /// Lists of the lanes of a product.
    pub(crate) lists: LaneLists,
    /// The angles of rotary embeddings.
    pub(crate) turns: Turns,
    /// The keys of unseeded random bits.
    pub(crate) keys: KeySequence,
}

/// The device of a run.
pub(crate) struct Runner<'a> {
    pub(crate) program: &'a Program,
    pub(crate) pool: &'a Pool,
}

impl Runner<'_> {
    /// Returns `true` if hardly any thread idles when each takes whole lanes.
    fn is_busy_with(&self, lanes: usize) -> bool {
        2 * lanes >= self.pool.threads()
    }

    /// Runs steps of the program, each thread with a lane until its fault.
    fn apart<'s>(
        &self,
        steps: impl Iterator<Item = DeviceStep<'s>> + Clone + Sync,
        lanes: &mut [RunningLane<'_, CpuState>],
    ) {
        let (program, pool) = (self.program, self.pool);
        Workers { pool, scratch: &mut Scratch::default() }.chunks(lanes, 1, |_, lanes, _| {
            for lane in lanes {
                for DeviceStep { prim, at, place } in steps.clone() {
                    let Some(prepared) = program.prepared(at).filter(|_| lane.fault.is_none()) else { break };
                    LaneStep { program, pool, prim, prepared, place }.alone(lane);
                }
            }
        });
    }
}

/// What a primitive works with.
pub(crate) struct Context<'a> {
    shared: &'a SharedBuffers,
    pub(crate) isa: Isa,
    pool: &'a Pool,
    pub(crate) resources: &'a mut Resources,
    /// The view that the primitive writes.
    pub(crate) out: ViewId,
    /// The numbers of this step.
    pub(crate) bound: &'a Bound,
}

impl<'a> Context<'a> {
    /// The output to be written, all other buffers to be read, and the threads.
    pub(crate) fn open(&mut self) -> Result<(Target<'_>, Sources<'_>, Workers<'_>), Fault> {
        self.open_view(self.out)
    }

    /// A view to be written, all other buffers to be read, and the threads.
    pub(crate) fn open_view(&mut self, out: ViewId) -> Result<(Target<'_>, Sources<'_>, Workers<'_>), Fault> {
        let Resources { memory, scratch, .. } = &mut *self.resources;
        let (target, sources) = memory.open(self.shared, self.bound, out)?;
        Ok((target, sources, Workers { pool: self.pool, scratch }))
    }

    fn reborrow(&mut self) -> Context<'_> {
        Context { resources: &mut *self.resources, ..*self }
    }

    /// Same as [`Context::open`], for as long as the state is borrowed.
    pub(crate) fn into_open(self) -> Result<OpenStep<'a>, Fault> {
        let Resources { memory, scratch, staging, .. } = self.resources;
        let (target, sources) = memory.open(self.shared, self.bound, self.out)?;
        Ok(OpenStep { target, sources, pool: self.pool, scratch, staging })
    }

    /// All buffers to be read, and the threads.
    pub(crate) fn sources(&mut self) -> (Sources<'_>, Workers<'_>) {
        let Resources { memory, scratch, .. } = &mut *self.resources;
        (memory.sources(self.shared, self.bound), Workers { pool: self.pool, scratch })
    }

    /// Returns `true` if a view is in the buffer of the output.
    pub(crate) fn is_in_output(&self, view: ViewId) -> bool {
        self.bound.view(view).buf == self.bound.view(self.out).buf
    }

    /// Copies the buffer of the output, so that it can be read while it is written.
    pub(crate) fn keep(&mut self) -> Result<(), Fault> {
        self.resources.memory.keep(self.shared, self.bound, self.bound.view(self.out).buf)
    }
}

/// The output of a step to be written, all other buffers to be read, and the memory of the calling thread.
pub(crate) struct OpenStep<'a> {
    pub(crate) target: Target<'a>,
    pub(crate) sources: Sources<'a>,
    pub(crate) pool: &'a Pool,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) staging: &'a mut Vec<f32>,
}

impl Device<CpuState> for Runner<'_> {
    fn prim(&mut self, step: &DeviceStep<'_>, lanes: &mut [RunningLane<'_, CpuState>]) {
        let Some(prepared) = self.program.prepared(step.at) else {
            return lanes.iter_mut().for_each(|lane| *lane.fault = Some(NOT_PREPARED.at(step.place)));
        };
        let DeviceStep { prim, at, place } = *step;
        let step = LaneStep { program: self.program, pool: self.pool, prim, prepared, place };
        let profiled = self.program.profiler.as_ref().and_then(|profiler| Some((profiler, profiler.begin()?)));
        match &mut *lanes {
            [lane] => step.alone(lane),
            lanes if step.shares_weights(lanes) => step.together(lanes),
            lanes if self.is_busy_with(lanes.len()) => {
                self.apart(std::iter::once(DeviceStep { prim, at, place }), lanes);
            }
            lanes => lanes.iter_mut().for_each(|lane| step.alone(lane)),
        }
        if let Some((profiler, before)) = profiled {
            profiler.end(before, at, lanes.iter().filter_map(|lane| lane.state.numbers.bound()));
        }
        if let Some(weights) = prepared.next.and_then(|buf| self.program.buffers.shared_bytes(buf)) {
            self.pool.announce(weights);
        }
    }

    /// Lanes take the steps up to the next product with weights that they share each by itself, unless steps are recorded.
    fn prims(&mut self, steps: &DeviceSteps<'_>, lanes: &mut [RunningLane<'_, CpuState>]) -> usize {
        let has_no_weights =
            |step: &DeviceStep<'_>| self.program.prepared(step.at).is_some_and(|prepared| prepared.weights.is_empty());
        let is_apart = lanes.len() > 1 && self.is_busy_with(lanes.len()) && self.program.profiler.is_none();
        match steps.iter().take_while(|step| is_apart && has_no_weights(step)).count() {
            0 | 1 => steps.iter().take(1).map(|step| self.prim(&step, lanes)).count(),
            count => {
                self.apart(steps.iter().take(count), lanes);
                count
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "an item is cut to 32 bits")]
    fn item(&mut self, view: ViewId, state: &mut CpuState) -> Result<i64, Fault> {
        let bound = state.numbers.bound().ok_or(NOT_PREPARED)?;
        let tensor = state.resources.memory.sources(&self.program.buffers, bound).tensor(&view)?;
        if tensor.view.count() != 1 {
            return Err(Fault::Contract("an item is the only element of its tensor"));
        }
        Ok(i64::from(tensor.number::<i64>(0) as i32))
    }
}

/// A step of some lanes.
#[derive(Clone, Copy)]
struct LaneStep<'a> {
    program: &'a Program,
    pool: &'a Pool,
    prim: &'a Prim,
    prepared: &'a Prepared,
    place: Place,
}

impl<'a> LaneStep<'a> {
    /// What the primitive works with.
    fn context<'s>(&self, state: &'s mut CpuState) -> Result<Context<'s>, Fault>
    where
        'a: 's,
    {
        let CpuState { resources, numbers, .. } = state;
        let (bound, shared) = (numbers.bound().ok_or(NOT_PREPARED)?, &self.program.buffers);
        Ok(Context { shared, isa: shared.isa, pool: self.pool, resources, out: *self.prim.out(), bound })
    }

    fn alone(&self, lane: &mut RunningLane<'_, CpuState>) {
        let done = self.context(lane.state).and_then(|mut context| run(&mut context, self.prim, self.prepared));
        *lane.fault = done.err().map(|fault| fault.at(self.place));
    }

    /// Returns `true` if all lanes multiply rows of one size with the same weights.
    fn shares_weights(&self, lanes: &[RunningLane<'_, CpuState>]) -> bool {
        let same = |view: &ViewId, is_same: fn(&BoundView, &BoundView) -> bool| {
            let mut views = lanes.iter().map(|lane| lane.state.numbers.bound().map(|bound| bound.view(*view)));
            let first = views.next().flatten();
            first.is_some_and(|first| views.all(|view| view.is_some_and(|view| is_same(first, view))))
        };
        let (x, out) = match self.prim {
            Prim::MatMul { a, out, .. } => (a, out),
            Prim::QuantMatMul { x, out, .. } => (x, out),
            _ => return false,
        };
        let weights = &self.prepared.weights;
        let has_same_shape = |one: &BoundView, other: &BoundView| one.shape == other.shape;
        let is_plain = |bound: &Bound| bound.view(*out).is_contiguous() && bound.view(*out).dtype.is_float();
        !weights.is_empty()
            && weights.iter().all(|view| same(view, BoundView::eq))
            && same(x, has_same_shape)
            && same(out, has_same_shape)
            && lanes.iter().all(|lane| lane.state.numbers.bound().is_some_and(is_plain))
    }

    /// Multiplies the rows of all lanes with weights that they share.
    fn together(&self, lanes: &mut [RunningLane<'_, CpuState>]) {
        let Some(first) = lanes.first_mut() else { return };
        let mut lists = std::mem::take(&mut first.state.resources.lists);
        // Faults of products, such as an index out of range, are those of one lane: then each runs by itself.
        let contexts = lanes.iter_mut().filter_map(|lane| self.context(lane.state).ok());
        let done = product(contexts, &mut lists, self.prim, self.prepared);
        if let Some(first) = lanes.first_mut() {
            first.state.resources.lists = lists;
        }
        if done.is_none_or(|done| done.is_err()) {
            lanes.iter_mut().for_each(|lane| self.alone(lane));
        }
    }
}

/// Runs a product of matrices for some lanes; `None` if it is another primitive.
fn product<'a>(
    contexts: impl Iterator<Item = Context<'a>>,
    lists: &mut LaneLists,
    prim: &Prim,
    prepared: &'a Prepared,
) -> Option<Result<(), Fault>> {
    let function = prepared.function.as_ref();
    Some(match prim {
        Prim::MatMul { a, b, lhs, rhs, epilogue, .. } => {
            matmul(contexts, lists, a, (lhs, rhs), (epilogue, function), |sources| Ok(Stack::Dense(sources.tensor(b)?)))
        }
        Prim::QuantMatMul { x, w, transpose, lhs, rhs, epilogue, .. } => {
            matmul(contexts, lists, x, (lhs, rhs), (epilogue, function), |sources| {
                Ok(Stack::Quantized(map_parts(w, |view| sources.tensor(view))?, *transpose))
            })
        }
        _ => return None,
    })
}

fn run(context: &mut Context<'_>, prim: &Prim, prepared: &Prepared) -> Result<(), Fault> {
    // Maps, scatters and the delta rule copy only what they need.
    let keeps_itself = matches!(prim, Prim::Map { .. } | Prim::Scatter { .. } | Prim::GatedDelta(_));
    if !keeps_itself && prepared.reads_own_buffer {
        context.keep()?;
    }
    match prim {
        Prim::Map { ins, .. } => map(context, ins, prepared.function.as_ref().ok_or(NOT_PREPARED)?),
        Prim::Reduce { x, axes, fold, .. } => reduce(context, x, axes, *fold),
        Prim::ArgReduce { x, axis, largest, .. } => arg_reduce(context, x, *axis, *largest),
        Prim::Softmax { x, axis, .. } => softmax(context, x, *axis),
        Prim::Norm { x, weight, bias, eps, kind, .. } => {
            norm(context, x, (weight.as_ref(), bias.as_ref()), *eps, *kind)
        }
        Prim::Rope { x, dims, interleaved, scale, position, angles, .. } => {
            rope(context, x, &Rope { dims: *dims, interleaved: *interleaved, scale: *scale, position, angles })
        }
        Prim::Attention { q, k, v, mask, first, causal, window, scale, .. } => {
            let (mask, causal, window, scale) = (mask.as_ref(), *causal, *window, *scale);
            attention(context, &Attention { q, k, v, mask, first, causal, window, scale })
        }
        Prim::MatMul { .. } | Prim::QuantMatMul { .. } => {
            let mut lists = std::mem::take(&mut context.resources.lists);
            let done = product(std::iter::once(context.reborrow()), &mut lists, prim, prepared);
            context.resources.lists = lists;
            done.unwrap_or(Err(NOT_PREPARED))
        }
        Prim::Dequantize { w, .. } => dequantize(context, w),
        Prim::Conv { x, w, stride, padding, dilation, groups, transposed, .. } => {
            conv(context, x, w, &Conv { stride, padding, dilation, groups: *groups, transposed: *transposed })
        }
        Prim::Gather { x, axes, .. } => gather(context, x, axes),
        Prim::Scatter { updates, axes, add, .. } => scatter(context, updates, axes, *add),
        Prim::Sort { x, axis, indices, .. } => sort(context, x, *axis, *indices),
        Prim::Cumsum { x, axis, reverse, inclusive, .. } => cumsum(context, x, *axis, (*reverse, *inclusive)),
        Prim::GatedDelta(rule) => gated_delta(context, rule),
        Prim::RandomBits { seed, .. } => random_bits(context, seed.as_ref()),
        Prim::Sample(views) => sample(context, views),
    }
}

const NOT_PREPARED: Fault = Fault::Contract("a step belongs to the plan that was compiled");
