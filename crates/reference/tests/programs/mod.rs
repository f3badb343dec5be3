//! A dozen small programs, lowered.

use ptero_backend::{Backend, InputValue, run_once};
use ptero_plan::graph::Graph;
use ptero_plan::{Capabilities, Options, lower, passes};
use ptero_pte::field::{Dst, Int, Src};
use ptero_pte::nodes::*;
use ptero_pte::schema::{EValue, Tensor};
use ptero_pte::{
    Bytes, Chains, DType, Delegate, Limits, Method, NamedData, NamedSlot, Node, Program, ShapeDim, SlotType,
    SlotVariant, TensorMeta, Verified,
};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Sizes and bytes of an input.
type Given = (Vec<u64>, Vec<u8>);

const W: Src = Src(0);
const X: Src = Src(1);
const Y: Src = Src(2);
const OUT: Dst = Dst(3);
const STATE: u32 = 4;
/// Temporaries from here on.
const T: u32 = 5;

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Constant `w [3, 3]`, inputs `x [2, 3]` and `y [2, 3]`, an output, state `[2, 3]`.
fn graph(nodes: Vec<Node>) -> Graph {
    let slot = |idx| SlotVariant { idx, slot_type: SlotType::Tensor };
    let meta = |rows| TensorMeta {
        shape: [rows, 3].map(|value| ShapeDim { value, min_value: 0, max_value: -1 }).to_vec(),
        scalar_type: DType::F32,
        dim_order: None,
    };
    let names = ["w", "x", "y", "out", "state"];
    let delegate = Delegate {
        version: None,
        num_constant_tensors: 1,
        num_input_tensors: 2,
        num_output_tensors: 1,
        num_mutable_buffer_tensors: 1,
        num_temp_tensors: 4,
        num_values: 0,
        instruction_chains: Chains(vec![nodes]),
        main_chain_idx: 0,
        init_chain_idx: -1,
        input_map: vec![slot(1), slot(2)],
        output_map: vec![slot(3)],
        mutable_buffer_map: vec![slot(STATE)],
        named_slots: (0..).zip(names).map(|(idx, name)| NamedSlot { name: name.to_owned(), slot: slot(idx) }).collect(),
        tensor_meta: [3, 2, 2, 2, 2].map(meta).to_vec(),
    };
    let value = || EValue::Tensor(Tensor::new(DType::F32, vec![2, 3]));
    let method = Method::of_graph("forward", delegate, vec![value(), value(), value()], vec![0, 1], vec![2]);
    let data: Bytes = bytes(&[1.0, 2.0, 3.0, -1.0, 0.5, 0.0, 4.0, -2.0, 1.0]).into();
    let named_data = vec![NamedData { key: "w".to_owned(), data }];
    let program = Program { methods: vec![method], named_data, ..Program::default() };
    let verified = Verified::new(program, &Limits::DEFAULT).unwrap();
    let mut graph = lower(verified.delegate("forward", 0).unwrap(), &Options::default()).unwrap();
    passes::run(&mut graph, &Capabilities::default(), &[]);
    graph
}

/// A name, a graph, and what its two inputs are given.
fn all() -> Vec<(&'static str, Graph, [Given; 2])> {
    let given = |numbers: [f32; 6]| (vec![2, 3], bytes(&numbers));
    let product = |mat1: Src, out: Dst| Addmm { mat1, mat2: W, out, bias: None, alpha: 1.0, beta: 1.0 }.into();
    let shape = |sizes: &[i64]| sizes.iter().map(|size| Int::Literal(*size)).collect::<Vec<_>>();
    let programs: Vec<(&'static str, Vec<Node>)> = vec![
        ("add", vec![Add { a: X, b: Y, out: OUT }.into()]),
        ("subtract", vec![Subtract { a: X, b: Y, out: OUT }.into()]),
        ("multiply", vec![Multiply { a: X, b: Y, out: OUT }.into()]),
        ("negate and square", vec![Neg { x: X, out: Dst(T) }.into(), Square { x: Src(T), out: OUT }.into()]),
        ("product", vec![product(X, OUT)]),
        ("two products", vec![product(X, Dst(T)), product(Src(T), OUT)]),
        ("sum", vec![Sum { x: X, out: OUT, axes: Some(vec![-1]), keepdims: true }.into()]),
        ("transpose", vec![Transpose { x: X, out: OUT, perm: vec![1, 0] }.into()]),
        ("reshape", vec![Reshape { x: X, out: OUT, shape: shape(&[3, -1]) }.into()]),
        (
            "center",
            vec![
                Sum { x: X, out: Dst(T), axes: Some(vec![-1]), keepdims: true }.into(),
                Subtract { a: Y, b: Src(T), out: OUT }.into(),
            ],
        ),
        (
            "accumulate",
            vec![Add { a: Src(STATE), b: X, out: Dst(STATE) }.into(), Add { a: Src(STATE), b: Y, out: OUT }.into()],
        ),
        (
            "layer",
            vec![
                product(X, Dst(T)),
                Multiply { a: Src(T), b: Y, out: Dst(T + 1) }.into(),
                product(Src(T + 1), Dst(T)),
                Add { a: Src(T), b: X, out: OUT }.into(),
            ],
        ),
    ];
    let inputs = [given([1.0, -2.0, 3.0, 0.5, 4.0, -1.0]), given([2.0, 0.0, -3.0, 1.5, 1.0, 7.0])];
    programs.into_iter().map(|(name, nodes)| (name, graph(nodes), inputs.clone())).collect()
}

/// Holds a device to the reference on all of them.
pub(crate) fn compare(device: &dyn Backend) {
    for (name, graph, inputs) in all() {
        let graph = Arc::new(graph);
        let [found, expected] = [device, &ptero_reference::Reference].map(|backend| {
            let executable = backend.compile(Arc::clone(&graph)).unwrap();
            let mut state = executable.state(0).unwrap();
            let mut outputs = Vec::new();
            // Twice: states go on where the first call left them.
            for _ in 0..2 {
                for (number, (shape, bytes)) in inputs.iter().enumerate() {
                    state.write(number, InputValue::Tensor { dtype: DType::F32, shape, bytes }).unwrap();
                }
                run_once(executable.as_ref(), state.as_mut(), &AtomicBool::new(false)).unwrap();
                outputs.push(state.read(0).unwrap());
            }
            outputs
        });
        assert_eq!(found, expected, "{name}");
    }
}
