//! A step of a plan, as kernels are launched for it.

use crate::buffer::Buffer;
use crate::context::DeviceInfo;
use crate::error::Result as CudaResult;
use crate::kernels::Kernels;
use crate::kernels::quant::quantize::WholeRows;
use crate::kernels::together::{Body, LaneStep, Part, Together};
use crate::launch::Grid;
use crate::memory::LaneMemory;
use crate::module::{Source, Variant};
use crate::program::{MOST_AXES, Program, device};
use crate::sample::{LogitType, Sampler, Workspace};
use crate::stream::Stream;
use bytemuck::{Pod, Zeroable};
use ptero_backend::{Fault, NumberFault};
use ptero_plan::bound::{Bound, BoundView};
use ptero_plan::dim::Dim;
use ptero_plan::plan::PlanStep;
use ptero_plan::prim::{Buf, Prim, View, ViewId};
use ptero_tensor::DType;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A number of a launch: itself, or the slot of a lane's table that holds it (`Number` in view.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Number(i64);

impl Number {
    /// A number that no step changes. None of a plan is as small as a slot.
    pub(crate) fn fixed(number: i64) -> Self {
        Self(number)
    }

    fn slot(slot: u32) -> Self {
        Self(i64::MIN + i64::from(slot))
    }
}

impl From<usize> for Number {
    fn from(size: usize) -> Self {
        Self(size.cast_signed() as i64)
    }
}

/// What every kernel gets first (`Launch` in view.cuh).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Launch {
    lanes: u64,
    lane_bytes: u32,
    step: u32,
}

const _: () = assert!(size_of::<Launch>() == 16, "the layout of `Launch` in view.cuh");

impl Launch {
    /// For the step that follows, which this one does early.
    pub(crate) fn of_next_step(self) -> Self {
        Self { step: self.step + 1, ..self }
    }
}

/// A view as a kernel gets it (`View` in view.cuh).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ViewArg {
    pub(crate) buffer: u64,
    pub(crate) region: u16,
    pub(crate) rank: u8,
    pub(crate) dtype: u8,
    unused: u32,
    pub(crate) offset: Number,
    pub(crate) shape: [Number; MOST_AXES],
    pub(crate) strides: [Number; MOST_AXES],
}

const _: () = assert!(size_of::<ViewArg>() == 152, "the layout of `View` in view.cuh");

impl ViewArg {
    /// A row-major tensor at an address.
    pub(crate) fn row_major(address: u64, dtype: DType, shape: &[usize]) -> Self {
        let mut view = Self { buffer: address, rank: small(shape.len()), dtype: code(dtype), ..Self::zeroed() };
        view.shape = [Number::fixed(1); MOST_AXES];
        let mut stride = 1;
        for ((size, to_size), to_stride) in shape.iter().zip(&mut view.shape).zip(&mut view.strides).rev() {
            (*to_size, *to_stride) = (Number::from(*size), Number::from(stride));
            stride *= size;
        }
        view
    }
}

/// The code of a type in element.cuh.
pub(crate) fn code(dtype: DType) -> u8 {
    dtype.code().unsigned_abs()
}

fn small(count: usize) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}

/// The tag of a type in element.cuh. `check_graph` has refused the types that no kernel computes with.
pub(crate) fn tag(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::Bf16 => "Bf16",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::U32 => "U32",
        DType::I16 => "I16",
        DType::U16 => "U16",
        DType::I8 => "I8",
        DType::U8 => "U8",
        _ => "Bool",
    }
}

/// Memory that primitives need beside their tensors, and launches that wait. The work of all lanes is in order, so they share it.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Of a primitive alone.
    own: ScratchPool,
    /// Activations as whole numbers, which several products may multiply.
    pub(crate) rows: Kept<RowsKey, WholeRows>,
    /// The address of sines and cosines of a position, which all layers rotate by.
    pub(crate) angles: Kept<AnglesKey, u64>,
    /// Steps that the launch of the step before has done.
    joined: Vec<LaneStep>,
    /// How often a step was done by the launch of another.
    pub(crate) joined_steps: u64,
    /// What blocks of a launch count themselves with, and how many are in use. All are 0 between launches.
    counters: Buffer<u32>,
    used_counters: usize,
    /// Steps that wait to be launched.
    pub(crate) together: Together,
    /// What draws need, by type and size: draws are done in the order of the stream, so that those of one size share it.
    workspaces: HashMap<DrawSize, Workspace>,
}

/// The type of logits, rows, vocabulary, and whether logits are adjusted.
type DrawSize = (LogitType, usize, usize, bool);

/// Which sines and cosines were computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnglesKey {
    /// The address of the lane.
    pub(crate) lane: u64,
    pub(crate) position: Number,
    /// The address of periods that are constant, or 0.
    pub(crate) periods: u64,
    /// The bits of scale and base.
    pub(crate) numbers: [u32; 2],
    pub(crate) dims: u32,
}

/// The number of counters, and the most that one launch uses.
const COUNTERS: usize = 1 << 14;
pub(crate) const MOST_COUNTERS: usize = 1024;

/// Which activations were turned into whole numbers, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowsKey {
    /// The address of the lane.
    pub(crate) lane: u64,
    pub(crate) x: BoundView,
    pub(crate) group: usize,
    pub(crate) is_interleaved: bool,
}

impl Scratch {
    pub(crate) fn new(stream: &Stream) -> CudaResult<Self> {
        let counters = Buffer::zeroed(stream, COUNTERS)?;
        let (own, rows, angles) = (ScratchPool::new(stream)?, Kept::new(stream)?, Kept::new(stream)?);
        let workspaces = HashMap::new();
        let (joined, together) = (Vec::new(), Together::default());
        Ok(Self { own, rows, angles, joined, joined_steps: 0, counters, used_counters: 0, together, workspaces })
    }

    /// The workspace for draws of a size.
    pub(crate) fn workspace(
        &mut self,
        stream: &Stream,
        sampler: &Sampler,
        size: DrawSize,
    ) -> CudaResult<&mut Workspace> {
        let (_, rows, vocabulary, adjusts) = size;
        Ok(match self.workspaces.entry(size) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(sampler.workspace(stream, rows, vocabulary, adjusts)?),
        })
    }

    /// How often memory has moved: launches that were captured before that are of no use.
    pub(crate) fn moves(&self) -> u64 {
        self.own.moves + self.rows.pool.moves + self.angles.pool.moves
    }

    /// What is on the stream is all there is: memory of primitives may be used again.
    pub(crate) fn clear(&mut self) {
        self.own.clear();
        self.used_counters = 0;
    }

    /// How much memory of primitives is in use.
    pub(crate) fn used(&self) -> usize {
        self.own.used + self.used_counters
    }

    /// Launches what waits.
    pub(crate) fn flush(&mut self, kernels: &Kernels, stream: &Stream) -> Result<(), Fault> {
        let launched = self.together.flush(kernels, stream);
        self.clear();
        launched
    }

    /// A block starts: what was computed before it does not count.
    pub(crate) fn forget(&mut self) {
        self.rows.forget();
        self.angles.forget();
        self.joined.clear();
    }

    /// A step was done by the launch of the step before it.
    pub(crate) fn note_joined(&mut self, lane: u64, at: (usize, usize)) {
        self.joined.push((lane, at));
        self.joined_steps += 1;
    }

    /// Returns `true` if the step was done before, and forgets it.
    pub(crate) fn was_joined(&mut self, lane: u64, at: (usize, usize)) -> bool {
        let found = self.joined.iter().position(|known| *known == (lane, at));
        found.map(|index| self.joined.swap_remove(index)).is_some()
    }

    /// A buffer was written.
    pub(crate) fn note_write(&mut self, buf: Buf) {
        self.rows.known.retain(|(key, _)| key.x.buf != buf);
    }
}

/// What launches have left in memory of their own, for launches after them that need the same.
#[derive(Debug)]
pub(crate) struct Kept<K, V> {
    pool: ScratchPool,
    known: Vec<(K, V)>,
}

impl<K: PartialEq, V: Copy> Kept<K, V> {
    fn new(stream: &Stream) -> CudaResult<Self> {
        Ok(Self { pool: ScratchPool::new(stream)?, known: Vec::new() })
    }

    /// What a launch has left.
    pub(crate) fn known(&self, key: &K) -> Option<V> {
        self.known.iter().find(|(known, _)| known == key).map(|(_, value)| *value)
    }

    /// Nothing that launches have left is needed any more.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.pool.clear();
    }

    /// Memory for more: its address.
    pub(crate) fn take(&mut self, stream: &Stream, bytes: usize) -> Result<u64, Fault> {
        self.pool.take(stream, bytes)
    }

    pub(crate) fn note(&mut self, key: K, value: V) {
        self.known.push((key, value));
    }
}

/// Memory that is shared out and then used again.
#[derive(Debug)]
struct ScratchPool {
    buffer: Buffer<u8>,
    used: usize,
    /// Too short for what came after, but used by launches still to come.
    retired: Vec<Buffer<u8>>,
    moves: u64,
}

impl ScratchPool {
    fn new(stream: &Stream) -> CudaResult<Self> {
        Ok(Self { buffer: Buffer::zeroed(stream, 1 << 20)?, used: 0, retired: Vec::new(), moves: 0 })
    }

    /// The address of that many bytes, until [`ScratchPool::clear`]. Their content is unspecified.
    fn take(&mut self, stream: &Stream, bytes: usize) -> Result<u64, Fault> {
        let bytes = bytes.max(1).checked_next_multiple_of(256).ok_or(NumberFault::TooLarge)?;
        if self.used + bytes > self.buffer.len() {
            let length = (self.buffer.len() * 2).max(bytes);
            let longer = device(Buffer::zeroed(stream, length))?;
            self.retired.push(std::mem::replace(&mut self.buffer, longer));
            self.used = 0;
            self.moves += 1;
        }
        let address = self.buffer.address() + self.used as u64;
        self.used += bytes;
        Ok(address)
    }

    fn clear(&mut self) {
        self.used = 0;
        self.retired.clear();
    }
}

/// The first generation of devices whose launches may overlap: Hopper.
pub(crate) const FIRST_OVERLAPPING: u32 = 9;

/// A primitive of a plan for one lane.
pub(crate) struct Step<'a> {
    pub(crate) program: &'a Program,
    pub(crate) kernels: &'a Kernels,
    pub(crate) stream: &'a Stream,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) memory: &'a mut LaneMemory,
    /// The numbers of this step.
    pub(crate) bound: &'a Bound,
    /// Its number among the steps of the plan.
    pub(crate) number: u32,
    /// How many lanes do the step together: a power of two.
    pub(crate) lanes: usize,
    /// The norm whose result the step has computed again.
    pub(crate) recomputed: Option<&'a Prim>,
}

impl<'a> Step<'a> {
    /// The numbers that a view has in this step, for sizes of grids: they may be others when a captured launch is repeated.
    pub(crate) fn shape(&self, view: ViewId) -> &'a BoundView {
        self.bound.view(view)
    }

    pub(crate) fn dtype(&self, view: ViewId) -> DType {
        self.bound.view(view).dtype
    }

    pub(crate) fn tag(&self, view: ViewId) -> &'static str {
        tag(self.dtype(view))
    }

    /// What every kernel gets first.
    pub(crate) fn launch(&self) -> Launch {
        Launch { lanes: self.memory.address(), lane_bytes: self.memory.lane_bytes(), step: self.number }
    }

    /// A number as kernels get it.
    pub(crate) fn number(&self, number: &Dim) -> Number {
        let slot = self.program.slots.slot(number);
        slot.map_or_else(|| Number::fixed(number.eval(&self.bound.values)), Number::slot)
    }

    /// Returns `true` if all numbers of a view stay while the sizes of the inputs do.
    pub(crate) fn is_fixed(&self, view: ViewId) -> bool {
        let View { shape, strides, offset, .. } = self.program.plan.view(view);
        let mut numbers = shape.iter().chain(strides).chain([offset]);
        numbers.all(|number| self.program.plan.follows_sizes(number))
    }

    /// A view as kernels get it.
    pub(crate) fn view(&self, id: ViewId) -> ViewArg {
        if self.is_fixed(id) {
            return self.view_of(self.shape(id));
        }
        let view = self.program.plan.view(id);
        let mut arg = self.empty(self.shape(id));
        arg.offset = self.number(&view.offset);
        arg.shape.iter_mut().zip(&view.shape).for_each(|(to, from)| *to = self.number(from));
        arg.strides.iter_mut().zip(&view.strides).for_each(|(to, from)| *to = self.number(from));
        arg
    }

    /// A view of a buffer of the plan, with numbers that no step changes.
    pub(crate) fn view_of(&self, view: &BoundView) -> ViewArg {
        let mut arg = self.empty(view);
        arg.offset = Number::from(view.offset);
        arg.shape.iter_mut().zip(&view.shape).for_each(|(to, from)| *to = Number::from(*from));
        arg.strides.iter_mut().zip(&view.strides).for_each(|(to, from)| *to = Number::fixed(*from as i64));
        arg
    }

    fn empty(&self, view: &BoundView) -> ViewArg {
        ViewArg { rank: small(view.shape.len()), ..self.first_element(view.buf) }
    }

    /// A view of the first element of a buffer.
    pub(crate) fn first_element(&self, buf: Buf) -> ViewArg {
        let site = self.program.site(buf);
        ViewArg {
            buffer: site.start,
            region: site.region,
            dtype: code(self.program.plan.buffer(buf).dtype),
            shape: [Number::fixed(1); MOST_AXES],
            ..ViewArg::zeroed()
        }
    }

    /// The number of elements that a view has in this step.
    pub(crate) fn count(&self, view: &ViewArg) -> usize {
        let size = |number: &Number| match u32::try_from(number.0.wrapping_sub(i64::MIN)) {
            Ok(slot) => self.memory.number(slot),
            Err(_) => number.0,
        };
        view.shape.iter().map(|number| usize::try_from(size(number)).unwrap_or(0)).product()
    }

    /// Counters for this primitive alone: the address of the first of up to [`MOST_COUNTERS`].
    pub(crate) fn counters(&mut self, count: usize) -> Result<u64, Fault> {
        if self.scratch.used_counters + count > COUNTERS {
            self.scratch.flush(self.kernels, self.stream)?;
        }
        let first = self.scratch.used_counters;
        self.scratch.used_counters += count;
        Ok(self.scratch.counters.address() + (first * size_of::<u32>()) as u64)
    }

    /// Memory for this primitive alone: its address. The content is unspecified.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<u64, Fault> {
        self.scratch.own.take(self.stream, bytes)
    }

    pub(crate) fn info(&self) -> &'a DeviceInfo {
        self.stream.device().info()
    }

    /// A grid of blocks of `threads` threads for this many items, `per_block` to a block: not more blocks than keep the device
    /// busy, since kernels go on with the next items.
    pub(crate) fn grid(&self, items: usize, per_block: usize, threads: u32) -> Grid {
        let most = self.info().multiprocessors as usize * 16;
        let blocks = items.div_ceil(per_block.max(1)).clamp(1, most.max(1));
        Grid::new(u32::try_from(blocks).unwrap_or(u32::MAX), threads)
    }

    /// Launches a kernel that may be part of a launch, when the step is done or later.
    pub(crate) fn run_part<A: Pod>(&mut self, part: &'static Part, variant: Variant<'_>, grid: Grid, args: &A) {
        self.scratch.together.add(Body::new(part, variant, grid, args));
    }

    /// The norm that computes `x`, if it waits to be launched: the row that it reads may be normalized again.
    pub(crate) fn waiting_norm(&self, x: ViewId) -> Option<&'a Prim> {
        let plan = &self.program.plan;
        let lane = self.memory.address();
        let mut norms = self.scratch.together.norms.iter().filter(|(of, _)| *of == lane);
        norms.find_map(|(_, (block, step))| match plan.blocks.get(*block)?.steps.get(*step)? {
            PlanStep::Device(norm) if self.shape(*norm.out()) == self.shape(x) => Some(norm),
            _ => None,
        })
    }

    /// Launches a kernel, after what waits.
    pub(crate) fn run<A: Pod>(
        &mut self,
        source: &'static Source,
        defines: &[(&'static str, &str)],
        kernel: &'static str,
        grid: Grid,
        args: &A,
    ) -> Result<(), Fault> {
        self.run_variant(source, Variant { defines, generated: "" }, kernel, grid, args)
    }

    /// Launches a kernel of a source that includes a generated header.
    pub(crate) fn run_variant<A: Pod>(
        &mut self,
        source: &'static Source,
        variant: Variant<'_>,
        kernel: &'static str,
        grid: Grid,
        args: &A,
    ) -> Result<(), Fault> {
        self.scratch.together.flush(self.kernels, self.stream)?;
        self.scratch.together.launches += 1;
        if self.kernels.notes(source, variant) {
            return Ok(());
        }
        let kernel = device(self.kernels.kernel::<A>(source, variant, (kernel, size_of::<A>())))?;
        // Kernels of primitives wait for the launch before them in `lane_of`.
        let grid = Grid { overlapping: self.info().arch.major >= FIRST_OVERLAPPING, ..grid };
        device(kernel.launch(self.stream, grid, |_| *args))
    }
}
