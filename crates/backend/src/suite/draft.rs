//! A case in the making: buffers with random contents seen through random windows, and the step that is tested.

use super::data::{Content, Value, encode, filler};
use super::layout::{CALLS, Freedom, Layout, Size, dims, positions, product, row_major};
use super::rng::Rng;
use ptero_plan::dim::{Dim, Var};
use ptero_plan::expr::{Expr, Scalar, Step};
use ptero_plan::plan::{Buffer, BufferKind, Input, Output, Plan, PlanStep};
use ptero_plan::prim::{Buf, Prim, View};
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
    Input,
    /// Copied from an input before the step.
    State,
    /// Copied from an input after the step: the step sees what the call before left.
    OldState,
    /// Copied from an input before the step.
    Temporary,
}

/// A case in the making.
pub(super) struct Draft {
    pub(super) rng: Rng,
    plan: Plan,
    /// By host value, what it is in each call.
    values: Vec<[i64; CALLS]>,
    /// By input, what each call gives.
    given: Vec<[Given; CALLS]>,
    /// What runs after the steps that are tested.
    late: Vec<Prim>,
    /// Where the steps that are tested stand.
    tested: Vec<usize>,
    /// Whether a call may fail.
    pub(super) may_fail: bool,
}

/// A finished case, but for its name.
pub(super) struct Finished {
    pub(super) plan: Plan,
    pub(super) values: [Vec<i64>; CALLS],
    pub(super) given: [Vec<Given>; CALLS],
    pub(super) tested: Vec<usize>,
    pub(super) may_fail: bool,
    pub(super) state_seed: u64,
}

const SHORT: [i64; 9] = [1, 1, 2, 2, 3, 4, 5, 7, 8];
const LONG: [i64; 15] = [1, 4, 9, 16, 17, 31, 32, 33, 65, 100, 128, 257, 513, 1025, 3000];

impl Draft {
    pub(super) fn new(rng: Rng) -> Self {
        let plan = Plan::of(Vec::new());
        let (values, given, late, tested) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { rng, plan, values, given, late, tested, may_fail: false }
    }

    /// A new host value.
    pub(super) fn var(&mut self, at: [i64; CALLS]) -> Size {
        self.values.push(at);
        self.plan.vars += 1;
        Size { dim: Dim::var(Var(self.plan.vars - 1)), at }
    }

    /// One of the sizes; one in five is known only when a call runs, and differs between calls.
    pub(super) fn size(&mut self, choices: &[i64]) -> Size {
        let at: [i64; CALLS] = std::array::from_fn(|_| self.rng.pick(choices));
        if self.values.len() < 2 && self.rng.one_in(5) { self.var(at) } else { Size::fixed(at[0]) }
    }

    /// Likewise, but one in thirty is zero.
    pub(super) fn size_or_zero(&mut self, choices: &[i64]) -> Size {
        if self.rng.one_in(30) { self.size(&[0, 0, choices[0]]) } else { self.size(choices) }
    }

    /// A shape of so many elements at most: short axes and a long one, in few cases an empty one.
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

    /// The values of a call so far.
    fn host(&self, call: usize) -> Vec<i64> {
        self.values.iter().map(|at| at[call]).collect()
    }

    fn buffer(&mut self, dtype: DType, elements: Dim, kind: BufferKind) -> Buf {
        self.plan.buffers.push(Buffer { dtype, elements, kind });
        Buf(self.plan.buffers.len() as u32 - 1)
    }

    fn step(&mut self, prim: Prim) {
        let main = &mut self.plan.blocks[0];
        main.origin.push((0, main.steps.len() as u32));
        main.steps.push(PlanStep::Device(prim));
    }

    /// Adds the step that is tested. What it reads and writes must have been made.
    pub(super) fn test(&mut self, prim: Prim) {
        self.tested.push(self.plan.blocks[0].steps.len());
        self.step(prim);
    }

    /// Something to read. In the first call it may be all zeros.
    pub(super) fn operand(&mut self, dtype: DType, shape: &[Size], content: Content<'_>) -> View {
        self.operand_with(dtype, shape, content, (shape.len(), 3))
    }

    /// Something to read of which only some of the first axes may be broadcast, and one in `plain` is a whole buffer.
    pub(super) fn operand_with(
        &mut self,
        dtype: DType,
        shape: &[Size],
        content: Content<'_>,
        (broadcast, plain): (usize, usize),
    ) -> View {
        let mut sources = vec![Source::Input, Source::Input, Source::State, Source::Temporary];
        if shape.iter().all(Size::is_fixed) {
            sources.extend([Source::Constant, Source::Constant, Source::OldState]);
        }
        let source = self.rng.pick(&sources);
        self.placed(source, dtype, shape, content, Freedom { broadcast, plain, is_state: false })
    }

    /// Something to read that is never all zeros.
    pub(super) fn filled(&mut self, dtype: DType, shape: &[Size], content: Content<'_>) -> View {
        let mut sources = vec![Source::Input, Source::State, Source::Temporary];
        if shape.iter().all(Size::is_fixed) {
            sources.extend([Source::Constant, Source::Constant]);
        }
        let source = self.rng.pick(&sources);
        self.placed(source, dtype, shape, content, Freedom { broadcast: shape.len(), plain: 3, is_state: false })
    }

    /// Something to read whose elements mean nothing in another call, such as places along an axis whose size varies.
    pub(super) fn operand_of_call(&mut self, dtype: DType, shape: &[Size], content: Content<'_>) -> View {
        let source = self.rng.pick(&[Source::Input, Source::Input, Source::State, Source::Temporary]);
        self.placed(source, dtype, shape, content, Freedom { broadcast: shape.len(), plain: 3, is_state: false })
    }

    /// A state that no other step writes: it keeps what the tested one leaves.
    pub(super) fn kept(&mut self, dtype: DType, shape: &[Size]) -> View {
        let layout = Layout::new(&mut self.rng, shape, Freedom { broadcast: 0, plain: 3, is_state: true });
        let buf = self.buffer(dtype, product(&layout.extents).dim, BufferKind::State);
        layout.view(buf, dtype)
    }

    /// Something to read and to write.
    pub(super) fn changed(&mut self, dtype: DType, shape: &[Size], content: Content<'_>) -> View {
        let mut sources = vec![Source::State, Source::Temporary];
        if shape.iter().all(Size::is_fixed) {
            sources.push(Source::OldState);
        }
        let source = self.rng.pick(&sources);
        self.placed(source, dtype, shape, content, Freedom { broadcast: 0, plain: 3, is_state: false })
    }

    /// Something to read and, in one of four cases where the types are equal, a place for the result in the same buffer beside it.
    pub(super) fn operand_and_target(
        &mut self,
        (from, to): (DType, DType),
        shape: &[Size],
        content: Content<'_>,
    ) -> (View, View) {
        if from != to || shape.len() > 4 || !self.rng.one_in(4) {
            return (self.operand(from, shape, content), self.target(to, shape));
        }
        let both: Vec<Size> = [Size::fixed(2)].into_iter().chain(shape.iter().cloned()).collect();
        let both = self.changed(from, &both, content);
        let half = |at: i64| View {
            shape: both.shape[1..].to_vec(),
            strides: both.strides[1..].to_vec(),
            offset: &both.offset + &(&both.strides[0] * &Dim::fixed(at)),
            ..both.clone()
        };
        (half(0), half(1))
    }

    /// Something to write: a window on a state or temporary, whose other elements hold something too.
    pub(super) fn target(&mut self, dtype: DType, shape: &[Size]) -> View {
        let is_state = self.rng.one_in(3);
        let layout = Layout::new(&mut self.rng, shape, Freedom { broadcast: 0, plain: 2, is_state });
        let kind = if is_state { BufferKind::State } else { BufferKind::Temporary };
        let count = product(&layout.extents);
        let buf = self.buffer(dtype, count.dim.clone(), kind);
        let has_old = if is_state { self.rng.one_in(2) } else { !layout.is_whole };
        if has_old {
            let bytes = std::array::from_fn(|call| self.noise(dtype, count.at[call]));
            let from = self.input(dtype, &layout.extents, bytes.map(|values| encode(dtype, &values)));
            self.step(copy(&from, &row_major(buf, dtype, &from.shape)));
        }
        layout.view(buf, dtype)
    }

    fn noise(&mut self, dtype: DType, count: i64) -> Vec<Value> {
        (0..count).map(|_| filler(&mut self.rng, dtype)).collect()
    }

    fn placed(&mut self, source: Source, dtype: DType, shape: &[Size], content: Content<'_>, freedom: Freedom) -> View {
        let is_state = matches!(source, Source::State | Source::OldState);
        let layout = Layout::new(&mut self.rng, shape, Freedom { is_state, ..freedom });
        let window = layout.view(Buf(0), dtype);
        let (logical, physical) = (product(shape), product(&layout.extents));
        let bytes: [Vec<u8>; CALLS] = std::array::from_fn(|call| {
            let mut values = self.noise(dtype, physical.at[call]);
            let elements = content(&mut self.rng, call, logical.at[call] as usize);
            for (place, element) in positions(&window, &self.host(call)).into_iter().zip(elements) {
                values[place] = element;
            }
            encode(dtype, &values)
        });
        let buf = match source {
            Source::Constant => {
                let [bytes, ..] = bytes;
                self.buffer(dtype, physical.dim, BufferKind::Constant(Bytes::from(bytes)))
            }
            Source::Input => self.input(dtype, &layout.extents, bytes).buf,
            Source::State | Source::OldState | Source::Temporary => {
                let kind = if is_state { BufferKind::State } else { BufferKind::Temporary };
                let buf = self.buffer(dtype, physical.dim, kind);
                let from = self.input(dtype, &layout.extents, bytes);
                let filled = copy(&from, &row_major(buf, dtype, &from.shape));
                if source == Source::OldState {
                    self.late.push(filled);
                } else {
                    self.step(filled);
                }
                buf
            }
        };
        layout.view(buf, dtype)
    }

    /// A whole input. Where its sizes are not ones that an input can have, it is a flat one.
    fn input(&mut self, dtype: DType, extents: &[Size], bytes: [Vec<u8>; CALLS]) -> View {
        let is_natural = extents.iter().all(|size| size.is_fixed() || size.dim.as_var().is_some());
        let count = product(extents);
        let shape = if is_natural { extents.to_vec() } else { vec![self.var(count.at)] };
        let buf = self.buffer(dtype, product(&shape).dim, BufferKind::Input(self.plan.inputs.len()));
        self.plan.inputs.push(Input::Tensor { buf, dtype, shape: dims(&shape) });
        let mut call = 0;
        self.given.push(bytes.map(|bytes| {
            let shape = shape.iter().map(|size| size.at[call] as u64).collect();
            call += 1;
            Given::Tensor { dtype, shape, bytes }
        }));
        row_major(buf, dtype, &dims(extents))
    }

    pub(super) fn finish(mut self) -> Finished {
        for prim in std::mem::take(&mut self.late) {
            self.step(prim);
        }
        // Values that no size of an input fills are inputs themselves.
        let sizes = self.plan.inputs.iter().flat_map(|input| match input {
            Input::Tensor { shape, .. } => shape.iter().filter_map(Dim::as_var).collect(),
            Input::Int(var) => vec![*var],
        });
        let filled: Vec<Var> = sizes.collect();
        for var in (0..self.plan.vars).map(Var) {
            let at = self.values[var.0 as usize];
            if !filled.contains(&var) {
                self.plan.inputs.push(Input::Int(var));
                self.given.push(at.map(Given::Int));
            } else if self.rng.one_in(2) {
                self.plan.largest.push((var, at.into_iter().fold(0, i64::max)));
            }
        }
        // What is not written must stay as it is, so everything that could change is looked at.
        for (index, buffer) in self.plan.buffers.iter().enumerate() {
            if matches!(buffer.kind, BufferKind::State | BufferKind::Temporary) {
                let whole = row_major(Buf(index as u32), buffer.dtype, std::slice::from_ref(&buffer.elements));
                self.plan.outputs.push(Output::Tensor(whole));
            }
        }
        let given = std::array::from_fn(|call| self.given.iter().map(|given| given[call].clone()).collect());
        let values = std::array::from_fn(|call| self.host(call));
        let state_seed = self.rng.next();
        let Self { plan, tested, may_fail, .. } = self;
        Finished { plan, values, given, tested, may_fail, state_seed }
    }
}

/// The step that copies.
pub(super) fn copy(from: &View, to: &View) -> Prim {
    let load = Step { op: Scalar::Load(0), args: [0; 3], dtype: from.dtype };
    Prim::Map { out: to.clone(), ins: vec![from.clone()], expr: Expr { steps: vec![load] } }
}
