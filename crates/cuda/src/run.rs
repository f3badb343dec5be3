//! Runs the steps of a plan: one line per primitive.

use crate::device::{CudaState, Opened};
use crate::kernels::Kernels;
use crate::kernels::attention::rope::{Rope, rope};
use crate::kernels::attention::{Attention, attention};
use crate::kernels::elements::index::{gather, scatter};
use crate::kernels::elements::map::map;
use crate::kernels::elements::order::{cumsum, sort};
use crate::kernels::elements::random::random_bits;
use crate::kernels::head::sample;
use crate::kernels::join::{join, memory_of, next};
use crate::kernels::products::product::{Factors, product};
use crate::kernels::quant::dequantize::dequantize;
use crate::kernels::reductions::norm::norm;
use crate::kernels::reductions::reduce::{arg_reduce, reduce};
use crate::kernels::reductions::softmax::softmax;
use crate::kernels::state::conv::conv;
use crate::kernels::state::gated_delta::gated_delta;
use crate::kernels::together::{Settled, Touched};
use crate::memory::{LaneMemory, Status};
use crate::program::{FIRST_OWN, Program};
use crate::step::{Scratch, Step};
use crate::stream::Stream;
use ptero_backend::{Conv, Device, DeviceStep, Error, Fault, Result, RunningLane, integer, run_block};
use ptero_plan::bound::Bound;
use ptero_plan::plan::BufferKind;
use ptero_plan::prim::{Prim, ViewId};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};

/// The device of a run.
pub(crate) struct Runner<'a> {
    kernels: &'a Kernels,
    pub(crate) program: &'a Program,
    pub(crate) stream: &'a Stream,
    pub(crate) scratch: &'a mut Scratch,
}

impl<'a> Runner<'a> {
    /// With what the thread has whose turn it is.
    pub(crate) fn new(opened: &'a Opened, program: &'a Program, scratch: &'a mut Scratch) -> Self {
        Self { kernels: &opened.kernels, program, stream: &opened.stream, scratch }
    }
}

impl Device<CudaState> for Runner<'_> {
    fn prim(&mut self, step: &DeviceStep<'_>, lanes: &mut [RunningLane<'_, CudaState>]) {
        let together = lanes.len().next_power_of_two();
        for lane in lanes {
            let done = self.launch(step, lane.state, together);
            *lane.fault = done.err().map(|fault| fault.at(step.place));
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "an item is cut to 32 bits")]
    fn item(&mut self, view: ViewId, state: &mut CudaState) -> Result<i64, Fault> {
        self.flush()?;
        if state.memory.status()?.code != 0 {
            // Whoever waits for the lane finds what was latched.
            return Err(NOT_PREPARED);
        }
        let view = state.numbers.bound().ok_or(NOT_PREPARED)?.view(view);
        if view.count() != 1 {
            return Err(Fault::Contract("an item is the only element of its tensor"));
        }
        let size = view.dtype.size();
        let mut bytes = [0; 8];
        let bytes = bytes.split_at_mut(size).0;
        state.memory.read(self.program, view.buf, view.offset * size, bytes)?;
        Ok(i64::from(integer(view.dtype, bytes) as i32))
    }
}

impl Runner<'_> {
    /// Launches a step of a lane, or lets it wait for others.
    fn launch(&mut self, at: &DeviceStep<'_>, state: &mut CudaState, lanes: usize) -> Result<(), Fault> {
        let CudaState { memory, numbers, .. } = state;
        let program = self.program;
        let address = memory.address();
        if self.scratch.was_joined(address, at.at) {
            return Ok(());
        }
        let bound = numbers.bound().ok_or(NOT_PREPARED)?;
        memory.refresh(self.program, bound, || self.flush())?;
        for out in at.prim.writes() {
            let buf = bound.view(*out).buf;
            let site = self.program.site(buf);
            // A temporary without a largest size.
            let is_own = site.region >= FIRST_OWN;
            if is_own && matches!(self.program.plan.buffer(buf).kind, BufferKind::Temporary) {
                if memory.is_short(site, bound.length(buf)) {
                    self.flush()?;
                }
                memory.reserve(self.stream, site, bound.length(buf))?;
            }
        }
        let used = self.scratch.used();
        let mut step = self.step(memory, bound);
        (step.number, step.lanes) = (program.step_number(at.at), lanes);
        let joined = match join(&mut step, at) {
            Ok(0) => run(&mut step, at.prim).map(|()| 0),
            joined => joined,
        };
        let joined = joined.inspect_err(|_| step.scratch.together.forget_own())?;
        let further = |further| Some((further, next(&program.plan, at, further)?));
        let prims = std::iter::once((0, at.prim)).chain((1..=joined).filter_map(further));
        let prims: SmallVec<[(usize, &Prim); 8]> = prims.collect();
        let touched = touched(&step, prims.iter().map(|(_, prim)| *prim));
        let waits = self.settle(address, touched, used)?;
        if waits && joined == 0 && matches!(at.prim, Prim::Norm { .. }) {
            self.scratch.together.norms.push((address, at.at));
        }
        for (further, prim) in prims {
            prim.writes().into_iter().for_each(|out| self.scratch.note_write(bound.view(*out).buf));
            if further > 0 {
                self.scratch.note_joined(address, (at.at.0, at.at.1 + further));
            }
        }
        Ok(())
    }

    /// A step of a lane is done, which has used memory of primitives if more than `used` is in use. Returns `true` if it waits.
    fn settle(&mut self, lane: u64, touched: Option<Touched>, used: usize) -> Result<bool, Fault> {
        let Self { kernels, stream, ref mut scratch, .. } = *self;
        let uses_scratch = scratch.used() > used;
        let settled = scratch.together.settle((kernels, stream), lane, (touched, uses_scratch));
        scratch.joined_steps += u64::from(matches!(settled, Ok(Settled::Joins)));
        if !scratch.together.keeps_scratch {
            scratch.clear();
        }
        settled.map(|settled| settled != Settled::Launched)
    }

    /// Launches what waits.
    pub(crate) fn flush(&mut self) -> Result<(), Fault> {
        self.scratch.flush(self.kernels, self.stream)
    }

    /// Runs a block of the plan for lanes.
    pub(crate) fn block(&mut self, block: usize, lanes: &mut [RunningLane<'_, CudaState>], stop: &AtomicBool) {
        self.scratch.forget();
        run_block(&self.program.plan, block, lanes, self, stop);
        if let Err(fault) = self.flush() {
            for lane in lanes.iter_mut() {
                lane.fault.get_or_insert_with(|| fault.clone().into());
            }
        }
    }

    /// Compiles what a block needs for lanes, with numbers that were started, before it runs.
    pub(crate) fn rehearse(&mut self, block: usize, lanes: &mut [RunningLane<'_, CudaState>]) {
        // Twice as many lanes need kernels of their own.
        let (program, bit) = (self.program, 1 << lanes.len().next_power_of_two().trailing_zeros().min(31));
        if program.rehearsed.load(Ordering::Relaxed) & bit != 0 {
            return;
        }
        let before = (self.scratch.joined_steps, self.scratch.together.launches);
        let is_ready = self.kernels.rehearse(|| self.block(block, lanes, &AtomicBool::new(false)));
        (self.scratch.joined_steps, self.scratch.together.launches) = before;
        // What is wrong with the call shows when it runs.
        lanes.iter_mut().for_each(|lane| *lane.fault = None);
        // Calls of other sizes may need others, but seldom.
        if is_ready {
            program.rehearsed.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Lets something wait that comes between two steps of a lane, after everything of the step: lanes do it together.
    pub(crate) fn between(
        &mut self,
        state: &mut CudaState,
        launch: impl FnOnce(&mut Step<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let CudaState { memory, numbers, .. } = state;
        let address = memory.address();
        let used = self.scratch.used();
        launch(&mut self.step(memory, numbers.bound().ok_or(NOT_PREPARED)?))?;
        self.settle(address, Some(Touched::default()), used).map(drop)
    }

    fn step<'s>(&'s mut self, memory: &'s mut LaneMemory, bound: &'s Bound) -> Step<'s> {
        let Self { kernels, program, stream, scratch } = self;
        Step { program, kernels, stream, scratch, memory, bound, number: 0, lanes: 1, recomputed: None }
    }
}

/// The memory that the steps of a launch touch, but for weights; `None` if that is not known.
fn touched<'a>(step: &Step<'a>, prims: impl Iterator<Item = &'a Prim>) -> Option<Touched> {
    let kind = |view: &ViewId| &step.program.plan.buffer(step.shape(*view).buf).kind;
    let is_constant = |view: &ViewId| matches!(kind(view), BufferKind::Constant(_));
    // Whoever computes a norm again reads what the norm reads.
    let again = step.recomputed.map(|norm| step.shape(*norm.out()).buf);
    let mut touched = Touched::default();
    for prim in prims.chain(step.recomputed) {
        let is_again = step.recomputed.is_some_and(|norm| std::ptr::eq(norm, prim));
        let reads = prim.reads().into_iter().filter(|view| !is_constant(view) && Some(step.shape(*view).buf) != again);
        for view in reads {
            touched.reads.push(memory_of(step, step.shape(view))?);
        }
        touched.may_fail |= may_fail(prim);
        for view in prim.writes().into_iter().filter(|_| !is_again) {
            touched.changes_state |= matches!(kind(view), BufferKind::State);
            touched.writes.push(memory_of(step, step.shape(*view))?);
        }
    }
    Some(touched)
}

/// Returns `true` if a step fails where an index is outside.
fn may_fail(prim: &Prim) -> bool {
    match prim {
        Prim::Gather { axes, .. } | Prim::Scatter { axes, .. } => axes.iter().any(|axis| axis.index.is_some()),
        Prim::MatMul { lhs, rhs, .. } | Prim::QuantMatMul { lhs, rhs, .. } => lhs.is_some() || rhs.is_some(),
        _ => false,
    }
}

fn run(step: &mut Step<'_>, prim: &Prim) -> Result<(), Fault> {
    match prim {
        Prim::Map { out, ins, expr } => map(step, *out, ins, expr),
        Prim::Reduce { out, x, axes, fold } => reduce(step, *out, *x, axes, *fold),
        Prim::ArgReduce { out, x, axis, largest } => arg_reduce(step, *out, *x, *axis, *largest),
        Prim::Gather { out, x, axes } => gather(step, *out, *x, axes),
        Prim::Scatter { out, updates, axes, add, .. } => scatter(step, *out, *updates, axes, *add),
        Prim::Sort { out, x, axis, indices } => sort(step, *out, *x, *axis, *indices),
        Prim::Cumsum { out, x, axis, reverse, inclusive } => cumsum(step, *out, *x, *axis, (*reverse, *inclusive)),
        Prim::RandomBits { out, seed } => random_bits(step, *out, seed.as_ref()),
        Prim::Sample(views) => sample(step, views),
        Prim::Softmax { out, x, axis } => softmax(step, *out, *x, *axis),
        Prim::Norm { out, x, weight, bias, eps, kind } => norm(step, *out, *x, (*weight, *bias), *eps, *kind),
        Prim::Rope { out, x, dims, interleaved, scale, position, angles } => {
            rope(step, *out, *x, &Rope { dims: *dims, interleaved: *interleaved, scale: *scale, position, angles })
        }
        Prim::Attention { out, q, k, v, mask, first, causal, window, scale } => {
            let (q, k, v, mask, causal, window, scale) = (*q, *k, *v, *mask, *causal, *window, *scale);
            attention(step, *out, &Attention { q, k, v, mask, first, causal, window, scale })
        }
        Prim::MatMul { out, a, b, lhs, rhs, epilogue } => {
            product(step, *out, Factors::Plain(*a, *b), (lhs, rhs), epilogue)
        }
        Prim::QuantMatMul { out, x, w, transpose, lhs, rhs, epilogue } => {
            let factors = Factors::Quantized { x: *x, w, transpose: *transpose };
            product(step, *out, factors, (lhs, rhs), epilogue)
        }
        Prim::Dequantize { out, w } => dequantize(step, *out, w),
        Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed } => {
            conv(step, *out, *x, *w, &Conv { stride, padding, dilation, groups: *groups, transposed: *transposed })
        }
        Prim::GatedDelta(rule) => {
            gated_delta(step, rule);
            Ok(())
        }
    }
}

/// Why a lane is halted, as in view.cuh.
const INDEX_OUTSIDE: u32 = 1;
const ENDED: u32 = 2;
const NOT_A_TOKEN: u32 = 3;

impl Status {
    fn kind(self) -> u32 {
        self.code & 0xff
    }

    /// A token has ended the lane.
    pub(crate) fn is_end(self) -> bool {
        self.kind() == ENDED
    }

    /// An output was no token.
    pub(crate) fn is_no_token(self) -> bool {
        self.kind() == NOT_A_TOKEN
    }
}

/// The fault that a lane has latched, once its work is done.
pub(crate) fn latched(program: &Program, memory: &mut LaneMemory) -> Option<Error> {
    memory.status().map_or_else(|fault| Some(fault.into()), |status| fault_of(program, status))
}

/// The fault that a status tells of.
pub(crate) fn fault_of(program: &Program, status: Status) -> Option<Error> {
    let fault = match status.kind() {
        0 | ENDED => return None,
        INDEX_OUTSIDE => Fault::IndexOutside { index: status.index, size: usize::try_from(status.size).unwrap_or(0) },
        NOT_A_TOKEN => return Some(Fault::NotAToken(status.index).into()),
        _ => Fault::Contract("a kernel latches a fault that is known"),
    };
    Some(match program.place_of_step((status.code >> 8).wrapping_sub(1)) {
        Some(place) => fault.at(place),
        None => fault.into(),
    })
}

const NOT_PREPARED: Fault = Fault::Contract("a step belongs to the plan that was compiled");
