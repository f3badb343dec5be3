//! Memory of programs and lanes on the device.

use crate::buffer::Buffer;
use crate::program::{ARENA, FIRST_OWN, Program, SHARED, STATES, Site, device};
use crate::stream::Stream;
use ptero_backend::{Fault, Loading, NumberFault};
use ptero_plan::bound::{Bound, BoundView};
use ptero_plan::plan::{Buffer as PlanBuffer, BufferKind, Plan};
use ptero_plan::prim::Buf;

/// The most bytes of weights that are uploaded between two reports.
const REPORTED_BYTES: usize = 16 << 20;

fn constant_bytes(buffer: &PlanBuffer) -> u64 {
    if let BufferKind::Constant(bytes) = &buffer.kind { bytes.len() as u64 } else { 0 }
}

/// What all lanes of a program share: constants, and what the init block makes of them.
#[derive(Debug)]
pub(crate) struct Weights(Buffer<u8>);

impl Weights {
    /// Allocates the region and uploads the constants. Sites count from its start here.
    pub(crate) fn upload(
        stream: &Stream,
        plan: &Plan,
        sites: &[Site],
        bytes: u64,
        loading: &Loading,
    ) -> Result<Self, Fault> {
        let length = usize::try_from(bytes).map_err(|_| Fault::from(NumberFault::TooLarge))?;
        let mut region = device(Buffer::zeroed(stream, length))?;
        let constants = plan.buffers.iter().zip(sites).filter_map(|(buffer, site)| match &buffer.kind {
            BufferKind::Constant(bytes) => Some((usize::try_from(site.start).ok()?, &**bytes)),
            BufferKind::Derived | BufferKind::Input(_) | BufferKind::State | BufferKind::Temporary => None,
        });
        let work = loading.begin(plan.buffers.iter().map(constant_bytes).sum());
        device(region.write_staged(work.pieces(constants, REPORTED_BYTES)))?;
        Ok(Self(region))
    }

    pub(crate) fn address(&self) -> u64 {
        self.0.address()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn region(&self) -> &Buffer<u8> {
        &self.0
    }
}

/// Words of a `Lane` in view.cuh before its regions: status, key, fault, table of numbers.
const LANE_HEAD: usize = 5;
const STATUS_WORD: usize = 0;
/// The most steps of a lane that are put on the stream before it is waited for.
pub(crate) const MOST_STEPS: usize = 16;

/// What a lane has latched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// 0 while the lane runs.
    pub(crate) code: u32,
    /// The index that does not fit, and the size.
    pub(crate) index: i64,
    pub(crate) size: i64,
}

/// The tokens of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) status: Status,
    pub(crate) count: usize,
    /// The first `count` are tokens.
    pub(crate) tokens: [u32; MOST_STEPS],
}

/// The memory of one lane.
#[derive(Debug)]
pub(crate) struct LaneMemory {
    /// A `Lane` of view.cuh, then the number of tokens of a run and the tokens (follow.cu).
    table: Buffer<u64>,
    numbers: Buffer<i64>,
    /// What `numbers` holds, but for launches under way.
    host_numbers: Vec<i64>,
    arena: Buffer<u8>,
    states: Buffer<u8>,
    /// By region from [`FIRST_OWN`] on.
    own: Vec<Buffer<u8>>,
    /// How often a buffer of its own has moved: launches that were captured before that are of no use.
    moves: u64,
    /// Its status may be other than 0.
    may_be_halted: bool,
}

impl LaneMemory {
    /// Allocates zeroed memory.
    pub(crate) fn new(program: &Program, stream: &Stream, key: [u32; 2]) -> Result<Self, Fault> {
        let arena = device(Buffer::zeroed(stream, program.arena_bytes))?;
        let states = device(Buffer::zeroed(stream, program.state_bytes))?;
        let numbers = device(Buffer::zeroed(stream, program.slots.len()))?;
        let own = program.own.iter().map(|_| device(Buffer::zeroed(stream, 0))).collect::<Result<Vec<_>, _>>()?;
        let head = [0, u64::from(key[0]) | u64::from(key[1]) << 32, 0, 0, numbers.address()];
        let regions = [0, arena.address(), states.address()].into_iter().chain(own.iter().map(Buffer::address));
        let words: Vec<u64> = head.into_iter().chain(regions).chain([0; 1 + MOST_STEPS]).collect();
        let table = device(Buffer::from_slice(stream, &words))?;
        let host_numbers = vec![0; program.slots.len()];
        Ok(Self { table, numbers, host_numbers, arena, states, own, moves: 0, may_be_halted: false })
    }

    /// The address of the `Lane`.
    pub(crate) fn address(&self) -> u64 {
        self.table.address()
    }

    /// The address of the number of tokens of a run.
    pub(crate) fn taken_address(&self) -> u64 {
        self.address() + (self.taken_word() * size_of::<u64>()) as u64
    }

    fn taken_word(&self) -> usize {
        LANE_HEAD + usize::from(FIRST_OWN) + self.own.len()
    }

    /// The bytes from one `Lane` to the next.
    pub(crate) fn lane_bytes(&self) -> u32 {
        u32::try_from(self.table.len() * size_of::<u64>()).unwrap_or(u32::MAX)
    }

    /// Prepares the lane for a step: numbers are uploaded, and nothing has failed.
    pub(crate) fn start(&mut self, program: &Program, bound: &Bound) -> Result<(), Fault> {
        if program.slots.compute(bound, &mut self.host_numbers) {
            device(self.numbers.write(0, &self.host_numbers))?;
        }
        if std::mem::take(&mut self.may_be_halted) {
            device(self.table.write(STATUS_WORD, &[0]))?;
        }
        Ok(())
    }

    /// Uploads numbers that have become known during a step, after `launch` has launched what waits with those before.
    pub(crate) fn refresh(
        &mut self,
        program: &Program,
        bound: &Bound,
        launch: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if program.slots.compute_late(bound, &mut self.host_numbers) {
            launch()?;
            device(self.numbers.write(0, &self.host_numbers))?;
        }
        Ok(())
    }

    /// Notes numbers that the device will replace by itself.
    pub(crate) fn note_numbers(&mut self, program: &Program, bound: &Bound) {
        program.slots.compute(bound, &mut self.host_numbers);
    }

    /// The latched status, once everything before is done.
    pub(crate) fn status(&mut self) -> Result<Status, Fault> {
        let mut words = [0; LANE_HEAD];
        device(self.table.read_into(STATUS_WORD, &mut words))?;
        Ok(self.note_status(words))
    }

    /// The tokens of a run of this many steps and the latched status, once everything before is done.
    pub(crate) fn taken(&mut self, steps: usize) -> Result<Taken, Fault> {
        let mut taken = Taken { status: Status::default(), count: 0, tokens: [0; MOST_STEPS] };
        if steps == 0 {
            return Ok(taken);
        }
        let mut words = [0; 1 + MOST_STEPS];
        device(self.table.read_into(self.taken_word(), &mut words))?;
        let [count, tokens @ ..] = words;
        taken.count = usize::try_from(count).unwrap_or(0).min(steps);
        // The kernel has refused what is no token.
        taken.tokens = tokens.map(|token| u32::try_from(token).unwrap_or(0));
        taken.status = self.status()?;
        Ok(taken)
    }

    fn note_status(&mut self, words: [u64; LANE_HEAD]) -> Status {
        let [status, _, index, size, _] = words;
        let code = u32::try_from(status & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        self.may_be_halted = code != 0;
        Status { code, index: index.cast_signed(), size: size.cast_signed() }
    }

    /// Makes a buffer of its own at least that long. Its content is then unspecified.
    pub(crate) fn reserve(&mut self, stream: &Stream, site: Site, bytes: usize) -> Result<(), Fault> {
        let index = usize::from(site.region - FIRST_OWN);
        let Some(own) = self.own.get_mut(index) else { return Err(NO_REGION) };
        if own.len() < bytes {
            *own = device(Buffer::zeroed(stream, bytes))?;
            self.moves += 1;
            device(self.table.write(LANE_HEAD + usize::from(site.region), &[own.address()]))?;
        }
        Ok(())
    }

    /// Returns `true` if a buffer of its own would move to be that long.
    pub(crate) fn is_short(&self, site: Site, bytes: usize) -> bool {
        self.own.get(usize::from(site.region - FIRST_OWN)).is_some_and(|own| own.len() < bytes)
    }

    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    /// Replaces the first bytes of a buffer of its own.
    pub(crate) fn fill(&mut self, stream: &Stream, site: Site, bytes: &[u8]) -> Result<(), Fault> {
        self.reserve(stream, site, bytes.len())?;
        let own = self.own.get_mut(usize::from(site.region - FIRST_OWN)).ok_or(NO_REGION)?;
        device(own.write(0, bytes))
    }

    /// The region of a buffer, and the distance from its start.
    fn region<'a>(&'a self, program: &'a Program, buf: Buf) -> Result<(&'a Buffer<u8>, u64), Fault> {
        let Site { region, start } = program.site(buf);
        Ok(match region {
            SHARED => (program.weights.region(), start - program.weights.address()),
            ARENA => (&self.arena, start),
            STATES => (&self.states, start),
            own => (self.own.get(usize::from(own - FIRST_OWN)).ok_or(NO_REGION)?, start),
        })
    }

    /// Reads bytes of a buffer, once everything before is done.
    pub(crate) fn read(&self, program: &Program, buf: Buf, start: usize, bytes: &mut [u8]) -> Result<(), Fault> {
        let (region, first) = self.region(program, buf)?;
        let first = usize::try_from(first).map_err(|_| Fault::from(NumberFault::TooLarge))?;
        device(region.read_into(first + start, bytes))
    }

    /// Zeroes the state buffers.
    pub(crate) fn reset(&mut self) -> Result<(), Fault> {
        device(self.states.zero())
    }

    /// Copies what outlives a call: states and inputs.
    pub(crate) fn copy_kept(&mut self, from: &Self, program: &Program, stream: &Stream) -> Result<(), Fault> {
        device(self.states.copy_from(&from.states))?;
        for (index, (buf, source)) in program.own.iter().zip(&from.own).enumerate() {
            if matches!(program.plan.buffer(*buf).kind, BufferKind::Input(_)) {
                self.reserve(stream, program.site(*buf), source.len())?;
                let own = self.own.get_mut(index).ok_or(NO_REGION)?;
                device(own.copy_from(source))?;
            }
        }
        Ok(())
    }

    /// The address of the first element of a view.
    pub(crate) fn address_of(&self, program: &Program, view: &BoundView) -> Result<u64, Fault> {
        let (region, start) = self.region(program, view.buf)?;
        Ok(region.address() + start + (view.offset * view.dtype.size()) as u64)
    }

    /// What the table of numbers holds when everything that is on the stream is done.
    pub(crate) fn numbers(&self) -> &[i64] {
        &self.host_numbers
    }

    /// A number of the table.
    pub(crate) fn number(&self, slot: u32) -> i64 {
        self.host_numbers.get(slot as usize).copied().unwrap_or(0)
    }
}

const NO_REGION: Fault = Fault::Contract("a buffer lies in a region of its lane");
