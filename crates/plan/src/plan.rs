//! A plan: a graph with everything in its place. Values have become views of buffers, writes into state go in place, and
//! temporaries share one arena.

use crate::bound::Schedule;
use crate::dim::{Dim, Var};
use crate::graph::{Kept, Origin};
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
    /// Integers that a session keeps from call to call.
    pub kept: Vec<Kept>,
    /// What the host does before anything runs: values that follow from what the caller gives, and checks of them.
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
    pub outputs: Vec<Output>,
    /// Where temporaries lie.
    pub placement: Placement,
    /// Which numbers are known when.
    pub(crate) schedule: Schedule,
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
    Tensor(ViewId),
    /// An integer.
    Int(Dim),
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
#[allow(clippy::large_enum_variant, reason = "nearly all steps are of the largest kind")]
pub enum PlanStep {
    /// Work for the device.
    Device(Prim),
    /// The host computes a value, as [`Plan::host`] says.
    Host(Var),
    /// The host reads a value: the one element of a view.
    Item(Var, ViewId),
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

    /// Whether a primitive reads of a buffer that it writes to.
    pub fn reads_own_buffer(&self, prim: &Prim) -> bool {
        let writes = prim.writes();
        let buf = |view: &ViewId| self.view(*view).buf;
        prim.reads().into_iter().any(|read| writes.iter().any(|written| buf(written) == buf(read)))
    }
}

impl PlanStep {
    /// The views that it reads and writes itself.
    pub(crate) fn views(&self) -> Vec<ViewId> {
        match self {
            PlanStep::Device(prim) => prim.reads().into_iter().chain(prim.writes()).copied().collect(),
            PlanStep::Item(_, view) => vec![*view],
            PlanStep::Host(_) | PlanStep::Check(_) | PlanStep::If { .. } | PlanStep::Loop { .. } => Vec::new(),
        }
    }

    /// What it does, in a word.
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
