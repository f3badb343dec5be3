//! Runs single steps: one line per primitive, no logic.

use crate::attention::{Attention, attention};
use crate::conv::{Conv, conv};
use crate::delta::gated_delta;
use crate::index::{gather, scatter};
use crate::map::{Function, map};
use crate::matmul::{dequantize, matmul, quant_matmul};
use crate::memory::{Layout, Memory, Sources};
use crate::order::{cumsum, sort};
use crate::pool::{Pool, Scratch, Workers};
use crate::random::random_bits;
use crate::reduce::{arg_reduce, reduce};
use crate::rows::{Rope, Turns, norm, rope, softmax};
use crate::sample::sample;
use crate::simd::Isa;
use crate::window::Target;
use ptero_backend::{Device, Fault};
use ptero_plan::bound::Bound;
use ptero_plan::plan::{Plan, PlanStep};
use ptero_plan::prim::{Buf, Prim, ViewId};
use ptero_sampling::threefry::KeySequence;
use std::sync::Arc;

/// What is made of a plan once.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) layout: Layout,
    /// By block and step.
    prepared: Vec<Vec<Prepared>>,
}

/// What is made of a step once.
#[derive(Debug, Default)]
struct Prepared {
    /// Of a map, and of a product with an epilogue.
    function: Option<Function>,
    /// Whether the step reads of a buffer that it writes to.
    reads_own_buffer: bool,
}

impl Program {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        let prepare = |step: &PlanStep| match step {
            PlanStep::Device(prim) => {
                let function = match prim {
                    Prim::Map { expr, .. } => Some(Function::new(expr)),
                    Prim::MatMul { epilogue, .. } | Prim::QuantMatMul { epilogue, .. } => {
                        epilogue.as_ref().map(|fused| Function::new(&fused.expr))
                    }
                    _ => None,
                };
                Prepared { function, reads_own_buffer: plan.reads_own_buffer(prim) }
            }
            PlanStep::Host(_) | PlanStep::Item(..) | PlanStep::Check(_) => Prepared::default(),
            PlanStep::If { .. } | PlanStep::Loop { .. } => Prepared::default(),
        };
        let prepared = plan.blocks.iter().map(|block| block.steps.iter().map(prepare).collect()).collect();
        Self { layout: Layout::new(plan), prepared }
    }
}

/// What a state has while it runs.
pub(crate) struct Runner<'a> {
    pub(crate) program: &'a Program,
    pub(crate) isa: Isa,
    pub(crate) pool: &'a Pool,
    pub(crate) memory: &'a mut Memory,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) staging: &'a mut Vec<f32>,
    pub(crate) turns: &'a mut Turns,
    pub(crate) keys: &'a mut KeySequence,
}

/// What a primitive has while it runs.
pub(crate) struct Context<'a> {
    layout: &'a Layout,
    pub(crate) isa: Isa,
    pool: &'a Pool,
    memory: &'a mut Memory,
    scratch: &'a mut Scratch,
    /// Floats that all threads share. Whoever takes it puts it back.
    pub(crate) staging: &'a mut Vec<f32>,
    /// Of rotary embeddings.
    pub(crate) turns: &'a mut Turns,
    /// The numbers of this step.
    pub(crate) bound: &'a Bound,
    /// Where unseeded random bits get their keys.
    pub(crate) keys: &'a mut KeySequence,
}

impl<'a> Context<'a> {
    /// A view to be written, all other buffers to be read, and the threads.
    pub(crate) fn open(&mut self, out: &ViewId) -> Result<(Target<'_>, Sources<'_>, Workers<'_>), Fault> {
        let (target, sources) = self.memory.open(self.layout, self.bound, *out)?;
        Ok((target, sources, Workers { pool: self.pool, scratch: self.scratch }))
    }

    /// All buffers to be read, and the threads.
    pub(crate) fn sources(&mut self) -> (Sources<'_>, Workers<'_>) {
        let sources = self.memory.sources(self.layout, self.bound);
        (sources, Workers { pool: self.pool, scratch: self.scratch })
    }

    /// The host values.
    pub(crate) fn values(&self) -> &'a [i64] {
        &self.bound.values
    }

    /// The buffer of a view.
    pub(crate) fn buf(&self, view: &ViewId) -> Buf {
        self.bound.window(*view).buf
    }

    /// Keeps a copy of a buffer, to be read while it is written.
    pub(crate) fn keep(&mut self, buf: Buf) -> Result<(), Fault> {
        self.memory.keep(self.layout, self.bound, buf)
    }
}

impl Device for Runner<'_> {
    fn prim(&mut self, prim: &Prim, (block, step): (usize, usize), bound: &Bound) -> Result<(), Fault> {
        let prepared = self.program.prepared.get(block).and_then(|steps| steps.get(step)).ok_or(NOT_PREPARED)?;
        let mut context = Context {
            layout: &self.program.layout,
            isa: self.isa,
            pool: self.pool,
            memory: self.memory,
            scratch: self.scratch,
            staging: self.staging,
            turns: self.turns,
            bound,
            keys: self.keys,
        };
        device(&mut context, prim, prepared)
    }

    #[allow(clippy::cast_possible_truncation, reason = "an item is cut to 32 bits")]
    fn item(&mut self, view: ViewId, bound: &Bound) -> Result<i64, Fault> {
        let tensor = self.memory.sources(&self.program.layout, bound).tensor(&view)?;
        if tensor.window.count() != 1 {
            return Err(Fault::Contract("an item is the only element of its tensor"));
        }
        Ok(i64::from(tensor.int(self.isa, 0) as i32))
    }
}

fn device(context: &mut Context<'_>, prim: &Prim, prepared: &Prepared) -> Result<(), Fault> {
    // Maps, scatters and the delta rule keep what they need themselves.
    let keeps_itself = matches!(prim, Prim::Map { .. } | Prim::Scatter { .. } | Prim::GatedDelta(_));
    if !keeps_itself && prepared.reads_own_buffer {
        context.keep(context.buf(prim.out()))?;
    }
    match prim {
        Prim::Map { out, ins, .. } => map(context, out, ins, prepared.function.as_ref().ok_or(NOT_PREPARED)?),
        Prim::Reduce { out, x, axes, fold } => reduce(context, out, x, axes, *fold),
        Prim::ArgReduce { out, x, axis, largest } => arg_reduce(context, out, x, *axis, *largest),
        Prim::Softmax { out, x, axis } => softmax(context, out, x, *axis),
        Prim::Norm { out, x, weight, bias, eps, kind } => {
            norm(context, out, x, (weight.as_ref(), bias.as_ref()), *eps, *kind)
        }
        Prim::Rope { out, x, dims, interleaved, scale, position, angles } => {
            rope(context, out, x, &Rope { dims: *dims, interleaved: *interleaved, scale: *scale, position, angles })
        }
        Prim::Attention { out, q, k, v, mask, first, causal, window, scale } => {
            let (mask, causal, window, scale) = (mask.as_ref(), *causal, *window, *scale);
            attention(context, out, &Attention { q, k, v, mask, first, causal, window, scale })
        }
        Prim::MatMul { out, a, b, lhs, rhs, epilogue } => {
            matmul(context, out, a, b, (lhs, rhs), (epilogue, prepared.function.as_ref()))
        }
        Prim::QuantMatMul { out, x, w, transpose, lhs, rhs, epilogue } => {
            quant_matmul(context, out, x, w, *transpose, (lhs, rhs), (epilogue, prepared.function.as_ref()))
        }
        Prim::Dequantize { out, w } => dequantize(context, out, w),
        Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed } => {
            conv(context, out, x, w, &Conv { stride, padding, dilation, groups: *groups, transposed: *transposed })
        }
        Prim::Gather { out, x, axes } => gather(context, out, x, axes),
        Prim::Scatter { out, updates, axes, add, .. } => scatter(context, out, updates, axes, *add),
        Prim::Sort { out, x, axis, indices } => sort(context, out, x, *axis, *indices),
        Prim::Cumsum { out, x, axis, reverse, inclusive } => cumsum(context, out, x, *axis, (*reverse, *inclusive)),
        Prim::GatedDelta(rule) => gated_delta(context, rule),
        Prim::RandomBits { out, seed } => random_bits(context, out, seed.as_ref()),
        Prim::Sample(views) => sample(context, views),
    }
}

const NOT_PREPARED: Fault = Fault::Contract("a step belongs to the plan that was compiled");
