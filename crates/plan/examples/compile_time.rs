//! How long it takes to lower, optimize and place a program of so many nodes: layers of a small model, over and over.
//!
//! `cargo run --release -p ptero-plan --example compile_time -- 5000`

use ptero_plan::passes::optimize;
use ptero_plan::{Options, lower};
use ptero_pte::field::{Dst, Int, Src};
use ptero_pte::nodes::*;
use ptero_pte::{
    Chains, DType, Delegate, NamedData, NamedSlot, Node, Program, ShapeDim, SlotType, SlotVariant, TensorMeta,
};
use std::time::Instant;

const WIDTH: i32 = 64;

fn main() {
    let nodes = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(5_000);
    let (program, graph) = program(nodes);
    let mut times: Vec<[f64; 3]> = (0..11).map(|_| measure(&program, &graph)).collect();
    times.sort_by(|a, b| a.iter().sum::<f64>().total_cmp(&b.iter().sum()));
    if let Some([lowering, passes, placing]) = times.get(times.len() / 2) {
        let count = graph.nodes().count();
        println!(
            "{count} nodes, median of {}: lower {lowering:.1} ms, passes {passes:.1} ms, place {placing:.1} ms",
            times.len()
        );
    }
}

fn measure(program: &Program, graph: &Delegate) -> [f64; 3] {
    let milliseconds = |start: Instant| start.elapsed().as_secs_f64() * 1000.0;
    let start = Instant::now();
    let mut plan = lower(program, graph, &Options::default()).expect("the program is sound");
    let lowering = milliseconds(start);
    let start = Instant::now();
    optimize(&mut plan, &[]);
    let passes = milliseconds(start);
    let start = Instant::now();
    let placement = plan.place();
    assert!(placement.arena_bytes > 0);
    [lowering, passes, milliseconds(start)]
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

fn program(nodes: usize) -> (Program, Delegate) {
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
    let graph = Delegate {
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
    (Program { named_data: vec![data("norm", 64), data("weight", 64 * 64)], ..Program::default() }, graph)
}
