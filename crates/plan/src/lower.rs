//! From nodes to primitives: one arm per node type, and the slots that nodes read and write.

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
use crate::error::{Fault, PlanError, Result, Shape, ensure};
use crate::expr::{Binary, Compare, Unary};
use crate::graph::{BlockId, Graph, Op, StateId};
use crate::prim::{Fold, Normalize};
use ptero_pte::field::{Dst, DstValue, Float, Int, Src, Value};
use ptero_pte::{Delegate, Node, Role, Slot, VerifiedDelegate};
use std::collections::{BTreeMap, HashMap};

/// What a delegate is lowered with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The cache that `UpdateAndAttend` writes, for programs that keep it outside the graph.
    pub kv_cache: Option<KvCache>,
    /// Keeps kernels that the program carries as they are, for a device that runs them.
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
    /// The layers of the cache outside the graph that were used so far.
    caches: HashMap<i32, cache::Layer>,
    /// The positions that the rings among them hold.
    records: Vec<cache::Record>,
    /// The block that every call runs.
    main: BlockId,
    /// The chains that are being lowered, outermost first.
    path: Vec<ChainPosition>,
}

/// Why a node is not lowered.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Refusal {
    Own(#[from] Fault),
    /// A fault in a chain that the node runs, with its instruction.
    Nested(#[from] PlanError),
}

/// How far a chain is lowered.
struct ChainPosition {
    chain: usize,
    /// The next instruction.
    next: usize,
    /// `true` for the body of a loop.
    repeats: bool,
}

/// Lowers a delegate of a verified program; its constants are looked up in the program's named data.
///
/// # Errors
/// If shapes or types do not fit, or the delegate needs what is not supported.
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
    /// Lowers the chain that runs once. Its temporaries are dropped; what it wrote into constants stays.
    fn init(&mut self, chain: usize) -> Result<BlockId, PlanError> {
        let before = self.held.clone();
        let block = self.block(|lowerer| lowerer.chain(chain, false))?;
        let delegate = self.delegate;
        // Sessions share these, so they cannot depend on a call.
        let is_fixed = |held: &Held| match held {
            Held::Tensor(tensor) => tensor.shape.iter().all(|size| size.as_fixed().is_some()),
            Held::Value(_) => true,
        };
        let lasts =
            |slot: &Slot| matches!(slot, Slot::Tensor(tensor) if delegate.role(*tensor) == Some(Role::Constant));
        self.held.retain(|slot, _| lasts(slot));
        let fault = Fault::Unsupported("a constant of a size known only at run time");
        ensure!(self.held.values().all(is_fixed), PlanError { chain, index: 0, node: "init", fault });
        self.held.extend(before.into_iter().filter(|(slot, _)| !lasts(slot)));
        Ok(block)
    }

    fn main(&mut self) -> Result<BlockId, PlanError> {
        let chain = self.delegate.main_chain_idx as usize;
        self.block(|lowerer| {
            lowerer.main = lowerer.builder.block;
            lowerer.read_states(|_| true);
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
        let nodes = chain_of(self.delegate, chain);
        self.path.push(ChainPosition { chain, next: 0, repeats });
        for (index, node) in nodes.iter().enumerate() {
            self.path.last_mut().expect("it was just entered").next = index + 1;
            let number = |number| u32::try_from(number).unwrap_or(u32::MAX);
            self.builder.origin = (number(chain), number(index));
            self.node(node).map_err(|refusal| match refusal {
                Refusal::Own(fault) => PlanError { chain, index, node: node.name(), fault },
                Refusal::Nested(error) => error,
            })?;
        }
        self.path.pop();
        Ok(())
    }

    fn tensor(&self, src: Src) -> Result<Tensor> {
        let Some(Held::Tensor(tensor)) = self.held.get(&Slot::Tensor(src.0)) else { return Err(Fault::NoTensor) };
        Ok(tensor.clone())
    }

    fn tensors(&self, list: &[Src]) -> Result<Vec<Tensor>> {
        list.iter().map(|src| self.tensor(*src)).collect()
    }

    fn maybe(&self, src: Option<Src>) -> Result<Option<Tensor>> {
        src.map(|src| self.tensor(src)).transpose()
    }

    /// A tensor and one of its axes; a negative number counts from the end.
    fn along(&self, src: Src, number: i32) -> Result<(Tensor, usize)> {
        let tensor = self.tensor(src)?;
        let axis = axis(number.into(), tensor.rank())?;
        Ok((tensor, axis))
    }

    fn value(&self, value: Value) -> Result<Dim> {
        let Some(Held::Value(dim)) = self.held.get(&Slot::Value(value.0)) else { return Err(Fault::NoInteger) };
        Ok(dim.clone())
    }

    /// An integer of a node. Literals are clamped to 32 bits as upstream's are: the largest means "to the end".
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
        ensure!(!tensor.shape.iter().any(Dim::is_too_large), Fault::TooLarge);
        let tensor = match self.states.get(&dst.0) {
            Some(state) => self.write_state(dst.0, *state, tensor)?,
            None => tensor,
        };
        self.held.insert(Slot::Tensor(dst.0), Held::Tensor(tensor));
        Ok(())
    }

    /// Writes all of a state, which keeps its shape and type, and returns what it holds.
    fn write_state(&mut self, slot: u32, state: StateId, tensor: Tensor) -> Result<Tensor> {
        if self.tensor(Src(slot)).is_ok_and(|held| held == tensor) {
            return Ok(tensor);
        }
        let wanted = self.builder.graph.states.get(state.0 as usize).cloned().ok_or(Fault::NoTensor)?;
        let is_alike = tensor.rank() == wanted.rank() && tensor.dtype == wanted.dtype;
        ensure!(is_alike, Fault::State { found: Shape(tensor.shape), wanted: Shape(wanted.shape) });
        self.builder.check_shape(&tensor.shape, &wanted.shape, "state and what is written into it")?;
        let tensor = self.builder.broadcast(&tensor, &wanted.shape)?;
        self.builder.node(Op::Write { state, x: tensor.value });
        Ok(tensor)
    }

    fn set_value(&mut self, dst: DstValue, dim: Dim) -> Result<()> {
        ensure!(!dim.is_too_large(), Fault::TooLarge);
        self.held.insert(Slot::Value(dst.0), Held::Value(dim));
        Ok(())
    }

    /// Sets a computed integer, which must fit in 32 bits as upstream's do.
    fn set_computed(&mut self, dst: DstValue, dim: Dim) -> Result<()> {
        self.builder.check_within(&dim, i64::from(i32::MIN), i64::from(i32::MAX), "32-bit integer")?;
        self.set_value(dst, dim)
    }

    fn float(&self, float: Float) -> Result<elementwise::Fill> {
        match float {
            #[allow(clippy::cast_possible_truncation, reason = "upstream holds it as f32")]
            Float::Literal(value) => Ok(elementwise::Fill::Float(value as f32)),
            Float::Value(value) => Ok(elementwise::Fill::Int(self.value(value)?)),
        }
    }

    /// One arm per node type.
    fn node(&mut self, node: &Node) -> Result<(), Refusal> {
        let (out, made) = match node {
            Node::Noop(_) => return Ok(()),
            Node::If(n) => return self.branch(n),
            Node::Scan(n) => return self.scan(n),
            Node::IdCopy(n) => (n.out, self.tensor(n.x)),

            Node::ItemInt(n) => {
                let item = self.builder.item(&self.tensor(n.x)?)?;
                return Ok(self.set_value(n.out, item)?);
            }
            Node::SymSize(n) => {
                let (tensor, axis) = self.along(n.a, n.dim)?;
                return Ok(self.set_value(n.out, tensor.size(axis)?.clone())?);
            }
            Node::AddInt(n) => return Ok(self.set_computed(n.out, &self.int(n.a)? + &self.int(n.b)?)?),
            Node::SubtractInt(n) => return Ok(self.set_computed(n.out, &self.int(n.a)? - &self.int(n.b)?)?),
            Node::MultiplyInt(n) => return Ok(self.set_computed(n.out, &self.int(n.a)? * &self.int(n.b)?)?),
            Node::FloorDivideInt(n) => {
                let quotient = self.builder.floor_div(self.int(n.a)?, self.int(n.b)?)?;
                return Ok(self.set_value(n.out, quotient)?);
            }
            Node::ModInt(n) => {
                let rest = self.builder.modulo(self.int(n.a)?, self.int(n.b)?)?;
                return Ok(self.set_value(n.out, rest)?);
            }

            Node::Add(n) => (n.out, self.binary([n.a, n.b], Binary::Add)),
            Node::Subtract(n) => (n.out, self.binary([n.a, n.b], Binary::Sub)),
            Node::Multiply(n) => (n.out, self.binary([n.a, n.b], Binary::Mul)),
            Node::Maximum(n) => (n.out, self.binary([n.a, n.b], Binary::Max)),
            Node::Minimum(n) => (n.out, self.binary([n.a, n.b], Binary::Min)),
            Node::FloorDivide(n) => (n.out, self.binary([n.a, n.b], Binary::FloorDiv)),
            Node::Remainder(n) => (n.out, self.binary([n.a, n.b], Binary::Remainder)),
            Node::Power(n) => (n.out, self.binary([n.a, n.b], Binary::Power)),
            Node::BitwiseAnd(n) => (n.out, self.binary([n.a, n.b], Binary::BitAnd)),
            Node::BitwiseOr(n) => (n.out, self.binary([n.a, n.b], Binary::BitOr)),
            Node::BitwiseXor(n) => (n.out, self.binary([n.a, n.b], Binary::BitXor)),
            Node::Divide(n) => (n.out, self.float_binary([n.a, n.b], Binary::Div)),
            Node::Atan2(n) => (n.out, self.float_binary([n.a, n.b], Binary::Atan2)),
            Node::LogAddExp(n) => (n.out, self.float_binary([n.a, n.b], Binary::LogAddExp)),
            Node::LogicalAnd(n) => (n.out, self.logical([n.a, n.b], Binary::And)),
            Node::LogicalOr(n) => (n.out, self.logical([n.a, n.b], Binary::Or)),
            Node::Less(n) => (n.out, self.compare([n.a, n.b], Compare::Less)),
            Node::LessEqual(n) => (n.out, self.compare([n.a, n.b], Compare::LessEqual)),
            Node::Greater(n) => (n.out, self.compare([n.a, n.b], Compare::Greater)),
            Node::GreaterEqual(n) => (n.out, self.compare([n.a, n.b], Compare::GreaterEqual)),
            Node::Equal(n) => (n.out, self.compare([n.a, n.b], Compare::Equal)),
            Node::NotEqual(n) => (n.out, self.compare([n.a, n.b], Compare::NotEqual)),

            Node::Sigmoid(n) => (n.out, self.float_unary(n.x, Unary::Sigmoid)),
            Node::Tanh(n) => (n.out, self.float_unary(n.x, Unary::Tanh)),
            Node::Rsqrt(n) => (n.out, self.float_unary(n.x, Unary::Rsqrt)),
            Node::Log(n) => (n.out, self.float_unary(n.x, Unary::Log)),
            Node::Exp(n) => (n.out, self.float_unary(n.x, Unary::Exp)),
            Node::Sin(n) => (n.out, self.float_unary(n.x, Unary::Sin)),
            Node::Cos(n) => (n.out, self.float_unary(n.x, Unary::Cos)),
            Node::Tan(n) => (n.out, self.float_unary(n.x, Unary::Tan)),
            Node::Arcsin(n) => (n.out, self.float_unary(n.x, Unary::Arcsin)),
            Node::Arccos(n) => (n.out, self.float_unary(n.x, Unary::Arccos)),
            Node::Arctan(n) => (n.out, self.float_unary(n.x, Unary::Arctan)),
            Node::Sinh(n) => (n.out, self.float_unary(n.x, Unary::Sinh)),
            Node::Cosh(n) => (n.out, self.float_unary(n.x, Unary::Cosh)),
            Node::Arcsinh(n) => (n.out, self.float_unary(n.x, Unary::Arcsinh)),
            Node::Arccosh(n) => (n.out, self.float_unary(n.x, Unary::Arccosh)),
            Node::Arctanh(n) => (n.out, self.float_unary(n.x, Unary::Arctanh)),
            Node::Log2(n) => (n.out, self.float_unary(n.x, Unary::Log2)),
            Node::Log10(n) => (n.out, self.float_unary(n.x, Unary::Log10)),
            Node::Log1p(n) => (n.out, self.float_unary(n.x, Unary::Log1p)),
            Node::Erf(n) => (n.out, self.float_unary(n.x, Unary::Erf)),
            Node::Expm1(n) => (n.out, self.float_unary(n.x, Unary::Expm1)),
            Node::Reciprocal(n) => (n.out, self.float_unary(n.x, Unary::Reciprocal)),
            Node::Sqrt(n) => (n.out, self.float_unary(n.x, Unary::Sqrt)),
            Node::Floor(n) => (n.out, self.rounding(n.x, Unary::Floor)),
            Node::Ceil(n) => (n.out, self.rounding(n.x, Unary::Ceil)),
            Node::Trunc(n) => (n.out, self.rounding(n.x, Unary::Trunc)),
            Node::Round(n) => (n.out, self.round(n)),
            Node::Square(n) => (n.out, self.unary(n.x, Unary::Square)),
            Node::Abs(n) => (n.out, self.unary(n.x, Unary::Abs)),
            Node::Neg(n) => (n.out, self.unary(n.x, Unary::Neg)),
            Node::Sign(n) => (n.out, self.unary(n.x, Unary::Sign)),
            Node::BitwiseInvert(n) => (n.out, self.unary(n.x, Unary::BitNot)),
            Node::LogicalNot(n) => (n.out, self.logical_not(n.x)),
            Node::Silu(n) => (n.out, self.silu(n.x)),
            Node::Gelu(n) => (n.out, self.gelu(n)),
            Node::AsType(n) => (n.out, self.builder.cast(&self.tensor(n.x)?, n.scalar_type)),
            Node::Where(n) => (n.out, self.select(n)),
            Node::Clip(n) => (n.out, self.clip(n)),
            Node::Full(n) => (n.out, self.filled(self.ints(&n.shape)?, self.float(n.v)?, n.scalar_type)),
            Node::FullLike(n) => (n.out, self.full_like(n)),
            Node::ARange(n) => (n.out, self.arange(n)),
            Node::Tri(n) => (n.out, self.tri(n)),
            Node::Tril(n) => (n.out, self.triangle(n.x, n.k, true)),
            Node::Triu(n) => (n.out, self.triangle(n.x, n.k, false)),

            Node::ExpandDims(n) => (n.out, self.expand_dims(n)),
            Node::Squeeze(n) => (n.out, self.squeeze(n)),
            Node::Reshape(n) => (n.out, self.builder.reshape(&self.tensor(n.x)?, &self.ints(&n.shape)?)),
            Node::Transpose(n) => (n.out, self.transpose(n)),
            Node::BroadcastTo(n) => (n.out, self.broadcast_to(n)),
            Node::AsStrided(n) => (n.out, self.as_strided(n)),
            // A graph has no memory layout.
            Node::Contiguous(n) => (n.out, self.tensor(n.x)),
            Node::Slice(n) => (n.out, self.slice(n)),
            Node::Split(n) => return Ok(self.split(n)?),
            Node::Tile(n) => (n.out, self.tile(n)),
            Node::Repeat(n) => (n.out, self.repeat(n)),
            Node::Roll(n) => (n.out, self.roll(n)),
            Node::Flip(n) => (n.out, self.flip(n)),
            Node::Pad(n) => (n.out, self.pad(n)),
            Node::Concatenate(n) => (n.out, self.concatenate(&self.tensors(&n.tensors)?, n.axis)),
            Node::Stack(n) => (n.out, self.stack(n)),

            Node::Sum(n) => (n.out, self.reduce(n.x, n.axes.as_deref(), n.keepdims, Fold::Sum)),
            Node::Prod(n) => (n.out, self.reduce(n.x, n.axes.as_deref(), n.keepdims, Fold::Prod)),
            Node::Max(n) => (n.out, self.reduce(n.x, n.axes.as_deref(), n.keepdims, Fold::Max)),
            Node::Min(n) => (n.out, self.reduce(n.x, n.axes.as_deref(), n.keepdims, Fold::Min)),
            Node::Any(n) => (n.out, self.reduce(n.x, n.axes.as_deref(), n.keepdims, Fold::Any)),
            Node::All(n) => (n.out, self.reduce(n.x, n.axes.as_deref(), n.keepdims, Fold::All)),
            Node::Mean(n) => (n.out, self.reduce(n.x, n.axes.as_deref(), n.keepdims, Fold::Mean)),
            Node::Var(n) => (n.out, self.reduce(n.x, n.axes.as_deref(), n.keepdims, Fold::Var { ddof: n.ddof })),
            Node::LogSumExp(n) => (n.out, self.reduce(n.x, n.axes.as_deref(), n.keepdims, Fold::LogSumExp)),
            Node::Std(n) => (n.out, self.std(n)),
            Node::Median(n) => (n.out, self.median(n)),
            Node::Argmax(n) => (n.out, self.arg_reduce(n.x, n.axis, n.keepdims, true)),
            Node::Argmin(n) => (n.out, self.arg_reduce(n.x, n.axis, n.keepdims, false)),
            Node::Softmax(n) => (n.out, self.softmax(n)),
            Node::Cumsum(n) => (n.out, self.cumsum(n)),
            Node::Sort(n) => (n.out, self.sort(n.x, n.axis, false)),
            Node::Argsort(n) => (n.out, self.sort(n.x, n.axis, true)),
            // A sorted tensor is partitioned.
            Node::Partition(n) => (n.out, self.sort(n.x, n.axis, false)),
            Node::ArgPartition(n) => (n.out, self.sort(n.x, n.axis, true)),

            Node::Take(n) => (n.out, self.take(n)),
            Node::TakeAlongAxis(n) => (n.out, self.take_along_axis(n)),
            Node::Gather(n) => (n.out, self.gather(n)),
            Node::ScatterAdd(n) => (n.out, self.scatter_add(n)),
            Node::SliceUpdate(n) => (n.out, self.slice_update(n)),
            Node::IndexCopy(n) => (n.out, self.index_copy(n)),
            Node::RandomBits(n) => (n.out, self.random_bits(n)),

            Node::Addmm(n) => (n.out, self.addmm(n)),
            Node::GatherMm(n) => (n.out, self.gather_mm(n)),
            Node::QuantizedMatmul(n) => (n.out, self.quantized_matmul(n)),
            Node::GatherQmm(n) => (n.out, self.gather_qmm(n)),
            Node::Dequantize(n) => (n.out, self.dequantize(n)),
            Node::Conv1D(n) => (n.out, self.conv([n.x, n.w], &[[n.stride, n.padding, n.dilation, 0]], n.groups, false)),
            Node::Conv2D(n) => {
                let height = [n.stride_h, n.padding_h, n.dilation_h, 0];
                let width = [n.stride_w, n.padding_w, n.dilation_w, 0];
                (n.out, self.conv([n.x, n.w], &[height, width], n.groups, false))
            }
            Node::Conv3D(n) => {
                let depth = [n.stride_d, n.padding_d, n.dilation_d, 0];
                let height = [n.stride_h, n.padding_h, n.dilation_h, 0];
                let width = [n.stride_w, n.padding_w, n.dilation_w, 0];
                (n.out, self.conv([n.x, n.w], &[depth, height, width], n.groups, false))
            }
            Node::ConvTranspose1D(n) => {
                (n.out, self.conv([n.x, n.w], &[[n.stride, n.padding, n.dilation, n.output_padding]], n.groups, true))
            }
            Node::ConvTranspose2D(n) => {
                let height = [n.stride_h, n.padding_h, n.dilation_h, n.output_padding_h];
                let width = [n.stride_w, n.padding_w, n.dilation_w, n.output_padding_w];
                (n.out, self.conv([n.x, n.w], &[height, width], n.groups, true))
            }
            Node::ConvTranspose3D(n) => {
                let depth = [n.stride_d, n.padding_d, n.dilation_d, n.output_padding_d];
                let height = [n.stride_h, n.padding_h, n.dilation_h, n.output_padding_h];
                let width = [n.stride_w, n.padding_w, n.dilation_w, n.output_padding_w];
                (n.out, self.conv([n.x, n.w], &[depth, height, width], n.groups, true))
            }

            Node::RMSNorm(n) => (n.out, self.norm(n.x, [n.weight, None], n.eps, Normalize::Rms)),
            Node::LayerNorm(n) => (n.out, self.norm(n.x, [n.weight, n.bias], n.eps, Normalize::Layer)),
            Node::Rope(n) => (n.out, self.rope(n)),
            Node::Sdpa(n) => (n.out, self.sdpa(n)),
            Node::UpdateAndAttend(n) => (n.out, self.update_and_attend(n)),

            Node::MetalKernel(n) => return Ok(self.metal_kernel(n)?),
        };
        Ok(self.set(out, made?)?)
    }
}

/// The nodes of a chain.
fn chain_of(delegate: &Delegate, chain: usize) -> &[Node] {
    delegate.instruction_chains.get(chain).expect("a verified program has the chains that it runs")
}
