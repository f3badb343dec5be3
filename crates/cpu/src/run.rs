//! Dispatches steps to primitives: one line per primitive, no logic.

use crate::attention::{Attention, attention};
use crate::conv::conv;
use crate::delta::gated_delta;
use crate::index::{gather, scatter};
use crate::map::{Function, map};
use crate::matmul::{Stack, dequantize, map_parts, matmul};
use crate::memory::{Memory, SharedBuffers, Sources};
use crate::order::{cumsum, sort};
use crate::pool::{Pool, Scratch, Workers};
use crate::profile::Recorder;
use crate::random::random_bits;
use crate::reduce::{arg_reduce, reduce};
use crate::rows::{Rope, Turns, norm, rope, softmax};
use crate::sample::sample;
use crate::simd::Isa;
use crate::view::Target;
use ptero_backend::{Conv, Device, Fault, InputTypes, Result};
use ptero_plan::bound::Bound;
use ptero_plan::plan::{Plan, PlanStep};
use ptero_plan::prim::{Prim, ViewId};
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
    pub(crate) recorder: Option<Arc<Recorder>>,
}

/// What is computed once per step of a plan.
#[derive(Debug, Default)]
struct Prepared {
    /// The function of a map, or of the epilogue of a product.
    function: Option<Function>,
    /// The step reads from a buffer that it writes to.
    reads_own_buffer: bool,
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
            Prepared { function, reads_own_buffer: plan.reads_own_buffer(prim) }
        };
        let prepared = plan.blocks.iter().map(|block| block.steps.iter().map(prepare).collect()).collect();
        Ok(Self { buffers: SharedBuffers::new(plan, isa)?, types: Arc::new(types), prepared, recorder: None })
    }
}

/// Memory and keys of one state, for primitives to use.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) memory: Memory,
    pub(crate) scratch: Scratch,
    /// Floats that all threads share. A primitive that takes them puts them back.
    pub(crate) staging: Vec<f32>,
    /// The angles of rotary embeddings.
    pub(crate) turns: Turns,
    /// The keys of unseeded random bits.
    pub(crate) keys: KeySequence,
}

/// A state while it runs.
pub(crate) struct Runner<'a> {
    pub(crate) program: &'a Program,
    pub(crate) pool: &'a Pool,
    pub(crate) resources: &'a mut Resources,
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

impl Context<'_> {
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

impl Device for Runner<'_> {
    fn prim(&mut self, prim: &Prim, (block, step): (usize, usize), bound: &Bound) -> Result<(), Fault> {
        let Program { buffers: shared, prepared, .. } = self.program;
        let prepared = prepared.get(block).and_then(|steps| steps.get(step)).ok_or(NOT_PREPARED)?;
        let (resources, out) = (&mut *self.resources, *prim.out());
        let mut context = Context { shared, isa: shared.isa, pool: self.pool, resources, out, bound };
        match &self.program.recorder {
            Some(recorder) => recorder.step((block, step), bound, || run(&mut context, prim, prepared)),
            None => run(&mut context, prim, prepared),
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "an item is cut to 32 bits")]
    fn item(&mut self, view: ViewId, bound: &Bound) -> Result<i64, Fault> {
        let tensor = self.resources.memory.sources(&self.program.buffers, bound).tensor(&view)?;
        if tensor.view.count() != 1 {
            return Err(Fault::Contract("an item is the only element of its tensor"));
        }
        Ok(i64::from(tensor.number::<i64>(0) as i32))
    }
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
        Prim::MatMul { a, b, lhs, rhs, epilogue, .. } => {
            matmul(context, a, (lhs, rhs), (epilogue, prepared.function.as_ref()), |sources| {
                Ok(Stack::Dense(sources.tensor(b)?))
            })
        }
        Prim::QuantMatMul { x, w, transpose, lhs, rhs, epilogue, .. } => {
            matmul(context, x, (lhs, rhs), (epilogue, prepared.function.as_ref()), |sources| {
                Ok(Stack::Quantized(map_parts(w, |view| sources.tensor(view))?, *transpose))
            })
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
