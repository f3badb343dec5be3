//! A case in the making: tensors with random contents seen through random views, and the operation that is tested.

mod emit;

use super::data::{Content, Datum, encode, filler};
use super::layout::{CALLS, Freedom, Layout, Size, dims, product};
use super::rng::Rng;
use ptero_plan::dim::{Dim, Var};
use ptero_plan::graph::{Block, BlockId, Graph, Input, Node, Op, Output, StateId, Type, Value};
use ptero_plan::host::HostOp;
use ptero_plan::prim::Prim;
use ptero_tensor::{Bytes, DType};

/// What a call gives for an input.
#[derive(Clone, Debug)]
pub(super) enum Given {
    Tensor { dtype: DType, shape: Vec<u64>, bytes: Vec<u8> },
    Int(i64),
}

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Constant,
    /// Copied from a constant by the init block.
    Derived,
    Input,
    /// Written from an input before the operation that is tested.
    State,
    /// Written from an input after the operation: it sees what the call before left.
    OldState,
    /// Copied from an input before the operation.
    Temporary,
}

/// A tensor that a window is on.
#[derive(Clone, Copy, Debug)]
struct Base {
    /// The whole tensor, as it is before the operation that is tested.
    whole: Value,
    /// The state that holds it, if any.
    state: Option<StateId>,
    /// Whether a state still holds what the call before left.
    is_old: bool,
}

/// Where a result goes: a window on a tensor.
#[derive(Clone, Debug)]
struct Target {
    out: Value,
    base: Option<Base>,
    layout: Layout,
}

/// Elements of an output that an operation under test made.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Which of the operations under test, and which of its results.
    pub(super) made_by: (usize, usize),
    /// Where its elements lie in the output.
    pub(super) layout: Layout,
}

/// An output of a case.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    /// The state whose content before the call it is, but for `parts`. Without one, it is exact.
    pub(super) before: Option<StateId>,
    /// The state whose content after the call it is.
    pub(super) after: Option<StateId>,
    pub(super) parts: Vec<Part>,
}

/// A case in the making.
pub(super) struct Draft {
    pub(super) rng: Rng,
    pub(super) graph: Graph,
    /// By host value, what it is in each call.
    values: Vec<[i64; CALLS]>,
    /// By input, what each call gives.
    given: Vec<[Given; CALLS]>,
    /// What runs after the operations that are tested.
    late: Vec<Op>,
    /// The indices of the operations that are tested.
    tested: Vec<usize>,
    /// Where results go that are not made yet.
    targets: Vec<Target>,
    shown: Vec<Shown>,
    /// By state, what is made of it.
    states: Vec<Shown>,
    /// Whether a call may fail.
    pub(super) may_fail: bool,
}

/// A finished case, but for its name.
pub(super) struct Finished {
    pub(super) graph: Graph,
    pub(super) values: [Vec<i64>; CALLS],
    pub(super) given: [Vec<Given>; CALLS],
    pub(super) tested: Vec<usize>,
    pub(super) shown: Vec<Shown>,
    pub(super) may_fail: bool,
    pub(super) state_seed: u64,
}

const SHORT: [i64; 9] = [1, 1, 2, 2, 3, 4, 5, 7, 8];
const LONG: [i64; 15] = [1, 4, 9, 16, 17, 31, 32, 33, 65, 100, 128, 257, 513, 1025, 3000];

/// The block that every call runs, and the one that runs once.
const MAIN: BlockId = BlockId(0);
const INIT: BlockId = BlockId(1);

impl Draft {
    pub(super) fn new(rng: Rng) -> Self {
        let graph = Graph { blocks: vec![Block::default(); 2], main: MAIN, init: Some(INIT), ..Graph::default() };
        let (values, given, late, tested) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (targets, shown, states) = (Vec::new(), Vec::new(), Vec::new());
        Self { rng, graph, values, given, late, tested, targets, shown, states, may_fail: false }
    }

    /// A new host value.
    pub(super) fn var(&mut self, at: [i64; CALLS]) -> Size {
        self.values.push(at);
        Size { dim: Dim::var(self.graph.var(HostOp::Given { most: None })), at }
    }

    /// A host value that nobody gives, and that an operation under test fills.
    pub(super) fn known_later(&mut self, op: HostOp) -> Var {
        self.values.push([0; CALLS]);
        self.graph.var(op)
    }

    /// A host value that is known from here on.
    pub(super) fn known(&mut self, op: HostOp) -> Var {
        let var = self.known_later(op);
        self.op(Op::Host(var));
        var
    }

    /// One of the sizes; one in five is known only when a call runs, and differs between calls.
    pub(super) fn size(&mut self, choices: &[i64]) -> Size {
        let at: [i64; CALLS] = std::array::from_fn(|_| self.rng.pick(choices));
        if self.values.len() < 2 && self.rng.one_in(5) { self.var(at) } else { Size::fixed(at[0]) }
    }

    /// As `size`, but one in thirty is zero.
    pub(super) fn size_or_zero(&mut self, choices: &[i64]) -> Size {
        if self.rng.one_in(30) { self.size(&[0, 0, choices[0]]) } else { self.size(choices) }
    }

    /// A shape of `most` elements at most: short axes and a long one, in few cases an empty one.
    pub(super) fn shape(&mut self, rank: usize, most: i64) -> Vec<Size> {
        let mut shape = vec![Size::fixed(1); rank];
        let mut axes: Vec<usize> = (0..rank).collect();
        self.rng.shuffle(&mut axes);
        let mut room = most;
        for (turn, axis) in axes.into_iter().enumerate() {
            let choices = if turn == 0 { &LONG[..] } else { &SHORT[..] };
            let choices: Vec<i64> = choices.iter().copied().filter(|&size| size <= room).collect();
            let choices = if self.rng.one_in(40) { vec![0] } else { choices };
            shape[axis] = self.size(&choices);
            room /= shape[axis].largest().max(1);
        }
        shape
    }

    /// Any rank up to five.
    pub(super) fn rank(&mut self, least: usize) -> usize {
        least.max(self.rng.pick(&[0, 1, 1, 2, 2, 2, 3, 3, 4, 5]))
    }

    /// Adds the primitive that is tested, and sends its results where they go. What it reads must have been made.
    pub(super) fn test(&mut self, prim: Prim<Value>) {
        self.test_op(Op::Prim(prim));
    }

    /// The same for any operation.
    pub(super) fn test_op(&mut self, op: Op) {
        let (outs, test) = (op.outs(), self.tested.len());
        self.tested.push(self.graph.block(MAIN).nodes.len());
        self.op(op);
        for (index, out) in outs.into_iter().enumerate() {
            match self.targets.iter().position(|target| target.out == out) {
                Some(at) => {
                    let target = self.targets.remove(at);
                    self.deliver(&target, (test, index));
                }
                None => self.show(out, Shown::default()),
            }
        }
    }

    /// Something to read. In the first call it may be all zeros.
    pub(super) fn operand(&mut self, dtype: DType, shape: &[Size], content: Content<'_>) -> Value {
        self.operand_with(dtype, shape, content, (shape.len(), 3))
    }

    /// Something to read of which only some of the first axes may be broadcast, and one in `plain` is a whole tensor.
    pub(super) fn operand_with(
        &mut self,
        dtype: DType,
        shape: &[Size],
        content: Content<'_>,
        (broadcast, plain): (usize, usize),
    ) -> Value {
        let mut sources = vec![Source::Input, Source::Input, Source::State, Source::Temporary];
        if shape.iter().all(Size::is_fixed) {
            sources.extend([Source::Constant, Source::Constant, Source::OldState, Source::Derived]);
        }
        let source = self.rng.pick(&sources);
        self.seen(source, dtype, shape, content, Freedom { broadcast, plain, is_state: false })
    }

    /// Something to read that is never all zeros.
    pub(super) fn filled(&mut self, dtype: DType, shape: &[Size], content: Content<'_>) -> Value {
        let mut sources = vec![Source::Input, Source::State, Source::Temporary];
        if shape.iter().all(Size::is_fixed) {
            sources.extend([Source::Constant, Source::Constant, Source::Derived]);
        }
        let source = self.rng.pick(&sources);
        self.seen(source, dtype, shape, content, Freedom { broadcast: shape.len(), plain: 3, is_state: false })
    }

    /// Something to read whose elements mean nothing in another call, such as positions along an axis whose size varies.
    pub(super) fn operand_of_call(&mut self, dtype: DType, shape: &[Size], content: Content<'_>) -> Value {
        let source = self.rng.pick(&[Source::Input, Source::Input, Source::State, Source::Temporary]);
        self.seen(source, dtype, shape, content, Freedom { broadcast: shape.len(), plain: 3, is_state: false })
    }

    /// A window of a state that nothing but the result written to the same window changes: what is there, and the result.
    pub(super) fn kept(&mut self, dtype: DType, shape: &[Size]) -> (Value, Value) {
        let layout = Layout::new(&mut self.rng, shape, Freedom { broadcast: 0, plain: 3, is_state: true });
        let state = self.state(dtype, &layout.extents());
        let base = Base { whole: self.read(state), state: Some(state), is_old: true };
        (self.look(base.whole, &layout), self.target_on(dtype, shape, base, layout))
    }

    /// Something to read, and a result that replaces it where it came from.
    pub(super) fn changed(&mut self, dtype: DType, shape: &[Size], content: Content<'_>) -> (Value, Value) {
        let source = self.rng.pick(&[Source::State, Source::State, Source::Temporary]);
        let (base, layout) =
            self.placed(source, dtype, shape, content, Freedom { broadcast: 0, plain: 3, is_state: false });
        (self.look(base.whole, &layout), self.target_on(dtype, shape, base, layout))
    }

    /// Something to read and, in one of four cases where the types are equal, a result that goes beside it in the same tensor.
    pub(super) fn operand_and_target(
        &mut self,
        (from, to): (DType, DType),
        shape: &[Size],
        content: Content<'_>,
    ) -> (Value, Value) {
        if from != to || shape.len() > 4 || !self.rng.one_in(4) {
            return (self.operand(from, shape, content), self.target(to, shape));
        }
        let both: Vec<Size> = [Size::fixed(2)].into_iter().chain(shape.iter().cloned()).collect();
        let source = self.rng.pick(&[Source::State, Source::Temporary]);
        let (base, layout) =
            self.placed(source, from, &both, content, Freedom { broadcast: 0, plain: 3, is_state: false });
        let first = self.look(base.whole, &layout.at(0));
        let x = self.reshape(first, dims(shape));
        (x, self.target_on(to, shape, base, layout.at(1)))
    }

    /// A result that goes to an output, or into a window of a state or temporary, whose other elements hold something too.
    pub(super) fn target(&mut self, dtype: DType, shape: &[Size]) -> Value {
        let is_state = self.rng.one_in(3);
        let layout = Layout::new(&mut self.rng, shape, Freedom { broadcast: 0, plain: 2, is_state });
        let extents = layout.extents();
        if is_state {
            let state = self.state(dtype, &extents);
            let is_old = self.rng.one_in(2);
            if !is_old {
                let from = self.noise_input(dtype, &extents);
                self.op(Op::Write { state, x: from });
            }
            let base = Base { whole: self.read(state), state: Some(state), is_old };
            return self.target_on(dtype, shape, base, layout);
        }
        if layout.axes.iter().all(super::layout::LaidAxis::is_whole) {
            let out = self.graph.value(dtype, dims(shape));
            self.targets.push(Target { out, base: None, layout });
            return out;
        }
        let from = self.noise_input(dtype, &extents);
        let base = Base { whole: self.copy(from), state: None, is_old: false };
        self.target_on(dtype, shape, base, layout)
    }

    fn target_on(&mut self, dtype: DType, shape: &[Size], base: Base, layout: Layout) -> Value {
        let out = self.graph.value(dtype, dims(shape));
        self.targets.push(Target { out, base: Some(base), layout });
        out
    }

    fn noise(&mut self, dtype: DType, count: i64) -> Vec<Datum> {
        (0..count).map(|_| filler(&mut self.rng, dtype)).collect()
    }

    fn noise_input(&mut self, dtype: DType, extents: &[Size]) -> Value {
        let count = product(extents);
        let noise: [Vec<Datum>; CALLS] = std::array::from_fn(|call| self.noise(dtype, count.at[call]));
        self.input(dtype, extents, noise.map(|values| encode(dtype, &values)))
    }

    fn seen(&mut self, source: Source, dtype: DType, shape: &[Size], content: Content<'_>, freedom: Freedom) -> Value {
        let (base, layout) = self.placed(source, dtype, shape, content, freedom);
        // A device that changes what is still needed shows it here; states are shown in any case.
        if base.state.is_none() && self.rng.one_in(5) {
            self.show(base.whole, Shown::default());
        }
        self.look(base.whole, &layout)
    }

    /// A tensor with the content in a window of it.
    fn placed(
        &mut self,
        source: Source,
        dtype: DType,
        shape: &[Size],
        content: Content<'_>,
        freedom: Freedom,
    ) -> (Base, Layout) {
        let is_state = matches!(source, Source::State | Source::OldState);
        let layout = Layout::new(&mut self.rng, shape, Freedom { is_state, ..freedom });
        let extents = layout.extents();
        let (logical, physical) = (product(shape), product(&extents));
        let bytes: [Vec<u8>; CALLS] = std::array::from_fn(|call| {
            let mut values = self.noise(dtype, physical.at[call]);
            let elements = content(&mut self.rng, call, logical.at[call] as usize);
            for (position, element) in layout.positions(call).into_iter().zip(elements) {
                values[position] = element;
            }
            encode(dtype, &values)
        });
        let mut base = Base { whole: Value(0), state: None, is_old: false };
        base.whole = match source {
            Source::Constant | Source::Derived => {
                let [bytes, ..] = bytes;
                let constant = self.graph.constant(dtype, dims(&extents), Bytes::from(bytes));
                if source == Source::Constant { constant } else { self.copy_in(INIT, constant) }
            }
            Source::Input => self.input(dtype, &extents, bytes),
            Source::Temporary => {
                let from = self.input(dtype, &extents, bytes);
                self.copy(from)
            }
            Source::State | Source::OldState => {
                let state = self.state(dtype, &extents);
                let x = self.input(dtype, &extents, bytes);
                base.state = Some(state);
                let write = Op::Write { state, x };
                if source == Source::State {
                    self.op(write);
                } else {
                    self.late.push(write);
                }
                self.read(state)
            }
        };
        (base, layout)
    }

    pub(super) fn state(&mut self, dtype: DType, extents: &[Size]) -> StateId {
        self.graph.states.push(Type { dtype, shape: dims(extents) });
        self.states.push(Shown::default());
        StateId(self.graph.states.len() as u32 - 1)
    }

    /// A whole input. Where its sizes are not ones that an input can have, it is a flat one.
    fn input(&mut self, dtype: DType, extents: &[Size], bytes: [Vec<u8>; CALLS]) -> Value {
        let is_natural = extents.iter().all(|size| size.is_fixed() || size.dim.as_var().is_some());
        let count = product(extents);
        let shape = if is_natural { extents.to_vec() } else { vec![self.var(count.at)] };
        let value = self.graph.value(dtype, dims(&shape));
        self.graph.inputs.push(Input::Tensor(value));
        let mut call = 0;
        self.given.push(bytes.map(|bytes| {
            let shape = shape.iter().map(|size| size.at[call] as u64).collect();
            call += 1;
            Given::Tensor { dtype, shape, bytes }
        }));
        if is_natural { value } else { self.reshape(value, dims(extents)) }
    }

    /// Makes a value an output.
    fn show(&mut self, value: Value, shown: Shown) {
        self.graph.outputs.push(Output::Tensor(value));
        self.shown.push(shown);
    }

    pub(super) fn finish(mut self) -> Finished {
        for op in std::mem::take(&mut self.late) {
            self.op(op);
        }
        self.close_inputs();
        // What is not written must stay as it is, so all states are looked at.
        for (number, shown) in std::mem::take(&mut self.states).into_iter().enumerate() {
            let state = StateId(number as u32);
            let whole = self.read(state);
            self.show(whole, Shown { after: Some(state), ..shown });
        }
        if self.graph.block(INIT).nodes.is_empty() {
            self.graph.init = None;
        }
        let given = std::array::from_fn(|call| self.given.iter().map(|given| given[call].clone()).collect());
        let values = std::array::from_fn(|call| self.values.iter().map(|at| at[call]).collect());
        let state_seed = self.rng.next();
        let Self { graph, tested, shown, may_fail, .. } = self;
        Finished { graph, values, given, tested, shown, may_fail, state_seed }
    }

    /// Values that no size of an input gives are inputs themselves; of some of the others the largest is declared.
    fn close_inputs(&mut self) {
        let sizes = self.graph.inputs.iter().flat_map(|input| match input {
            Input::Tensor(value) => self.graph.ty(*value).shape.iter().filter_map(Dim::as_var).collect(),
            Input::Int(var) => vec![*var],
        });
        let filled: Vec<Var> = sizes.collect();
        for var in (0..self.graph.host.len() as u32).map(Var) {
            let at = self.values[var.0 as usize];
            if !matches!(self.graph.host[var.0 as usize], HostOp::Given { .. }) {
                continue;
            }
            if !filled.contains(&var) {
                self.graph.inputs.push(Input::Int(var));
                self.given.push(at.map(Given::Int));
            } else if self.rng.one_in(2) {
                let most = Some(at.into_iter().fold(0, i64::max));
                self.graph.host[var.0 as usize] = HostOp::Given { most };
            }
        }
    }

    /// Adds an operation to the main block.
    fn op(&mut self, op: Op) {
        let nodes = &mut self.graph.block_mut(MAIN).nodes;
        let origin = (0, nodes.len() as u32);
        nodes.push(Node { op, origin });
    }
}
