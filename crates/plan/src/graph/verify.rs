//! The rules of graphs, which hold before and after every pass.

use super::{BlockId, Carried, Graph, Input, Loop, Node, Op, Origin, Output, Type, Value, ViewOp, is_set, set};
use crate::dim::{Dim, Var};
use crate::expr::Expr;
use crate::host::{HostOp, early};
use crate::prim::{Axis, Epilogue, Prim, Quantized};
use ptero_tensor::DType;

/// A rule that a graph breaks: a bug in the code that built it, not an error of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction {}.{}: {what}", origin.0, origin.1)]
pub struct GraphError {
    /// The instruction.
    pub origin: Origin,
    /// The rule.
    pub what: &'static str,
}

impl Graph {
    /// Checks that every value is defined once, before it is read, and that operands have the types that their operations need.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn verify(&self) -> Result<(), GraphError> {
        let mut walk = Walk {
            graph: self,
            is_defined: vec![false; self.values.len()],
            was_defined: vec![false; self.values.len()],
            is_known: early(&self.host),
            is_entered: vec![false; self.blocks.len()],
            origin: (0, 0),
        };
        walk.border()?;
        let blocks = self.init.into_iter().chain([self.main]);
        for block in blocks {
            walk.block(block, 0)?;
        }
        for output in &self.outputs {
            match output {
                Output::Tensor(value) => walk.read(*value)?,
                Output::Int(number) => walk.number(number)?,
            }
        }
        Ok(())
    }
}

/// Blocks nest no deeper than chains of a verified program.
const DEPTH: usize = 256;

struct Walk<'a> {
    graph: &'a Graph,
    /// By value: `true` if it can be read here.
    is_defined: Vec<bool>,
    /// By value: `true` if anything defined it so far.
    was_defined: Vec<bool>,
    /// By host value: `true` if it is known here.
    is_known: Vec<bool>,
    /// By block: `true` if something runs it.
    is_entered: Vec<bool>,
    origin: Origin,
}

type Checked<T = ()> = Result<T, GraphError>;

impl Walk<'_> {
    fn ensure(&self, holds: bool, what: &'static str) -> Checked {
        if holds { Ok(()) } else { Err(GraphError { origin: self.origin, what }) }
    }

    /// The type of a value that exists.
    fn ty(&self, value: Value) -> &Type {
        self.graph.ty(value)
    }

    fn exists(&self, value: Value) -> Checked {
        self.ensure((value.0 as usize) < self.graph.values.len(), "a value exists")
    }

    fn border(&mut self) -> Checked {
        for (index, op) in self.graph.host.iter().enumerate() {
            let is_before = |dim: &Dim| dim.vars().all(|var| (var.0 as usize) < index);
            self.ensure(op.numbers().into_iter().all(is_before), "a host value follows from those before it")?;
        }
        for int in &self.graph.session_ints {
            [&int.at_start, &int.at_end].into_iter().try_for_each(|number| self.number(number))?;
        }
        for state in &self.graph.states {
            self.ensure(state.shape.iter().all(|size| size.as_fixed().is_some()), "a state has fixed sizes")?;
        }
        for (value, _) in &self.graph.constants {
            self.define(*value)?;
        }
        for input in &self.graph.inputs {
            let Input::Tensor(value) = input else { continue };
            self.define(*value)?;
            let is_given = |var: Var| matches!(self.graph.host.get(var.0 as usize), Some(HostOp::Given { .. }));
            let is_size = |size: &Dim| size.as_fixed().is_some() || size.as_var().is_some_and(is_given);
            self.ensure(self.ty(*value).shape.iter().all(is_size), "a size of an input is fixed or given")?;
        }
        Ok(())
    }

    fn define(&mut self, value: Value) -> Checked {
        self.exists(value)?;
        self.ensure(!is_set(&self.was_defined, value.0), "a value is made once")?;
        set(&mut self.was_defined, value.0, true);
        set(&mut self.is_defined, value.0, true);
        Ok(())
    }

    fn read(&self, value: Value) -> Checked {
        self.ensure(is_set(&self.is_defined, value.0), "a value is made before it is read")
    }

    fn number(&self, number: &Dim) -> Checked {
        self.ensure(number.vars().all(|var| is_set(&self.is_known, var.0)), "a host value is known where it is used")
    }

    fn block(&mut self, id: BlockId, depth: usize) -> Checked {
        let graph = self.graph;
        self.ensure(depth < DEPTH, "blocks nest less deeply")?;
        self.ensure(self.is_entered.get(id.0 as usize) == Some(&false), "a block exists and is run from one place")?;
        set(&mut self.is_entered, id.0, true);
        let block = graph.block(id);
        for node in &block.nodes {
            self.origin = node.origin;
            self.node(node, depth)?;
        }
        block.results.iter().try_for_each(|value| self.read(*value))
    }

    /// Checks a block whose values are not known outside; returns the host values that are known at its end.
    fn nested(&mut self, id: BlockId, depth: usize) -> Checked<Vec<bool>> {
        let (defined, known) = (self.is_defined.clone(), self.is_known.clone());
        self.block(id, depth + 1)?;
        self.is_defined = defined;
        Ok(std::mem::replace(&mut self.is_known, known))
    }

    fn node(&mut self, node: &Node, depth: usize) -> Checked {
        let op = &node.op;
        self.graph.reads(op).into_iter().try_for_each(|value| self.read(value))?;
        op.outs().into_iter().try_for_each(|value| self.exists(value))?;
        op.numbers().into_iter().try_for_each(|number| self.number(number))?;
        match op {
            Op::Prim(prim) => self.prim(prim)?,
            Op::View { out, x, how } => self.view(*out, *x, how)?,
            Op::Concat { out, parts, axis } => {
                let is_part = |part: &Value| self.is_alike(*part, *out);
                self.ensure(parts.iter().all(is_part), "what is joined has the type of the whole")?;
                self.ensure(*axis < self.ty(*out).rank(), "the axis exists")?;
            }
            Op::Update { out, base, new, axis, step, .. } => {
                self.ensure(self.ty(*out) == self.ty(*base), "an update keeps the type of what it changes")?;
                let has_axis = *axis < self.ty(*base).rank();
                self.ensure(has_axis && *step >= 1, "the axis exists, and the step is positive")?;
                self.ensure(self.is_alike(*base, *new), "an update has the type of the whole")?;
            }
            Op::Read { out, state } => self.state_type(*out, state.0)?,
            Op::Write { state, x } => self.state_type(*x, state.0)?,
            Op::Host(var) => {
                let Some(definition) = self.graph.host.get(var.0 as usize) else {
                    return self.ensure(false, "a host value exists");
                };
                match definition {
                    // Each branch knows only its own number.
                    HostOp::Chosen(condition, ..) => self.number(condition)?,
                    _ => definition.numbers().into_iter().try_for_each(|number| self.number(number))?,
                }
                set(&mut self.is_known, var.0, true);
            }
            Op::If { then, otherwise, outs, .. } => {
                // A host value is known after both branches if both set it.
                let mut known = vec![true; self.is_known.len()];
                for block in [then, otherwise] {
                    let after = self.nested(*block, depth)?;
                    known.iter_mut().zip(after).for_each(|(known, after)| *known &= after);
                    self.results(*block, outs.iter().map(|out| (*out, None)))?;
                }
                self.is_known = known;
            }
            Op::Loop(round) => self.round(round, depth)?,
            Op::Check(_) | Op::Foreign(_) => {}
        }
        for out in op.outs() {
            self.define(out)?;
            self.ty(out).shape.iter().try_for_each(|size| self.number(size))?;
        }
        Ok(())
    }

    fn round(&mut self, round: &Loop, depth: usize) -> Checked {
        for Carried { init, param, out } in round.carried.iter().copied() {
            self.define(param)?;
            let is_same = self.ty(init) == self.ty(param) && self.ty(param) == self.ty(out);
            self.ensure(is_same, "what a loop carries keeps its type")?;
        }
        let is_index = matches!(self.graph.host.get(round.index.0 as usize), Some(HostOp::Index { .. }));
        self.ensure(is_index, "a loop counts with an index")?;
        let known = self.is_known.clone();
        set(&mut self.is_known, round.index.0, true);
        self.nested(round.body, depth)?;
        self.is_known = known;
        round.carried.iter().for_each(|carried| set(&mut self.is_defined, carried.param.0, false));
        let carried = round.carried.iter().map(|carried| (carried.out, None));
        let stacked = round.stacked.iter().map(|stacked| (stacked.out, Some(stacked.axis)));
        self.results(round.body, carried.chain(stacked))
    }

    /// Checks that the results of a block fit those of its operation, which may have an added axis.
    fn results(&self, block: BlockId, outs: impl Iterator<Item = (Value, Option<usize>)>) -> Checked {
        let (outs, results) = (outs.collect::<Vec<_>>(), &self.graph.block(block).results);
        self.ensure(outs.len() == results.len(), "a block has as many results as its operation")?;
        for ((out, axis), result) in outs.into_iter().zip(results) {
            let (out, result) = (self.ty(out), self.ty(*result));
            let is_same = match axis {
                None => out.rank() == result.rank(),
                Some(axis) => out.rank() == result.rank() + 1 && axis < out.rank(),
            };
            self.ensure(is_same && out.dtype == result.dtype, "a block leaves what its operation makes")?;
        }
        Ok(())
    }

    fn state_type(&self, value: Value, state: u32) -> Checked {
        let found = self.graph.states.get(state as usize);
        self.ensure(found == Some(self.ty(value)), "a state is read and written whole, in its own type")
    }

    fn view(&self, out: Value, x: Value, how: &ViewOp) -> Checked {
        let (out, x) = (self.ty(out), self.ty(x));
        self.ensure(out.dtype == x.dtype, "a view keeps the type of elements")?;
        match how {
            ViewOp::Reshape => Ok(()),
            ViewOp::Permute(order) => {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                self.ensure(sorted.iter().copied().eq(0..x.rank()), "each axis appears once")?;
                let is_moved = order.iter().zip(&out.shape).all(|(axis, size)| x.shape.get(*axis) == Some(size));
                self.ensure(is_moved && out.rank() == x.rank(), "sizes move with their axes")
            }
            ViewOp::Broadcast => self.ensure(out.rank() >= x.rank(), "broadcasting adds axes"),
            ViewOp::Slice { axis, step, .. } => {
                let is_kept = |(at, (a, b)): (usize, (&Dim, &Dim))| at == *axis || a == b;
                let are_kept = out.shape.iter().zip(&x.shape).enumerate().all(is_kept);
                let is_slice = out.rank() == x.rank() && *axis < x.rank() && *step != 0;
                self.ensure(are_kept && is_slice, "a slice changes one axis")
            }
            ViewOp::Strided { strides, .. } => {
                self.ensure(strides.len() == out.rank(), "there is a stride for each axis")
            }
        }
    }

    fn prim(&self, prim: &Prim<Value>) -> Checked {
        let ty = |value: &Value| self.ty(*value);
        match prim {
            Prim::Map { out, ins, expr } => self.function(*out, ins, expr),
            Prim::Reduce { out, x, axes, .. } => {
                self.same_rank(&[*out, *x])?;
                self.ensure(axes.iter().all(|axis| *axis < self.graph.ty(*x).rank()), "the axes exist")
            }
            Prim::ArgReduce { out, x, axis, .. } | Prim::Softmax { out, x, axis } => self.along(*out, *x, *axis),
            Prim::Sort { out, x, axis, .. } | Prim::Cumsum { out, x, axis, .. } => self.along(*out, *x, *axis),
            Prim::Norm { out, x, weight, bias, .. } => {
                self.same_rank(&[*out, *x])?;
                let mut factors = [weight, bias].into_iter().flatten();
                self.ensure(factors.all(|factor| ty(factor).rank() == 1), "the factors of a norm have one axis")
            }
            Prim::Rope { out, x, .. } => {
                self.same_rank(&[*out, *x])?;
                self.ensure(ty(x).rank() >= 2, "positions are an axis of their own")
            }
            Prim::Attention { out, q, k, v, mask, .. } => {
                self.same_rank(&[*out, *q, *k, *v, mask.unwrap_or(*q)])?;
                self.ensure(ty(q).rank() == 4, "attention has four axes")
            }
            Prim::MatMul { out, a, b, epilogue, .. } => {
                self.ensure(ty(a).dtype == ty(b).dtype && ty(a).rank() >= 2, "matrices have one type")?;
                self.epilogue(*out, epilogue)
            }
            Prim::QuantMatMul { out, x, w, epilogue, .. } => {
                self.ensure(ty(x).rank() >= 2, "a product is of matrices")?;
                self.weights(w)?;
                self.epilogue(*out, epilogue)
            }
            Prim::Dequantize { w, .. } => self.weights(w),
            Prim::Conv { out, x, w, stride, padding, dilation, .. } => {
                self.same_rank(&[*out, *x, *w])?;
                let lengths = [stride, padding, dilation].map(Vec::len);
                self.ensure(lengths.iter().all(|length| length + 2 == self.graph.ty(*x).rank()), "one number per axis")
            }
            Prim::Gather { out, x, axes } => {
                self.ensure(ty(out).dtype == ty(x).dtype, "what is gathered keeps its type")?;
                self.indices(axes, *out, *x)
            }
            Prim::Scatter { out, base, updates, axes, .. } => {
                self.ensure(ty(out) == ty(base), "a scatter keeps the type of what it changes")?;
                self.ensure(ty(updates).dtype == ty(base).dtype, "what is scattered has the type of the whole")?;
                self.indices(axes, *updates, *base)
            }
            Prim::GatedDelta(rule) => self.same_rank(&[rule.out, rule.state_out, rule.q, rule.k, rule.v, rule.state]),
            Prim::RandomBits { out, .. } => {
                let is_bits = matches!(ty(out).dtype, DType::U8 | DType::U16 | DType::U32);
                self.ensure(is_bits, "random bits are unsigned")
            }
            Prim::Sample(sample) => {
                self.ensure(ty(&sample.logits).rank() == 2 && ty(&sample.out).rank() == 1, "logits are rows")
            }
        }
    }

    /// Returns `true` if two values have the same element type and rank.
    fn is_alike(&self, a: Value, b: Value) -> bool {
        let (a, b) = (self.ty(a), self.ty(b));
        a.dtype == b.dtype && a.rank() == b.rank()
    }

    fn same_rank(&self, values: &[Value]) -> Checked {
        let mut ranks = values.iter().map(|value| self.ty(*value).rank());
        let first = ranks.next();
        self.ensure(ranks.all(|rank| Some(rank) == first), "operands have the rank of the result")
    }

    fn along(&self, out: Value, x: Value, axis: usize) -> Checked {
        self.same_rank(&[out, x])?;
        self.ensure(axis < self.ty(x).rank(), "the axis exists")
    }

    fn function(&self, out: Value, ins: &[Value], expr: &Expr) -> Checked {
        let out = self.ty(out);
        let is_same = |value: &Value| self.ty(*value).shape == out.shape;
        self.ensure(ins.iter().all(is_same), "operands of a function have the shape of its result")?;
        let last = expr.steps.last().map(|step| step.dtype);
        self.ensure(last == Some(out.dtype), "the last step of a function has the type of its result")
    }

    fn epilogue(&self, out: Value, epilogue: &Epilogue<Value>) -> Checked {
        epilogue.as_ref().map_or(Ok(()), |fused| self.function(out, &fused.ins, &fused.expr))
    }

    fn weights(&self, w: &Quantized<Value>) -> Checked {
        self.same_rank(&[w.codes, w.scales.unwrap_or(w.codes), w.biases.unwrap_or(w.codes)])
    }

    /// Checks that there is one index for each axis of `whole`, each of the shape of `part`.
    fn indices(&self, axes: &[Axis<Value>], part: Value, whole: Value) -> Checked {
        let (part, whole) = (self.ty(part), self.ty(whole));
        self.ensure(axes.len() == whole.rank(), "there is an index for each axis")?;
        for axis in axes {
            let is_same = axis.index.is_none_or(|index| self.ty(index).shape == part.shape);
            self.ensure(is_same, "indices have the shape of what they are for")?;
            self.ensure(axis.coordinate.is_none_or(|axis| axis < part.rank()), "the axis of a coordinate exists")?;
        }
        Ok(())
    }
}
