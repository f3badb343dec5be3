//! Tools for patterns: following a value back to what it was computed from, and views of what was found.

use crate::dim::Dim;
use crate::expr::{Scalar, Step};
use crate::graph::{BlockId, Def, Graph, Node, Op, Origin, Uses, Value, ViewOp};
use crate::prim::{Buf, Prim, View};
use crate::view::product;
use ptero_tensor::DType;

/// What was found, or the instruction that prevents fusing, and why.
pub(super) type Matched<T> = Result<T, (Origin, &'static str)>;

/// The most view operations in a row that are followed.
const MOST_VIEWS: usize = 64;

/// A value as a view of another, its root, which counts as stored in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Traced {
    pub(super) root: Value,
    pub(super) view: View,
}

impl Traced {
    pub(super) fn all_of(graph: &Graph, root: Value) -> Self {
        Self { root, view: View::row_major(Buf(0), graph.ty(root)) }
    }

    /// Sizes and strides of the axes.
    pub(super) fn axes(&self) -> impl Iterator<Item = (&Dim, &Dim)> {
        self.view.shape.iter().zip(&self.view.strides)
    }

    /// Returns `true` if both have the same elements in the same order, ignoring axes of size one.
    pub(super) fn is_line(&self, other: &Self) -> bool {
        let is_same_place = self.root == other.root && self.view.offset == other.view.offset;
        is_same_place && self.axes().filter(|axis| !axis.0.is(1)).eq(other.axes().filter(|axis| !axis.0.is(1)))
    }

    /// Returns `true` if both have the same elements in the same shape.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.is_line(other) && self.view.shape == other.view.shape
    }

    /// Removes an axis along which elements repeat; `None` if they do not.
    pub(super) fn without(mut self, axis: usize) -> Option<Self> {
        self.axes().nth(axis).filter(|(size, stride)| stride.is(0) || size.is(1))?;
        self.view.shape.remove(axis);
        self.view.strides.remove(axis);
        Some(self)
    }

    /// Its one element, if it repeats only one.
    pub(super) fn element(self) -> Option<Self> {
        Some(Self { view: self.view.one_element()?, ..self })
    }

    /// The same elements as a value: the root, or the result of a view operation that is added to `nodes`.
    pub(super) fn to_value(&self, graph: &mut Graph, nodes: &mut Vec<Node>, origin: Origin) -> Value {
        let whole = Self::all_of(graph, self.root);
        if self.is_same(&whole) {
            return self.root;
        }
        let View { shape, strides, offset, dtype, .. } = self.view.clone();
        let is_reshape = offset.is(0) && self.view.is_row_major() && product(&shape) == product(&whole.view.shape);
        let how = match whole.order(self) {
            Some(order) if offset.is(0) => ViewOp::Permute(order),
            _ if is_reshape => ViewOp::Reshape,
            _ => ViewOp::Strided { strides, offset },
        };
        let out = graph.value(dtype, shape);
        nodes.push(Node { op: Op::View { out, x: self.root, how }, origin });
        out
    }

    /// The permutation of the axes that gives another view, if there is one.
    fn order(&self, other: &Self) -> Option<Vec<usize>> {
        let mut free: Vec<(usize, (&Dim, &Dim))> = self.axes().enumerate().collect();
        let axis = |(size, stride): (&Dim, &Dim)| {
            let is_it = |(_, own): &(usize, (&Dim, &Dim))| own.0 == size && (size.is(1) || own.1 == stride);
            Some(free.remove(free.iter().position(is_it)?).0)
        };
        let order = other.axes().map(axis).collect::<Option<Vec<usize>>>();
        order.filter(|_| free.is_empty())
    }
}

/// Follows values of a block back to what they are computed from.
#[derive(Clone, Copy)]
pub(super) struct Matcher<'a> {
    pub(super) graph: &'a Graph,
    pub(super) uses: &'a Uses,
    pub(super) block: BlockId,
    /// Also follows view operations of other blocks.
    pub(super) looks_outside: bool,
    /// The last instruction that was reached.
    pub(super) at: Origin,
}

impl<'a> Matcher<'a> {
    /// Declines at the last instruction that was reached.
    pub(super) fn decline<T>(&self, why: &'static str) -> Matched<T> {
        Err((self.at, why))
    }

    pub(super) fn ensure(&self, holds: bool, why: &'static str) -> Matched<()> {
        if holds { Ok(()) } else { self.decline(why) }
    }

    pub(super) fn some<T>(&self, found: Option<T>, why: &'static str) -> Matched<T> {
        found.map_or_else(|| self.decline(why), Ok)
    }

    /// Checks that no operation of the block has an effect or is for the host, except for what is allowed. All others are part
    /// of the pattern, since unused operations were removed.
    pub(super) fn nothing_else(&self, is_allowed: impl Fn(&Op) -> bool, why: &'static str) -> Matched<()> {
        let is_more = |op: &Op| (op.has_effect() || matches!(op, Op::Host(_))) && !is_allowed(op);
        let more = self.graph.block(self.block).nodes.iter().find(|node| is_more(&node.op));
        more.map_or(Ok(()), |node| Err((node.origin, why)))
    }

    /// Returns `true` if the block defines the root.
    pub(super) fn is_inside(&self, tensor: &Traced) -> bool {
        matches!(self.uses.def(tensor.root), Some(Def::Node(block, _) | Def::Param(block)) if block == self.block)
    }

    /// A value as a view of the value that its view operations start from.
    pub(super) fn trace(&self, value: Value) -> Traced {
        let (mut root, mut views) = (value, Vec::new());
        while let Some(Node { op: Op::View { x, how, .. }, .. }) = self.uses.node(self.graph, root)
            && (self.looks_outside || self.is_inside(&Traced::all_of(self.graph, root)))
            && views.len() < MOST_VIEWS
        {
            views.push((root, how));
            root = *x;
        }
        views.into_iter().rev().fold(Traced::all_of(self.graph, root), |tensor, (value, how)| {
            match tensor.view.apply(&self.graph.ty(value).shape, how) {
                Some(view) => Traced { view, ..tensor },
                None => Traced::all_of(self.graph, value),
            }
        })
    }

    /// The primitive that computes the root; it becomes part of the pattern.
    pub(super) fn source(&mut self, tensor: &Traced, why: &'static str) -> Matched<&'a Prim<Value>> {
        let node = self.some(self.uses.node(self.graph, tensor.root), why)?;
        let Op::Prim(prim) = &node.op else { return self.decline(why) };
        self.at = node.origin;
        Ok(prim)
    }

    /// The same, if the view is all of its result.
    pub(super) fn whole(&mut self, tensor: &Traced, why: &'static str) -> Matched<&'a Prim<Value>> {
        let prim = self.source(tensor, why)?;
        self.ensure(tensor.is_same(&Traced::all_of(self.graph, tensor.root)), why)?;
        Ok(prim)
    }

    /// The operands of the elementwise function that computes the root, if it is this scalar operation: on inputs of type `loads`
    /// (or bool); if `None`, on inputs that may be converted first.
    pub(super) fn peek<const N: usize>(
        &self,
        tensor: &Traced,
        op: Scalar,
        loads: Option<DType>,
    ) -> Option<[Traced; N]> {
        let Op::Prim(Prim::Map { ins, expr, .. }) = self.uses.op(self.graph, tensor.root)? else { return None };
        let operand = |arg: u16| {
            let mut step = expr.steps.get(usize::from(arg))?;
            if loads.is_none() && step.op == Scalar::Cast {
                step = expr.steps.get(usize::from(*step.args.first()?))?;
            }
            let is_type = loads.is_none_or(|dtype| [dtype, DType::Bool].contains(&step.dtype));
            let Scalar::Load(input) = step.op else { return None };
            ins.get(usize::from(input)).filter(|_| is_type).map(|value| self.trace(*value))
        };
        let last = expr.steps.last().filter(|step| step.op == op)?;
        let is_whole = tensor.is_line(&Traced::all_of(self.graph, tensor.root));
        let operands = last.args.into_iter().take(N).map(operand).collect::<Option<Vec<Traced>>>()?;
        operands.try_into().ok().filter(|_| is_whole)
    }

    /// The steps of the elementwise function that computes all of the root, if it reads no tensor.
    pub(super) fn peek_nullary(&self, tensor: &Traced) -> Option<&'a [Step]> {
        let Op::Prim(Prim::Map { ins, expr, .. }) = self.uses.op(self.graph, tensor.root)? else { return None };
        let is_whole = tensor.is_line(&Traced::all_of(self.graph, tensor.root));
        (ins.is_empty() && is_whole).then_some(expr.steps.as_slice())
    }

    /// The same as [`Matcher::peek`]; the function becomes part of the pattern.
    pub(super) fn operands<const N: usize>(
        &mut self,
        tensor: &Traced,
        op: Scalar,
        loads: Option<DType>,
        why: &'static str,
    ) -> Matched<[Traced; N]> {
        let found = self.peek(tensor, op, loads);
        self.source(tensor, why)?;
        self.some(found, why)
    }

    /// The operand of a conversion from a smaller float to `f32`.
    pub(super) fn widened(&self, tensor: &Traced) -> Option<Traced> {
        let from = [DType::F16, DType::Bf16].into_iter().find_map(|from| self.peek(tensor, Scalar::Cast, Some(from)));
        from.filter(|_| tensor.view.dtype == DType::F32).map(|[x]| x)
    }

    /// Returns `true` if all elements are a constant f32 of this value.
    pub(super) fn is_float(&self, tensor: &Traced, value: f32) -> bool {
        self.constant(tensor) == Some(&value.to_le_bytes())
    }

    /// The bytes of its one element, if the root is a constant.
    pub(super) fn constant(&self, tensor: &Traced) -> Option<&'a [u8]> {
        let Traced { root, view } = self.element(tensor)?;
        let Def::Constant(number) = self.uses.def(root)? else { return None };
        let element = usize::try_from(view.offset.as_fixed()?).ok()?;
        self.graph.constants.get(number)?.1.chunks_exact(view.dtype.size()).nth(element)
    }

    /// Its one element; also through view operations of other blocks, if the root has one element.
    pub(super) fn element(&self, tensor: &Traced) -> Option<Traced> {
        let is_one = product(&self.graph.ty(tensor.root).shape).is(1);
        let outside = Matcher { looks_outside: true, ..*self };
        if is_one { outside.trace(tensor.root) } else { tensor.clone() }.element()
    }
}
