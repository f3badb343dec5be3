//! Graphs that no program is lowered to: what the views of a step do not promise is an error, never a panic.
#![allow(clippy::panic, reason = "a test")]

use ptero_backend::{Backend, InputValue, OutputValue, run_once};
use ptero_cpu::Cpu;
use ptero_plan::dim::Dim;
use ptero_plan::graph::{Block, Graph, Input, Node, Op, Output, Value};
use ptero_plan::prim::{Angles, Fold, GatedDelta, Normalize, Position, Prim};
use ptero_tensor::{Bytes, DType};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn value(graph: &mut Graph, shape: &[i64]) -> Value {
    graph.value(DType::F32, shape.iter().copied().map(Dim::fixed).collect())
}

/// Runs a graph of one step, whose inputs are ones. Returns its output, or the error.
fn run(mut graph: Graph, inputs: &[(Value, &[i64])], prim: Prim<Value>, out: Value) -> Result<OutputValue, String> {
    graph.blocks.push(Block { nodes: vec![Node { op: Op::Prim(prim), origin: (0, 0) }], results: Vec::new() });
    graph.inputs = inputs.iter().map(|(value, _)| Input::Tensor(*value)).collect();
    graph.outputs.push(Output::Tensor(out));
    let executable = Cpu::new().compile(Arc::new(graph)).map_err(|error| error.to_string())?;
    let mut state = executable.state(1).map_err(|error| error.to_string())?;
    for (number, (_, shape)) in inputs.iter().enumerate() {
        let shape: Vec<u64> = shape.iter().map(|size| size.unsigned_abs()).collect();
        let bytes = 1_f32.to_le_bytes().repeat(shape.iter().product::<u64>().try_into().expect("it is small"));
        let value = InputValue::Tensor { dtype: DType::F32, shape: &shape, bytes: &bytes };
        state.write(number, value).map_err(|error| error.to_string())?;
    }
    run_once(executable.as_ref(), state.as_mut(), &AtomicBool::new(false)).map_err(|error| error.to_string())?;
    state.read(0).map_err(|error| error.to_string())
}

/// Checks that a step with these inputs and this output is refused.
fn refused(inputs: &[&[i64]], out: &[i64], prim: impl Fn(&mut Graph, &[Value], Value) -> Prim<Value>) {
    let mut graph = Graph::default();
    let values: Vec<Value> = inputs.iter().map(|shape| value(&mut graph, shape)).collect();
    let out = value(&mut graph, out);
    let prim = prim(&mut graph, &values, out);
    let name = prim.name();
    let inputs: Vec<(Value, &[i64])> = values.into_iter().zip(inputs.iter().copied()).collect();
    let error = run(graph, &inputs, prim, out).expect_err(name);
    assert!(error.ends_with("the shapes of a step's tensors fit each other"), "{name}: {error}");
}

#[test]
fn results_of_another_shape_than_their_operands_are_refused() {
    let x: &[&[i64]] = &[&[2, 3]];
    let one = |values: &[Value]| *values.first().expect("there is one");
    refused(x, &[2, 5], |_, values, out| Prim::Softmax { out, x: one(values), axis: 1 });
    refused(x, &[4, 3], |_, values, out| Prim::Sort { out, x: one(values), axis: 1, indices: false });
    refused(x, &[4, 3], |_, values, out| Prim::Cumsum {
        out,
        x: one(values),
        axis: 1,
        reverse: false,
        inclusive: true,
    });
    refused(x, &[4, 1], |_, values, out| Prim::Reduce { out, x: one(values), axes: vec![1], fold: Fold::Sum });
    refused(x, &[4, 1], |_, values, out| Prim::ArgReduce { out, x: one(values), axis: 1, largest: true });
    refused(x, &[2, 5], |_, values, out| {
        let (position, angles) = (Position::Host(Dim::fixed(0)), Angles::Base(1e4));
        Prim::Rope { out, x: one(values), dims: 2, interleaved: false, scale: 1.0, position, angles }
    });
}

#[test]
fn operands_that_are_too_short_are_refused() {
    let two = |values: &[Value]| <[Value; 2]>::try_from(values).expect("there are two");
    refused(&[&[2, 3], &[2]], &[2, 3], |_, values, out| {
        let [x, weight] = two(values);
        Prim::Norm { out, x, weight: Some(weight), bias: None, eps: 1e-6, kind: Normalize::Rms }
    });
    refused(&[&[2, 8], &[2]], &[2, 8], |_, values, out| {
        let [x, periods] = two(values);
        let (position, angles) = (Position::Host(Dim::fixed(0)), Angles::Periods(periods));
        Prim::Rope { out, x, dims: 8, interleaved: false, scale: 1.0, position, angles }
    });
    refused(&[&[1, 2, 3, 4], &[1, 1, 7, 4], &[1, 1, 5, 4]], &[1, 2, 3, 4], |_, values, out| {
        let [q, k, v] = <[Value; 3]>::try_from(values).expect("there are three");
        let (mask, first, window) = (None, Dim::fixed(0), None);
        Prim::Attention { out, q, k, v, mask, first, causal: false, window, scale: 1.0 }
    });
    let (keys, state): (&[i64], &[i64]) = (&[1, 3, 2, 4], &[1, 2, 5, 4]);
    refused(&[keys, keys, &[1, 3, 2, 5], &[1, 3, 2], &[1, 1, 2], state], &[1, 3, 2, 5], |graph, values, out| {
        let [q, k, v, g, beta, before] = <[Value; 6]>::try_from(values).expect("there are six");
        let state_out = value(graph, state);
        Prim::GatedDelta(Box::new(GatedDelta { out, state_out, q, k, v, g, beta, state: before }))
    });
}

#[test]
fn a_constant_may_have_more_bytes_than_whole_elements() {
    for extra in 0..5 {
        let mut graph = Graph::default();
        let (x, out) = (value(&mut graph, &[3]), value(&mut graph, &[1]));
        let bytes = [1.0_f32, 2.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).chain(vec![7; extra]).collect::<Vec<u8>>();
        graph.constants.push((x, Bytes::from(bytes)));
        let OutputValue::Tensor { bytes, .. } =
            run(graph, &[], Prim::Reduce { out, x, axes: vec![0], fold: Fold::Sum }, out).expect("it runs")
        else {
            panic!("not a tensor")
        };
        assert_eq!(bytes, 7_f32.to_le_bytes(), "{extra} bytes more");
    }
}
