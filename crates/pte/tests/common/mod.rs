//! A small sound program to damage, and ways to read it again.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use ptero_pte::field::{Dst, Src};
use ptero_pte::nodes::{Add, Multiply};
use ptero_pte::schema::{self, EValue, Tensor};
use ptero_pte::{
    Bytes, Chains, DType, Delegate, Error, Limits, Method, NamedData, NamedSlot, Node, Program, ShapeDim, SlotType,
    SlotVariant, TensorMeta, Verified,
};

pub fn slot(idx: u32) -> SlotVariant {
    SlotVariant { idx, slot_type: SlotType::Tensor }
}

pub fn named(name: &str, idx: u32) -> NamedSlot {
    NamedSlot { name: name.to_owned(), slot: slot(idx) }
}

pub fn meta(scalar_type: DType, sizes: &[i32]) -> TensorMeta {
    let dim = |&value: &i32| ShapeDim { value, min_value: 0, max_value: -1 };
    TensorMeta { shape: sizes.iter().map(dim).collect(), scalar_type, dim_order: None }
}

pub fn tensor(scalar_type: DType, sizes: &[i32]) -> Tensor {
    Tensor::new(scalar_type, sizes.to_vec())
}

/// `y = x * w + s`, with a constant `w` (t0), an input `x` (t1), an output `y` (t2), state `s` (t3), temporaries t4, t5.
pub fn graph() -> Delegate {
    let nodes: Vec<Node> =
        vec![Multiply { a: Src(1), b: Src(0), out: Dst(4) }.into(), Add { a: Src(4), b: Src(3), out: Dst(2) }.into()];
    Delegate {
        version: Some("1".to_owned()),
        num_constant_tensors: 1,
        num_input_tensors: 1,
        num_output_tensors: 1,
        num_mutable_buffer_tensors: 1,
        num_temp_tensors: 2,
        num_values: 2,
        instruction_chains: Chains(vec![nodes]),
        main_chain_idx: 0,
        init_chain_idx: -1,
        input_map: vec![slot(1)],
        output_map: vec![slot(2)],
        mutable_buffer_map: vec![slot(3)],
        named_slots: vec![named("w", 0), named("x", 1), named("y", 2), named("s", 3)],
        tensor_meta: vec![meta(DType::F32, &[2, 3]); 4],
    }
}

pub fn program_of(graph: Delegate) -> Program {
    let value = EValue::Tensor(tensor(DType::F32, &[2, 3]));
    let forward = Method::of_graph("forward", graph, vec![value.clone(), value], vec![0], vec![1]);
    let length = EValue::Int(schema::Int { int_val: 64 });
    Program {
        methods: vec![forward, Method::metadata("get_max_seq_len", length)],
        constants: vec![Bytes::default()],
        named_data: vec![NamedData { key: "w".to_owned(), data: vec![7; 24].into() }],
        ..Program::default()
    }
}

pub fn program() -> Program {
    program_of(graph())
}

pub fn bytes_of(program: &Program) -> Vec<u8> {
    let mut bytes = Vec::new();
    program.write(&mut bytes).unwrap();
    bytes
}

pub fn read(bytes: impl Into<Vec<u8>>) -> Result<Program, Error> {
    Program::read(&Bytes::from(bytes.into()), &Limits::DEFAULT)
}

/// Reads and checks; the text of what is wrong.
#[track_caller]
pub fn complaint(bytes: impl Into<Vec<u8>>) -> String {
    let result = read(bytes).and_then(|program| Verified::new(program, &Limits::DEFAULT));
    result.expect_err("must be refused").to_string()
}

/// What the verifier says of the sound program after `change`.
#[track_caller]
pub fn complaint_about(change: impl FnOnce(&mut Delegate)) -> String {
    let mut graph = graph();
    change(&mut graph);
    complaint(bytes_of(&program_of(graph)))
}

/// The chains that come back when the sound program is written with these nodes as its only chain.
pub fn chains_of(nodes: Vec<Node>) -> Vec<Vec<Node>> {
    let mut graph = graph();
    graph.instruction_chains = Chains(vec![nodes]);
    let program = read(bytes_of(&program_of(graph))).unwrap();
    let (_, graph) = program.methods[0].mlx_delegates().next().expect("there is a graph");
    graph.instruction_chains.0.clone()
}
