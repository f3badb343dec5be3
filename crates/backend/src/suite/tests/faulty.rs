//! The reference with a fault.

use super::super::draft::copy;
use super::super::layout::row_major;
use crate::{Backend, Executable, InputValue, OutputValue, Reference, Result, State};
use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Expr, Scalar, Step, Unary};
use ptero_plan::plan::{Buffer, BufferKind, Plan, PlanStep};
use ptero_plan::prim::{Buf, Fold, Normalize, Prim, View};
use ptero_tensor::DType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The first element of the result is a hundredth too large; an integer by one.
    FirstElement,
    /// Operands are read as if they were whole row-major buffers.
    Strides,
    /// The last elements along the last axis of the first operand count as zero.
    LastOperand,
    /// An element behind the window is written.
    Beside,
    /// A parameter is another.
    Parameter,
    /// Inputs are those of the first call for ever.
    OldInputs,
    /// What fails is said to have worked.
    NeverFails,
    /// A scatter writes before it knows that all its indices are good.
    HalfDone,
}

pub(super) struct Faulty {
    pub(super) wrong: Wrong,
    /// Where the tested step stands.
    pub(super) tested: usize,
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn compile(&self, plan: Arc<Plan>) -> Result<Box<dyn Executable>> {
        let mut plan = Plan::clone(&plan);
        let PlanStep::Device(prim) = plan.blocks[0].steps.remove(self.tested) else { panic!("a step of the device") };
        let steps = match self.wrong {
            Wrong::FirstElement => vec![prim.clone(), enlarge(&first(prim.out()))],
            Wrong::Strides => vec![changed_reads(&prim, |_, view| {
                let is_broadcast = view.strides.iter().any(|stride| stride.is(0));
                if is_broadcast { view.clone() } else { row_major(view.buf, view.dtype, &view.shape) }
            })],
            Wrong::LastOperand => without_last(&mut plan, &prim),
            Wrong::Beside => {
                let out = prim.out();
                let beside = View { offset: &out.offset + &Dim::fixed(1), ..first(out) };
                // Only where the next element is none of the window.
                let is_free = !out.strides.iter().any(|stride| stride.is(1) || stride.is(-1));
                if is_free { vec![prim.clone(), fill(&beside, 77)] } else { vec![prim] }
            }
            Wrong::Parameter => vec![other_parameter(prim)],
            Wrong::OldInputs | Wrong::NeverFails => vec![prim],
            Wrong::HalfDone => half_done(&mut plan, &prim),
        };
        let steps = steps.into_iter().map(PlanStep::Device);
        plan.blocks[0].steps.splice(self.tested..self.tested, steps).for_each(drop);
        plan.blocks[0].origin.clear();
        Ok(Box::new(Compiled { wrong: self.wrong, inner: Reference.compile(Arc::new(plan))? }))
    }
}

struct Compiled {
    wrong: Wrong,
    inner: Box<dyn Executable>,
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        Ok(Box::new(Session { wrong: self.wrong, inner: self.inner.state(seed)?, has_run: false }))
    }
}

struct Session {
    wrong: Wrong,
    inner: Box<dyn State>,
    has_run: bool,
}

impl State for Session {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        if self.wrong == Wrong::OldInputs && self.has_run { Ok(()) } else { self.inner.write(input, value) }
    }

    fn run_until(&mut self, cancelled: &AtomicBool) -> Result<()> {
        self.has_run = true;
        let result = self.inner.run_until(cancelled);
        if self.wrong == Wrong::NeverFails { Ok(()) } else { result }
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        self.inner.read_into(output, value)
    }

    fn reset(&mut self) {
        self.inner.reset();
    }
}

fn step(op: Scalar, args: [u16; 3], dtype: DType) -> Step {
    Step { op, args, dtype }
}

/// The first element of a view.
fn first(view: &View) -> View {
    View { shape: Vec::new(), strides: Vec::new(), ..view.clone() }
}

fn enlarge(view: &View) -> Prim {
    let dtype = view.dtype;
    let load = step(Scalar::Load(0), [0; 3], dtype);
    let steps = match dtype {
        DType::Bool => vec![load, step(Scalar::Unary(Unary::Not), [0; 3], dtype)],
        DType::F32 | DType::F16 | DType::Bf16 => {
            // Short floats are off by more, or it would not show.
            let factor = if dtype == DType::Bf16 { 1.04 } else { 1.01 };
            let product = step(Scalar::Binary(Binary::Mul), [0, 1, 0], dtype);
            vec![load, step(Scalar::Float(factor), [0; 3], dtype), product]
        }
        _ => {
            let sum = step(Scalar::Binary(Binary::Add), [0, 1, 0], dtype);
            vec![load, step(Scalar::Int(Dim::fixed(1)), [0; 3], dtype), sum]
        }
    };
    Prim::Map { out: view.clone(), ins: vec![view.clone()], expr: Expr { steps } }
}

fn fill(view: &View, value: i64) -> Prim {
    let steps = vec![step(Scalar::Int(Dim::fixed(value)), [0; 3], view.dtype)];
    Prim::Map { out: view.clone(), ins: Vec::new(), expr: Expr { steps } }
}

/// A new row-major temporary.
fn temporary(plan: &mut Plan, dtype: DType, shape: &[Dim]) -> View {
    let elements = shape.iter().fold(Dim::fixed(1), |count, size| &count * size);
    plan.buffers.push(Buffer { dtype, elements, kind: BufferKind::Temporary });
    row_major(Buf(plan.buffers.len() as u32 - 1), dtype, shape)
}

/// Changes the first element, tries the scatter elsewhere, and only if that works changes the element back and does it.
fn half_done(plan: &mut Plan, prim: &Prim) -> Vec<Prim> {
    let Prim::Scatter { out, updates, axes, add } = prim else { panic!("{prim} is no scatter") };
    let (old, elsewhere) = (temporary(plan, out.dtype, &[]), temporary(plan, out.dtype, &out.shape));
    let trial = Prim::Scatter { out: elsewhere, updates: updates.clone(), axes: axes.clone(), add: *add };
    vec![copy(&first(out), &old), fill(&first(out), 77), trial, copy(&old, &first(out)), prim.clone()]
}

/// The step with its first operand copied, and zeros in the last place of the copy's last axis.
fn without_last(plan: &mut Plan, prim: &Prim) -> Vec<Prim> {
    let reads = prim.reads();
    let Some(operand) = reads.first().filter(|operand| !operand.shape.is_empty()) else { return vec![prim.clone()] };
    let copied = temporary(plan, operand.dtype, &operand.shape);
    let mut last = copied.clone();
    last.offset = last.shape.last().map_or(Dim::fixed(0), |size| size - &Dim::fixed(1));
    last.shape.iter_mut().rev().take(1).for_each(|size| *size = Dim::fixed(1));
    let changed = changed_reads(prim, |at, view| if at == 0 { copied.clone() } else { view.clone() });
    vec![copy(operand, &copied), fill(&last, 0), changed]
}

/// The step with other views to read, by their place in [`Prim::reads`].
fn changed_reads(prim: &Prim, change: impl Fn(usize, &View) -> View) -> Prim {
    let changed: Vec<View> = prim.reads().into_iter().enumerate().map(|(at, view)| change(at, view)).collect();
    let mut prim = prim.clone();
    for (slot, view) in prim.reads_mut().into_iter().zip(changed) {
        *slot = view;
    }
    prim
}

fn other_parameter(mut prim: Prim) -> Prim {
    match &mut prim {
        Prim::Reduce { fold, .. } => {
            *fold = match *fold {
                Fold::Sum => Fold::Prod,
                Fold::Prod => Fold::Sum,
                Fold::Max => Fold::Min,
                Fold::Min => Fold::Max,
                Fold::Any => Fold::All,
                Fold::All => Fold::Any,
                Fold::Mean => Fold::LogSumExp,
                Fold::Var { ddof } => Fold::Var { ddof: ddof + 1 },
                Fold::LogSumExp => Fold::Mean,
            }
        }
        Prim::ArgReduce { largest, .. } => *largest = !*largest,
        Prim::Norm { kind, .. } => *kind = if *kind == Normalize::Rms { Normalize::Layer } else { Normalize::Rms },
        Prim::Rope { interleaved, .. } => *interleaved = !*interleaved,
        Prim::Attention { causal, window, .. } => match window {
            Some(window) => *window += 1,
            None => *causal = !*causal,
        },
        Prim::Conv { dilation, padding, .. } => {
            let with = if dilation.contains(&2) { dilation } else { padding };
            with.iter_mut().for_each(|value| *value = (*value - 1).max(0));
        }
        Prim::Scatter { add, .. } => *add = !*add,
        Prim::Cumsum { reverse, inclusive, .. } => (*reverse, *inclusive) = (*inclusive, !*reverse),
        Prim::RandomBits { seed, .. } => *seed = seed.take().map_or(Some(Dim::fixed(3)), |_| None),
        Prim::Map { .. } | Prim::Softmax { .. } | Prim::MatMul { .. } | Prim::QuantMatMul { .. } => {}
        Prim::Dequantize { .. } | Prim::Gather { .. } | Prim::Sort { .. } | Prim::GatedDelta(_) => {}
        Prim::Sample(views) => std::mem::swap(&mut views.temperature, &mut views.top_p),
    }
    prim
}
