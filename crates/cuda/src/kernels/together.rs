//! Steps side by side: what does not depend on each other is one launch, of one lane or of several.
//!
//! A step does not launch its kernel at once. It waits, and steps after it that touch nothing of what it writes join it; the first that
//! does, or that launches in another way, lets all go. The kernel of such a launch is generated: each part has a namespace of its own in
//! it (`together.cu`), and a range of blocks. Steps with the same code, as those of several lanes, are instances of one part.

use crate::error::Result as CudaResult;
use crate::kernels::{Kernels, source};
use crate::launch::{Grid, Kernel};
use crate::module::{Source, Variant};
use crate::program::device;
use crate::step::FIRST_OVERLAPPING;
use crate::stream::Stream;
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

pub(crate) const TOGETHER: Source = source!("together.cu");

/// A kernel that may be part of a launch.
#[derive(Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) file: &'static str,
    pub(crate) text: &'static str,
    /// The name of the kernel, and of its arguments.
    pub(crate) kernel: &'static str,
    pub(crate) arguments: &'static str,
}

/// A kernel in `kernels/`, by its name and that of its arguments.
macro_rules! part {
    ($kernel:literal, $arguments:literal) => {
        crate::kernels::together::Part {
            file: concat!($kernel, ".cu"),
            text: include_str!(concat!($kernel, ".cu")),
            kernel: $kernel,
            arguments: $arguments,
        }
    };
}
pub(crate) use part;

/// The most different parts of a launch.
const MOST_PARTS: usize = 6;

/// Blocks that do the same for several steps.
#[derive(Debug, PartialEq)]
pub(crate) struct Body {
    part: &'static Part,
    defines: Vec<(String, String)>,
    /// The functions of the kernel.
    generated: String,
    /// Of an instance.
    grid: Grid,
    /// Of all instances.
    arguments: Vec<u64>,
    instances: usize,
}

/// `Share` in together.cu.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Share {
    blocks: u32,
    instances: u32,
    across: u32,
    threads: u32,
}

const _: () = assert!(size_of::<Share>() == 16, "the layout of `Share` in together.cu");

impl Body {
    pub(crate) fn new<A: Pod>(part: &'static Part, variant: Variant<'_>, grid: Grid, arguments: &A) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let defines = variant.defines.iter().map(owned).collect();
        let arguments = words_of(std::slice::from_ref(arguments)).collect();
        Self { part, defines, generated: variant.generated.to_owned(), grid, arguments, instances: 1 }
    }

    /// As for two lanes.
    pub(crate) fn twice(mut self) -> Self {
        self.arguments.extend_from_within(..);
        self.instances *= 2;
        self
    }

    fn is_like(&self, other: &Self) -> bool {
        let are_same = self.part == other.part && self.defines == other.defines && self.generated == other.generated;
        are_same && self.grid == other.grid
    }

    /// Instances that there is room for: a power of two, so that few kernels serve any number of lanes.
    fn room(&self) -> usize {
        self.instances.next_power_of_two()
    }

    fn words(&self) -> usize {
        self.room() * self.arguments.len() / self.instances
    }

    fn share(&self) -> Share {
        let [across, down, _] = self.grid.blocks;
        let instances = u32::try_from(self.instances).unwrap_or(u32::MAX);
        let blocks = across.saturating_mul(down).saturating_mul(instances);
        Share { blocks, instances, across, threads: self.grid.threads[0] }
    }

    /// The namespace of a part.
    fn write(&self, text: &mut String, number: usize) {
        let Part { file, text: own, arguments, .. } = self.part;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "namespace part{number} {{");
        for (name, value) in &self.defines {
            let _ = writeln!(text, "#define {name} {value}");
        }
        let _ = writeln!(text, "{}#include \"{file}\"\nusing OwnArguments = {arguments};\n}}", self.generated);
        let mut undefine = |name: &str| text.extend(["#undef ", name, "\n"]);
        self.defines.iter().for_each(|(name, _)| undefine(name));
        headers_of_parts().chain([*own]).flat_map(defined_names).for_each(undefine);
    }
}

/// Structs as words: their sizes are multiples of eight.
fn words_of<A: Pod>(structs: &[A]) -> impl Iterator<Item = u64> {
    let (words, _) = bytemuck::cast_slice::<A, u8>(structs).as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word))
}

/// Headers that macros of a part change: each part includes them in its namespace, so they are not for once only.
fn headers_of_parts() -> impl Iterator<Item = &'static str> {
    let headers = TOGETHER.headers.iter().filter(|(name, _)| name.ends_with(".cuh"));
    headers.map(|(_, text)| *text).filter(|text| !text.lines().any(|line| line == "#pragma once"))
}

/// The macros that a file defines.
fn defined_names(text: &str) -> impl Iterator<Item = &str> {
    let names = text.lines().filter_map(|line| line.strip_prefix("#define "));
    names.map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or(rest))
}

/// The text of a launch: `generated.cuh` of `together.cu`.
pub(crate) fn text(bodies: &[Body]) -> String {
    let mut text = String::new();
    bodies.iter().enumerate().for_each(|(number, body)| body.write(&mut text, number));
    let _ = writeln!(text, "struct Arguments {{\n    Share shares[{}];", bodies.len());
    for (number, body) in bodies.iter().enumerate() {
        let _ = writeln!(text, "    part{number}::OwnArguments of{number}[{}];", body.room());
    }
    let threads = bodies.iter().map(|body| body.grid.threads[0]).max().unwrap_or(1);
    let _ = writeln!(
        text,
        "}};\nextern \"C\" __global__ void __launch_bounds__({threads}) together(const __grid_constant__ Arguments args) {{\n    \
         u32 at = blockIdx.x;"
    );
    for (number, body) in bodies.iter().enumerate() {
        let instance =
            if body.room() == 1 { "0".to_owned() } else { format!("instance_of(args.shares[{number}], at)") };
        let kernel = body.part.kernel;
        let of_instance =
            if body.room() == 1 { "at".to_owned() } else { format!("at / args.shares[{number}].instances") };
        let _ = writeln!(
            text,
            "    if (at < args.shares[{number}].blocks) {{\n        \
             if (threadIdx.x < args.shares[{number}].threads) part{number}::{kernel}(args.of{number}[{instance}], \
             block_of(args.shares[{number}], {of_instance}));\n        return;\n    }}\n    \
             at -= args.shares[{number}].blocks;"
        );
    }
    text.push_str("}\n");
    text
}

/// Memory that steps read and write.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) reads: Vec<Range<u64>>,
    pub(crate) writes: Vec<Range<u64>>,
    /// A step changes a state.
    pub(crate) changes_state: bool,
    /// A step may fail: steps after it must then change no state.
    pub(crate) may_fail: bool,
}

impl Touched {
    /// Returns `true` if `other`, which comes later, cannot be done at the same time.
    fn conflicts(&self, other: &Self) -> bool {
        let meets =
            |a: &[Range<u64>], b: &[Range<u64>]| a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end));
        let may_be_too_late = self.may_fail && other.changes_state;
        may_be_too_late
            || meets(&self.writes, &other.writes)
            || meets(&self.writes, &other.reads)
            || meets(&self.reads, &other.writes)
    }

    fn extend(&mut self, other: Self) {
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
        self.changes_state |= other.changes_state;
        self.may_fail |= other.may_fail;
    }
}

/// A step of a lane: its address, and where the step is.
pub(crate) type LaneStep = (u64, (usize, usize));

/// What becomes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Launched,
    /// It waits, as the first.
    Waits,
    /// It waits with others.
    Joins,
}

/// Steps that wait to be launched.
#[derive(Debug, Default)]
pub(crate) struct Together {
    waiting: Vec<Body>,
    /// What those of a lane touch, by its address: lanes have nothing in common but weights.
    touched: HashMap<u64, Touched>,
    /// What the step under way has launched.
    own: Vec<Body>,
    /// Norms among those that wait: whoever reads their results may compute them itself, and wait with them.
    pub(crate) norms: Vec<LaneStep>,
    /// Something that waits uses memory of primitives.
    pub(crate) keeps_scratch: bool,
    /// How many kernels were launched.
    pub(crate) launches: u64,
    /// Kernels of launches, by the digest of their parts.
    known: HashMap<blake3::Hash, Arc<Kernel<[u64]>>>,
}

impl Together {
    /// The step under way launches something.
    pub(crate) fn add(&mut self, body: Body) {
        self.own.push(body);
    }

    /// The step under way, of a lane, is done. It waits if what it touches is given; else it is launched.
    pub(crate) fn settle(
        &mut self,
        (kernels, stream): (&Kernels, &Stream),
        lane: u64,
        (touched, uses_scratch): (Option<Touched>, bool),
    ) -> Result<Settled, Fault> {
        let Some(touched) = touched.filter(|_| self.own.len() == 1) else {
            let is_done = if self.own.is_empty() { Ok(()) } else { self.flush(kernels, stream) };
            return is_done.map(|()| Settled::Launched);
        };
        let own = std::mem::take(&mut self.own);
        let conflicts = self.touched.get(&lane).is_some_and(|before| before.conflicts(&touched));
        if conflicts || !own.iter().all(|body| self.has_room(kernels, body)) {
            self.flush(kernels, stream)?;
        }
        let settled = if self.waiting.is_empty() { Settled::Waits } else { Settled::Joins };
        self.touched.entry(lane).or_default().extend(touched);
        self.keeps_scratch |= uses_scratch;
        for body in own {
            match self.waiting.iter_mut().find(|waiting| waiting.is_like(&body)) {
                Some(like) => {
                    like.arguments.extend(body.arguments);
                    like.instances += 1;
                }
                None => self.waiting.push(body),
            }
        }
        Ok(settled)
    }

    /// Returns `true` if a launch can take one more.
    fn has_room(&self, kernels: &Kernels, body: &Body) -> bool {
        let is_known = self.waiting.iter().any(|waiting| waiting.is_like(body));
        // A part whose room is full gets twice as much.
        let grown = |waiting: &Body| if waiting.is_like(body) && waiting.room() == waiting.instances { 2 } else { 1 };
        let words: usize = self.waiting.iter().map(|waiting| waiting.words() * grown(waiting)).sum();
        let words = words + if is_known { 0 } else { body.words() };
        let parts = self.waiting.len() + usize::from(!is_known);
        parts <= MOST_PARTS && words * size_of::<u64>() + parts * size_of::<Share>() <= kernels.most_argument_bytes
    }

    /// Launches what waits, and then what the step under way has launched.
    pub(crate) fn flush(&mut self, kernels: &Kernels, stream: &Stream) -> Result<(), Fault> {
        let waiting = std::mem::take(&mut self.waiting);
        self.touched.clear();
        self.norms.clear();
        self.keeps_scratch = false;
        let own = std::mem::take(&mut self.own);
        self.launches += u64::from(!waiting.is_empty()) + own.len() as u64;
        if !waiting.is_empty() {
            device(self.launch(kernels, stream, &waiting))?;
        }
        own.iter().try_for_each(|body| device(self.launch(kernels, stream, std::slice::from_ref(body))))
    }

    /// Launches parts together.
    fn launch(&mut self, kernels: &Kernels, stream: &Stream, bodies: &[Body]) -> CudaResult<()> {
        let shares: Vec<Share> = bodies.iter().map(Body::share).collect();
        let mut words: Vec<u64> = words_of(&shares).collect();
        for body in bodies {
            words.extend(&body.arguments);
            words.resize(words.len() + body.words() - body.arguments.len(), 0);
        }
        let Some(kernel) = self.kernel(kernels, bodies, words.len() * size_of::<u64>())? else { return Ok(()) };
        let most = |of: fn(&Body) -> u32| bodies.iter().map(of).max().unwrap_or(0);
        let blocks = shares.iter().fold(0_u32, |blocks, share| blocks.saturating_add(share.blocks));
        let grid = Grid {
            shared_bytes: most(|body| body.grid.shared_bytes),
            // Kernels of primitives wait for the launch before them in `lane_of`.
            overlapping: stream.device().info().arch.major >= FIRST_OVERLAPPING,
            ..Grid::new(blocks, most(|body| body.grid.threads[0]))
        };
        kernel.launch_words(stream, grid, &words)
    }

    /// The kernel of a launch, for arguments of that many bytes; `None` in a rehearsal.
    fn kernel(&mut self, kernels: &Kernels, bodies: &[Body], bytes: usize) -> CudaResult<Option<Arc<Kernel<[u64]>>>> {
        let digest = digest(bodies);
        if let Some(known) = self.known.get(&digest) {
            return Ok(Some(Arc::clone(known)).filter(|_| !kernels.rehearses()));
        }
        let text = text(bodies);
        let variant = Variant { defines: &[], generated: &text };
        if kernels.notes(&TOGETHER, variant) {
            return Ok(None);
        }
        let kernel = kernels.kernel(&TOGETHER, variant, ("together", bytes))?;
        self.known.insert(digest, Arc::clone(&kernel));
        Ok(Some(kernel))
    }

    /// Forgets what the step under way has launched: it failed.
    pub(crate) fn forget_own(&mut self) {
        self.own.clear();
    }
}

/// Everything that the text of a launch is made of, and much shorter.
fn digest(bodies: &[Body]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    // Each part after its length, so that none can pass for others.
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for body in bodies {
        part(body.part.kernel.as_bytes());
        part(&body.defines.len().to_le_bytes());
        for (name, value) in &body.defines {
            part(name.as_bytes());
            part(value.as_bytes());
        }
        part(body.generated.as_bytes());
        part(&body.room().to_le_bytes());
        part(&body.grid.threads[0].to_le_bytes());
    }
    hasher.finalize()
}
