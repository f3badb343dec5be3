//! Twelve small programs, lowered.

use crate::common::{Slots, fixed, lowered};
use ptero_backend::{Backend, InputValue, run_once};
use ptero_plan::graph::Graph;
use ptero_plan::{Capabilities, Options, passes};
use ptero_pte::field::{Dst, Int, Src};
use ptero_pte::nodes::*;
use ptero_pte::{Bytes, DType, NamedData, Node};
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
    let slots = Slots { constants: 1, inputs: 2, outputs: 1, states: 1, temporaries: 4, values: 0 };
    let names = [("w", 3), ("x", 2), ("y", 2), ("out", 2), ("state", 2)];
    let named = names.map(|(name, rows)| (name, fixed(DType::F32, &[rows, 3]))).to_vec();
    let data: Bytes = bytes(&[1.0, 2.0, 3.0, -1.0, 0.5, 0.0, 4.0, -2.0, 1.0]).into();
    let named_data = vec![NamedData { key: "w".to_owned(), data }];
    let mut graph = lowered(vec![nodes], &slots, named, named_data, &Options::default()).unwrap();
    passes::run(&mut graph, &Capabilities::default(), &[]);
    graph
}

/// A name, a graph, and the values of its two inputs.
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

/// Compares a device with the reference on all of them.
pub(crate) fn compare(device: &dyn Backend) {
    for (name, graph, inputs) in all() {
        let graph = Arc::new(graph);
        let [found, expected] = [device, &ptero_reference::Reference].map(|backend| {
            let executable = backend.compile(Arc::clone(&graph)).unwrap();
            let mut state = executable.state(0).unwrap();
            let mut outputs = Vec::new();
            // Twice: the second call starts with the states of the first.
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
