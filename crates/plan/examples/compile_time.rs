//! How long it takes to compile a program of that many nodes: layers of a small model, over and over.
//!
//! `cargo run --release -p ptero-plan --example compile_time -- 5000`

use ptero_plan::{Arena, Capabilities, Options, bufferize, lower, passes};
use ptero_pte::field::{Dst, Int, Src};
use ptero_pte::nodes::*;
use ptero_pte::{
    Chains, DType, Delegate, Limits, Method, NamedData, NamedSlot, Node, Program, ShapeDim, SlotType, SlotVariant,
    TensorMeta, Verified,
};
use std::time::Instant;

const WIDTH: i32 = 64;
/// What memory is aligned to, and how many tokens a call has.
const ALIGN: u64 = 64;
const TOKENS: i64 = 7;
const STAGES: [&str; 4] = ["lower", "passes", "bufferize", "bind"];

fn main() {
    let nodes = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(5_000);
    let program = program(nodes);
    let mut times: Vec<[f64; 4]> = (0..21).map(|_| measure(&program)).collect();
    times.sort_by(|a, b| a.iter().sum::<f64>().total_cmp(&b.iter().sum()));
    if let Some(median) = times.get(times.len() / 2) {
        let count: usize = program.delegates("forward").map(|(_, delegate)| delegate.delegate().nodes().count()).sum();
        let stages = STAGES.iter().zip(median).map(|(stage, time)| format!("{stage} {time:.1} ms"));
        let stages = stages.collect::<Vec<_>>().join(", ");
        println!("{count} nodes, median of {}: {stages}, together {:.1} ms", times.len(), median.iter().sum::<f64>());
    }
}

fn measure(program: &Verified) -> [f64; 4] {
    let (_, delegate) = program.delegates("forward").next().expect("the method has a delegate");
    let mut start = Instant::now();
    let mut lap = || std::mem::replace(&mut start, Instant::now()).elapsed().as_secs_f64() * 1000.0;
    let mut graph = lower(delegate, &Options::default()).expect("the program is sound");
    let lowering = lap();
    passes::run(&mut graph, &Capabilities { epilogues: true, ..Capabilities::default() }, &[]);
    let passing = lap();
    let plan = bufferize(&graph, Arena::aligned(ALIGN)).expect("the graph is sound");
    let placing = lap();
    plan.bind(&[TOKENS]).expect("the sizes are possible");
    [lowering, passing, placing, lap()]
}

/// A norm, a product, a gate, a transposition there and back, and a sum: eight nodes a layer, slots used again and again.
fn layer() -> Vec<Node> {
    let shape = |sizes: [i64; 4]| sizes.map(Int::Literal).to_vec();
    vec![
        RMSNorm { x: Src(5), weight: Some(Src(0)), out: Dst(6), eps: 1e-5 }.into(),
        Addmm { mat1: Src(6), mat2: Src(1), out: Dst(6), bias: None, alpha: 1.0, beta: 1.0 }.into(),
        Silu { x: Src(6), out: Dst(7) }.into(),
        Multiply { a: Src(6), b: Src(7), out: Dst(6) }.into(),
        Reshape { x: Src(6), out: Dst(8), shape: shape([1, -1, 4, 16]) }.into(),
        Transpose { x: Src(8), out: Dst(8), perm: vec![0, 2, 1, 3] }.into(),
        Transpose { x: Src(8), out: Dst(8), perm: vec![0, 2, 1, 3] }.into(),
        Reshape { x: Src(8), out: Dst(6), shape: [1, -1, 64].map(Int::Literal).to_vec() }.into(),
        Add { a: Src(5), b: Src(6), out: Dst(5) }.into(),
    ]
}

fn program(nodes: usize) -> Verified {
    let dim = |value: &i32| ShapeDim { value: *value, min_value: 1, max_value: if *value == -1 { 512 } else { -1 } };
    let meta =
        |sizes: &[i32]| TensorMeta { shape: sizes.iter().map(dim).collect(), scalar_type: DType::F32, dim_order: None };
    let slot = |idx| SlotVariant { idx, slot_type: SlotType::Tensor };
    let mut chain: Vec<Node> = vec![IdCopy { x: Src(2), out: Dst(5) }.into()];
    while chain.len() < nodes {
        chain.extend(layer());
    }
    chain.push(IdCopy { x: Src(5), out: Dst(3) }.into());
    let names = ["norm", "weight", "x", "y"];
    let delegate = Delegate {
        version: None,
        num_constant_tensors: 2,
        num_input_tensors: 1,
        num_output_tensors: 1,
        num_mutable_buffer_tensors: 0,
        num_temp_tensors: 5,
        num_values: 0,
        instruction_chains: Chains(vec![chain]),
        main_chain_idx: 0,
        init_chain_idx: -1,
        input_map: vec![slot(2)],
        output_map: vec![slot(3)],
        mutable_buffer_map: vec![],
        named_slots: (0..).zip(names).map(|(idx, name)| NamedSlot { name: name.to_owned(), slot: slot(idx) }).collect(),
        tensor_meta: vec![meta(&[WIDTH]), meta(&[WIDTH, WIDTH]), meta(&[1, -1, WIDTH]), meta(&[1, -1, WIDTH])],
    };
    let data = |key: &str, elements: usize| NamedData { key: key.to_owned(), data: vec![0; 4 * elements].into() };
    let mut method = Method::of_graph("forward", delegate, vec![], vec![], vec![]);
    // What a call would pass is not looked at.
    method.chains.iter_mut().for_each(|chain| chain.instructions.clear());
    let named_data = vec![data("norm", 64), data("weight", 64 * 64)];
    let program = Program { methods: vec![method], named_data, ..Program::default() };
    Verified::new(program, &Limits::DEFAULT).expect("the structure of the program is sound")
}
