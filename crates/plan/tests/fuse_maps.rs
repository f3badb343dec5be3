//! What the pass `fuse-maps` makes of elementwise functions, and why it leaves others alone.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "common/program.rs"]
mod program;
#[path = "common/small.rs"]
mod small;

use expect_test::{Expect, expect};
use program::*;
use ptero_plan::graph::Graph;
use ptero_plan::{Capabilities, passes};
use ptero_pte::field::{Dst, Int, Src};
use ptero_pte::nodes::{Sigmoid, Sum};
use ptero_pte::{DType, Node, TensorMeta};
use small::lower_small;

fn graph(x: TensorMeta, nodes: Vec<Node>) -> Graph {
    lower_small(x, vec![nodes]).unwrap()
}

/// What all passes say.
fn notes(graph: &mut Graph) -> String {
    passes::run(graph, &Capabilities::default(), &[]).lines.join("\n")
}

/// What is left, and what the pass says.
#[track_caller]
fn check(mut graph: Graph, wanted: Expect, said: Expect) {
    said.assert_eq(&notes(&mut graph));
    wanted.assert_eq(&operations(&graph));
}

#[test]
fn functions_are_joined_and_keep_their_rounding() {
    let nodes: Vec<Node> = vec![
        multiply(1, 1, 5),
        silu(5, 5),
        add(5, 1, 6),
        Sum { x: Src(6), out: Dst(7), axes: None, keepdims: false }.into(),
        add(7, 0, 3),
    ];
    let before = graph(meta(DType::Bf16, &[4]), nodes);
    expect![[r#"
        block, runs at every call
          0.0      v3 f32[1, 8, 2] = read(s0)
          0.0      v4 bf16[4] = map(v1, v1) { mul(x0, x1) }
          0.1      v5 bf16[4] = map(v4) { mul(x0, sigmoid(x0)) }
          0.2      v6 bf16[4] = map(v5, v1) { add(x0, x1) }
          0.3      v7 bf16[1] = reduce(v6) Sum over [0]
          0.3      v8 bf16[] = reshape(v7)
          0.4      v9 bf16[3] = broadcast(v8)
          0.4      v10 f32[3] = map(v9, v0) { add(f32(x0), x1) }
        output 0: v10 f32[3]
    "#]]
    .assert_eq(&operations(&before));
    check(
        before.clone(),
        expect![[r#"
        block, runs at every call
          0.2      v6 bf16[4] = map(v1) { add(mul(mul(x0, x0), sigmoid(mul(x0, x0))), x0) }
          0.3      v7 bf16[1] = reduce(v6) Sum over [0]
          0.3      v8 bf16[] = reshape(v7)
          0.4      v9 bf16[3] = broadcast(v8)
          0.4      v10 f32[3] = map(v9, v0) { add(f32(x0), x1) }
        output 0: v10 f32[3]
    "#]],
        expect![[r#"
        fuse-maps: 0.0: fused into the function that reads it
        fuse-maps: 0.1: fused into the function that reads it"#]],
    );
    let (mut untouched, mut wanted) = (before.clone(), before);
    let notes = passes::run(&mut untouched, &Capabilities::default(), &["fuse-maps".to_owned()]);
    passes::drop_unused(&mut wanted);
    assert_eq!(
        (untouched.to_string(), notes.lines.len()),
        (wanted.to_string(), 0),
        "a pass that is switched off does nothing"
    );
}

#[test]
fn a_value_that_one_function_reads_twice_is_computed_once() {
    // `x * sigmoid(x)`, as two nodes: the first function is read by both.
    let nodes = vec![exp(1, 5), Sigmoid { x: Src(5), out: Dst(6) }.into(), multiply(5, 6, 3)];
    check(
        graph(meta(DType::F32, &[4]), nodes),
        expect![[r#"
        block, runs at every call
          0.2      v6 f32[4] = map(v1) { mul(exp(x0), sigmoid(exp(x0))) }
        output 0: v6 f32[4]
    "#]],
        expect![[r#"
        fuse-maps: 0.1: fused into the function that reads it
        fuse-maps: 0.0: fused into the function that reads it"#]],
    );
    check(
        graph(meta(DType::F32, &[4]), vec![exp(1, 5), add(5, 5, 3)]),
        expect![[r#"
        block, runs at every call
          0.1      v5 f32[4] = map(v1) { add(exp(x0), exp(x0)) }
        output 0: v5 f32[4]
    "#]],
        expect!["fuse-maps: 0.0: fused into the function that reads it"],
    );
}

#[test]
fn what_others_read_or_a_view_shows_is_left() {
    let viewed = vec![exp(1, 5), reshape(5, &[2, 2], 5), exp(5, 3)];
    check(
        graph(meta(DType::F32, &[4]), viewed),
        expect![[r#"
        block, runs at every call
          0.0      v4 f32[4] = map(v1) { exp(x0) }
          0.1      v5 f32[2, 2] = reshape(v4)
          0.2      v6 f32[2, 2] = map(v5) { exp(x0) }
        output 0: v6 f32[2, 2]
    "#]],
        expect![[""]],
    );
    let read_twice = vec![exp(1, 5), exp(5, 6), sort(5, 7), add(6, 7, 3)];
    check(
        graph(meta(DType::F32, &[4]), read_twice),
        expect![[r#"
        block, runs at every call
          0.0      v4 f32[4] = map(v1) { exp(x0) }
          0.2      v6 f32[4] = sort(v4) over 0
          0.3      v7 f32[4] = map(v4, v6) { add(exp(x0), x1) }
        output 0: v7 f32[4]
    "#]],
        expect!["fuse-maps: 0.1: fused into the function that reads it"],
    );
}

#[test]
fn what_was_read_from_a_state_stays_what_it_was() {
    // Fused, the state's old elements are read after it was written.
    let nodes = vec![neg(4, 5), full([1, 8, 2].map(Int::Literal).to_vec(), 1.0, 4), exp(5, 3)];
    check(
        graph(meta(DType::F32, &[1]), nodes),
        expect![[r#"
            block, runs at every call
              0.0      v3 f32[1, 8, 2] = read(s0)
              0.1      v5 f32[1, 8, 2] = map() { 1.0 }
              0.1      write(s0, v5)
              0.2      v6 f32[1, 8, 2] = map(v3) { exp(neg(x0)) }
            output 0: v6 f32[1, 8, 2]
        "#]],
        expect!["fuse-maps: 0.0: fused into the function that reads it"],
    );
}

#[test]
fn functions_that_would_be_too_long_or_too_wide_are_left() {
    // Each gelu has a dozen steps.
    let nodes = vec![gelu(1, 5), gelu(5, 5), gelu(5, 5), gelu(5, 5), gelu(5, 5), gelu(5, 3)];
    let mut long = graph(meta(DType::F32, &[4]), nodes);
    expect![[r#"
        fuse-maps: 0.0: fused into the function that reads it
        fuse-maps: 0.1: fused into the function that reads it
        fuse-maps: 0.2: fused into the function that reads it
        fuse-maps: 0.3: not fused: the function would be too long
        fuse-maps: 0.4: fused into the function that reads it
        fuse-maps: 0.3: not fused: the function would be too long"#]]
    .assert_eq(&notes(&mut long));
    // A sum of 18 tensors.
    let mut nodes: Vec<Node> = (10..28).map(|out| sort(1, out)).collect();
    nodes.push(add(10, 11, 5));
    nodes.extend((12..27).map(|x| add(5, x, 5)));
    nodes.push(add(5, 27, 3));
    let mut wide = graph(meta(DType::F32, &[4]), nodes);
    expect![[r#"
        fuse-maps: 0.18: fused into the function that reads it
        fuse-maps: 0.19: fused into the function that reads it
        fuse-maps: 0.20: fused into the function that reads it
        fuse-maps: 0.21: fused into the function that reads it
        fuse-maps: 0.22: fused into the function that reads it
        fuse-maps: 0.23: fused into the function that reads it
        fuse-maps: 0.24: fused into the function that reads it
        fuse-maps: 0.25: fused into the function that reads it
        fuse-maps: 0.26: fused into the function that reads it
        fuse-maps: 0.27: fused into the function that reads it
        fuse-maps: 0.28: fused into the function that reads it
        fuse-maps: 0.29: fused into the function that reads it
        fuse-maps: 0.30: fused into the function that reads it
        fuse-maps: 0.31: fused into the function that reads it
        fuse-maps: 0.32: not fused: the function would have too many inputs
        fuse-maps: 0.33: fused into the function that reads it
        fuse-maps: 0.32: not fused: the function would have too many inputs"#]]
    .assert_eq(&notes(&mut wide));
}
