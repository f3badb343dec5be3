//! The bodies of the fuzz targets. `crates/cli/tests/fuzz_seeds.rs` includes this file, so that the committed seeds run through
//! them on stable Rust too.

use ptero_backend::{Backend, InputValue, OutputValue, run_once};
use ptero_checkpoint::{Array, Checkpoint, Limits as CheckpointLimits, SIDE_FILES};
use ptero_cli::inspect::{Report, STYLES, TEMPLATE, nodes, page, summary, weights};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_export::Graft;
use ptero_plan::dim::Dim;
use ptero_plan::graph::{Graph, Input, Op};
use ptero_plan::{Arena, CacheLayer, Capabilities, KvCache, Options, bufferize, lower, passes};
use ptero_pte::{Bytes, Error, Fault, Limits, Program, TensorData, Verified, byte_count, check};
use ptero_reference::Reference;
use ptero_sampling::inputs::{Head, SAMPLER_INPUTS, SAMPLER_OUTPUTS};
use ptero_server::{ChatRequest, CompletionRequest, ResponsesRequest, parse};
use ptero_text::{Grammar, Limits as TextLimits, Matcher, Tokenizer, Vocabulary};
use serde_json::json;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

/// A fuzz target.
pub type Target = fn(&[u8]);

macro_rules! by_name {
    ($($target:ident),*) => { [$((stringify!($target), $target)),*] };
}

/// The targets by name.
pub const TARGETS: [(&str, Target); 11] =
    by_name![open, read_write_read, inspect, plan, passes, run, graft, safetensors, gguf, grammar, requests];

/// Reads a program.
fn read(bytes: &[u8]) -> Option<Program> {
    Program::read(&Bytes::from(bytes.to_vec()), &Limits::DEFAULT).ok()
}

/// Reads the input as a program and as tensor data, and verifies it.
pub fn open(input: &[u8]) {
    // The results do not matter, only that nothing panics.
    let _ = read(input).map(|program| Verified::new(program, &Limits::DEFAULT));
    let _ = TensorData::read(&Bytes::from(input.to_vec()), &Limits::DEFAULT);
}

/// Reads the input as a safetensors file and as an index of shards, and reads every tensor.
///
/// # Panics
/// If a tensor of a valid file cannot be read.
pub fn safetensors(input: &[u8]) {
    let bytes = Bytes::from(input.to_vec());
    if let Ok(checkpoint) = Checkpoint::from_safetensors(&bytes, &CheckpointLimits::DEFAULT) {
        walk(&checkpoint);
    }
    let _ = ptero_checkpoint::read_index(&bytes, &CheckpointLimits::DEFAULT);
}

/// Reads the input as a GGUF file, and reads every tensor and array.
///
/// # Panics
/// If a tensor or an array of a valid file cannot be read.
pub fn gguf(input: &[u8]) {
    if let Ok(checkpoint) = Checkpoint::from_gguf(&Bytes::from(input.to_vec()), &CheckpointLimits::DEFAULT) {
        walk(&checkpoint);
    }
}

/// Reads every row of every tensor and every element of every array, and checks their numbers.
fn walk(checkpoint: &Checkpoint) {
    for (name, tensor) in checkpoint.tensors() {
        // About 256 elements at a time.
        let (rows, at_once) = (tensor.rows(), 256_u64.checked_div(tensor.columns()).unwrap_or(u64::MAX).max(1));
        for run in 0..rows.div_ceil(at_once) {
            let (start, end) = (run * at_once, rows.min((run + 1).saturating_mul(at_once)));
            let elements = (end - start).saturating_mul(tensor.columns());
            let mut out = vec![0.0; usize::try_from(elements).expect("no larger than the input")];
            assert_eq!(tensor.read_rows(start..end, &mut out).is_ok(), tensor.format().is_float(), "{name}");
        }
    }
    for (key, value) in checkpoint.metadata() {
        let array = value.as_array();
        assert_eq!(array.map(|array| array.iter().count() as u64), array.map(Array::len), "{key}");
    }
    check_printable(&checkpoint.compare([]).to_string());
    let _ = checkpoint.chat_template(&CheckpointLimits::DEFAULT);
    for name in SIDE_FILES {
        if let Ok(Some(bytes)) = checkpoint.file(name) {
            let json: Result<serde_json::Value, _> = serde_json::from_slice(&bytes);
            assert!(json.is_ok(), "files made from metadata are valid JSON: {name}");
        }
    }
}

/// Fails on control characters, which could drive a terminal.
#[track_caller]
fn check_printable(text: &str) {
    assert!(!text.contains(|char: char| char.is_control() && char != '\n'), "a control character in {text:?}");
}

/// Reads the input as a program, writes it, and reads it again. Programs are compared as bytes, since a NaN is not equal to
/// itself.
///
/// # Panics
/// If the second program differs from the first.
pub fn read_write_read(input: &[u8]) {
    let Some(program) = read(input) else { return };
    let first = written(&program);
    let again = read(&first).expect("a written program can be read");
    assert!(written(&again) == first, "reading and writing again changed the bytes");
    let [before, after] = [&program, &again].map(|program| check(program, &Limits::DEFAULT).err());
    // Writing aligns data that was misaligned.
    if !matches!(before.as_ref().map(Error::fault), Some(Fault::Misaligned { .. })) {
        let text = |verdict: Option<Error>| verdict.map(|error| error.to_string());
        assert_eq!(text(before), text(after), "writing changed the result of the verifier");
    }
}

fn written(program: &Program) -> Vec<u8> {
    let mut bytes = Vec::new();
    program.write(&mut bytes).expect("writing to memory does not fail");
    bytes
}

/// Shows the program as text and as a page.
///
/// # Panics
/// If that fails, or if the output contains control characters or scripts of the program.
pub fn inspect(input: &[u8]) {
    let Some(program) = read(input) else { return };
    let problem = check(&program, &Limits::DEFAULT).err().map(|error| error.to_string());
    let report = Report::new(&program, "fuzz.pte".to_owned(), input.len() as u64, problem);
    let mut text = Vec::new();
    for show in [summary, nodes, weights] {
        show(&report, &mut text).expect("writing to memory does not fail");
    }
    let text = String::from_utf8(text).expect("text is UTF-8");
    check_printable(&STYLES.iter().fold(text, |text, style| text.replace(style, "")));
    let page = page(&report).expect("every report is JSON");
    let scripts = |page: &str| page.matches("<script").count();
    assert_eq!(scripts(&page), scripts(TEMPLATE), "the program's text must not add a script");
}

/// Returns the graphs of a valid program that can be lowered.
fn graphs(input: &[u8]) -> Vec<Graph> {
    let program = read(input).and_then(|program| Verified::new(program, &Limits::DEFAULT).ok());
    let Some(program) = program else { return Vec::new() };
    // One layer that sees all positions, and one with a sliding window.
    let layer = |window| CacheLayer { kv_heads: 2, head_dim: 8, window };
    let cache = KvCache::new(16, vec![layer(None), layer(Some(2))]).expect("small sizes are possible");
    let options = Options { kv_cache: Some(cache), keeps_foreign: false };
    let delegates = program.methods.iter().flat_map(|method| program.delegates(&method.name));
    delegates.filter_map(|(_, delegate)| lower(delegate, &options).ok()).collect()
}

/// Capabilities with which all passes run.
const ALL: Capabilities = Capabilities { epilogues: true, foreign_kernels: false, burst: 1, is_inexact: false };

/// Lowers every graph of a valid program, with and without passes, plans its memory, and prints it.
///
/// # Panics
/// If a graph is not valid, or a pass adds operations.
pub fn plan(input: &[u8]) {
    for mut graph in graphs(input) {
        graph.verify().expect("lowering makes valid graphs");
        let before = node_count(&graph);
        let _ = (graph.to_string(), bufferize(&graph, Arena::aligned(64)).map(|plan| plan.to_string()));
        let notes = passes::run(&mut graph, &ALL, &[]);
        graph.verify().expect("passes keep graphs valid");
        // A sampler's parameters may each need a view.
        assert!(node_count(&graph) <= before + 8 * notes.lines.len(), "passes do not add operations: {notes:?}");
        let _ = bufferize(&graph, Arena::aligned(64)).map(|plan| plan.to_string());
    }
}

fn node_count(graph: &Graph) -> usize {
    graph.blocks.iter().map(|block| block.nodes.len()).sum()
}

/// The CPU for all inputs, so that its threads are created once.
static CPU: LazyLock<Cpu> = LazyLock::new(|| Cpu::with(2, Isa::best()));

/// The most elements of a value: each run must be short.
const MOST_ELEMENTS: i64 = 4096;

/// Returns `true` if all sizes are fixed and small.
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
    are_small && is_short && node_count(graph) < 96
}

/// Runs each optimisation by itself on small graphs.
///
/// # Panics
/// If a graph is not valid afterwards, or the reference gives other bits.
pub fn passes(input: &[u8]) {
    for mut canonical in graphs(input).into_iter().filter(is_small) {
        let optimisations: Vec<String> = passes::OPTIMISATIONS.iter().map(|pass| pass.name.to_owned()).collect();
        passes::run(&mut canonical, &ALL, &optimisations);
        let before = outputs(&canonical, &Reference);
        for pass in passes::OPTIMISATIONS {
            let mut after = canonical.clone();
            let others: Vec<String> = passes::names().filter(|name| *name != pass.name).map(str::to_owned).collect();
            passes::run(&mut after, &ALL, &others);
            after.verify().expect("a pass keeps graphs valid");
            assert_eq!(before, outputs(&after, &Reference), "`{}` changes no bit", pass.name);
        }
    }
}

/// Runs small graphs on the reference and, with all passes, on the CPU. Unused operations are removed first, since they may fail
/// on one device only.
///
/// # Panics
/// If one fails and the other does not.
pub fn run(input: &[u8]) {
    for mut graph in graphs(input).into_iter().filter(is_small) {
        passes::drop_unused(&mut graph);
        let mut fused = graph.clone();
        passes::run(&mut fused, &CPU.capabilities(), &[]);
        let (plain, on_cpu) = (outputs(&graph, &Reference), outputs(&fused, &*CPU));
        assert_eq!(plain.map(|_| ()), on_cpu.map(|_| ()), "the CPU fails where the reference does");
    }
}

/// Returns the outputs of two calls on one state with inputs full of ones, or the kind of error.
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
    // The instruction is left out: a fused step may report another one.
    run().map_err(|error: ptero_backend::Error| format!("{:?}", error.fault().kind()))
}

/// The most methods, and outputs of each, that are tried: a file may have thousands.
const MOST_TRIED: usize = 4;

/// Adds every sampling head to every output of every method.
///
/// # Panics
/// If a head changes more than it should, if a second one is accepted, or if an error contains control characters.
pub fn graft(input: &[u8]) {
    let Some(program) = read(input) else { return };
    for method in program.methods.iter().take(MOST_TRIED) {
        let outputs = (0..method.outputs.len()).take(MOST_TRIED).map(Some);
        for (output, head) in outputs.chain([None]).flat_map(|output| Head::ALL.map(|head| (output, head))) {
            let how = Graft { method: method.name.clone(), output, head };
            match ptero_export::graft(program.clone(), &how, &Limits::DEFAULT) {
                Ok(grafted) => check_grafted(&program, &grafted, &how),
                Err(refusal) => check_printable(&refusal.to_string()),
            }
        }
    }
}

fn check_grafted(program: &Program, grafted: &Verified, how: &Graft) {
    let [before, after] = [program, grafted].map(|program| program.method(&how.method).expect("a graft keeps methods"));
    let more = after.inputs.len() - before.inputs.len();
    assert!(after.inputs.starts_with(&before.inputs), "parameters come after the inputs");
    let returned = if how.head == Head::Full { SAMPLER_OUTPUTS.len() } else { 0 };
    assert_eq!(after.outputs.len(), before.outputs.len() + returned, "tokens replace the logits");
    if more == how.head.inputs().count() {
        assert!(grafted.named_data.starts_with(&program.named_data), "weights do not change");
    } else {
        let is_replaced =
            [Head::Unseeded, Head::Plain].iter().any(|old| more + old.inputs().count() == SAMPLER_INPUTS.len());
        assert!(how.head == Head::Full && is_replaced, "the full head replaces upstream's");
    }
    let again = read(&written(grafted)).expect("a written program can be read");
    let again = Verified::new(again, &Limits::DEFAULT).expect("a written program is valid").into_program();
    let refusal = ptero_export::graft(again, how, &Limits::DEFAULT).expect_err("a program has one head");
    check_printable(&refusal.to_string());
}

/// A token per byte, and some of JSON's that are longer.
static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    let tokens = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let tokens = tokens.chain(["\":", "{\"", "\"}", "\",", "ab", "true"].map(str::to_owned));
    let ids: serde_json::Map<_, _> = tokens.zip(0..).map(|(token, id)| (token, json!(id))).collect();
    let size = ids.len();
    let file = json!({
        "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "byte_fallback": true, "vocab": ids, "merges": []},
    });
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), None, &TextLimits::default());
    Vocabulary::new(&tokenizer.expect("a valid tokenizer"), size).expect("few tokens")
});

/// The tokens that a grammar is followed for.
const MOST_FOLLOWED: u32 = 16;

/// Reads the input after its first byte as a JSON Schema, a regular expression or a Lark grammar, and follows it for some tokens.
///
/// # Panics
/// If an allowed token is not accepted, or if an error contains control characters.
pub fn grammar(input: &[u8]) {
    let Some((kind, source)) = input.split_first() else { return };
    let Ok(source) = std::str::from_utf8(source) else { return };
    let limits = TextLimits { grammar_steps: 20_000, mask_steps: 20_000, ..TextLimits::default() };
    let grammar = match kind % 3 {
        0 => Grammar::json_schema(source, &limits),
        1 => Grammar::regex(source, &limits),
        _ => Grammar::lark(source, &limits),
    };
    if let Err(refusal) = grammar.and_then(|grammar| follow(&grammar)) {
        check_printable(&refusal.to_string());
    }
}

fn follow(grammar: &Grammar) -> ptero_text::Result<()> {
    let mut matcher = Matcher::new(grammar, &VOCABULARY, &[])?;
    for step in 0..MOST_FOLLOWED {
        let allowed = |word: &u32, bit: u32| word >> bit & 1 == 1;
        let mask = matcher.mask()?.iter().zip(0..);
        let tokens = mask
            .flat_map(|(word, index)| (0..32).filter(move |bit| allowed(word, *bit)).map(move |bit| 32 * index + bit));
        let tokens: Vec<u32> = tokens.collect();
        // Another one at each step, so that texts do not repeat themselves.
        let Some(token) = tokens.iter().cycle().nth(7 * step as usize) else { break };
        matcher.accept(*token)?;
    }
    Ok(())
}

/// Reads the input as the body of each kind of request to the server.
///
/// # Panics
/// If a refusal is not the client's fault, or names a field that the body does not have.
pub fn requests(input: &[u8]) {
    let refusals = [
        parse::<ChatRequest>(input).err(),
        parse::<CompletionRequest>(input).err(),
        parse::<ResponsesRequest>(input).err(),
    ];
    for refusal in refusals.into_iter().flatten() {
        assert!(refusal.status.is_client_error() && !refusal.message.is_empty(), "{refusal:?}");
        if refusal.code == Some("unknown_field") {
            let param = refusal.param.expect("the error names the field");
            let name = param.rsplit('.').next().unwrap_or_default();
            let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            let is_there = input.windows(name.len().max(1)).any(|bytes| bytes == name.as_bytes());
            assert!(!is_plain || is_there, "{param}");
        }
    }
}
