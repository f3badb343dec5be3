//! From nodes to primitives: one arm per node type, and the slots that nodes speak through.

mod attention;
mod border;
mod cache;
mod control;
mod elementwise;
mod foreign;
mod index;
mod matrix;
mod reduce;
mod shape;

use crate::builder::{Builder, axis};
use crate::cache::KvCache;
use crate::dim::{Dim, Var};
use crate::error::{Fault, PlanError, Result, Shape};
use crate::expr::{Binary, Compare, Unary};
use crate::plan::{BufferKind, Plan};
use crate::prim::{Fold, View};
use ptero_pte::field::{Dst, DstValue, Float, Int, Src, Value};
use ptero_pte::{DType, Delegate, Node, Program, Role, Slot};
use std::collections::{BTreeSet, HashMap};

/// What a graph is lowered with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The cache that `UpdateAndAttend` writes, for programs that keep it outside the graph.
    pub kv_cache: Option<KvCache>,
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Tensor(View),
    Value(Dim),
}

/// A graph being lowered.
struct Lowerer<'a> {
    builder: Builder,
    graph: &'a Delegate,
    options: &'a Options,
    held: HashMap<Slot, Held>,
    /// The buffer of each state slot, as a whole.
    states: HashMap<u32, View>,
    /// The largest sizes that inputs declare, by the value they fill.
    largest: Vec<(Var, i64)>,
    /// The layers of the cache outside the graph that were met so far.
    caches: HashMap<i32, cache::Layer>,
    /// What the rings among them hold, of the blocks that are being lowered.
    records: Vec<cache::Record>,
    /// Where the walk is: the chains entered, outermost first.
    path: Vec<Place>,
    /// Slots that were given a copy because the state under them changed.
    moved: BTreeSet<Slot>,
}

/// A place in a chain.
struct Place {
    chain: usize,
    /// The instruction that comes next.
    next: usize,
    /// Whether the chain starts over when it ends.
    repeats: bool,
}

/// Lowers a graph of a verified program; its constants are looked up in the program's named data.
pub fn lower(program: &Program, graph: &Delegate, options: &Options) -> Result<Plan, PlanError> {
    let data = program.data_by_name();
    let mut lowerer = Lowerer {
        builder: Builder::default(),
        graph,
        options,
        held: HashMap::new(),
        states: HashMap::new(),
        largest: Vec::new(),
        caches: HashMap::new(),
        records: Vec::new(),
        path: Vec::new(),
        moved: BTreeSet::new(),
    };
    lowerer.constants(&data);
    let init = graph.init_chain().map(|chain| lowerer.init(chain)).transpose()?;
    let inputs = lowerer.inputs();
    let main = lowerer.main()?;
    let outputs = graph.output_map.iter().map(|output| lowerer.output(output.slot())).collect::<Result<_>>();
    let outputs = outputs.map_err(|fault| PlanError { chain: 0, index: 0, node: "output", fault })?;
    let Lowerer { builder: Builder { buffers, blocks, vars, .. }, largest, .. } = lowerer;
    Ok(Plan { buffers, blocks, main, init, vars, largest, inputs, outputs })
}

impl Lowerer<'_> {
    /// The chain that runs once. Its temporaries are gone afterwards; what it wrote into constants stays.
    fn init(&mut self, chain: usize) -> Result<usize, PlanError> {
        self.builder.derived = true;
        let before = self.held.clone();
        let block = self.block(|lowerer| lowerer.chain(chain, false))?;
        self.builder.derived = false;
        let graph = self.graph;
        let lasts = |slot: &Slot| matches!(slot, Slot::Tensor(tensor) if graph.role(*tensor) == Some(Role::Constant));
        self.held.retain(|slot, _| lasts(slot));
        before.into_iter().filter(|(slot, _)| !lasts(slot)).for_each(|(slot, held)| drop(self.held.insert(slot, held)));
        Ok(block)
    }

    fn main(&mut self) -> Result<usize, PlanError> {
        let chain = usize::try_from(self.graph.main_chain_idx).unwrap_or(usize::MAX);
        self.block(|lowerer| lowerer.chain(chain, false))
    }

    /// Runs `inside` with a new block to add to, and gives the block.
    fn block<E>(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<usize, E> {
        // The builder is moved out and back so that both can be borrowed at once.
        let mut builder = std::mem::take(&mut self.builder);
        let result = builder.in_new_block(|builder| {
            self.builder = std::mem::take(builder);
            let result = inside(self);
            self.close_records();
            *builder = std::mem::take(&mut self.builder);
            result
        });
        self.builder = builder;
        result.map(|(block, ())| block)
    }

    fn chain(&mut self, chain: usize, repeats: bool) -> Result<(), PlanError> {
        let graph = self.graph;
        let nodes = graph.instruction_chains.get(chain).map(Vec::as_slice).unwrap_or_default();
        self.path.push(Place { chain, next: 0, repeats });
        for (index, node) in nodes.iter().enumerate() {
            self.path.last_mut().into_iter().for_each(|place| place.next = index + 1);
            let place = |number| u32::try_from(number).unwrap_or(u32::MAX);
            self.builder.origin = (place(chain), place(index));
            match node {
                // A fault in a nested chain has its own place already.
                Node::If(branch) => self.branch(branch)?,
                Node::Scan(scan) => self.scan(scan, chain, index)?,
                _ => self.node(node).map_err(|fault| PlanError { chain, index, node: node.name(), fault })?,
            }
        }
        self.path.pop();
        Ok(())
    }

    fn tensor(&self, src: Src) -> Result<View> {
        match self.held.get(&Slot::Tensor(src.0)) {
            Some(Held::Tensor(view)) => Ok(view.clone()),
            Some(Held::Value(_)) | None => Err(Fault::NoTensor),
        }
    }

    fn tensors(&self, list: &[Src]) -> Result<Vec<View>> {
        list.iter().map(|src| self.tensor(*src)).collect()
    }

    fn maybe(&self, src: Option<Src>) -> Result<Option<View>> {
        src.map(|src| self.tensor(src)).transpose()
    }

    fn value(&self, value: Value) -> Result<Dim> {
        match self.held.get(&Slot::Value(value.0)) {
            Some(Held::Value(dim)) => Ok(dim.clone()),
            Some(Held::Tensor(_)) | None => Err(Fault::NoInteger),
        }
    }

    /// An integer of a node. Literals are cut to 32 bits, as upstream: the largest means "to the end".
    fn int(&self, int: Int) -> Result<Dim> {
        match int {
            Int::Literal(value) => Ok(Dim::fixed(value.clamp(i32::MIN.into(), i32::MAX.into()))),
            Int::Value(value) => self.value(value),
        }
    }

    fn ints(&self, list: &[Int]) -> Result<Vec<Dim>> {
        list.iter().map(|int| self.int(*int)).collect()
    }

    fn set(&mut self, dst: Dst, view: View) -> Result<()> {
        if view.shape.iter().chain(&view.strides).chain([&view.offset]).any(Dim::is_too_large) {
            return Err(Fault::TooLarge);
        }
        match self.states.get(&dst.0).cloned() {
            Some(state) => self.replace_state(dst.0, state, view),
            None => {
                self.held.insert(Slot::Tensor(dst.0), Held::Tensor(view));
                Ok(())
            }
        }
    }

    /// Writes all of a state. It keeps its shape and type: the buffer is not to be had anew in every call.
    fn replace_state(&mut self, slot: u32, state: View, view: View) -> Result<()> {
        if view == state {
            return Ok(());
        }
        if view.rank() != state.rank() || view.dtype != state.dtype {
            return Err(Fault::State { found: Shape(view.shape), wanted: Shape(state.shape) });
        }
        self.builder.same_shape(&view.shape, &state.shape, "state and what is written into it")?;
        // What is written may show the state itself in another order.
        let view = if view.buf == state.buf { self.builder.copy(&view)? } else { view };
        self.keep_old(slot, &state, false)?;
        self.builder.copy_into(state.clone(), &view)?;
        self.held.insert(Slot::Tensor(slot), Held::Tensor(state));
        Ok(())
    }

    /// Before a state is written in place: other slots that still show its old elements get a copy, if anyone will look, or
    /// in any case.
    fn keep_old(&mut self, slot: u32, state: &View, in_any_case: bool) -> Result<()> {
        let shows = |held: &Held| matches!(held, Held::Tensor(view) if view.buf == state.buf);
        let others = self.held.iter().filter(|(other, held)| **other != Slot::Tensor(slot) && shows(held));
        let others = others.map(|(other, _)| *other).filter(|other| in_any_case || self.is_read_later(*other));
        for other in others.collect::<BTreeSet<Slot>>() {
            if let Some(Held::Tensor(view)) = self.held.get(&other).cloned() {
                let copy = self.builder.copy(&view)?;
                self.held.insert(other, Held::Tensor(copy));
                self.moved.insert(other);
            }
        }
        Ok(())
    }

    fn set_value(&mut self, dst: DstValue, dim: Dim) -> Result<()> {
        if dim.is_too_large() {
            return Err(Fault::TooLarge);
        }
        self.held.insert(Slot::Value(dst.0), Held::Value(dim));
        Ok(())
    }

    /// A computed integer, which must fit 32 bits as upstream's do.
    fn set_computed(&mut self, dst: DstValue, dim: Dim) -> Result<()> {
        let (low, high) = (Dim::fixed(i32::MIN.into()), Dim::fixed(i32::MAX.into()));
        self.builder.within(&dim, low, high, "32-bit integer")?;
        self.set_value(dst, dim)
    }

    /// The one integer of a tensor. That of a constant is known now.
    fn item(&mut self, view: View) -> Result<Dim> {
        for size in view.shape.clone() {
            self.builder.same(&size, &Dim::fixed(1), "the size of a tensor that one integer is read from")?;
        }
        if !matches!(
            view.dtype,
            DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U32
        ) {
            return Err(Fault::DType { what: "an integer read from a tensor", dtype: view.dtype });
        }
        let buffer = self.builder.buffers.get(view.buf.0 as usize);
        if let (Some(BufferKind::Constant(data)), DType::I64) = (buffer.map(|buffer| &buffer.kind), view.dtype)
            && let Some(raw) = data.first_chunk::<8>()
        {
            #[allow(clippy::cast_possible_truncation, reason = "upstream reads the low half")]
            return Ok(Dim::fixed(i64::from(i64::from_le_bytes(*raw) as i32)));
        }
        Ok(self.builder.item(view))
    }

    fn float(&self, float: Float) -> Result<elementwise::Fill> {
        match float {
            #[allow(clippy::cast_possible_truncation, reason = "upstream holds it as f32")]
            Float::Literal(value) => Ok(elementwise::Fill::Float(value as f32)),
            Float::Value(value) => Ok(elementwise::Fill::Int(self.value(value)?)),
        }
    }

    /// One arm per node type; what a node means is the call.
    fn node(&mut self, node: &Node) -> Result<()> {
        match node {
            Node::Noop(_) => Ok(()),
            Node::IdCopy(n) => self.set(n.out, self.tensor(n.x)?),

            Node::ItemInt(n) => {
                let item = self.tensor(n.x).and_then(|view| self.item(view))?;
                self.set_value(n.out, item)
            }
            Node::SymSize(n) => {
                let view = self.tensor(n.a)?;
                let size = view.size(axis(n.dim.into(), view.rank())?)?.clone();
                self.set_value(n.out, size)
            }
            Node::AddInt(n) => self.set_computed(n.out, &self.int(n.a)? + &self.int(n.b)?),
            Node::SubtractInt(n) => self.set_computed(n.out, &self.int(n.a)? - &self.int(n.b)?),
            Node::MultiplyInt(n) => self.set_computed(n.out, &self.int(n.a)? * &self.int(n.b)?),
            Node::FloorDivideInt(n) => {
                let quotient = self.builder.floor_div(self.int(n.a)?, self.int(n.b)?)?;
                self.set_value(n.out, quotient)
            }
            Node::ModInt(n) => {
                let rest = self.builder.modulo(self.int(n.a)?, self.int(n.b)?)?;
                self.set_value(n.out, rest)
            }

            Node::Add(n) => self.binary(n.a, n.b, n.out, Binary::Add),
            Node::Subtract(n) => self.binary(n.a, n.b, n.out, Binary::Sub),
            Node::Multiply(n) => self.binary(n.a, n.b, n.out, Binary::Mul),
            Node::Maximum(n) => self.binary(n.a, n.b, n.out, Binary::Max),
            Node::Minimum(n) => self.binary(n.a, n.b, n.out, Binary::Min),
            Node::FloorDivide(n) => self.binary(n.a, n.b, n.out, Binary::FloorDiv),
            Node::Remainder(n) => self.binary(n.a, n.b, n.out, Binary::Remainder),
            Node::Power(n) => self.binary(n.a, n.b, n.out, Binary::Power),
            Node::BitwiseAnd(n) => self.binary(n.a, n.b, n.out, Binary::BitAnd),
            Node::BitwiseOr(n) => self.binary(n.a, n.b, n.out, Binary::BitOr),
            Node::BitwiseXor(n) => self.binary(n.a, n.b, n.out, Binary::BitXor),
            Node::Divide(n) => self.float_binary(n.a, n.b, n.out, Binary::Div),
            Node::Atan2(n) => self.float_binary(n.a, n.b, n.out, Binary::Atan2),
            Node::LogAddExp(n) => self.float_binary(n.a, n.b, n.out, Binary::LogAddExp),
            Node::LogicalAnd(n) => self.logical(n.a, n.b, n.out, Binary::And),
            Node::LogicalOr(n) => self.logical(n.a, n.b, n.out, Binary::Or),
            Node::Less(n) => self.compare(n.a, n.b, n.out, Compare::Less),
            Node::LessEqual(n) => self.compare(n.a, n.b, n.out, Compare::LessEqual),
            Node::Greater(n) => self.compare(n.a, n.b, n.out, Compare::Greater),
            Node::GreaterEqual(n) => self.compare(n.a, n.b, n.out, Compare::GreaterEqual),
            Node::Equal(n) => self.compare(n.a, n.b, n.out, Compare::Equal),
            Node::NotEqual(n) => self.compare(n.a, n.b, n.out, Compare::NotEqual),

            Node::Sigmoid(n) => self.float_unary(n.x, n.out, Unary::Sigmoid),
            Node::Tanh(n) => self.float_unary(n.x, n.out, Unary::Tanh),
            Node::Rsqrt(n) => self.float_unary(n.x, n.out, Unary::Rsqrt),
            Node::Log(n) => self.float_unary(n.x, n.out, Unary::Log),
            Node::Exp(n) => self.float_unary(n.x, n.out, Unary::Exp),
            Node::Sin(n) => self.float_unary(n.x, n.out, Unary::Sin),
            Node::Cos(n) => self.float_unary(n.x, n.out, Unary::Cos),
            Node::Tan(n) => self.float_unary(n.x, n.out, Unary::Tan),
            Node::Arcsin(n) => self.float_unary(n.x, n.out, Unary::Arcsin),
            Node::Arccos(n) => self.float_unary(n.x, n.out, Unary::Arccos),
            Node::Arctan(n) => self.float_unary(n.x, n.out, Unary::Arctan),
            Node::Sinh(n) => self.float_unary(n.x, n.out, Unary::Sinh),
            Node::Cosh(n) => self.float_unary(n.x, n.out, Unary::Cosh),
            Node::Arcsinh(n) => self.float_unary(n.x, n.out, Unary::Arcsinh),
            Node::Arccosh(n) => self.float_unary(n.x, n.out, Unary::Arccosh),
            Node::Arctanh(n) => self.float_unary(n.x, n.out, Unary::Arctanh),
            Node::Log2(n) => self.float_unary(n.x, n.out, Unary::Log2),
            Node::Log10(n) => self.float_unary(n.x, n.out, Unary::Log10),
            Node::Log1p(n) => self.float_unary(n.x, n.out, Unary::Log1p),
            Node::Erf(n) => self.float_unary(n.x, n.out, Unary::Erf),
            Node::Expm1(n) => self.float_unary(n.x, n.out, Unary::Expm1),
            Node::Reciprocal(n) => self.float_unary(n.x, n.out, Unary::Reciprocal),
            Node::Sqrt(n) => self.float_unary(n.x, n.out, Unary::Sqrt),
            Node::Floor(n) => self.rounding(n.x, n.out, Unary::Floor),
            Node::Ceil(n) => self.rounding(n.x, n.out, Unary::Ceil),
            Node::Trunc(n) => self.rounding(n.x, n.out, Unary::Trunc),
            Node::Round(n) => self.round(n),
            Node::Square(n) => self.unary(n.x, n.out, Unary::Square),
            Node::Abs(n) => self.unary(n.x, n.out, Unary::Abs),
            Node::Neg(n) => self.unary(n.x, n.out, Unary::Neg),
            Node::Sign(n) => self.unary(n.x, n.out, Unary::Sign),
            Node::BitwiseInvert(n) => self.unary(n.x, n.out, Unary::BitNot),
            Node::LogicalNot(n) => self.logical_not(n.x, n.out),
            Node::Silu(n) => self.silu(n.x, n.out),
            Node::Gelu(n) => self.gelu(n),
            Node::AsType(n) => {
                let cast = self.tensor(n.x).and_then(|view| self.builder.cast(&view, n.scalar_type))?;
                self.set(n.out, cast)
            }
            Node::Where(n) => self.select(n),
            Node::Clip(n) => self.clip(n),
            Node::Full(n) => self.full(n),
            Node::FullLike(n) => self.full_like(n),
            Node::ARange(n) => self.arange(n),
            Node::Tri(n) => self.tri(n),
            Node::Tril(n) => self.triangle(n.x, n.out, n.k, true),
            Node::Triu(n) => self.triangle(n.x, n.out, n.k, false),

            Node::ExpandDims(n) => self.expand_dims(n),
            Node::Squeeze(n) => self.squeeze(n),
            Node::Reshape(n) => self.reshape(n),
            Node::Transpose(n) => self.transpose(n),
            Node::BroadcastTo(n) => self.broadcast_to(n),
            Node::AsStrided(n) => self.as_strided(n),
            Node::Contiguous(n) => {
                let copy = self.tensor(n.x).and_then(|view| self.builder.row_major(&view))?;
                self.set(n.out, copy)
            }
            Node::Slice(n) => self.slice(n),
            Node::Split(n) => self.split(n),
            Node::Tile(n) => self.tile(n),
            Node::Repeat(n) => self.repeat(n),
            Node::Roll(n) => self.roll(n),
            Node::Flip(n) => self.flip(n),
            Node::Pad(n) => self.pad(n),
            Node::Concatenate(n) => {
                let parts = self.tensors(&n.tensors)?;
                self.concatenate(&parts, n.axis.into(), n.out)
            }
            Node::Stack(n) => self.stack(n),

            Node::Sum(n) => self.reduce(n.x, n.out, n.axes.as_deref(), n.keepdims, Fold::Sum),
            Node::Prod(n) => self.reduce(n.x, n.out, n.axes.as_deref(), n.keepdims, Fold::Prod),
            Node::Max(n) => self.reduce(n.x, n.out, n.axes.as_deref(), n.keepdims, Fold::Max),
            Node::Min(n) => self.reduce(n.x, n.out, n.axes.as_deref(), n.keepdims, Fold::Min),
            Node::Any(n) => self.reduce(n.x, n.out, n.axes.as_deref(), n.keepdims, Fold::Any),
            Node::All(n) => self.reduce(n.x, n.out, n.axes.as_deref(), n.keepdims, Fold::All),
            Node::Mean(n) => self.reduce(n.x, n.out, n.axes.as_deref(), n.keepdims, Fold::Mean),
            Node::Var(n) => self.reduce(n.x, n.out, n.axes.as_deref(), n.keepdims, Fold::Var { ddof: n.ddof }),
            Node::LogSumExp(n) => self.reduce(n.x, n.out, n.axes.as_deref(), n.keepdims, Fold::LogSumExp),
            Node::Std(n) => self.std(n),
            Node::Median(n) => self.median(n),
            Node::Argmax(n) => self.arg_reduce(n.x, n.out, n.axis, n.keepdims, true),
            Node::Argmin(n) => self.arg_reduce(n.x, n.out, n.axis, n.keepdims, false),
            Node::Softmax(n) => self.softmax(n),
            Node::Cumsum(n) => self.cumsum(n),
            Node::Sort(n) => self.sort(n.x, n.out, n.axis, false),
            Node::Argsort(n) => self.sort(n.x, n.out, n.axis, true),
            // Sorted is more than partitioned.
            Node::Partition(n) => self.sort(n.x, n.out, n.axis, false),
            Node::ArgPartition(n) => self.sort(n.x, n.out, n.axis, true),

            Node::Take(n) => self.take(n),
            Node::TakeAlongAxis(n) => self.take_along_axis(n),
            Node::Gather(n) => self.gather(n),
            Node::ScatterAdd(n) => self.scatter_add(n),
            Node::SliceUpdate(n) => self.slice_update(n),
            Node::IndexCopy(n) => self.index_copy(n),
            Node::RandomBits(n) => self.random_bits(n),

            Node::Addmm(n) => self.addmm(n),
            Node::GatherMm(n) => self.gather_mm(n),
            Node::QuantizedMatmul(n) => self.quantized_matmul(n),
            Node::GatherQmm(n) => self.gather_qmm(n),
            Node::Dequantize(n) => self.dequantize(n),
            Node::Conv1D(n) => self.conv(n.x, n.w, n.out, &matrix::Window::of_1d(n)),
            Node::Conv2D(n) => self.conv(n.x, n.w, n.out, &matrix::Window::of_2d(n)),
            Node::Conv3D(n) => self.conv(n.x, n.w, n.out, &matrix::Window::of_3d(n)),
            Node::ConvTranspose1D(n) => self.conv(n.x, n.w, n.out, &matrix::Window::of_transposed_1d(n)),
            Node::ConvTranspose2D(n) => self.conv(n.x, n.w, n.out, &matrix::Window::of_transposed_2d(n)),
            Node::ConvTranspose3D(n) => self.conv(n.x, n.w, n.out, &matrix::Window::of_transposed_3d(n)),

            Node::RMSNorm(n) => self.rms_norm(n),
            Node::LayerNorm(n) => self.layer_norm(n),
            Node::Rope(n) => self.rope(n),
            Node::Sdpa(n) => self.sdpa(n),
            Node::UpdateAndAttend(n) => self.update_and_attend(n),

            Node::MetalKernel(n) => self.metal_kernel(n),
            // `chain` has handled these: they run chains.
            Node::If(_) | Node::Scan(_) => Ok(()),
        }
    }
}
