//! Lowered graphs: slots keep their content when the state they were read from changes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use common::{Slots, fixed, lowered};
use ptero_backend::{Backend, InputValue, OutputValue, run_once};
use ptero_plan::Options;
use ptero_pte::field::{Chain, Collected, Dst, DstValue, Fed, Int, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::{DType, Node};
use ptero_reference::Reference;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

mod common;

/// The output of each call, with `c` as given and `x = [1, 2, 3]`. Inputs `x` (t0, three numbers) and `c` (t1, an integer), output
/// t2, state t3 (three numbers), temporaries from t4 on.
fn outputs(chains: Vec<Vec<Node>>, calls: &[i64]) -> Vec<Vec<f32>> {
    let slots = Slots { constants: 0, inputs: 2, outputs: 1, states: 1, temporaries: 6, values: 2 };
    let (numbers, integer) = (fixed(DType::F32, &[3]), fixed(DType::I64, &[1]));
    let named = vec![("x", numbers.clone()), ("c", integer), ("out", numbers.clone()), ("state", numbers)];
    let graph = lowered(chains, &slots, named, Vec::new(), &Options::default()).unwrap();
    let executable = Reference.compile(Arc::new(graph)).unwrap();
    let mut state = executable.state(0).unwrap();
    let x: Vec<u8> = [1_f32, 2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut results = Vec::new();
    for c in calls {
        state.write(0, InputValue::Tensor { dtype: DType::F32, shape: &[3], bytes: &x }).unwrap();
        state.write(1, InputValue::Tensor { dtype: DType::I64, shape: &[1], bytes: &c.to_le_bytes() }).unwrap();
        run_once(&*executable, state.as_mut(), &AtomicBool::new(false)).unwrap();
        let OutputValue::Tensor { bytes, .. } = state.read(0).unwrap() else { panic!("a tensor") };
        results.push(bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect());
    }
    results
}

fn add(a: u32, b: u32, out: u32) -> Node {
    Add { a: Src(a), b: Src(b), out: Dst(out) }.into()
}

fn copy(x: u32, out: u32) -> Node {
    IdCopy { x: Src(x), out: Dst(out) }.into()
}

#[test]
fn a_branch_that_changes_a_state_leaves_others_what_they_held() {
    // t4 shows the state. If c is not 0, the state grows by x. Either way the output is what t4 held before.
    let condition: Node = ItemInt { x: Src(1), out: DstValue(0) }.into();
    let branch = If { cond: Int::Value(Value(0)), then_chain_idx: Chain(1), else_chain_idx: Chain(2) };
    let chains = vec![vec![copy(3, 4), condition, branch.into(), copy(4, 2)], vec![add(3, 0, 3)], vec![Noop {}.into()]];
    let old = |times: f32| vec![times, 2.0 * times, 3.0 * times];
    assert_eq!(outputs(chains, &[1, 0, 1, 1, 0]), [old(0.0), old(1.0), old(1.0), old(2.0), old(3.0)]);
}

#[test]
fn a_loop_that_changes_a_state_scans_what_was_there_before() {
    // Over three rounds, each adds x to the state; t4, which is scanned and summed, is the state before the loop.
    let scan = Scan {
        originals: vec![Src(4)],
        sliced: vec![Fed(5)],
        outputs: vec![Collected(6)],
        carry: vec![],
        body_chain_idx: Chain(1),
        scan_axis: 0,
    };
    let body = vec![add(3, 0, 3), Sum { x: Src(4), out: Dst(7), axes: None, keepdims: false }.into(), add(5, 7, 6)];
    let chains = vec![vec![copy(3, 4), scan.into(), copy(6, 2)], body];
    // Each element of the old state, plus its sum: zero, then three times [1, 2, 3] and its sum, 18, and so on.
    assert_eq!(outputs(chains, &[0, 0, 0]), [vec![0.0; 3], vec![21.0, 24.0, 27.0], vec![42.0, 48.0, 54.0]]);
}

#[test]
fn an_update_of_part_of_a_state_reads_the_rest_as_it_was() {
    // state[1..3] = state[0..2], which overlap.
    let head =
        Slice { x: Src(3), out: Dst(4), axis: Int::Literal(0), start: Int::Literal(0), stop: Int::Literal(2), step: 1 };
    let update = SliceUpdate {
        dst: Src(3),
        update: Src(4),
        out: Dst(3),
        axis: Int::Literal(0),
        start: Int::Literal(1),
        stop: Int::Literal(3),
        step: 1,
    };
    let chains = vec![vec![add(3, 0, 3), head.into(), update.into(), copy(3, 2)]];
    assert_eq!(outputs(chains, &[0, 0]), [[1.0, 1.0, 2.0], [2.0, 2.0, 3.0]]);
}
