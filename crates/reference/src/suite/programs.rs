//! Random graphs of operations that move integers and add them up: views, joins, updates, states, branches and loops in any order.
//! Nothing rounds, so a device that differs from the reference has overwritten something too early, read it too late, or not
//! copied it.

use super::ops;
use super::rng::Rng;
use crate::Reference;
use ptero_backend::{Backend, InputValue, OutputValue, run_once};
use ptero_plan::dim::{Dim, Var};
use ptero_plan::expr::Binary;
use ptero_plan::graph::{
    Block, BlockId, Carried, Graph, Input, Loop, Op, Output, Stacked, StateId, Type, Value, ViewOp,
};
use ptero_plan::host::HostOp;
use ptero_plan::prim::{Axis, Prim};
use ptero_tensor::DType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const CALLS: usize = 3;
const STATES: usize = 2;

/// Runs random programs on a backend, as they are and after the passes, and on the reference.
///
/// # Errors
/// The first program on which they differ, with its graph.
pub fn check_programs(backend: &dyn Backend, count: u64, seed: u64) -> Result<(), String> {
    for number in 0..count {
        let mut rng = Rng::of_case("programs", seed, number);
        // Short programs first: their failures are easier to read.
        let graph = Arc::new(program(&mut rng, 2 + (number * 20 / count.max(1)) as usize));
        let given: Vec<([i32; 12], i64)> =
            (0..CALLS).map(|_| ([(); 12].map(|()| rng.within(-9, 9) as i32), rng.within(0, 1))).collect();
        let mut fused = Graph::clone(&graph);
        ptero_plan::passes::run(&mut fused, &backend.capabilities(), &[]);
        let expected = outputs(&Reference, &graph, &given);
        let found = [&graph, &Arc::new(fused)].map(|graph| outputs(backend, graph, &given));
        if let Some(found) = found.iter().find(|found| **found != expected) {
            return Err(format!(
                "program {number} of seed {seed}: {found:?} instead of {expected:?} for {given:?}\n{graph}"
            ));
        }
    }
    Ok(())
}

fn outputs(
    backend: &dyn Backend,
    graph: &Arc<Graph>,
    given: &[([i32; 12], i64)],
) -> Result<Vec<OutputValue>, ptero_backend::Fault> {
    let run = || {
        let executable = backend.compile(Arc::clone(graph))?;
        let mut state = executable.state(1)?;
        let mut outputs = Vec::new();
        for (x, condition) in given {
            let bytes: Vec<u8> = x.iter().flat_map(|number| number.to_le_bytes()).collect();
            state.write(0, InputValue::Tensor { dtype: DType::I32, shape: &[3, 4], bytes: &bytes })?;
            let bytes = condition.to_le_bytes();
            state.write(1, InputValue::Tensor { dtype: DType::I64, shape: &[1], bytes: &bytes })?;
            run_once(executable.as_ref(), state.as_mut(), &AtomicBool::new(false))?;
            for output in 0..graph.outputs.len() {
                outputs.push(state.read(output)?);
            }
        }
        Ok(outputs)
    };
    run().map_err(|error: ptero_backend::Error| error.fault().clone())
}

/// A graph that is being built. Every value in `pool` can be read.
struct Draft<'a> {
    rng: &'a mut Rng,
    graph: Graph,
    block: BlockId,
    pool: Vec<Value>,
    condition: Var,
    depth: usize,
}

fn program(rng: &mut Rng, operations: usize) -> Graph {
    let mut graph = Graph::default();
    graph.blocks.push(Block::default());
    let x = graph.value(DType::I32, [3, 4].map(Dim::fixed).to_vec());
    let flag = graph.value(DType::I64, vec![Dim::fixed(1)]);
    graph.inputs = vec![Input::Tensor(x), Input::Tensor(flag)];
    let condition = graph.var(HostOp::Element { input: 1, at: Dim::fixed(0) });
    graph.states = vec![Type { dtype: DType::I32, shape: [3, 4].map(Dim::fixed).to_vec() }; STATES];
    let mut draft = Draft { rng, graph, block: BlockId(0), pool: vec![x], condition, depth: 0 };
    draft.operations(operations);
    for state in 0..STATES {
        let held = draft.read(state);
        draft.pool.push(held);
    }
    // Values that were computed early are read late, too.
    let mut shown: Vec<Value> = draft.pool.iter().rev().take(STATES).copied().collect();
    shown.extend((0..3).map(|_| draft.rng.pick(&draft.pool)));
    let mut graph = draft.graph;
    graph.outputs = shown.into_iter().map(Output::Tensor).collect();
    graph
}

impl Draft<'_> {
    fn node(&mut self, op: Op) {
        ops::push(&mut self.graph, self.block, op);
    }

    fn shape(&self, value: Value) -> [i64; 2] {
        let shape = &self.graph.ty(value).shape;
        std::array::from_fn(|axis| shape[axis].as_fixed().expect("all sizes are fixed"))
    }

    fn value(&mut self, shape: &[i64]) -> Value {
        self.graph.value(DType::I32, shape.iter().map(|size| Dim::fixed(*size)).collect())
    }

    /// Any value, and its shape.
    fn any(&mut self) -> (Value, [i64; 2]) {
        let value = self.rng.pick(&self.pool);
        (value, self.shape(value))
    }

    /// A value of the same shape, perhaps the same value.
    fn like(&mut self, value: Value) -> Value {
        let shape = self.shape(value);
        let same: Vec<Value> = self.pool.iter().copied().filter(|other| self.shape(*other) == shape).collect();
        if same.is_empty() { value } else { self.rng.pick(&same) }
    }

    fn view(&mut self, x: Value, shape: &[i64], how: ViewOp) -> Value {
        let shape = shape.iter().map(|size| Dim::fixed(*size)).collect();
        ops::view(&mut self.graph, self.block, x, shape, how)
    }

    fn slice(&mut self, x: Value, axis: usize, start: i64, length: i64, step: i64) -> Value {
        let mut shape = self.shape(x);
        shape[axis] = length;
        self.view(x, &shape, ViewOp::Slice { axis, start: Dim::fixed(start), step })
    }

    fn sum(&mut self, a: Value, b: Value) -> Value {
        let op = self.rng.pick(&[Binary::Add, Binary::Sub, Binary::Mul]);
        ops::map(&mut self.graph, self.block, [a, b], |f, [a, b]| f.binary(op, a, b))
    }

    fn read(&mut self, state: usize) -> Value {
        ops::read(&mut self.graph, self.block, StateId(state as u32))
    }

    fn operations(&mut self, count: usize) {
        for _ in 0..count {
            let made = match self.rng.below(14) {
                0..3 => {
                    let (a, _) = self.any();
                    let b = self.like(a);
                    self.sum(a, b)
                }
                3 => {
                    let (x, [rows, columns]) = self.any();
                    self.view(x, &[columns, rows], ViewOp::Permute(vec![1, 0]))
                }
                4 => self.some_slice(),
                5 => {
                    let (x, [rows, columns]) = self.any();
                    let shape = self.rng.pick(&[[columns, rows], [1, rows * columns], [rows * columns, 1]]);
                    self.view(x, &shape, ViewOp::Reshape)
                }
                6 => {
                    let (x, [rows, columns]) = self.any();
                    let row = self.slice(x, 0, rows - 1, 1, 1);
                    self.view(row, &[3, columns], ViewOp::Broadcast)
                }
                7 => self.concat(),
                8 => {
                    let (base, _) = self.any();
                    self.update(base)
                }
                9 => {
                    let state = self.rng.below(STATES);
                    self.read(state)
                }
                10 | 11 => self.write(),
                12 if self.depth < 2 => self.branch(),
                13 if self.depth < 2 => self.round(),
                _ => self.scatter(),
            };
            self.pool.push(made);
        }
    }

    fn some_slice(&mut self) -> Value {
        let ((x, shape), axis) = (self.any(), self.rng.below(2));
        let size = shape[axis];
        let start = self.rng.within(0, size - 1);
        if self.rng.one_in(3) {
            return self.slice(x, axis, start, start + 1, -1);
        }
        let length = self.rng.within(1, size - start);
        self.slice(x, axis, start, length, 1)
    }

    fn concat(&mut self) -> Value {
        let ((first, mut shape), axis) = (self.any(), self.rng.below(2));
        let second = self.like(first);
        // Sizes must not grow without bound.
        if shape[axis] > 12 {
            return first;
        }
        shape[axis] *= 2;
        let out = self.value(&shape);
        self.node(Op::Concat { out, parts: vec![first, second], axis });
        out
    }

    fn update(&mut self, base: Value) -> Value {
        let (other, axis) = (self.like(base), self.rng.below(2));
        let size = self.shape(base)[axis];
        let length = self.rng.within(1, size);
        let start = self.rng.within(0, size - length);
        let from = self.rng.within(0, size - length);
        let new = self.slice(other, axis, from, length, 1);
        let out = self.value(&self.shape(base));
        self.node(Op::Update { out, base, new, axis, start: Dim::fixed(start), step: 1 });
        out
    }

    fn scatter(&mut self) -> Value {
        let (base, [rows, columns]) = self.any();
        let updates = self.like(base);
        let indices: Vec<u8> =
            (0..rows * columns).flat_map(|_| (self.rng.within(-rows, rows - 1) as i32).to_le_bytes()).collect();
        let shape = [rows, columns].map(Dim::fixed).to_vec();
        let index = self.graph.constant(DType::I32, shape, indices.into());
        let axes = vec![Axis { index: Some(index), coordinate: None }, Axis { index: None, coordinate: Some(1) }];
        let (out, add) = (self.value(&[rows, columns]), self.rng.one_in(2));
        self.node(Op::Prim(Prim::Scatter { out, base, updates, axes, add }));
        out
    }

    /// Changes a state: in part, or as a whole by any value of its shape.
    fn write(&mut self) -> Value {
        let state = self.rng.below(STATES);
        let held = self.read(state);
        self.pool.push(held);
        let x = if self.rng.one_in(3) { self.like(held) } else { self.update(held) };
        if self.rng.one_in(3) {
            self.operations(1);
        }
        self.node(Op::Write { state: StateId(state as u32), x });
        x
    }

    /// Adds operations to a new block; returns it with what `last` chose there.
    fn nested(&mut self, last: impl FnOnce(&mut Self) -> Vec<Value>) -> BlockId {
        let block = ops::new_block(&mut self.graph);
        let (outside, visible) = (std::mem::replace(&mut self.block, block), self.pool.len());
        self.depth += 1;
        let count = 1 + self.rng.below(5);
        self.operations(count);
        let results = last(self);
        self.graph.block_mut(block).results = results;
        self.depth -= 1;
        self.pool.truncate(visible);
        self.block = outside;
        block
    }

    fn branch(&mut self) -> Value {
        let (x, shape) = self.any();
        let [then, otherwise] = [(); 2].map(|()| self.nested(|draft| vec![draft.like(x)]));
        let out = self.value(&shape);
        let condition = Dim::var(self.condition);
        self.node(Op::If { condition, then, otherwise, outs: vec![out] });
        out
    }

    fn round(&mut self) -> Value {
        let (init, shape) = self.any();
        let [param, out] = [(); 2].map(|()| self.value(&shape));
        let count = Dim::fixed(self.rng.within(1, 3));
        let index = self.graph.var(HostOp::Index { count: count.clone() });
        let visible = self.pool.len();
        self.pool.push(param);
        let body = self.nested(|draft| vec![draft.like(param), draft.like(param)]);
        self.pool.truncate(visible);
        let whole: Vec<Dim> = [count.clone()].into_iter().chain(self.graph.ty(init).shape.clone()).collect();
        let stacked = self.graph.value(DType::I32, whole);
        let round = Loop {
            index,
            count: count.clone(),
            body,
            carried: vec![Carried { init, param, out }],
            stacked: vec![Stacked { out: stacked, axis: 0 }],
        };
        self.node(Op::Loop(Box::new(round)));
        self.pool.push(out);
        let flat = count.as_fixed().unwrap_or(1) * shape[0];
        self.view(stacked, &[flat, shape[1]], ViewOp::Reshape)
    }
}
