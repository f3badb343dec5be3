//! The graph that the reference runs: that of the case, with the operands of the tested operations as further outputs. Allowed
//! differences are computed from them.

use super::compare::{Rule, Rules};
use super::data::decode;
use super::draft::{CaseOutput, Finished};
use super::{epilogue, map, quant, slack};
use ptero_backend::{Error, OutputValue, State};
use ptero_plan::dim::Dim;
use ptero_plan::graph::{Graph, Node, Op, Output, StateId, Value};
use ptero_plan::prim::{Prim, Tolerance};
use ptero_tensor::DType;
use std::collections::HashMap;
use std::sync::Arc;

/// A tensor in row-major order.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<f64>,
}

/// The operands of a primitive in a call.
pub(super) struct Seen<'a> {
    /// What it read, in the order of [`Prim::reads`].
    pub(super) operands: Vec<Dense>,
    /// What the primitives of [`extras`] made.
    pub(super) extras: Vec<Dense>,
    /// The host values.
    pub(super) values: &'a [i64],
    graph: &'a Graph,
}

impl Seen<'_> {
    /// The type of a value's elements.
    pub(super) fn dtype(&self, value: Value) -> DType {
        self.graph.ty(value).dtype
    }

    /// The sizes of a value.
    pub(super) fn shape(&self, value: Value) -> Vec<usize> {
        self.graph.ty(value).shape.iter().map(|size| size.eval(self.values) as usize).collect()
    }
}

/// A primitive that runs beside the tested one: the type and shape of its result, and the primitive.
pub(super) type Extra = (DType, Vec<Dim>, Box<dyn Fn(Value) -> Prim<Value>>);

fn extras(graph: &Graph, prim: &Prim<Value>) -> Vec<Extra> {
    match prim {
        Prim::Map { out, ins, expr } => map::extras(graph, *out, ins, expr),
        Prim::MatMul { .. } => epilogue::extras(graph, prim),
        Prim::QuantMatMul { w, .. } => {
            let mut extras = quant::extras(graph, w);
            extras.extend(epilogue::extras(graph, prim));
            extras
        }
        _ => Vec::new(),
    }
}

/// The graph that the reference runs.
pub(super) struct Probe {
    pub(super) graph: Arc<Graph>,
    tested: Vec<Tested>,
    /// The device is compared within tolerances.
    is_inexact: bool,
}

/// An operation under test; one that is no primitive moves elements, and is exact.
#[derive(Default)]
struct Tested {
    prim: Option<Prim<Value>>,
    operands: Vec<usize>,
    extras: Vec<usize>,
}

/// The rules of the elements of states after a call.
pub(super) type StateRules = HashMap<StateId, Rules>;

impl Probe {
    pub(super) fn new(finished: &Finished, is_inexact: bool) -> Self {
        let mut graph = finished.graph.clone();
        let tested = finished.tested.iter().map(|&index| {
            let op = graph.block(graph.main).nodes[index].op.clone();
            if let Op::Prim(prim) = op { Tested::new(&mut graph, prim) } else { Tested::default() }
        });
        let tested = tested.collect();
        Self { graph: Arc::new(graph), tested, is_inexact }
    }

    /// The rules of the elements of each output, after the reference has run. Elements that an earlier call wrote into a state keep
    /// their rules.
    pub(super) fn rules(
        &self,
        reference: &dyn State,
        finished: &Finished,
        call: usize,
        earlier: &mut StateRules,
    ) -> Result<Vec<Rules>, Error> {
        let slacks = self.tested.iter().map(|tested| tested.slacks(reference, &self.graph, &finished.values[call]));
        let slacks = slacks.collect::<Result<Vec<_>, Error>>()?;
        let mut all = Vec::new();
        for (output, shown) in finished.shown.iter().enumerate() {
            let none = || -> Result<Rules, Error> { Ok(vec![None; dense(reference, output)?.data.len()]) };
            let before = shown.before.and_then(|state| earlier.get(&state).cloned());
            let mut rules: Rules = before.map_or_else(none, Ok)?;
            self.apply(shown, call, &slacks, &mut rules);
            all.push(rules);
        }
        for (shown, rules) in finished.shown.iter().zip(&all) {
            if let Some(state) = shown.after {
                earlier.insert(state, rules.clone());
            }
        }
        Ok(all)
    }

    fn apply(&self, shown: &CaseOutput, call: usize, slacks: &[Vec<Vec<f64>>], rules: &mut Rules) {
        for part in &shown.parts {
            let (test, write) = part.made_by;
            let prim = self.tested[test].prim.as_ref().filter(|_| self.is_inexact);
            let tolerance = prim.map_or(Tolerance::Exact, Prim::tolerance);
            for (number, position) in part.view.positions(call).into_iter().enumerate() {
                let slack = slacks[test].get(write).map_or(0.0, |slack| slack[number]);
                rules[position] = Some(Rule { tolerance, slack, number });
            }
        }
    }
}

impl Tested {
    fn new(graph: &mut Graph, prim: Prim<Value>) -> Self {
        let show = |graph: &mut Graph, value: Value| {
            graph.outputs.push(Output::Tensor(value));
            graph.outputs.len() - 1
        };
        let operands = prim.reads().into_iter().map(|value| show(graph, value)).collect();
        let extras = extras(graph, &prim).into_iter().map(|(dtype, shape, extra)| {
            let out = graph.value(dtype, shape);
            let main = graph.main;
            graph.block_mut(main).nodes.push(Node { op: Op::Prim(extra(out)), origin: (9, 0) });
            show(graph, out)
        });
        let extras = extras.collect();
        Self { prim: Some(prim), operands, extras }
    }

    /// For each result, a number per element.
    fn slacks(&self, reference: &dyn State, graph: &Graph, values: &[i64]) -> Result<Vec<Vec<f64>>, Error> {
        let Some(prim) = &self.prim else { return Ok(Vec::new()) };
        let read = |outputs: &[usize]| -> Result<Vec<Dense>, Error> {
            outputs.iter().map(|&output| dense(reference, output)).collect()
        };
        let seen = Seen { operands: read(&self.operands)?, extras: read(&self.extras)?, values, graph };
        Ok(slack(prim, &seen))
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
    /// For each index of the other axes, in row-major order, the positions of the elements along `axes`.
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

    /// The magnitude of an element; 0 if it is not finite.
    pub(super) fn size(&self, index: usize) -> f64 {
        Some(self.data[index].abs()).filter(|size| size.is_finite()).unwrap_or(0.0)
    }
}
