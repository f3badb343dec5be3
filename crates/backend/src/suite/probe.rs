//! The plan that the reference runs: that of the case, and beside it copies of what the tested steps read, from which it
//! follows how far results may be off.

use super::compare::{Rule, Rules};
use super::data::decode;
use super::draft::copy;
use super::layout::{positions, row_major};
use super::{map, quant, slack};
use crate::error::Error;
use crate::{OutputValue, State};
use ptero_plan::dim::Dim;
use ptero_plan::plan::{Buffer, BufferKind, Output, Plan, PlanStep};
use ptero_plan::prim::{Buf, Prim, View};
use ptero_tensor::DType;
use std::sync::Arc;

/// A tensor in row-major order.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<f64>,
}

/// What a step saw in a call.
pub(super) struct Seen<'a> {
    /// What it read, in the order of [`Prim::reads`].
    pub(super) operands: Vec<Dense>,
    /// What the steps of [`extras`] wrote.
    pub(super) extras: Vec<Dense>,
    /// The host values.
    pub(super) values: &'a [i64],
}

/// A step that runs beside the tested one, before it: the type and shape of its result, and the step.
pub(super) type Extra = (DType, Vec<Dim>, Box<dyn Fn(View) -> Prim>);

fn extras(prim: &Prim) -> Vec<Extra> {
    match prim {
        Prim::Map { out, ins, expr } => map::extras(out, ins, expr),
        Prim::QuantMatMul { w, .. } => quant::extras(w),
        _ => Vec::new(),
    }
}

/// The plan that the reference runs.
pub(super) struct Probe {
    pub(super) plan: Arc<Plan>,
    /// How many outputs the case has; the others are copies.
    outputs: usize,
    tested: Vec<Tested>,
}

struct Tested {
    prim: Prim,
    operands: Vec<usize>,
    extras: Vec<usize>,
}

impl Probe {
    pub(super) fn new(plan: &Plan, tested: &[usize]) -> Self {
        let outputs = plan.outputs.len();
        let mut probe = Self { plan: Arc::new(plan.clone()), outputs, tested: Vec::new() };
        let mut plan = plan.clone();
        let steps = std::mem::take(&mut plan.blocks[0].steps);
        plan.blocks[0].origin.clear();
        for (at, step) in steps.into_iter().enumerate() {
            if let (PlanStep::Device(prim), true) = (&step, tested.contains(&at)) {
                probe.tested.push(Tested::new(&mut plan, prim));
            }
            plan.blocks[0].steps.push(step);
        }
        probe.plan = Arc::new(plan);
        probe
    }

    /// For each output, what each of its elements is held to; the reference has just run. What an `earlier` call wrote into a
    /// state is still held to what it was then.
    pub(super) fn rules(&self, reference: &dyn State, values: &[i64], earlier: &[Rules]) -> Result<Vec<Rules>, Error> {
        let mut outputs = Vec::new();
        let mut rules: Vec<Rules> = Vec::new();
        for (index, output) in self.plan.outputs.iter().take(self.outputs).enumerate() {
            let Output::Tensor(view) = output else { unreachable!("cases have no integers for outputs") };
            let is_state = matches!(self.plan.buffers[view.buf.0 as usize].kind, BufferKind::State);
            let none = vec![None; positions(view, values).len()];
            rules.push(earlier.get(index).filter(|_| is_state).cloned().unwrap_or(none));
            outputs.push(view.buf);
        }
        for Tested { prim, operands, extras } in &self.tested {
            let read = |outputs: &[usize]| -> Result<Vec<Dense>, Error> {
                outputs.iter().map(|&output| dense(reference, output)).collect()
            };
            let seen = Seen { operands: read(operands)?, extras: read(extras)?, values };
            let slack = slack(prim, &seen);
            for (index, view) in prim.writes().into_iter().enumerate() {
                let output = outputs.iter().position(|buf| *buf == view.buf).expect("what is written is read back");
                for (number, place) in positions(view, values).into_iter().enumerate() {
                    let slack = slack.get(index).map_or(0.0, |slack| slack[number]);
                    rules[output][place] = Some(Rule { tolerance: prim.tolerance(), slack, number });
                }
            }
        }
        Ok(rules)
    }
}

impl Tested {
    fn new(plan: &mut Plan, prim: &Prim) -> Self {
        let mut add = |dtype: DType, shape: &[Dim], step: &dyn Fn(View) -> Prim| {
            let elements = shape.iter().fold(Dim::fixed(1), |count, size| &count * size);
            plan.buffers.push(Buffer { dtype, elements, kind: BufferKind::Temporary });
            let out = row_major(Buf(plan.buffers.len() as u32 - 1), dtype, shape);
            plan.outputs.push(Output::Tensor(out.clone()));
            plan.blocks[0].steps.push(PlanStep::Device(step(out)));
            plan.outputs.len() - 1
        };
        let reads = prim.reads();
        let operands = reads.iter().map(|view| add(view.dtype, &view.shape, &|out| copy(view, &out))).collect();
        let extras = extras(prim).iter().map(|(dtype, shape, step)| add(*dtype, shape, step)).collect();
        Self { prim: prim.clone(), operands, extras }
    }
}

fn dense(state: &dyn State, output: usize) -> Result<Dense, Error> {
    Ok(match state.read(output)? {
        OutputValue::Tensor { dtype, shape, bytes } => {
            Dense { shape: shape.into_iter().map(|size| size as usize).collect(), data: decode(dtype, &bytes) }
        }
        OutputValue::Int(value) => Dense { shape: Vec::new(), data: vec![value as f64] },
    })
}

impl Dense {
    /// For each place of the other axes, in row-major order, where the elements along `axes` are.
    pub(super) fn groups(&self, axes: &[usize]) -> Vec<Vec<usize>> {
        let mut stride = 1;
        let mut strides = vec![0; self.shape.len()];
        for (axis, size) in self.shape.iter().enumerate().rev() {
            strides[axis] = stride;
            stride *= size;
        }
        let walk = |starts: Vec<usize>, axis: usize| -> Vec<usize> {
            starts
                .into_iter()
                .flat_map(|start| (0..self.shape[axis]).map(move |at| (start, at)))
                .map(|(start, at)| start + at * strides[axis])
                .collect()
        };
        let kept = (0..self.shape.len()).filter(|axis| !axes.contains(axis)).fold(vec![0], walk);
        kept.into_iter().map(|start| axes.iter().copied().fold(vec![start], walk)).collect()
    }

    /// The magnitude of an element; of what is no finite number, none.
    pub(super) fn size(&self, place: usize) -> f64 {
        Some(self.data[place].abs()).filter(|size| size.is_finite()).unwrap_or(0.0)
    }
}
