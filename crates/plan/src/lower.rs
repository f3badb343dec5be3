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

use crate::builder::{Builder, Tensor, axis};
use crate::cache::KvCache;
use crate::dim::Dim;
use crate::error::{Fault, PlanError, Result, Shape};
use crate::expr::{Binary, Compare, Unary};
use crate::graph::{BlockId, Graph, Op, StateId};
use crate::prim::Fold;
use ptero_pte::field::{Dst, DstValue, Float, Int, Src, Value};
use ptero_pte::{Delegate, Node, Role, Slot, VerifiedDelegate};
use std::collections::{BTreeMap, HashMap};

/// What a delegate is lowered with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The cache that `UpdateAndAttend` writes, for programs that keep it outside the graph.
    pub kv_cache: Option<KvCache>,
    /// Whether kernels that the program brings stay as they are, for a device that runs them.
    pub keeps_foreign: bool,
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Tensor(Tensor),
    Value(Dim),
}

/// A delegate being lowered.
struct Lowerer<'a> {
    builder: Builder,
    delegate: &'a Delegate,
    options: &'a Options,
    held: HashMap<Slot, Held>,
    /// The state of each slot that is one.
    states: BTreeMap<u32, StateId>,
    /// The layers of the cache outside the graph that were met so far.
    caches: HashMap<i32, cache::Layer>,
    /// What the rings among them hold.
    records: Vec<cache::Record>,
    /// The block that every call runs.
    main: BlockId,
    /// Where the walk is: the chains entered, outermost first.
    path: Vec<Place>,
}

/// A place in a chain.
struct Place {
    chain: usize,
    /// The instruction that comes next.
    next: usize,
    /// Whether the chain starts over when it ends.
    repeats: bool,
}

/// Lowers a delegate of a verified program; its constants are looked up in the program's named data.
///
/// # Errors
/// When shapes or types do not fit, or the delegate asks for what ptero cannot do.
pub fn lower(verified: VerifiedDelegate<'_>, options: &Options) -> Result<Graph, PlanError> {
    let delegate = verified.delegate();
    let mut lowerer = Lowerer {
        builder: Builder::default(),
        delegate,
        options,
        held: HashMap::new(),
        states: BTreeMap::new(),
        caches: HashMap::new(),
        records: Vec::new(),
        main: cache::NO_BLOCK,
        path: Vec::new(),
    };
    lowerer.constants(&verified.program().data_by_name());
    let init = delegate.init_chain().map(|chain| lowerer.init(chain)).transpose()?;
    lowerer.inputs();
    let main = lowerer.main()?;
    let outputs = delegate.output_map.iter().map(|output| lowerer.output(output.slot())).collect::<Result<_>>();
    let outputs = outputs.map_err(|fault| PlanError { chain: 0, index: 0, node: "output", fault })?;
    Ok(Graph { init, main, outputs, ..lowerer.builder.graph })
}

impl Lowerer<'_> {
    /// The chain that runs once. Its temporaries are gone afterwards; what it wrote into constants stays.
    fn init(&mut self, chain: usize) -> Result<BlockId, PlanError> {
        let before = self.held.clone();
        let block = self.block(|lowerer| lowerer.chain(chain, false))?;
        let delegate = self.delegate;
        // What every session shares is made before anything is known of a call.
        let is_fixed = |held: &Held| match held {
            Held::Tensor(tensor) => tensor.shape.iter().all(|size| size.as_fixed().is_some()),
            Held::Value(_) => true,
        };
        let lasts =
            |slot: &Slot| matches!(slot, Slot::Tensor(tensor) if delegate.role(*tensor) == Some(Role::Constant));
        self.held.retain(|slot, _| lasts(slot));
        if !self.held.values().all(is_fixed) {
            let fault = Fault::Unsupported("a constant of a size known only at run time");
            return Err(PlanError { chain, index: 0, node: "init", fault });
        }
        before.into_iter().filter(|(slot, _)| !lasts(slot)).for_each(|(slot, held)| drop(self.held.insert(slot, held)));
        Ok(block)
    }

    fn main(&mut self) -> Result<BlockId, PlanError> {
        let chain = self.delegate.main_chain_idx as usize;
        self.block(|lowerer| {
            lowerer.main = lowerer.builder.block;
            lowerer.read_states();
            lowerer.chain(chain, false)
        })
    }

    /// Runs `inside` with a new block to add to, and returns the block.
    fn block<E>(&mut self, inside: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<BlockId, E> {
        let (block, outside) = self.builder.enter_block();
        let result = inside(self);
        self.builder.leave_block(outside);
        result.map(|()| block)
    }

    fn chain(&mut self, chain: usize, repeats: bool) -> Result<(), PlanError> {
        let delegate = self.delegate;
        let nodes = delegate.instruction_chains.get(chain).expect("a verified program has the chains that it runs");
        self.path.push(Place { chain, next: 0, repeats });
        for (index, node) in nodes.iter().enumerate() {
            self.path.last_mut().into_iter().for_each(|place| place.next = index + 1);
            let number = |number| u32::try_from(number).unwrap_or(u32::MAX);
            self.builder.origin = (number(chain), number(index));
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

    fn tensor(&self, src: Src) -> Result<Tensor> {
        match self.held.get(&Slot::Tensor(src.0)) {
            Some(Held::Tensor(tensor)) => Ok(tensor.clone()),
            Some(Held::Value(_)) | None => Err(Fault::NoTensor),
        }
    }

    fn tensors(&self, list: &[Src]) -> Result<Vec<Tensor>> {
        list.iter().map(|src| self.tensor(*src)).collect()
    }

    fn maybe(&self, src: Option<Src>) -> Result<Option<Tensor>> {
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

    fn set(&mut self, dst: Dst, tensor: Tensor) -> Result<()> {
        if tensor.shape.iter().any(Dim::is_too_large) {
            return Err(Fault::TooLarge);
        }
        match self.states.get(&dst.0) {
            Some(state) => self.write_state(dst.0, *state, tensor),
            None => {
                self.held.insert(Slot::Tensor(dst.0), Held::Tensor(tensor));
                Ok(())
            }
        }
    }

    /// Writes all of a state. It keeps its shape and type.
    fn write_state(&mut self, slot: u32, state: StateId, tensor: Tensor) -> Result<()> {
        if matches!(self.held.get(&Slot::Tensor(slot)), Some(Held::Tensor(held)) if *held == tensor) {
            return Ok(());
        }
        let wanted = self.builder.graph.states.get(state.0 as usize).cloned().ok_or(Fault::NoTensor)?;
        if tensor.rank() != wanted.shape.len() || tensor.dtype != wanted.dtype {
            return Err(Fault::State { found: Shape(tensor.shape), wanted: Shape(wanted.shape) });
        }
        self.builder.same_shape(&tensor.shape, &wanted.shape, "state and what is written into it")?;
        let tensor = self.builder.broadcast(&tensor, &wanted.shape)?;
        self.builder.node(Op::Write { state, x: tensor.value });
        self.held.insert(Slot::Tensor(slot), Held::Tensor(tensor));
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
                let item = self.tensor(n.x).and_then(|tensor| self.builder.item(&tensor))?;
                self.set_value(n.out, item)
            }
            Node::SymSize(n) => {
                let tensor = self.tensor(n.a)?;
                let size = tensor.size(axis(n.dim.into(), tensor.rank())?)?.clone();
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
                let cast = self.tensor(n.x).and_then(|tensor| self.builder.cast(&tensor, n.scalar_type))?;
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
            // Where elements lie is not for a graph to say.
            Node::Contiguous(n) => self.set(n.out, self.tensor(n.x)?),
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
