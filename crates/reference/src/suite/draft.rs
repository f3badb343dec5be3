//! Builds a case: tensors with random contents, random views of them, and the operation that is tested.

mod emit;

use super::data::{Content, Datum, encode, filler, variants};
use super::ops;
use super::rng::Rng;
use super::views::{CALLS, RandomView, Size, dims, product};
use ptero_plan::dim::{Dim, Var};
use ptero_plan::graph::{Block, BlockId, Graph, Input, Op, Output, StateId, Type, Value};
use ptero_plan::host::HostOp;
use ptero_plan::prim::Prim;
use ptero_tensor::{Bytes, DType};

/// The value that a call passes for an input.
#[derive(Clone, Debug)]
pub(super) enum Given {
    Tensor { dtype: DType, shape: Vec<u64>, bytes: Vec<u8> },
    Int(i64),
}

/// The source of an operand.
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

/// A viewed tensor.
#[derive(Clone, Copy, Debug)]
struct Base {
    /// The whole tensor, as it is before the operation that is tested.
    whole: Value,
    /// The state that holds it.
    state: Option<StateId>,
    /// The state still holds what the previous call wrote.
    is_old: bool,
}

/// The destination of a result: a view of a tensor.
#[derive(Clone, Debug)]
struct Target {
    out: Value,
    base: Option<Base>,
    view: RandomView,
}

/// Elements of an output that an operation under test made.
#[derive(Clone, Debug)]
pub(super) struct MadeElements {
    /// The number of the operation under test, and of its result.
    pub(super) made_by: (usize, usize),
    /// The positions of its elements in the output.
    pub(super) view: RandomView,
}

/// An output of a case.
#[derive(Clone, Debug, Default)]
pub(super) struct CaseOutput {
    /// The state whose content before the call it is, except for `parts`. Without one, it is exact.
    pub(super) before: Option<StateId>,
    /// The state whose content after the call it is.
    pub(super) after: Option<StateId>,
    pub(super) parts: Vec<MadeElements>,
}

/// A case that is being built.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) rng: Rng,
    pub(super) graph: Graph,
    /// By host value, its value in each call.
    values: Vec<[i64; CALLS]>,
    /// By input, what each call passes.
    given: Vec<[Given; CALLS]>,
    /// Operations that run after those under test.
    late: Vec<Op>,
    /// The indices of the operations under test.
    tested: Vec<usize>,
    /// The destinations of results that are not computed yet.
    targets: Vec<Target>,
    /// Results that are no outputs.
    unseen: Vec<Value>,
    shown: Vec<CaseOutput>,
    /// By state, the output that shows it.
    states: Vec<CaseOutput>,
    /// A call may fail.
    pub(super) may_fail: bool,
}

/// A finished case, except for its name.
pub(super) struct Finished {
    pub(super) graph: Graph,
    pub(super) values: [Vec<i64>; CALLS],
    pub(super) given: [Vec<Given>; CALLS],
    pub(super) tested: Vec<usize>,
    pub(super) shown: Vec<CaseOutput>,
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
        Self { rng, graph, ..Self::default() }
    }

    /// A new host value.
    pub(super) fn var(&mut self, at: [i64; CALLS]) -> Size {
        self.values.push(at);
        Size { dim: Dim::var(self.graph.var(HostOp::Given { most: None })), at }
    }

    /// A host value that is no input, and that an operation under test computes.
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

    /// A shape of `least` to five axes and at most `most` elements, and an axis, if it has any.
    pub(super) fn shape_and_axis(&mut self, least: usize, most: i64) -> (Vec<Size>, usize) {
        let rank = self.rank(least);
        let shape = self.shape(rank, most);
        (shape, self.rng.below(rank))
    }

    /// A shape of at most `most` elements: short axes and a long one, in few cases an empty one.
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

    /// Adds the primitive under test, and writes its results to their destinations. Its operands must exist.
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
                None if self.unseen.contains(&out) => {}
                None => self.show(out, CaseOutput::default()),
            }
        }
    }

    /// A result for a later operation under test; in one of four cases it is an output, too.
    pub(super) fn between(&mut self, dtype: DType, shape: &[Size]) -> Value {
        let value = self.graph.value(dtype, dims(shape));
        if !self.rng.one_in(4) {
            self.unseen.push(value);
        }
        value
    }

    /// An operand. In the first call it may be all zeros.
    pub(super) fn operand(&mut self, dtype: DType, shape: &[Size], content: &Content) -> Value {
        self.operand_with(dtype, shape, content, (shape.len(), 3))
    }

    /// An operand of which only the first `broadcast` axes may be broadcast; one in `plain` is a whole tensor.
    pub(super) fn operand_with(
        &mut self,
        dtype: DType,
        shape: &[Size],
        content: &Content,
        rules: (usize, usize),
    ) -> Value {
        let mut sources = variants!(Source: Input Input State Temporary).to_vec();
        if shape.iter().all(Size::is_fixed) {
            sources.extend(variants!(Source: Constant Constant OldState Derived));
        }
        self.seen(&sources, dtype, shape, content, rules)
    }

    /// An operand that is never all zeros.
    pub(super) fn filled(&mut self, dtype: DType, shape: &[Size], content: &Content) -> Value {
        let mut sources = variants!(Source: Input State Temporary).to_vec();
        if shape.iter().all(Size::is_fixed) {
            sources.extend(variants!(Source: Constant Constant Derived));
        }
        self.seen(&sources, dtype, shape, content, (shape.len(), 3))
    }

    /// A whole operand that no operation of a call makes, as weights in files.
    pub(super) fn weight(&mut self, dtype: DType, shape: &[Size], content: &Content) -> Value {
        self.seen(&variants!(Source: Constant Derived), dtype, shape, content, (0, 1))
    }

    /// An operand whose elements are valid in their own call only, such as positions along an axis whose size varies.
    pub(super) fn operand_of_call(&mut self, dtype: DType, shape: &[Size], content: &Content) -> Value {
        self.seen(&variants!(Source: Input Input State Temporary), dtype, shape, content, (shape.len(), 3))
    }

    /// A view of a state that nothing but a result written to the same view changes: its content, and that result.
    pub(super) fn kept(&mut self, dtype: DType, shape: &[Size]) -> (Value, Value) {
        let view = RandomView::new(&mut self.rng, shape, (0, 3), true);
        let state = self.state(dtype, &view.extents());
        let base = Base { whole: self.read(state), state: Some(state), is_old: true };
        (self.look(base.whole, &view), self.target_on(dtype, shape, base, view))
    }

    /// An operand, and a result that replaces it in its tensor.
    pub(super) fn changed(&mut self, dtype: DType, shape: &[Size], content: &Content) -> (Value, Value) {
        let (base, view) = self.placed(&variants!(Source: State State Temporary), dtype, shape, content, (0, 3));
        (self.look(base.whole, &view), self.target_on(dtype, shape, base, view))
    }

    /// An operand and a result; in one of four cases where the types are equal, both are views of the same tensor.
    pub(super) fn operand_and_target(
        &mut self,
        (from, to): (DType, DType),
        shape: &[Size],
        content: &Content,
    ) -> (Value, Value) {
        if from != to || shape.len() > 4 || !self.rng.one_in(4) {
            return (self.operand(from, shape, content), self.target(to, shape));
        }
        let both: Vec<Size> = [Size::fixed(2)].into_iter().chain(shape.iter().cloned()).collect();
        let (base, view) = self.placed(&variants!(Source: State Temporary), from, &both, content, (0, 3));
        let first = self.look(base.whole, &view.at(0));
        let x = self.reshape(first, dims(shape));
        (x, self.target_on(to, shape, base, view.at(1)))
    }

    /// A result that becomes an output, or is written to a view of a state or temporary that has other elements.
    pub(super) fn target(&mut self, dtype: DType, shape: &[Size]) -> Value {
        let is_state = self.rng.one_in(3);
        let view = RandomView::new(&mut self.rng, shape, (0, 2), is_state);
        let extents = view.extents();
        if is_state {
            let state = self.state(dtype, &extents);
            let is_old = self.rng.one_in(2);
            if !is_old {
                let from = self.noise_input(dtype, &extents);
                self.op(Op::Write { state, x: from });
            }
            let base = Base { whole: self.read(state), state: Some(state), is_old };
            return self.target_on(dtype, shape, base, view);
        }
        if view.axes.iter().all(super::views::ViewAxis::is_whole) {
            let out = self.graph.value(dtype, dims(shape));
            self.targets.push(Target { out, base: None, view });
            return out;
        }
        let from = self.noise_input(dtype, &extents);
        let base = Base { whole: self.copy(from), state: None, is_old: false };
        self.target_on(dtype, shape, base, view)
    }

    fn target_on(&mut self, dtype: DType, shape: &[Size], base: Base, view: RandomView) -> Value {
        let out = self.graph.value(dtype, dims(shape));
        self.targets.push(Target { out, base: Some(base), view });
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

    /// A view of a tensor from one of these sources.
    fn seen(
        &mut self,
        sources: &[Source],
        dtype: DType,
        shape: &[Size],
        content: &Content,
        rules: (usize, usize),
    ) -> Value {
        let (base, view) = self.placed(sources, dtype, shape, content, rules);
        // Shows if a device overwrites an operand that is still needed; states are always shown.
        if base.state.is_none() && self.rng.one_in(5) {
            self.show(base.whole, CaseOutput::default());
        }
        self.look(base.whole, &view)
    }

    /// A tensor with the content in a view of it.
    fn placed(
        &mut self,
        sources: &[Source],
        dtype: DType,
        shape: &[Size],
        content: &Content,
        rules: (usize, usize),
    ) -> (Base, RandomView) {
        let source = self.rng.pick(sources);
        let is_state = matches!(source, Source::State | Source::OldState);
        let view = RandomView::new(&mut self.rng, shape, rules, is_state);
        let extents = view.extents();
        let (logical, physical) = (product(shape), product(&extents));
        let bytes: [Vec<u8>; CALLS] = std::array::from_fn(|call| {
            let mut values = self.noise(dtype, physical.at[call]);
            let elements = content(&mut self.rng, call, logical.at[call] as usize);
            for (position, element) in view.positions(call).into_iter().zip(elements) {
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
        (base, view)
    }

    pub(super) fn state(&mut self, dtype: DType, extents: &[Size]) -> StateId {
        self.graph.states.push(Type { dtype, shape: dims(extents) });
        self.states.push(CaseOutput::default());
        StateId(self.graph.states.len() as u32 - 1)
    }

    /// An input. It is flat if its sizes are not ones that an input can have.
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
    fn show(&mut self, value: Value, shown: CaseOutput) {
        self.graph.outputs.push(Output::Tensor(value));
        self.shown.push(shown);
    }

    pub(super) fn finish(mut self) -> Finished {
        for op in std::mem::take(&mut self.late) {
            self.op(op);
        }
        self.close_inputs();
        // All states are outputs: elements that are not written must not change.
        for (number, shown) in std::mem::take(&mut self.states).into_iter().enumerate() {
            let state = StateId(number as u32);
            let whole = self.read(state);
            self.show(whole, CaseOutput { after: Some(state), ..shown });
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

    /// Makes inputs of the host values that no input's size gives, and declares the largest value of some of the others.
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
        ops::push(&mut self.graph, MAIN, op);
    }
}
