//! What the fuzz targets do with their input. They live here so that a test on stable Rust replays the committed seeds
//! through the very same functions.

use crate::inspect::{Report, STYLES, TEMPLATE, nodes, page, summary, weights};
use ptero_backend::{Backend, InputValue, OutputValue, run_once};
use ptero_checkpoint::{Array, Checkpoint, Limits as CheckpointLimits, SIDE_FILES};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_export::{Graft, GraftError};
use ptero_plan::dim::Dim;
use ptero_plan::graph::{Graph, Input, Op};
use ptero_plan::{CacheLayer, Capabilities, KvCache, Options, bufferize, lower, passes};
use ptero_pte::{Bytes, Error, Fault, Limits, Program, TensorData, Verified, byte_count, check};
use ptero_reference::Reference;
use ptero_sampling::inputs::SAMPLER_INPUTS;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

/// What a target does with one input.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 9] = [
    ("open", open),
    ("read_write_read", read_write_read),
    ("inspect", inspect),
    ("plan", plan),
    ("passes", passes),
    ("run", run),
    ("graft", graft),
    ("safetensors", safetensors),
    ("gguf", gguf),
];

/// Reads the input as a program and as tensor data, and checks what was read.
pub fn open(input: &[u8]) {
    let bytes = Bytes::from(input.to_vec());
    if let Ok(program) = Program::read(&bytes, &Limits::DEFAULT) {
        // Only that it answers matters here.
        let _ = Verified::new(program, &Limits::DEFAULT);
    }
    let _ = TensorData::read(&bytes, &Limits::DEFAULT);
}

/// Reads the input as a safetensors file and as an index of shards, and walks what was read.
///
/// # Panics
/// When a tensor of a sound file cannot be read.
pub fn safetensors(input: &[u8]) {
    let bytes = Bytes::from(input.to_vec());
    if let Ok(checkpoint) = Checkpoint::from_safetensors(&bytes, &CheckpointLimits::DEFAULT) {
        walk(&checkpoint);
    }
    let _ = ptero_checkpoint::read_index(&bytes, &CheckpointLimits::DEFAULT);
}

/// Reads the input as a GGUF file, and walks what was read.
///
/// # Panics
/// When a tensor or an array of a sound file cannot be read.
pub fn gguf(input: &[u8]) {
    if let Ok(checkpoint) = Checkpoint::from_gguf(&Bytes::from(input.to_vec()), &CheckpointLimits::DEFAULT) {
        walk(&checkpoint);
    }
}

/// Every row of every tensor and every element of every array: there are as many as there were when the file was opened.
fn walk(checkpoint: &Checkpoint) {
    for (name, tensor) in checkpoint.tensors() {
        for run in tensor.row_runs(256) {
            let elements = run.end.saturating_sub(run.start).saturating_mul(tensor.columns());
            let mut out = vec![0.0; usize::try_from(elements).expect("no larger than the input")];
            assert_eq!(tensor.read_rows(run, &mut out).is_ok(), tensor.format().is_float(), "{name}");
        }
    }
    for (key, value) in checkpoint.metadata() {
        let array = value.as_array();
        assert_eq!(array.map(|array| array.iter().count() as u64), array.map(Array::len), "{key}");
    }
    let differences = checkpoint.compare([]).to_string();
    assert!(!differences.contains(|char: char| char.is_control() && char != '\n'), "names are escaped");
    let _ = checkpoint.chat_template(&CheckpointLimits::DEFAULT);
    for name in SIDE_FILES {
        if let Ok(Some(bytes)) = checkpoint.file(name) {
            let json: Result<serde_json::Value, _> = serde_json::from_slice(&bytes);
            assert!(json.is_ok(), "what is made of metadata is sound: {name}");
        }
    }
}

/// What can be read is written, and what was written reads back as the same: compared as bytes, since a NaN differs from
/// itself as a number.
///
/// # Panics
/// When it does not.
pub fn read_write_read(input: &[u8]) {
    let Ok(program) = Program::read(&Bytes::from(input.to_vec()), &Limits::DEFAULT) else { return };
    let first = written(&program);
    let again = Program::read(&Bytes::from(first.clone()), &Limits::DEFAULT).expect("reads what it wrote");
    assert!(written(&again) == first, "reading and writing again changed the bytes");
    let [before, after] = [&program, &again].map(|program| check(program, &Limits::DEFAULT).err());
    // Writing lays data out anew, so data that lay askew does not any more.
    if !matches!(before.as_ref().map(Error::fault), Some(Fault::Misaligned { .. })) {
        let text = |verdict: Option<Error>| verdict.map(|error| error.to_string());
        assert_eq!(text(before), text(after), "writing changed what the verifier says");
    }
}

fn written(program: &Program) -> Vec<u8> {
    let mut bytes = Vec::new();
    program.write(&mut bytes).expect("writing to memory does not fail");
    bytes
}

/// Shows whatever can be read, in every form.
///
/// # Panics
/// When a form cannot show it.
pub fn inspect(input: &[u8]) {
    let Ok(program) = Program::read(&Bytes::from(input.to_vec()), &Limits::DEFAULT) else { return };
    let problem = check(&program, &Limits::DEFAULT).err().map(|error| error.to_string());
    let report = Report::new(&program, "fuzz.pte".to_owned(), input.len() as u64, problem);
    let mut text = Vec::new();
    summary(&report, &mut text).expect("writing to memory does not fail");
    nodes(&report, &mut text).expect("writing to memory does not fail");
    weights(&report, &mut text).expect("writing to memory does not fail");
    let text = String::from_utf8(text).expect("text is UTF-8");
    // Without our own styles, nothing may be left that a terminal would obey.
    let text = STYLES.iter().fold(text, |text, style| text.replace(style, ""));
    let control = |char: char| char.is_control() && char != '\n';
    assert!(!text.contains(control), "a control character reached the terminal");
    let page = page(&report).expect("every report is JSON");
    let scripts = |page: &str| page.matches("<script").count();
    assert_eq!(scripts(&page), scripts(TEMPLATE), "the program's text must not add a script");
}

/// The graphs of a program that is sound and can be lowered.
fn graphs(input: &[u8]) -> Vec<Graph> {
    let Ok(program) = Program::read(&Bytes::from(input.to_vec()), &Limits::DEFAULT) else { return Vec::new() };
    let Ok(program) = Verified::new(program, &Limits::DEFAULT) else { return Vec::new() };
    // One layer that sees all positions, and one whose window goes round a ring.
    let layer = |window| CacheLayer { kv_heads: 2, head_dim: 8, window };
    let cache = KvCache::new(16, vec![layer(None), layer(Some(2))]).expect("small sizes are possible");
    let options = Options { kv_cache: Some(cache), keeps_foreign: false };
    let delegates = program.methods.iter().flat_map(|method| program.delegates(&method.name));
    delegates.filter_map(|(_, delegate)| lower(delegate, &options).ok()).collect()
}

/// What passes may count on: everything, so that all of them run.
const ALL: Capabilities = Capabilities { epilogues: true, foreign_kernels: false, burst: 1, is_inexact: false };

/// Lowers every graph of a sound program, with and without passes, gives everything its place, and prints it.
///
/// # Panics
/// When a graph breaks a rule, or a pass adds operations.
pub fn plan(input: &[u8]) {
    for mut graph in graphs(input) {
        graph.verify().expect("lowering keeps the rules of graphs");
        let nodes = |graph: &Graph| graph.blocks.iter().map(|block| block.nodes.len()).sum::<usize>();
        let before = nodes(&graph);
        let _ = (graph.to_string(), bufferize(&graph, 64).map(|plan| plan.to_string()));
        let notes = passes::run(&mut graph, &ALL, &[]);
        graph.verify().expect("passes keep the rules of graphs");
        // A sampler's parameters may each need a view.
        assert!(nodes(&graph) <= before + 8 * notes.lines.len(), "passes do not add operations: {notes:?}");
        let _ = bufferize(&graph, 64).map(|plan| plan.to_string());
    }
}

/// One for all inputs: threads are made once.
static CPU: LazyLock<Cpu> = LazyLock::new(|| Cpu::with(2, Isa::best()));

/// More elements than this in one value make a run too long to be one of millions.
const MOST_ELEMENTS: i64 = 4096;

/// Whether all sizes are known and small.
fn is_small(graph: &Graph) -> bool {
    let is_small = |shape: &[Dim]| {
        let mut sizes = shape.iter().map(Dim::as_fixed);
        sizes.try_fold(1_i64, |count, size| count.checked_mul(size?)).is_some_and(|count| count <= MOST_ELEMENTS)
    };
    let mut nodes = graph.blocks.iter().flat_map(|block| &block.nodes);
    let is_short = nodes.all(|node| match &node.op {
        Op::Loop(round) => round.count.as_fixed().is_some_and(|count| count <= 16),
        _ => true,
    });
    let are_small = graph.values.iter().chain(&graph.states).all(|ty| is_small(&ty.shape));
    are_small && is_short && graph.blocks.iter().map(|block| block.nodes.len()).sum::<usize>() < 96
}

/// The names of all passes but one.
fn all_but(name: &str) -> Vec<String> {
    passes::names().filter(|pass| *pass != name).map(str::to_owned).collect()
}

/// Runs each optimisation by itself on what is small: the graph keeps its rules, and the reference gives the same bits before
/// and after.
///
/// # Panics
/// When they do not.
pub fn passes(input: &[u8]) {
    for graph in graphs(input).into_iter().filter(is_small) {
        let mut canonical = graph;
        let optimisations: Vec<String> = passes::OPTIMISATIONS.iter().map(|pass| pass.name.to_owned()).collect();
        passes::run(&mut canonical, &ALL, &optimisations);
        let before = outputs(&canonical, &Reference);
        for pass in passes::OPTIMISATIONS {
            let mut after = canonical.clone();
            passes::run(&mut after, &ALL, &all_but(pass.name));
            after.verify().expect("a pass keeps the rules of graphs");
            assert_eq!(before, outputs(&after, &Reference), "`{}` changes no bit", pass.name);
        }
    }
}

/// Runs what is small on the reference and, with all passes, on the CPU, which runs what the reference runs and fails where it
/// fails. What nobody needs is run by neither, so it cannot fail.
///
/// # Panics
/// When they do not.
pub fn run(input: &[u8]) {
    for mut graph in graphs(input).into_iter().filter(is_small) {
        passes::drop_unused(&mut graph);
        let mut fused = graph.clone();
        passes::run(&mut fused, &CPU.capabilities(), &[]);
        let (plain, on_cpu) = (outputs(&graph, &Reference), outputs(&fused, &*CPU));
        assert_eq!(plain.map(|_| ()), on_cpu.map(|_| ()), "the CPU fails where the reference does");
    }
}

/// The outputs of two calls on one state, or what failed, with inputs full of ones.
fn outputs(graph: &Graph, backend: &dyn Backend) -> Result<Vec<OutputValue>, String> {
    let run = || {
        let executable = backend.compile(Arc::new(graph.clone()))?;
        let mut state = executable.state(1)?;
        let mut outputs = Vec::new();
        for _ in 0..2 {
            for (index, input) in graph.inputs.iter().enumerate() {
                match input {
                    Input::Int(_) => state.write(index, InputValue::Int(1))?,
                    Input::Tensor(value) => {
                        let ty = graph.ty(*value);
                        let size = |dim: &Dim| dim.as_fixed().unwrap_or(0).unsigned_abs();
                        let shape: Vec<u64> = ty.shape.iter().map(size).collect();
                        let bytes = vec![1; usize::try_from(byte_count(&shape, ty.dtype).unwrap_or(0)).unwrap_or(0)];
                        state.write(index, InputValue::Tensor { dtype: ty.dtype, shape: &shape, bytes: &bytes })?;
                    }
                }
            }
            run_once(executable.as_ref(), state.as_mut(), &AtomicBool::new(false))?;
            let read = (0..graph.outputs.len()).map(|output| state.read(output));
            outputs.extend(read.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(outputs)
    };
    // Where it fails is told by instruction, which a fused step does not keep; what fails must be the same.
    run().map_err(|error: ptero_backend::Error| format!("{:?}", error.fault().kind()))
}

/// Methods, and outputs of each, that are tried: a file may have thousands.
const MOST_TRIED: usize = 4;

/// Gives a sampling head to every output of every method that takes one, with and without a seed.
///
/// # Panics
/// When a head changes more than it should, when a second one is taken, or when a refusal would drive a terminal.
pub fn graft(input: &[u8]) {
    let Ok(program) = Program::read(&Bytes::from(input.to_vec()), &Limits::DEFAULT) else { return };
    for method in program.methods.iter().take(MOST_TRIED) {
        let outputs = (0..method.outputs.len()).take(MOST_TRIED).map(Some);
        for (output, is_seeded) in outputs.chain([None]).flat_map(|output| [(output, true), (output, false)]) {
            let how = Graft { method: method.name.clone(), output, is_seeded };
            match ptero_export::graft(program.clone(), &how, &Limits::DEFAULT) {
                Ok(grafted) => check_grafted(&program, &grafted, &how),
                Err(refusal) => check_refusal(&refusal),
            }
        }
    }
}

fn check_refusal(refusal: &GraftError) {
    let control = |char: char| char.is_control() && char != '\n';
    assert!(!refusal.to_string().contains(control), "a control character reached the terminal: {refusal:?}");
}

fn check_grafted(program: &Program, grafted: &Verified, how: &Graft) {
    let [before, after] = [program, grafted].map(|program| program.method(&how.method).expect("a graft keeps methods"));
    let added = SAMPLER_INPUTS.iter().filter(|input| how.is_seeded || !input.is_optional).count();
    assert_eq!(after.inputs.len(), before.inputs.len() + added, "the parameters follow the inputs");
    assert_eq!(after.outputs, before.outputs, "the tokens take the place of the logits");
    assert!(grafted.named_data.starts_with(&program.named_data), "weights stay what they are");
    let again = Program::read(&Bytes::from(written(grafted)), &Limits::DEFAULT).expect("reads what it wrote");
    let again = Verified::new(again, &Limits::DEFAULT).expect("what was written is as sound").into_program();
    let refusal = ptero_export::graft(again, how, &Limits::DEFAULT).expect_err("a program samples once");
    check_refusal(&refusal);
}
