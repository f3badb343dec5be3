//! Building a graph: values, view operations and host integers. The rules of shapes live here, once.

mod host;
mod shape;

use crate::dim::Dim;
use crate::error::{Fault, Result, Shape};
use crate::function::{Function, Part};
use crate::graph::{Block, BlockId, Graph, Node, Op, Origin, StateId, Value};
use crate::host::Check;
use crate::prim::{Prim, View};
use ptero_tensor::{Bytes, DType};
use rustc_hash::FxHashMap;

/// A value and its type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) value: Value,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<Dim>,
}

impl Tensor {
    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    pub(crate) fn size(&self, axis: usize) -> Result<&Dim> {
        self.shape.get(axis).ok_or(Fault::Axis { axis: i64::try_from(axis).unwrap_or(i64::MAX), rank: self.rank() })
    }
}

/// A graph in the making.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) graph: Graph,
    /// The block that operations are added to.
    pub(crate) block: BlockId,
    /// The instruction that they come from.
    pub(crate) origin: Origin,
    /// By host value, whether it is known before anything runs.
    early: Vec<bool>,
    /// Host values that were asked for before, so that the same size stays the same value.
    known: FxHashMap<host::Key, Dim>,
    /// How values show an input or a constant.
    shown: FxHashMap<Value, Shown>,
}

/// What a value shows: elements of an input or a constant.
#[derive(Clone)]
struct Shown {
    root: Root,
    view: View,
}

#[derive(Clone)]
enum Root {
    Input(usize),
    Constant(Bytes),
}

impl Builder {
    pub(crate) fn node(&mut self, op: Op) {
        let origin = self.origin;
        self.graph.block_mut(self.block).nodes.push(Node { op, origin });
    }

    /// A primitive, and the tensor that it makes.
    pub(crate) fn prim(&mut self, dtype: DType, shape: Vec<Dim>, prim: impl FnOnce(Tensor) -> Prim<Tensor>) -> Tensor {
        let out = self.new_tensor(dtype, shape);
        self.node(Op::Prim(prim(out.clone()).map(&mut |tensor: Tensor| tensor.value)));
        out
    }

    /// Leaves a tensor to the operation that runs the block.
    pub(crate) fn leave(&mut self, tensor: &Tensor) {
        self.graph.block_mut(self.block).results.push(tensor.value);
    }

    /// A value that an operation is about to make.
    pub(crate) fn new_tensor(&mut self, dtype: DType, shape: Vec<Dim>) -> Tensor {
        Tensor { value: self.graph.value(dtype, shape.clone()), dtype, shape }
    }

    pub(crate) fn constant(&mut self, dtype: DType, shape: Vec<Dim>, bytes: Bytes) -> Tensor {
        let value = self.graph.constant(dtype, shape.clone(), bytes.clone());
        let tensor = Tensor { value, dtype, shape };
        self.show(&tensor, Root::Constant(bytes));
        tensor
    }

    pub(crate) fn input(&mut self, number: usize, dtype: DType, shape: Vec<Dim>) -> Tensor {
        let tensor = self.new_tensor(dtype, shape);
        self.show(&tensor, Root::Input(number));
        tensor
    }

    fn show(&mut self, tensor: &Tensor, root: Root) {
        let view = View::row_major(crate::prim::Buf(0), self.graph.ty(tensor.value));
        self.shown.insert(tensor.value, Shown { root, view });
    }

    pub(crate) fn state(&mut self, dtype: DType, shape: Vec<Dim>) -> StateId {
        self.graph.states.push(crate::graph::Type { dtype, shape });
        StateId(u32::try_from(self.graph.states.len() - 1).expect("a graph has fewer than 2^32 states"))
    }

    /// What a state holds now.
    pub(crate) fn read(&mut self, state: StateId) -> Tensor {
        let ty = self.graph.states.get(state.0 as usize).cloned().expect("states are made before they are read");
        let out = self.new_tensor(ty.dtype, ty.shape);
        self.node(Op::Read { out: out.value, state });
        out
    }

    /// Adds operations to a new block while `inside` runs. Host values that are known only there are forgotten.
    pub(crate) fn enter_block(&mut self) -> (BlockId, Outside) {
        self.graph.blocks.push(Block::default());
        let block = BlockId(u32::try_from(self.graph.blocks.len() - 1).expect("a graph has fewer than 2^32 blocks"));
        let outside = Outside { block: self.block, known: self.known.clone() };
        self.block = block;
        (block, outside)
    }

    /// Goes back to the block around.
    pub(crate) fn leave_block(&mut self, outside: Outside) {
        let inside = std::mem::replace(&mut self.known, outside.known);
        // What is known before anything runs is known everywhere; what was checked on the way is not.
        let is_check = |key: &host::Key| matches!(key, host::Key::Equal(..));
        let early: Vec<_> = inside.into_iter().filter(|(key, dim)| !is_check(key) && self.is_early(dim)).collect();
        self.known.extend(early);
        self.block = outside.block;
    }

    /// That two sizes are equal: known now, or checked when a call runs.
    pub(crate) fn same(&mut self, a: &Dim, b: &Dim, what: &'static str) -> Result<()> {
        match (a.as_fixed(), b.as_fixed()) {
            _ if a == b => Ok(()),
            (Some(_), Some(_)) => Err(Fault::Shapes { left: Shape(vec![a.clone()]), right: Shape(vec![b.clone()]) }),
            _ => {
                let key = host::Key::Equal(a.clone(), b.clone());
                if self.known.insert(key, a.clone()).is_none() {
                    self.node(Op::Check(Check::Equal(a.clone(), b.clone(), what)));
                }
                Ok(())
            }
        }
    }

    /// That `low <= value <= high`: known now, or checked when a call runs.
    pub(crate) fn within(&mut self, value: &Dim, low: Dim, high: Dim, what: &'static str) -> Result<()> {
        if let (Some(value), Some(low), Some(high)) = (value.as_fixed(), low.as_fixed(), high.as_fixed()) {
            return if (low..=high).contains(&value) { Ok(()) } else { Err(Fault::Value { what, value }) };
        }
        self.node(Op::Check(Check::Within { value: value.clone(), low, high, what }));
        Ok(())
    }

    pub(crate) fn same_shape(&mut self, a: &[Dim], b: &[Dim], what: &'static str) -> Result<()> {
        if a.len() != b.len() {
            return Err(Fault::Shapes { left: Shape(a.to_vec()), right: Shape(b.to_vec()) });
        }
        a.iter().zip(b).try_for_each(|(a, b)| self.same(a, b, what))
    }

    /// An elementwise function of tensors, which are broadcast together.
    pub(crate) fn map<const N: usize>(
        &mut self,
        ins: &[Tensor; N],
        f: impl FnOnce(&Function, [Part; N]) -> Part,
    ) -> Result<Tensor> {
        self.map_list(ins, |function, parts| f(function, parts.try_into().expect("there is a part for each tensor")))
    }

    /// The same of any number of tensors.
    pub(crate) fn map_list(&mut self, ins: &[Tensor], f: impl FnOnce(&Function, &[Part]) -> Part) -> Result<Tensor> {
        let function = Function::default();
        let parts: Vec<Part> = ins.iter().enumerate().map(|(at, tensor)| function.load(at, tensor.dtype)).collect();
        let result = f(&function, &parts);
        self.mapped(Vec::new(), ins, function, result)
    }

    /// A function of the index alone, in this shape.
    pub(crate) fn fill(&mut self, shape: Vec<Dim>, f: impl FnOnce(&Function) -> Part) -> Result<Tensor> {
        let function = Function::default();
        let result = f(&function);
        self.mapped(shape, &[], function, result)
    }

    /// `shape` is the least that the result has.
    fn mapped(&mut self, mut shape: Vec<Dim>, ins: &[Tensor], function: Function, result: Part) -> Result<Tensor> {
        for tensor in ins {
            shape = self.broadcast_shapes(&shape, &tensor.shape)?;
        }
        let ins = ins.iter().map(|tensor| Ok(self.broadcast(tensor, &shape)?.value)).collect::<Result<Vec<_>>>()?;
        let out = self.new_tensor(result.dtype, shape);
        self.node(Op::Prim(Prim::Map { out: out.value, ins, expr: function.finish(result) }));
        Ok(out)
    }

    pub(crate) fn cast(&mut self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        if x.dtype == dtype {
            return Ok(x.clone());
        }
        self.map(std::array::from_ref(x), |f, [x]| f.cast(x, dtype))
    }

    /// `base` with `new`, cast and broadcast, in the place of `length` elements along an axis.
    pub(crate) fn update(
        &mut self,
        base: &Tensor,
        new: &Tensor,
        axis: usize,
        (start, length, step): (Dim, Dim, i64),
    ) -> Result<Tensor> {
        base.size(axis)?;
        let mut shape = base.shape.clone();
        shape.splice(axis..=axis, [length]);
        let new = self.cast(new, base.dtype)?;
        let is_repeated = |(have, want): (&Dim, &Dim)| have.is(1) && !want.is(1);
        let new = if new.rank() == shape.len() && !new.shape.iter().zip(&shape).any(is_repeated) {
            self.same_shape(&new.shape, &shape, "sizes that meet in one operation")?;
            new
        } else {
            self.broadcast(&new, &shape)?
        };
        let out = self.new_tensor(base.dtype, base.shape.clone());
        self.node(Op::Update { out: out.value, base: base.value, new: new.value, axis, start, step });
        Ok(out)
    }
}

/// What a block hides while operations are added to another.
pub(crate) struct Outside {
    block: BlockId,
    known: FxHashMap<host::Key, Dim>,
}

/// An axis given as a number that may count from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let from_start = if axis < 0 { axis + signed } else { axis };
    let found = usize::try_from(from_start).ok().filter(|axis| *axis < rank);
    found.ok_or(Fault::Axis { axis, rank })
}
