//! A graph of values: what a method computes, before memory is assigned.
//!
//! Every value is the result of one operation and never changes. Primitives are pure; reshaping, transposing, slicing and
//! broadcasting are view operations, which are free on a device with strides; reads and writes of state are ordered operations.
//! Integers of the host are a second graph ([`Graph::host`]).

mod print;
mod unused;
mod uses;
mod verify;

use crate::dim::{Dim, Var};
use crate::host::{Check, HostOp};
use crate::prim::Prim;
use ptero_tensor::{Bytes, DType};
use std::sync::Arc;

pub use unused::drop_unused;
pub(crate) use uses::Place;
pub use uses::{Def, Uses};
pub use verify::GraphError;

/// A value: its number in [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u32);

/// A state tensor: its number in [`Graph::states`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// A block: its number in [`Graph::blocks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

/// The instruction that something came from: chain, and index in the chain.
pub type Origin = (u32, u32);

/// Element type and sizes of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Type {
    /// The type of its elements.
    pub dtype: DType,
    /// Its sizes, outermost first.
    pub shape: Vec<Dim>,
}

/// A method, lowered.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The types of all values.
    pub values: Vec<Type>,
    /// Weights, as stored in the file, in row-major order.
    pub constants: Vec<(Value, Bytes)>,
    /// Tensors that persist between calls, initially zero; their sizes are fixed.
    pub states: Vec<Type>,
    /// How the host gets each of its integers. A definition mentions only values before it.
    pub host: Vec<HostOp>,
    /// Integers that a session keeps between calls.
    pub session_ints: Vec<SessionInt>,
    /// What the caller gives, in the program's order.
    pub inputs: Vec<Input>,
    /// What the caller gets, in the program's order.
    pub outputs: Vec<Output>,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// The block that every call runs.
    pub main: BlockId,
    /// The block that runs once, before the first call. `main` may use its values.
    pub init: Option<BlockId>,
}

/// An integer that a session keeps: zero at first and after a reset. Its definitions are known before anything runs.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionInt {
    /// Its value once a call starts to run.
    pub at_start: Dim,
    /// Its value once the call has succeeded.
    pub at_end: Dim,
}

/// An input.
#[derive(Clone, Debug)]
pub enum Input {
    /// A tensor of the type of the value. Each size is fixed, or defines one [`HostOp::Given`].
    Tensor(Value),
    /// An integer, which defines the host value.
    Int(Var),
}

/// An output of a graph, or of a plan (of [`crate::prim::ViewId`]s).
#[derive(Clone, Debug)]
pub enum Output<T = Value> {
    /// A tensor. The caller may want another type; then elements are cast as by [`crate::expr::Scalar::Cast`].
    Tensor(T),
    /// An integer.
    Int(Dim),
}

impl<T: Copy> Output<T> {
    /// The tensor; `None` for an integer of the host.
    pub fn tensor(&self) -> Option<T> {
        match self {
            Output::Tensor(tensor) => Some(*tensor),
            Output::Int(_) => None,
        }
    }
}

/// A straight run of operations.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The operations, in order.
    pub nodes: Vec<Node>,
    /// The values that the operation that runs the block receives.
    pub results: Vec<Value>,
}

/// An operation and where it came from.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// The instruction.
    pub origin: Origin,
}

/// An operation. `out` is the result, `x` the operand.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the comment of a variant explains its fields")]
#[allow(clippy::large_enum_variant, reason = "nearly all operations are of the largest kind")]
pub enum Op {
    /// Computes.
    Prim(Prim<Value>),
    /// The elements of `x` in another shape or order, or some of them.
    View { out: Value, x: Value, how: ViewOp },
    /// Concatenates tensors of one type along an axis.
    Concat { out: Value, parts: Vec<Value>, axis: usize },
    /// `base` with its elements `start`, `start + step`, … along an axis replaced by those of `new`, as many as `new` has there.
    /// `out` and `new` have the type of `base`; `step` is at least 1.
    Update { out: Value, base: Value, new: Value, axis: usize, start: Dim, step: i64 },
    /// What a state holds now.
    Read { out: Value, state: StateId },
    /// Replaces what a state holds by `x`, which has its type.
    Write { state: StateId, x: Value },
    /// The point from which on a host value is known; one that is known early needs none.
    Host(Var),
    /// Fails the call if it does not hold.
    Check(Check),
    /// Runs `then` if `condition` is not zero, else `otherwise`. `outs` are the results of the block that ran.
    If { condition: Dim, then: BlockId, otherwise: BlockId, outs: Vec<Value> },
    /// Runs a block a number of times.
    Loop(Box<Loop>),
    /// A kernel that the program carries as source text. Runs only on devices that declare `foreign_kernels`.
    Foreign(Box<Foreign>),
}

/// What a view operation shows of its operand. The sizes are those of the result.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the comment of a variant explains its fields")]
pub enum ViewOp {
    /// The same elements in row-major order in another shape.
    Reshape,
    /// Axis `i` of the result is axis `order[i]` of the operand.
    Permute(Vec<usize>),
    /// Shapes are aligned at the right; sizes of 1 and missing axes repeat.
    Broadcast,
    /// Elements `start`, `start + step`, … along an axis; a negative step goes backwards.
    Slice { axis: usize, start: Dim, step: i64 },
    /// Any elements of an operand in row-major order: a stride for each axis of the result, and the first element.
    Strided { strides: Vec<Dim>, offset: Dim },
}

/// A loop. The results of its body are the next round's `carried`, then a slice of each of `stacked`.
#[derive(Clone, Debug)]
pub struct Loop {
    /// The host value that counts rounds, a [`HostOp::Index`].
    pub index: Var,
    /// The number of rounds.
    pub count: Dim,
    /// The block.
    pub body: BlockId,
    /// Values passed from round to round.
    pub carried: Vec<Carried>,
    /// Results of all rounds, stacked along an axis.
    pub stacked: Vec<Stacked>,
}

/// A value that a loop passes from round to round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Before the first round.
    pub init: Value,
    /// In a round.
    pub param: Value,
    /// After the last round.
    pub out: Value,
}

/// A result that a loop collects: that of round `i` is at index `i` of an added axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stacked {
    /// The stacked result.
    pub out: Value,
    /// The axis.
    pub axis: usize,
}

/// A kernel that the program carries.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// The kernel as stored in the program: name, source, header, grid.
    pub kernel: Arc<ptero_pte::nodes::MetalKernel>,
    /// The start of the SHA-256 of its source, and of its header.
    pub hashes: [u64; 2],
    /// The operands.
    pub ins: Vec<Value>,
    /// The results.
    pub outs: Vec<Value>,
    /// The numbers of its grid and thread groups.
    pub numbers: Vec<Dim>,
}

#[allow(clippy::indexing_slicing, reason = "numbers of values and blocks come from the graph itself")]
impl Graph {
    /// The type of a value.
    pub fn ty(&self, value: Value) -> &Type {
        &self.values[value.0 as usize]
    }

    /// The block of that number.
    pub fn block(&self, block: BlockId) -> &Block {
        &self.blocks[block.0 as usize]
    }

    /// The block of that number, mutable.
    pub fn block_mut(&mut self, block: BlockId) -> &mut Block {
        &mut self.blocks[block.0 as usize]
    }

    /// A new value.
    pub fn value(&mut self, dtype: DType, shape: Vec<Dim>) -> Value {
        self.values.push(Type { dtype, shape });
        Value(u32::try_from(self.values.len() - 1).expect("a graph has fewer than 2^32 values"))
    }

    /// A new constant.
    pub fn constant(&mut self, dtype: DType, shape: Vec<Dim>, bytes: Bytes) -> Value {
        let value = self.value(dtype, shape);
        self.constants.push((value, bytes));
        value
    }

    /// The values that an operation reads, on the host or on the device. Its blocks' reads are not among them.
    pub fn reads(&self, op: &Op) -> Vec<Value> {
        match op {
            Op::Host(var) => match self.host.get(var.0 as usize) {
                Some(HostOp::Item(value)) => vec![*value],
                _ => Vec::new(),
            },
            op => op.ins(),
        }
    }

    /// What the host computes before anything runs, in order: the host values that depend only on the caller's inputs, and the
    /// checks of the main block that compare only those. Every device does this first, so that a call that cannot succeed
    /// changes nothing.
    pub fn advance(&self) -> Vec<Node> {
        let early = crate::host::early(&self.host);
        let is_early = |var: Var| early.get(var.0 as usize).copied().unwrap_or(false);
        let values = (0..).map(Var).zip(&self.host).filter(|(var, _)| is_early(*var));
        let computed = values.filter(|(_, op)| !matches!(op, HostOp::Given { .. }));
        let mut nodes: Vec<Node> = computed.map(|(var, _)| Node { op: Op::Host(var), origin: (0, 0) }).collect();
        let checks = self.block(self.main).nodes.iter().filter(|node| match &node.op {
            Op::Check(check) => check.numbers().into_iter().all(|number| number.vars().all(is_early)),
            _ => false,
        });
        nodes.extend(checks.cloned());
        nodes
    }

    /// A new host value.
    pub fn var(&mut self, op: HostOp) -> Var {
        self.host.push(op);
        Var(u32::try_from(self.host.len() - 1).expect("a graph has fewer than 2^32 host values"))
    }
}

/// Returns `true` if a flag exists and is set.
fn is_set(flags: &[bool], number: u32) -> bool {
    flags.get(number as usize) == Some(&true)
}

/// Sets a flag that exists.
fn set(flags: &mut [bool], number: u32, to: bool) {
    flags.get_mut(number as usize).into_iter().for_each(|flag| *flag = to);
}

impl Type {
    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

impl Op {
    /// The values it defines. Those of a loop's body are not among them.
    pub fn outs(&self) -> Vec<Value> {
        match self {
            Op::Prim(prim) => prim.writes().into_iter().copied().collect(),
            Op::View { out, .. } | Op::Concat { out, .. } | Op::Update { out, .. } | Op::Read { out, .. } => vec![*out],
            Op::Write { .. } | Op::Host(_) | Op::Check(_) => Vec::new(),
            Op::If { outs, .. } => outs.clone(),
            Op::Loop(round) => {
                let carried = round.carried.iter().map(|carried| carried.out);
                carried.chain(round.stacked.iter().map(|stacked| stacked.out)).collect()
            }
            Op::Foreign(foreign) => foreign.outs.clone(),
        }
    }

    /// The values it reads on the device. Its blocks' reads are not among them.
    pub fn ins(&self) -> Vec<Value> {
        match self {
            Op::Prim(prim) => prim.reads(),
            Op::View { x, .. } | Op::Write { x, .. } => vec![*x],
            Op::Concat { parts, .. } => parts.clone(),
            Op::Update { base, new, .. } => vec![*base, *new],
            Op::Read { .. } | Op::Host(_) | Op::Check(_) | Op::If { .. } => Vec::new(),
            Op::Loop(round) => round.carried.iter().map(|carried| carried.init).collect(),
            Op::Foreign(foreign) => foreign.ins.clone(),
        }
    }

    /// The blocks it runs.
    pub fn blocks(&self) -> Vec<BlockId> {
        match self {
            Op::If { then, otherwise, .. } => vec![*then, *otherwise],
            Op::Loop(round) => vec![round.body],
            _ => Vec::new(),
        }
    }

    /// The numbers it uses apart from the sizes of its values.
    pub fn numbers(&self) -> Vec<&Dim> {
        match self {
            Op::Prim(prim) => prim.numbers(),
            Op::View { how: ViewOp::Slice { start, .. }, .. } | Op::Update { start, .. } => vec![start],
            Op::View { how: ViewOp::Strided { strides, offset }, .. } => strides.iter().chain([offset]).collect(),
            Op::View { .. } | Op::Concat { .. } | Op::Read { .. } | Op::Write { .. } | Op::Host(_) => Vec::new(),
            Op::Check(check) => check.numbers(),
            Op::If { condition, .. } => vec![condition],
            Op::Loop(round) => vec![&round.count],
            Op::Foreign(foreign) => foreign.numbers.iter().collect(),
        }
    }

    /// Returns `true` if it does more than define its values, so that it stays even if they are not read.
    pub fn has_effect(&self) -> bool {
        match self {
            Op::Write { .. } | Op::Check(_) | Op::If { .. } | Op::Loop(_) => true,
            // A draw without a seed takes a key of the session.
            Op::Prim(Prim::RandomBits { seed, .. }) => seed.is_none(),
            Op::Prim(Prim::Sample(sample)) => sample.seed.is_none(),
            Op::Prim(_) | Op::View { .. } | Op::Concat { .. } | Op::Update { .. } | Op::Read { .. } => false,
            Op::Host(_) | Op::Foreign(_) => false,
        }
    }
}
