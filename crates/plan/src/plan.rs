//! A plan: everything a backend needs to run one method's graph.

use crate::dim::{Dim, Var};
use crate::prim::{Buf, Prim, View};
use ptero_tensor::{Bytes, DType};

/// A graph, lowered: buffers, and blocks of steps over them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The buffers, by number.
    pub buffers: Vec<Buffer>,
    /// The blocks, by number.
    pub blocks: Vec<Block>,
    /// The block that every call runs.
    pub main: usize,
    /// The block that runs once, before the first call, and fills the `Derived` buffers.
    pub init: Option<usize>,
    /// How many host values a call fills.
    pub vars: u32,
    /// The largest sizes that inputs declare, by the value they fill. Values that are not named here may be anything.
    pub largest: Vec<(Var, i64)>,
    /// What the caller gives, in the graph's order.
    pub inputs: Vec<Input>,
    /// What the caller gets, in the graph's order.
    pub outputs: Vec<Output>,
}

impl Plan {
    /// A plan whose every call runs these steps, still without buffers, inputs and outputs.
    pub fn of(steps: Vec<PlanStep>) -> Self {
        Self {
            buffers: Vec::new(),
            blocks: vec![Block { origin: vec![(0, 0); steps.len()], steps }],
            main: 0,
            init: None,
            vars: 0,
            largest: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }
}

/// Memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// The type of its elements.
    pub dtype: DType,
    /// How many; may depend on host values, which are then known before the first step that writes it.
    pub elements: Dim,
    /// What it is for.
    pub kind: BufferKind,
}

/// What a buffer is for.
#[derive(Clone, Debug)]
pub enum BufferKind {
    /// Weights, as they lie in the file.
    Constant(Bytes),
    /// Filled once by the init block, shared by all states.
    Derived,
    /// The input of that number. Its elements are in row-major order.
    Input(usize),
    /// Lives from call to call, zero at first; one per state.
    State,
    /// Lives within a call.
    Temporary,
}

/// An input.
#[derive(Clone, Debug)]
pub enum Input {
    /// A tensor of this type. Sizes that vary fill the value, the others must be as given.
    Tensor {
        /// Its buffer.
        buf: Buf,
        /// The type of its elements.
        dtype: DType,
        /// Its sizes: fixed ones, or the value that the size fills.
        shape: Vec<Dim>,
    },
    /// An integer, which fills the value.
    Int(Var),
}

/// An output.
#[derive(Clone, Debug)]
pub enum Output {
    /// A tensor. The caller may want another type; then elements are cast as by [`crate::expr::Scalar::Cast`].
    Tensor(View),
    /// An integer.
    Int(Dim),
}

/// A straight run of steps.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The steps.
    pub steps: Vec<PlanStep>,
    /// The instruction that each step came from: chain and place in it.
    pub origin: Vec<(u32, u32)>,
}

/// A step of a block.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all steps are of the largest kind")]
pub enum PlanStep {
    /// Work for the device.
    Device(Prim),
    /// An integer for the host.
    Host {
        /// The value it fills.
        out: Var,
        /// How.
        op: HostOp,
    },
    /// Must hold for the rest of the plan to mean anything; otherwise the call fails.
    Check(Check),
    /// Runs one of two blocks.
    If {
        /// Not zero: `then`.
        condition: Dim,
        /// A block.
        then: usize,
        /// A block.
        otherwise: usize,
    },
    /// Runs a block `count` times, with `index` counting up from zero.
    Loop {
        /// The value that counts.
        index: Var,
        /// How often.
        count: Dim,
        /// The block.
        body: usize,
    },
}

/// How the host gets an integer.
#[derive(Clone, Debug)]
pub enum HostOp {
    /// The one element of an integer or bool tensor, cut to 32 bits and sign-extended.
    Item(View),
    /// The value itself.
    Copy(Dim),
    /// Rounded down; by zero the call fails.
    FloorDiv(Dim, Dim),
    /// What `FloorDiv` leaves, with the sign of the divisor; by zero the call fails.
    Mod(Dim, Dim),
    /// The smaller.
    Min(Dim, Dim),
    /// The larger.
    Max(Dim, Dim),
    /// The first as a place along an axis of the second's size: from the end if negative, then between 0 and the size.
    Clamp(Dim, Dim),
    /// Likewise for a walk backwards: between -1 and the size less one.
    ClampBackward(Dim, Dim),
}

/// A condition on host values.
#[derive(Clone, Debug)]
pub enum Check {
    /// Both must be equal.
    Equal(Dim, Dim, &'static str),
    /// `low <= value <= high`.
    Within {
        /// What is bounded.
        value: Dim,
        /// The least.
        low: Dim,
        /// The greatest.
        high: Dim,
        /// What it is, for the message.
        what: &'static str,
    },
}
