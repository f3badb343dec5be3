//! What steps read from memory: weights and state.

use crate::bound::Bound;
use crate::plan::{BufferKind, Plan};
use crate::prim::{Prim, ViewId};
use std::ops::AddAssign;

/// Bytes that a step reads. Writes and temporaries are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepBytes {
    /// Weights: of an embedding only the rows that are looked up, of a stack of experts only those that are chosen.
    pub weights: u64,
    /// State: keys and values up to the position, and recurrent state.
    pub state: u64,
}

impl AddAssign for StepBytes {
    fn add_assign(&mut self, other: Self) {
        self.weights = self.weights.saturating_add(other.weights);
        self.state = self.state.saturating_add(other.state);
    }
}

/// Which elements of an operand a primitive reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent<T> {
    /// All.
    All,
    /// None: elements that are not written stay where they are.
    Nothing,
    /// At most as many as this tensor has.
    AsManyAs(T),
    /// Of keys or values, what these queries see through a window.
    Window { queries: T, window: i64 },
    /// Of a stack of matrices, as many as this choice has elements.
    Chosen(T),
}

/// The sizes of tensors.
pub(crate) trait TensorSizes<T: Copy> {
    fn rank(&self, tensor: T) -> usize;

    fn size(&self, tensor: T, axis: usize) -> u64;

    /// The number of distinct elements: a repeated element is read once.
    fn distinct(&self, tensor: T) -> u64;

    fn count(&self, tensor: T) -> u64 {
        (0..self.rank(tensor)).map(|axis| self.size(tensor, axis)).fold(1, u64::saturating_mul)
    }
}

impl<T: Copy + PartialEq> Prim<T> {
    /// Which elements of an operand are read.
    pub(crate) fn extent(&self, operand: T) -> Extent<T> {
        match self {
            Prim::Gather { x, out, .. } if *x == operand => Extent::AsManyAs(*out),
            Prim::Scatter { base, updates, add, .. } if *base == operand => {
                if *add {
                    Extent::AsManyAs(*updates)
                } else {
                    Extent::Nothing
                }
            }
            // Keys before the window are not read.
            Prim::Attention { q, k, v, window: Some(window), .. } if *k == operand || *v == operand => {
                Extent::Window { queries: *q, window: *window }
            }
            Prim::MatMul { a, lhs: Some(choice), .. } if *a == operand => Extent::Chosen(*choice),
            Prim::MatMul { b, rhs: Some(choice), .. } if *b == operand => Extent::Chosen(*choice),
            Prim::QuantMatMul { x, lhs: Some(choice), .. } if *x == operand => Extent::Chosen(*choice),
            Prim::QuantMatMul { w, rhs: Some(choice), .. }
                if [Some(w.codes), w.scales, w.biases].contains(&Some(operand)) =>
            {
                Extent::Chosen(*choice)
            }
            _ => Extent::All,
        }
    }
}

impl<T: Copy> Extent<T> {
    /// The number of elements.
    pub(crate) fn elements(self, operand: T, sizes: &impl TensorSizes<T>) -> u64 {
        let all = sizes.distinct(operand);
        match self {
            Extent::All => all,
            Extent::Nothing => 0,
            Extent::AsManyAs(tensor) => all.min(sizes.count(tensor)),
            Extent::Window { queries, window } => {
                let [queries, keys] = [queries, operand].map(|tensor| sizes.size(tensor, 2));
                let seen = u64::try_from(window).unwrap_or(0).saturating_add(queries).saturating_sub(1);
                if keys > seen { all / keys * seen } else { all }
            }
            Extent::Chosen(choice) => {
                let rank = sizes.rank(operand);
                let matrix = (rank.saturating_sub(2)..rank).map(|axis| sizes.size(operand, axis));
                all.min(matrix.fold(1, u64::saturating_mul).saturating_mul(sizes.count(choice)))
            }
        }
    }
}

/// An operand of a step that is in memory before the step runs.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRead {
    view: ViewId,
    /// `false` for state.
    is_weight: bool,
    extent: Extent<ViewId>,
}

impl Plan {
    /// What a primitive reads of weights and of state.
    pub fn memory_reads(&self, prim: &Prim) -> Vec<MemoryRead> {
        let read = |view: ViewId| {
            let is_weight = match self.buffer(self.view(view).buf).kind {
                BufferKind::Constant(_) | BufferKind::Derived => true,
                BufferKind::State => false,
                BufferKind::Input(_) | BufferKind::Temporary => return None,
            };
            Some(MemoryRead { view, is_weight, extent: prim.extent(view) })
        };
        prim.reads().into_iter().filter_map(read).collect()
    }
}

impl MemoryRead {
    /// The view.
    pub fn view(&self) -> ViewId {
        self.view
    }

    /// The bytes that are read with these numbers.
    pub fn bytes(&self, bound: &Bound) -> StepBytes {
        let bytes = self.extent.elements(self.view, bound).saturating_mul(bound.view(self.view).dtype.bytes());
        if self.is_weight { StepBytes { weights: bytes, state: 0 } } else { StepBytes { weights: 0, state: bytes } }
    }
}

impl TensorSizes<ViewId> for Bound {
    fn rank(&self, view: ViewId) -> usize {
        self.view(view).shape.len()
    }

    fn size(&self, view: ViewId, axis: usize) -> u64 {
        self.view(view).size(axis) as u64
    }

    fn distinct(&self, view: ViewId) -> u64 {
        let view = self.view(view);
        let axes = view.shape.iter().zip(&view.strides);
        let count = |(&size, &stride): (&usize, &isize)| if stride == 0 { size.min(1) } else { size } as u64;
        let elements = self.length(view.buf) as u64 / view.dtype.bytes().max(1);
        axes.map(count).fold(1, u64::saturating_mul).min(elements)
    }
}
