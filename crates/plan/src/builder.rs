//! Building a plan: buffers, views and steps. The rules of shapes and views live here, once.

mod view;

use crate::dim::{Dim, Var};
use crate::error::{Fault, Result, Shape};
use crate::function::{Function, Part};
use crate::plan::{Block, Buffer, BufferKind, Check, HostOp, PlanStep};
use crate::prim::{Buf, Prim, View};
use ptero_tensor::DType;
use std::collections::HashMap;

/// A plan in the making.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) blocks: Vec<Block>,
    /// The block that steps are added to.
    pub(crate) block: usize,
    /// The instruction that they come from.
    pub(crate) origin: (u32, u32),
    pub(crate) vars: u32,
    /// Host values that were asked for before, so that the same size stays the same value.
    known: HashMap<(u8, Dim, Dim), Dim>,
    /// The kind of buffers that steps write: temporaries, or what the init chain derives.
    pub(crate) derived: bool,
}

impl Builder {
    pub(crate) fn step(&mut self, step: PlanStep) {
        if let Some(block) = self.blocks.get_mut(self.block) {
            block.steps.push(step);
            block.origin.push(self.origin);
        }
    }

    pub(crate) fn prim(&mut self, prim: Prim) {
        self.step(PlanStep::Device(prim));
    }

    pub(crate) fn new_var(&mut self) -> Var {
        self.vars += 1;
        Var(self.vars - 1)
    }

    pub(crate) fn buffer(&mut self, dtype: DType, elements: Dim, kind: BufferKind) -> Buf {
        self.buffers.push(Buffer { dtype, elements, kind });
        Buf(u32::try_from(self.buffers.len() - 1).expect("a plan has fewer than 2^32 buffers"))
    }

    /// A new row-major tensor.
    pub(crate) fn new_tensor(&mut self, dtype: DType, shape: Vec<Dim>) -> View {
        let kind = if self.derived { BufferKind::Derived } else { BufferKind::Temporary };
        let buf = self.buffer(dtype, view::product(&shape), kind);
        View::row_major(buf, dtype, shape)
    }

    pub(crate) fn host(&mut self, op: HostOp) -> Dim {
        let out = self.new_var();
        self.step(PlanStep::Host { out, op });
        Dim::var(out)
    }

    /// The one element of an integer tensor. That of an input stays what it is throughout a call, so it is read once.
    pub(crate) fn item(&mut self, view: View) -> Dim {
        let buffer = self.buffers.get(view.buf.0 as usize);
        if !matches!(buffer.map(|buffer| &buffer.kind), Some(BufferKind::Input(_))) {
            return self.host(HostOp::Item(view));
        }
        let key = (6, Dim::fixed(view.buf.0.into()), view.offset.clone());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let dim = self.host(HostOp::Item(view));
        self.known.insert(key, dim.clone());
        dim
    }

    /// A host value of two others, computed once per pair within a block.
    fn host_pair(&mut self, kind: u8, a: Dim, b: Dim, op: fn(Dim, Dim) -> HostOp) -> Dim {
        if let Some(known) = self.known.get(&(kind, a.clone(), b.clone())) {
            return known.clone();
        }
        let dim = self.host(op(a.clone(), b.clone()));
        self.known.insert((kind, a, b), dim.clone());
        dim
    }

    /// Adds steps to a new block while `inside` runs. Host values first computed there are not known outside.
    pub(crate) fn in_new_block<T, E>(
        &mut self,
        inside: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<(usize, T), E> {
        self.blocks.push(Block::default());
        let (block, outside) = (self.blocks.len() - 1, self.block);
        let known = self.known.clone();
        self.block = block;
        let result = inside(self);
        (self.block, self.known) = (outside, known);
        Ok((block, result?))
    }

    pub(crate) fn min(&mut self, a: Dim, b: Dim) -> Dim {
        match (a.as_fixed(), b.as_fixed()) {
            (Some(a), Some(b)) => Dim::fixed(a.min(b)),
            _ if a == b => a,
            _ => self.host_pair(0, a, b, HostOp::Min),
        }
    }

    pub(crate) fn max(&mut self, a: Dim, b: Dim) -> Dim {
        match (a.as_fixed(), b.as_fixed()) {
            (Some(a), Some(b)) => Dim::fixed(a.max(b)),
            _ if a == b => a,
            _ => self.host_pair(1, a, b, HostOp::Max),
        }
    }

    pub(crate) fn floor_div(&mut self, a: Dim, b: Dim) -> Result<Dim> {
        match (a.as_fixed(), b.as_fixed()) {
            (_, Some(0)) => Err(Fault::Value { what: "divisor", value: 0 }),
            (Some(a), Some(b)) => Ok(Dim::fixed(floor_div(a, b))),
            _ => match a.divided_by(&b) {
                Some(exact) => Ok(exact),
                None => Ok(self.host_pair(2, a, b, HostOp::FloorDiv)),
            },
        }
    }

    pub(crate) fn modulo(&mut self, a: Dim, b: Dim) -> Result<Dim> {
        match (a.as_fixed(), b.as_fixed()) {
            (_, Some(0)) => Err(Fault::Value { what: "divisor", value: 0 }),
            (Some(x), Some(y)) => Ok(Dim::fixed(x - y * floor_div(x, y))),
            _ => Ok(self.host_pair(3, a, b, HostOp::Mod)),
        }
    }

    /// That two sizes are equal: known now, or checked when a call runs.
    pub(crate) fn same(&mut self, a: &Dim, b: &Dim, what: &'static str) -> Result<()> {
        match (a.as_fixed(), b.as_fixed()) {
            _ if a == b => Ok(()),
            (Some(_), Some(_)) => Err(Fault::Shapes { left: Shape(vec![a.clone()]), right: Shape(vec![b.clone()]) }),
            _ => {
                self.step(PlanStep::Check(Check::Equal(a.clone(), b.clone(), what)));
                Ok(())
            }
        }
    }

    /// That `low <= value <= high`, likewise.
    pub(crate) fn within(&mut self, value: &Dim, low: Dim, high: Dim, what: &'static str) -> Result<()> {
        if let (Some(value), Some(low), Some(high)) = (value.as_fixed(), low.as_fixed(), high.as_fixed()) {
            return if (low..=high).contains(&value) { Ok(()) } else { Err(Fault::Value { what, value }) };
        }
        self.step(PlanStep::Check(Check::Within { value: value.clone(), low, high, what }));
        Ok(())
    }

    pub(crate) fn same_shape(&mut self, a: &[Dim], b: &[Dim], what: &'static str) -> Result<()> {
        if a.len() != b.len() {
            return Err(Fault::Shapes { left: Shape(a.to_vec()), right: Shape(b.to_vec()) });
        }
        a.iter().zip(b).try_for_each(|(a, b)| self.same(a, b, what))
    }

    /// An elementwise function of views, which are broadcast together, into a new tensor.
    pub(crate) fn map<const N: usize>(
        &mut self,
        ins: &[View; N],
        f: impl FnOnce(&mut Function, [Part; N]) -> Part,
    ) -> Result<View> {
        let (mut function, mut inputs) = (Function::default(), 0..);
        let parts = ins.each_ref().map(|view| function.load(inputs.next().unwrap_or(0), view.dtype));
        let result = f(&mut function, parts);
        self.mapped(Vec::new(), ins, function, result)
    }

    /// Likewise, of any number of views.
    pub(crate) fn map_list(&mut self, ins: &[View], f: impl FnOnce(&mut Function, &[Part]) -> Part) -> Result<View> {
        let mut function = Function::default();
        let parts: Vec<Part> = ins.iter().enumerate().map(|(at, view)| function.load(at, view.dtype)).collect();
        let result = f(&mut function, &parts);
        self.mapped(Vec::new(), ins, function, result)
    }

    /// A function of the place alone, into a new tensor of this shape.
    pub(crate) fn fill(&mut self, shape: Vec<Dim>, f: impl FnOnce(&mut Function) -> Part) -> Result<View> {
        let mut function = Function::default();
        let result = f(&mut function);
        self.mapped(shape, &[], function, result)
    }

    /// `shape` is the least that the result has.
    fn mapped(&mut self, mut shape: Vec<Dim>, ins: &[View], function: Function, result: Part) -> Result<View> {
        for view in ins {
            shape = self.broadcast_shapes(&shape, &view.shape)?;
        }
        let ins = ins.iter().map(|view| self.broadcast(view, &shape)).collect::<Result<Vec<_>>>()?;
        let out = self.new_tensor(result.dtype, shape);
        self.prim(Prim::Map { out: out.clone(), ins, expr: function.finish(result) });
        Ok(out)
    }

    /// Writes a view into another, cast to its type and broadcast to its shape.
    pub(crate) fn copy_into(&mut self, out: View, x: &View) -> Result<()> {
        let x = self.broadcast(x, &out.shape.clone())?;
        let mut function = Function::default();
        let part = function.load(0, x.dtype);
        let part = function.cast(part, out.dtype);
        self.prim(Prim::Map { out, ins: vec![x], expr: function.finish(part) });
        Ok(())
    }

    /// Writes an integer into each element of a view.
    pub(crate) fn write_int(&mut self, out: View, value: Dim) {
        let mut function = Function::default();
        let part = function.int(value, out.dtype);
        self.prim(Prim::Map { out, ins: Vec::new(), expr: function.finish(part) });
    }

    /// A new row-major tensor with the elements of a view.
    pub(crate) fn copy(&mut self, x: &View) -> Result<View> {
        let out = self.new_tensor(x.dtype, x.shape.clone());
        self.copy_into(out.clone(), x)?;
        Ok(out)
    }

    pub(crate) fn cast(&mut self, x: &View, dtype: DType) -> Result<View> {
        if x.dtype == dtype {
            return Ok(x.clone());
        }
        self.map(std::array::from_ref(x), |f, [x]| f.cast(x, dtype))
    }
}

fn floor_div(a: i64, b: i64) -> i64 {
    let quotient = a.wrapping_div(b);
    if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient }
}

/// An axis given as a number that may count from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let from_start = if axis < 0 { axis + signed } else { axis };
    let found = usize::try_from(from_start).ok().filter(|axis| *axis < rank);
    found.ok_or(Fault::Axis { axis, rank })
}
