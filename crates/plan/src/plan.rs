//! A plan: a graph with memory assigned. Values are views of buffers, states are written in place, and temporaries share one
//! arena.

use crate::bound::Schedule;
use crate::dim::{Dim, Var};
pub use crate::graph::Output;
use crate::graph::{Origin, SessionInt};
use crate::host::{Check, HostOp};
use crate::place::Placement;
use crate::prim::{Buf, Prim, View, ViewId};
use ptero_tensor::{Bytes, DType};

/// A graph, bufferized.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The buffers, by number.
    pub buffers: Vec<Buffer>,
    /// The views that steps read and write, by number.
    pub views: Vec<View>,
    /// How the host gets each of its integers.
    pub host: Vec<HostOp>,
    /// Integers that a session keeps between calls.
    pub session_ints: Vec<SessionInt>,
    /// What the host does before anything runs: computes values from the caller's inputs, and checks them.
    pub advance: Block,
    /// The blocks, by number.
    pub blocks: Vec<Block>,
    /// The block that every call runs.
    pub main: usize,
    /// The block that runs once, before the first call, and fills the `Derived` buffers.
    pub init: Option<usize>,
    /// What the caller gives, in the program's order.
    pub inputs: Vec<Input>,
    /// What the caller gets, in the program's order.
    pub outputs: Vec<Output<ViewId>>,
    /// The offsets of temporaries.
    pub placement: Placement,
    /// When each number is known.
    pub(crate) schedule: Schedule,
}

/// Memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// The type of its elements.
    pub dtype: DType,
    /// The number of elements; may depend on host values, which are then known before the first step that writes it.
    pub elements: Dim,
    /// What it is for.
    pub kind: BufferKind,
}

/// What a buffer is for.
#[derive(Clone, Debug)]
pub enum BufferKind {
    /// Weights, as stored in the file.
    Constant(Bytes),
    /// Filled once by the init block, shared by all states.
    Derived,
    /// The input of that number. Its elements are in row-major order.
    Input(usize),
    /// Persists between calls, initially zero; one per state.
    State,
    /// Used within a call.
    Temporary,
}

/// An input.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the comment of a variant explains its fields")]
pub enum Input {
    /// A tensor of this type in this buffer. A size is fixed, or the host value that it defines.
    Tensor { buf: Buf, dtype: DType, shape: Vec<Dim> },
    /// An integer, which defines the host value.
    Int(Var),
}

/// A straight run of steps.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The steps.
    pub steps: Vec<PlanStep>,
    /// The instruction that each step came from.
    pub origin: Vec<Origin>,
}

/// A step of a block.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the comment of a variant explains its fields")]
#[allow(clippy::large_enum_variant, reason = "nearly all steps are of the largest kind")]
pub enum PlanStep {
    /// Work for the device.
    Device(Prim),
    /// The host computes a value as defined in [`Plan::host`].
    Host(Var),
    /// The host reads a value: the one element of a view.
    Item(Var, ViewId),
    /// Fails the call if it does not hold.
    Check(Check),
    /// Runs the block `then` if `condition` is not zero, else `otherwise`.
    If { condition: Dim, then: usize, otherwise: usize },
    /// Runs the block `body` `count` times, with `index` counting up from zero.
    Loop { index: Var, count: Dim, body: usize },
}

#[allow(clippy::indexing_slicing, reason = "the numbers of views and buffers come from the plan itself")]
impl Plan {
    /// The view of that number.
    pub fn view(&self, view: ViewId) -> &View {
        &self.views[view.0 as usize]
    }

    /// The buffer of that number.
    pub fn buffer(&self, buf: Buf) -> &Buffer {
        &self.buffers[buf.0 as usize]
    }

    /// Returns `true` if a primitive reads from a buffer that it writes to.
    pub fn reads_own_buffer(&self, prim: &Prim) -> bool {
        let writes = prim.writes();
        let buf = |view: &ViewId| self.view(*view).buf;
        prim.reads().iter().any(|read| writes.iter().any(|written| buf(written) == buf(read)))
    }
}

impl PlanStep {
    /// The views that it reads and writes. Its blocks' views are not among them.
    pub fn views(&self) -> Vec<ViewId> {
        match self {
            PlanStep::Device(prim) => prim.reads().into_iter().chain(prim.writes().into_iter().copied()).collect(),
            PlanStep::Item(_, view) => vec![*view],
            PlanStep::Host(_) | PlanStep::Check(_) | PlanStep::If { .. } | PlanStep::Loop { .. } => Vec::new(),
        }
    }

    /// Its name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            PlanStep::Device(prim) => prim.name(),
            PlanStep::Host(_) | PlanStep::Item(..) => "item",
            PlanStep::Check(_) => "check",
            PlanStep::If { .. } => "if",
            PlanStep::Loop { .. } => "loop",
        }
    }
}
