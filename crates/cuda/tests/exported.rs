//! Programs that our exporter has made give the bits of the reference: a prompt, then tokens one by one, which are captured. Needs a
//! GPU, or the emulated one (`just cuda-emulated`).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use ptero_backend::{Backend, InputValue, Lane, OutputValue, State, Steps, run_once};
use ptero_cuda::Cuda;
use ptero_plan::graph::{Graph, Input};
use ptero_plan::passes;
use ptero_pte::{Bytes, DType, Limits, Program, Verified};
use ptero_reference::Reference;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// By call: the number of its tokens.
const CALLS: [u64; 6] = [5, 1, 1, 1, 9, 1];

/// The graph of a program, as a device gets it.
fn graph(name: &str, backend: &dyn Backend) -> Arc<Graph> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/exported").join(name).join("model.pte");
    let bytes = Bytes::from(std::fs::read(path).unwrap());
    let program = Verified::new(Program::read(&bytes, &Limits::DEFAULT).unwrap(), &Limits::DEFAULT).unwrap();
    let (_, delegate) = program.delegates("forward").next().unwrap();
    Arc::new(passes::prepare(delegate, None, &backend.capabilities(), &[]).unwrap().0)
}

/// Writes the tokens of a call, and their positions. Tokens have two axes, positions one.
fn give(graph: &Graph, state: &mut dyn State, first: u64, count: u64) {
    for (index, input) in graph.inputs.iter().enumerate() {
        let Input::Tensor(value) = input else { panic!("a program takes tensors") };
        let is_tokens = graph.ty(*value).shape.len() == 2;
        let numbers = (first..first + count).map(|at| if is_tokens { (at * at + 7) % 90 } else { at });
        let bytes: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
        let shape = if is_tokens { vec![1, count] } else { vec![count] };
        state.write(index, InputValue::Tensor { dtype: DType::I64, shape: &shape, bytes: &bytes }).unwrap();
    }
}

fn read(graph: &Graph, state: &dyn State) -> Vec<OutputValue> {
    (0..graph.outputs.len()).map(|output| state.read(output).unwrap()).collect()
}

/// The outputs of all calls.
fn outputs(name: &str, backend: &dyn Backend) -> Vec<OutputValue> {
    let graph = graph(name, backend);
    let executable = backend.compile(Arc::clone(&graph)).unwrap();
    let (mut state, mut first, mut found) = (executable.state(1).unwrap(), 0, Vec::new());
    for count in CALLS {
        give(&graph, &mut *state, first, count);
        run_once(&*executable, &mut *state, &AtomicBool::new(false)).unwrap();
        first += count;
        found.extend(read(&graph, &*state));
    }
    found
}

/// The outputs of some lanes after prompts of their own lengths, after which `prompted` is called, and after each of four tokens that they
/// take together.
fn outputs_of_lanes(name: &str, backend: &dyn Backend, lanes: u64, mut prompted: impl FnMut()) -> Vec<OutputValue> {
    let (graph, stop) = (graph(name, backend), AtomicBool::new(false));
    let executable = backend.compile(Arc::clone(&graph)).unwrap();
    let mut states: Vec<_> = (0..lanes).map(|lane| executable.state(lane).unwrap()).collect();
    let mut found = Vec::new();
    for step in 0..5 {
        if step == 1 {
            prompted();
        }
        for (state, lane) in states.iter_mut().zip(0..) {
            let prompt = 3 + lane % 3;
            let (first, count) = if step == 0 { (0, prompt) } else { (prompt + step - 1, 1) };
            give(&graph, &mut **state, first, count);
        }
        let mut together: Vec<_> = states.iter_mut().map(|state| Lane::new(&mut **state)).collect();
        executable.run(&mut together, &Steps { count: 1, follow: None, stop: &stop }).unwrap();
        assert!(together.iter().all(|lane| lane.fault.is_none()), "{name}");
        found.extend(states.iter().flat_map(|state| read(&graph, &**state)));
    }
    found
}

#[test]
#[ignore = "needs an NVIDIA GPU: just cuda"]
fn exported_programs_give_the_bits_of_the_reference_and_join_steps() {
    let cuda = Cuda::new().unwrap_or_else(|error| panic!("{error}"));
    for name in ["llama", "mistral", "gemma4_per_layer", "qwen3_5_moe"] {
        let before = cuda.joined_steps();
        let found = outputs(name, &cuda);
        let joined = cuda.joined_steps() - before;
        println!("{name}: {joined} joined steps");
        assert!(found == outputs(name, &Reference), "{name}");
        assert!(joined > 0, "{name}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: just cuda"]
fn lanes_of_exported_programs_give_the_bits_of_the_reference_and_share_launches() {
    let cuda = Cuda::new().unwrap_or_else(|error| panic!("{error}"));
    for name in ["llama", "mistral", "gemma4_per_layer", "qwen3_5_moe"] {
        let [one, five] = [1, 5].map(|lanes| {
            let mut before = 0;
            let found = outputs_of_lanes(name, &cuda, lanes, || before = cuda.launches());
            assert!(found == outputs_of_lanes(name, &Reference, lanes, || {}), "{name}");
            cuda.launches() - before
        });
        println!("{name}: {one} launches for a lane, {five} for five");
        assert!(five < 4 * one, "{name}: {one} launches for a lane, {five} for five");
    }
}
