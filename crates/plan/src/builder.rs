//! Builds a graph: values, view operations and host integers. Shapes are checked here, and only here.

mod host;
mod shape;

use crate::dim::Dim;
use crate::error::{Fault, Result, ensure};
use crate::function::{Function, Term};
use crate::graph::{Block, BlockId, Graph, Node, Op, Origin, StateId, Value};
use crate::host::Check;
use crate::prim::{Buf, Prim, View};
use ptero_tensor::{Bytes, DType};
use rustc_hash::FxHashMap;
use std::slice::from_ref;

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

    /// Its shape with another size along an axis.
    pub(crate) fn shape_with(&self, axis: usize, size: impl Into<Dim>) -> Result<Vec<Dim>> {
        self.size(axis)?;
        let mut shape = self.shape.clone();
        shape.splice(axis..=axis, [size.into()]);
        Ok(shape)
    }
}

/// A graph being built.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) graph: Graph,
    /// The block that operations are added to.
    pub(crate) block: BlockId,
    /// The instruction being lowered.
    pub(crate) origin: Origin,
    /// By host value: `true` if it is known before anything runs.
    early: Vec<bool>,
    /// Host values that were computed before, so that the same size stays the same value.
    known: FxHashMap<host::Key, Dim>,
    /// The values that are views of an input or a constant.
    shown: FxHashMap<Value, RootView>,
}

/// A view of an input or a constant.
#[derive(Clone)]
struct RootView {
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

    /// Adds a primitive, and returns its result.
    pub(crate) fn prim(&mut self, dtype: DType, shape: Vec<Dim>, prim: impl FnOnce(Tensor) -> Prim<Tensor>) -> Tensor {
        let out = self.new_tensor(dtype, shape);
        self.node(Op::Prim(prim(out.clone()).map(&mut |tensor: Tensor| tensor.value)));
        out
    }

    /// Makes a tensor a result of the block.
    pub(crate) fn add_result(&mut self, tensor: &Tensor) {
        self.graph.block_mut(self.block).results.push(tensor.value);
    }

    /// A new value, to be defined by an operation.
    pub(crate) fn new_tensor(&mut self, dtype: DType, shape: Vec<Dim>) -> Tensor {
        Tensor { value: self.graph.value(dtype, shape.clone()), dtype, shape }
    }

    pub(crate) fn constant(&mut self, dtype: DType, shape: Vec<Dim>, bytes: Bytes) -> Tensor {
        let tensor = self.root(dtype, shape, Root::Constant(bytes.clone()));
        self.graph.constants.push((tensor.value, bytes));
        tensor
    }

    pub(crate) fn input(&mut self, number: usize, dtype: DType, shape: Vec<Dim>) -> Tensor {
        self.root(dtype, shape, Root::Input(number))
    }

    fn root(&mut self, dtype: DType, shape: Vec<Dim>, root: Root) -> Tensor {
        let tensor = self.new_tensor(dtype, shape);
        let view = View::row_major(Buf(0), self.graph.ty(tensor.value));
        self.shown.insert(tensor.value, RootView { root, view });
        tensor
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

    /// Starts a new block, to which operations are added until [`Self::leave_block`].
    pub(crate) fn enter_block(&mut self) -> (BlockId, Outside) {
        self.graph.blocks.push(Block::default());
        let block = BlockId(u32::try_from(self.graph.blocks.len() - 1).expect("a graph has fewer than 2^32 blocks"));
        (block, Outside { block: std::mem::replace(&mut self.block, block), known: self.known.clone() })
    }

    /// Returns to the enclosing block. Host values that are known only inside are forgotten.
    pub(crate) fn leave_block(&mut self, outside: Outside) {
        let inside = std::mem::replace(&mut self.known, outside.known);
        // What is known before anything runs is known everywhere; a check inside holds only there.
        let is_check = |key: &host::Key| matches!(key, host::Key::Equal(..));
        let early: Vec<_> = inside.into_iter().filter(|(key, dim)| !is_check(key) && self.is_early(dim)).collect();
        self.known.extend(early);
        self.block = outside.block;
    }

    /// Ensures that two sizes are equal: now if both are known, else by a check when a call runs.
    pub(crate) fn check_equal(&mut self, a: &Dim, b: &Dim, what: &'static str) -> Result<()> {
        match (a.as_fixed(), b.as_fixed()) {
            _ if a == b => Ok(()),
            (Some(_), Some(_)) => Err(Fault::shapes(from_ref(a), from_ref(b))),
            _ => {
                let key = host::Key::Equal(a.clone(), b.clone());
                if self.known.insert(key, a.clone()).is_none() {
                    self.node(Op::Check(Check::Equal(a.clone(), b.clone(), what)));
                }
                Ok(())
            }
        }
    }

    /// Ensures that `low <= value <= high`: now if all are known, else by a check when a call runs.
    pub(crate) fn check_within(
        &mut self,
        value: &Dim,
        low: impl Into<Dim>,
        high: impl Into<Dim>,
        what: &'static str,
    ) -> Result<()> {
        let (low, high) = (low.into(), high.into());
        match (value.as_fixed(), low.as_fixed(), high.as_fixed()) {
            (Some(value), Some(low), Some(high)) => {
                ensure!((low..=high).contains(&value), Fault::Value { what, value });
            }
            _ => self.node(Op::Check(Check::Within { value: value.clone(), low, high, what })),
        }
        Ok(())
    }

    /// Ensures that sizes are neither negative nor above 32 bits.
    pub(crate) fn check_sizes(&mut self, sizes: &[Dim], what: &'static str) -> Result<()> {
        sizes.iter().try_for_each(|size| self.check_within(size, 0, i32::MAX, what))
    }

    pub(crate) fn check_shape(&mut self, a: &[Dim], b: &[Dim], what: &'static str) -> Result<()> {
        ensure!(a.len() == b.len(), Fault::shapes(a, b));
        a.iter().zip(b).try_for_each(|(a, b)| self.check_equal(a, b, what))
    }

    /// Adds an elementwise function of tensors, which are broadcast together.
    pub(crate) fn map<const N: usize>(
        &mut self,
        ins: &[Tensor; N],
        f: impl FnOnce(&Function, [Term; N]) -> Term,
    ) -> Result<Tensor> {
        self.map_list(ins, |function, terms| f(function, terms.try_into().expect("there is a term for each tensor")))
    }

    /// Same as `map`, for any number of tensors.
    pub(crate) fn map_list(&mut self, ins: &[Tensor], f: impl FnOnce(&Function, &[Term]) -> Term) -> Result<Tensor> {
        self.map_or_fill(Vec::new(), ins, f)
    }

    /// Adds a function of the index alone, in this shape.
    pub(crate) fn fill(&mut self, shape: Vec<Dim>, f: impl FnOnce(&Function) -> Term) -> Result<Tensor> {
        self.map_or_fill(shape, &[], |function, _| f(function))
    }

    /// The shape of the result is that of all tensors and `shape` broadcast together.
    fn map_or_fill(
        &mut self,
        mut shape: Vec<Dim>,
        ins: &[Tensor],
        f: impl FnOnce(&Function, &[Term]) -> Term,
    ) -> Result<Tensor> {
        let types: Vec<DType> = ins.iter().map(|tensor| tensor.dtype).collect();
        let expr = Function::of_list(&types, f);
        let dtype = expr.steps.last().expect("a function has a result").dtype;
        for tensor in ins {
            shape = self.broadcast_shapes(&shape, &tensor.shape)?;
        }
        let ins = ins.iter().map(|tensor| Ok(self.broadcast(tensor, &shape)?.value)).collect::<Result<Vec<_>>>()?;
        let out = self.new_tensor(dtype, shape);
        self.node(Op::Prim(Prim::Map { out: out.value, ins, expr }));
        Ok(out)
    }

    pub(crate) fn cast(&mut self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        if x.dtype == dtype {
            return Ok(x.clone());
        }
        self.map(std::array::from_ref(x), |f, [x]| f.cast(x, dtype))
    }

    /// Replaces `length` elements of `base` along an axis by `new`, which is cast and broadcast.
    pub(crate) fn update(
        &mut self,
        base: &Tensor,
        new: &Tensor,
        axis: usize,
        (start, length, step): (Dim, Dim, i64),
    ) -> Result<Tensor> {
        let shape = base.shape_with(axis, length)?;
        let new = self.cast(new, base.dtype)?;
        let is_repeated = |(have, want): (&Dim, &Dim)| have.is(1) && !want.is(1);
        let new = if new.rank() == shape.len() && !new.shape.iter().zip(&shape).any(is_repeated) {
            self.check_shape(&new.shape, &shape, "sizes that meet in one operation")?;
            new
        } else {
            self.broadcast(&new, &shape)?
        };
        let out = self.new_tensor(base.dtype, base.shape.clone());
        self.node(Op::Update { out: out.value, base: base.value, new: new.value, axis, start, step });
        Ok(out)
    }
}

/// The enclosing block while operations are added to another.
pub(crate) struct Outside {
    block: BlockId,
    known: FxHashMap<host::Key, Dim>,
}

/// The index of an axis; a negative number counts from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let from_start = if axis < 0 { axis + signed } else { axis };
    let found = usize::try_from(from_start).ok().filter(|axis| *axis < rank);
    found.ok_or(Fault::Axis { axis, rank })
}
