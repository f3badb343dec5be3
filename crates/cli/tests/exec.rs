//! `ptero exec` on a program with state: `state += x; y = state`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;

use common::folder;
use ptero_pte::field::{Dst, Src};
use ptero_pte::nodes::{Add, IdCopy, UpdateAndAttend};
use ptero_pte::schema::{Call, EValue, KernelCall, Operator, Tensor};
use ptero_pte::{
    Bytes, Chains, DType, Delegate, Method, NamedSlot, Program, ShapeDim, SlotType, SlotVariant, TensorMeta,
};
use std::path::Path;
use std::process::{Command, Output};

fn graph() -> Delegate {
    let slot = |idx| SlotVariant { idx, slot_type: SlotType::Tensor };
    let size = ShapeDim { value: 2, min_value: 0, max_value: -1 };
    let meta = TensorMeta { shape: vec![size], scalar_type: DType::F32, dim_order: None };
    let named = |(idx, name): (u32, &str)| NamedSlot { name: name.to_owned(), slot: slot(idx) };
    Delegate {
        version: None,
        num_constant_tensors: 0,
        num_input_tensors: 1,
        num_output_tensors: 1,
        num_mutable_buffer_tensors: 1,
        num_temp_tensors: 0,
        num_values: 0,
        instruction_chains: Chains(vec![vec![
            Add { a: Src(2), b: Src(0), out: Dst(2) }.into(),
            IdCopy { x: Src(2), out: Dst(1) }.into(),
        ]]),
        main_chain_idx: 0,
        init_chain_idx: -1,
        input_map: vec![slot(0)],
        output_map: vec![slot(1)],
        mutable_buffer_map: vec![slot(2)],
        named_slots: [(0, "x"), (1, "y"), (2, "sum")].map(named).to_vec(),
        tensor_meta: vec![meta; 3],
    }
}

/// Calls the graph with value 0, which gives value 1; then `kernel` copies 1 into 2, which is the output.
fn program(kernel: &str) -> Program {
    let values = vec![EValue::Tensor(Tensor::new(DType::F32, vec![2])); 3];
    let mut forward = Method::of_graph("forward", graph(), values, vec![0], vec![1]);
    forward.outputs = vec![2];
    forward.operators = vec![Operator { name: kernel.to_owned(), overload: String::new() }];
    let copy = Call::Kernel(KernelCall { op_index: 0, args: vec![2, 1, 0, 2] });
    forward.chains[0].instructions.push(copy);
    Program { methods: vec![forward], constants: vec![Bytes::default()], ..Program::default() }
}

fn write_program(folder: &Path, kernel: &str) -> String {
    let path = folder.join("sum.pte");
    program(kernel).write(&mut std::fs::File::create(&path).unwrap()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A file of one f32 tensor.
fn write_tensor(path: &Path, values: &[f32]) -> String {
    let head = [1, 0, 1, u32::try_from(values.len()).unwrap()].map(u32::to_le_bytes).concat();
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    std::fs::write(path, [head, data].concat()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn read_tensor(path: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    bytes[16..].chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect()
}

fn exec(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ptero")).arg("exec").args(args).output().unwrap()
}

#[test]
fn calls_in_order_share_one_state_and_a_new_run_starts_at_zero() {
    let folder = folder("state");
    let pte = write_program(&folder, "aten::copy_");
    let inputs = [[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]];
    let inputs: Vec<String> =
        (0..).zip(inputs).map(|(index, values)| write_tensor(&folder.join(format!("in{index}")), &values)).collect();
    let outputs: Vec<String> =
        (0..3).map(|index| folder.join(format!("out{index}")).to_str().unwrap().to_owned()).collect();
    for _ in 0..2 {
        let mut args = vec!["--pte", &pte];
        for (input, output) in inputs.iter().zip(&outputs) {
            args.extend(["--input", input, "--output", output]);
        }
        let run = exec(&args);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let results: Vec<Vec<f32>> = outputs.iter().map(|output| read_tensor(output)).collect();
        assert_eq!(results, [[1.0, 10.0], [3.0, 30.0], [7.0, 70.0]]);
    }
}

/// A program that keeps keys and values outside its graph.
fn write_attention(path: &Path) -> String {
    let mut graph = graph();
    let size = |value| ShapeDim { value, min_value: 0, max_value: -1 };
    let meta = |scalar_type, sizes: &[i32]| {
        let shape = sizes.iter().copied().map(size).collect();
        TensorMeta { shape, scalar_type, dim_order: None }
    };
    let (out, position) = (Dst(4), Src(3));
    let attend = UpdateAndAttend {
        q: Src(0),
        k: Src(1),
        v: Src(2),
        position,
        out,
        layer_id: Some(0),
        scale: Some(0.5),
        out_dtype: None,
    };
    let slot = |idx| SlotVariant { idx, slot_type: SlotType::Tensor };
    graph.instruction_chains = Chains(vec![vec![attend.into()]]);
    (graph.num_input_tensors, graph.num_mutable_buffer_tensors) = (4, 0);
    graph.input_map = (0..4).map(slot).collect();
    graph.output_map = vec![slot(4)];
    graph.mutable_buffer_map.clear();
    graph.named_slots.clear();
    let heads = meta(DType::F32, &[1, 1, 2, 4]);
    graph.tensor_meta = vec![heads.clone(), heads.clone(), heads.clone(), meta(DType::I64, &[2]), heads];
    let tensor = |dtype, sizes| EValue::Tensor(Tensor::new(dtype, sizes));
    let mut values = vec![tensor(DType::F32, vec![1, 1, 2, 4]); 5];
    values[3] = tensor(DType::I64, vec![2]);
    let forward = Method::of_graph("forward", graph, values, vec![0, 1, 2, 3], vec![4]);
    let program = Program { methods: vec![forward], constants: vec![Bytes::default()], ..Program::default() };
    program.write(&mut std::fs::File::create(path).unwrap()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_program_whose_cache_is_outside_is_refused_with_the_option_that_describes_it() {
    let folder = folder("cache");
    let pte = write_attention(&folder.join("attention.pte"));
    let input = write_tensor(&folder.join("input"), &[1.0]);
    let out = folder.join("out").to_str().unwrap().to_owned();
    let refusal = "method `forward`: instruction 0.0 (UpdateAndAttend): needs a key-value cache outside the graph, and \
                   none was described\nhint: give its size with --kv-cache\n";
    let args = ["--pte", &pte, "--input", &input, "--output", &out];
    refused(&args, &format!("error: {pte}: {refusal}"));
    // With a cache, what is wrong is the input.
    refused(&[&args[..], &["--kv-cache", "16,1,1,4"]].concat(), "1 inputs were given, but the method takes 4");
    let run = |more: &[&str]| {
        let args = [&["inspect", &pte, "--graph"], more].concat();
        Command::new(env!("CARGO_BIN_EXE_ptero")).args(args).output().unwrap()
    };
    assert_eq!(String::from_utf8(run(&[]).stderr).unwrap(), format!("error: {refusal}"));
    let shown = run(&["--kv-cache", "16,1,1,4"]);
    assert!(shown.status.success() && String::from_utf8(shown.stdout).unwrap().contains(" = attention("));
}

#[track_caller]
fn refused(args: &[&str], wanted: &str) {
    let run = exec(args);
    assert_eq!(run.status.code(), Some(1));
    let text = String::from_utf8(run.stderr).unwrap();
    assert!(text.contains(wanted), "{text}");
}

#[test]
fn what_cannot_be_run_is_named() {
    let folder = folder("refused");
    let out = folder.join("out").to_str().unwrap().to_owned();
    let good = write_tensor(&folder.join("good"), &[1.0, 2.0]);
    let long = write_tensor(&folder.join("long"), &[1.0, 2.0, 3.0]);
    let pte = write_program(&folder, "aten::add");
    refused(
        &["--pte", &pte, "--input", &good, "--output", &out],
        "the method calls the kernel `aten::add` outside a graph, which is not supported",
    );
    let pte = write_program(&folder, "aten::copy_");
    refused(&["--pte", &pte, "--input", &long, "--output", &out], "input 0");
    refused(&["--pte", &pte, "--input", &pte, "--output", &out], "is not an element type of such files");
    refused(&["--pte", &pte, "--input", &good, "--input", &good, "--output", &out], "2 inputs but 1 outputs");
    refused(&["--pte", &pte, "--input", &good, "--output", &out, "--method", "backward"], "has no method `backward`");
    assert!(!Path::new(&out).exists(), "nothing half-done");
}
