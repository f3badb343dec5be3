//! Properties of a graph: whether a session can return to an earlier position, and how many bytes a step reads.

use crate::dim::Dim;
use crate::graph::{BlockId, Def, Graph, Input, Op, StateId, Uses, Value, ViewOp};
use crate::host::{HostInputs, HostOp};
use crate::prim::{Axis, Prim};
use crate::reads::{StepBytes, TensorSizes};

/// A call with one token at a position: the elements of one input count up from there.
struct PositionInputs {
    positions: Option<usize>,
    position: i64,
}

impl HostInputs for PositionInputs {
    fn element(&self, input: usize, at: i64) -> i64 {
        if Some(input) == self.positions { self.position.saturating_add(at) } else { 0 }
    }
}

impl Graph {
    /// The host values of a call with one token at a position, as far as they are known before anything runs.
    fn host_values(&self, positions: Option<usize>, position: i64) -> Vec<i64> {
        let inputs = PositionInputs { positions, position };
        let mut values = Vec::with_capacity(self.host.len());
        for op in &self.host {
            let is_given = matches!(op, HostOp::Given { .. });
            values.push(if is_given { 1 } else { op.eval(&values, &inputs).unwrap_or(0) });
        }
        values
    }

    /// Returns `true` if a session can go back to any earlier position: every state has room of its own for each position up
    /// to `context`, as key-value caches do. Recurrent state has none, and rings overwrite theirs. `positions` is the input
    /// that says where tokens stand.
    pub fn keeps_positions(&self, positions: Option<usize>, context: usize) -> bool {
        let (Some(positions), Ok(last)) = (positions, i64::try_from(context.saturating_sub(1))) else { return false };
        let Some(Input::Tensor(input)) = self.inputs.get(positions) else { return false };
        let probes = [0, 1, 2, last / 2, last - 1, last].into_iter().filter(|at| (0..=last).contains(at));
        let probes: Vec<(i64, Vec<i64>)> = probes.map(|at| (at, self.host_values(Some(positions), at))).collect();
        let query = Rewind { graph: self, uses: Uses::of(self), positions: *input, probes };
        self.blocks.iter().zip(0..).all(|(block, id)| {
            let mut writes = block.nodes.iter().filter_map(|node| match node.op {
                Op::Write { state, x } => Some((state, x)),
                _ => None,
            });
            // Writes inside branches and loops are not analysed.
            writes.all(|(state, x)| BlockId(id) == self.main && query.follows(state, x))
        })
    }

    /// The bytes that a step with one token at a position reads.
    pub fn step_bytes(&self, positions: Option<usize>, position: i64) -> StepBytes {
        let values = self.host_values(positions, position);
        ReadCounter { graph: self, uses: Uses::of(self), values }.block(self.main)
    }
}

struct Rewind<'a> {
    graph: &'a Graph,
    uses: Uses,
    /// The tensor of positions.
    positions: Value,
    /// Positions, each with the host values of a call there.
    probes: Vec<(i64, Vec<i64>)>,
}

impl Rewind<'_> {
    /// Returns `true` if a write into a state keeps what it held, except for elements whose index follows the position.
    fn follows(&self, state: StateId, mut x: Value) -> bool {
        loop {
            match self.uses.op(self.graph, x) {
                Some(Op::View { x: shown, how: ViewOp::Reshape, .. }) => x = *shown,
                Some(Op::Update { base, start, step: 1, .. }) if self.grows(start) => x = *base,
                Some(Op::Prim(Prim::Scatter { base, axes, add: false, .. })) if self.goes_by_position(axes) => {
                    x = *base;
                }
                Some(Op::Read { state: read, .. }) => return *read == state,
                _ => return false,
            }
        }
    }

    /// Returns `true` if a number is proportional to the position, plus a constant.
    fn grows(&self, start: &Dim) -> bool {
        let [(_, first), (_, second), ..] = self.probes.as_slice() else { return false };
        let begin = start.eval(first);
        let step = start.eval(second) - begin;
        step > 0 && self.probes.iter().all(|(at, values)| start.eval(values) == begin + at * step)
    }

    /// Returns `true` if some index of a scatter is the tensor of positions.
    fn goes_by_position(&self, axes: &[Axis<Value>]) -> bool {
        axes.iter().filter_map(|axis| axis.index).any(|mut index| {
            while let Some(Op::View { x, how, .. }) = self.uses.op(self.graph, index)
                && matches!(how, ViewOp::Reshape | ViewOp::Broadcast)
            {
                index = *x;
            }
            index == self.positions
        })
    }
}

struct ReadCounter<'a> {
    graph: &'a Graph,
    uses: Uses,
    /// The host values of the call; loops count from 0.
    values: Vec<i64>,
}

impl ReadCounter<'_> {
    fn block(&self, block: BlockId) -> StepBytes {
        let mut sum = StepBytes::default();
        for node in &self.graph.block(block).nodes {
            match &node.op {
                Op::Prim(prim) => sum += self.prim(prim),
                Op::If { condition, then, otherwise, .. } => {
                    sum += self.block(if condition.eval(&self.values) == 0 { *otherwise } else { *then });
                }
                Op::Loop(round) => {
                    let count = u64::try_from(round.count.eval(&self.values)).unwrap_or(0);
                    let StepBytes { weights, state } = self.block(round.body);
                    sum += StepBytes { weights: weights.saturating_mul(count), state: state.saturating_mul(count) };
                }
                _ => {}
            }
        }
        sum
    }

    fn prim(&self, prim: &Prim<Value>) -> StepBytes {
        let mut sum = StepBytes::default();
        for value in prim.reads() {
            let bytes = prim.extent(value).elements(value, self).saturating_mul(self.graph.ty(value).dtype.bytes());
            if self.is_weight(value) {
                sum += StepBytes { weights: bytes, state: 0 };
            } else if self.is_state(value) {
                sum += StepBytes { weights: 0, state: bytes };
            }
        }
        sum
    }

    /// A value, and the operands of the view operations that it comes from.
    fn chain(&self, value: Value) -> Vec<Value> {
        let mut chain = vec![value];
        while let Some(Op::View { x, .. }) = chain.last().and_then(|last| self.uses.op(self.graph, *last)) {
            chain.push(*x);
        }
        chain
    }

    fn root(&self, value: Value) -> Value {
        self.chain(value).pop().unwrap_or(value)
    }

    /// Returns `true` for constants and what is computed once from them.
    fn is_weight(&self, value: Value) -> bool {
        match self.uses.def(self.root(value)) {
            Some(Def::Constant(_)) => true,
            Some(Def::Node(block, _)) => Some(block) == self.graph.init,
            _ => false,
        }
    }

    /// Returns `true` for a state, also after updates in this step.
    fn is_state(&self, value: Value) -> bool {
        match self.uses.op(self.graph, self.root(value)) {
            Some(Op::Read { .. }) => !self.is_weight(value),
            Some(Op::Update { base, .. } | Op::Prim(Prim::Scatter { base, .. })) => self.is_state(*base),
            _ => false,
        }
    }
}

impl TensorSizes<Value> for ReadCounter<'_> {
    fn rank(&self, value: Value) -> usize {
        self.graph.ty(value).rank()
    }

    fn size(&self, value: Value, axis: usize) -> u64 {
        let size = self.graph.ty(value).shape.get(axis).map_or(1, |dim| dim.eval(&self.values));
        u64::try_from(size).unwrap_or(0)
    }

    fn distinct(&self, value: Value) -> u64 {
        self.chain(value).into_iter().map(|value| self.count(value)).min().unwrap_or(0)
    }
}
