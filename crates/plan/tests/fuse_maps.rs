//! What the pass `fuse-maps` makes of elementwise functions, and why it leaves others alone.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "common/program.rs"]
mod program;
#[path = "common/small.rs"]
mod small;

use expect_test::{Expect, expect};
use program::{lowered, operations};
use ptero_plan::graph::Graph;
use ptero_plan::{Capabilities, Options, passes};
use ptero_pte::field::{Dst, Float, Int, Src};
use ptero_pte::nodes::*;
use ptero_pte::{DType, Node, TensorMeta};
use small::{meta, metas, program};

fn graph(x: TensorMeta, nodes: Vec<Node>) -> Graph {
    lowered(&program(metas(x), vec![nodes]), &Options::default()).unwrap()
}

/// What is left, and what the pass says.
#[track_caller]
fn check(mut graph: Graph, wanted: Expect, notes: Expect) {
    let said = passes::run(&mut graph, &Capabilities::default(), &[]).lines;
    wanted.assert_eq(&operations(&graph));
    notes.assert_eq(&said.join("\n"));
}

fn add(a: u32, b: u32, out: u32) -> Node {
    Add { a: Src(a), b: Src(b), out: Dst(out) }.into()
}

fn exp(x: u32, out: u32) -> Node {
    Exp { x: Src(x), out: Dst(out) }.into()
}

#[test]
fn functions_are_joined_and_keep_their_rounding() {
    let nodes: Vec<Node> = vec![
        Multiply { a: Src(1), b: Src(1), out: Dst(5) }.into(),
        Silu { x: Src(5), out: Dst(5) }.into(),
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
    let nodes: Vec<Node> = vec![
        exp(1, 5),
        Sigmoid { x: Src(5), out: Dst(6) }.into(),
        Multiply { a: Src(5), b: Src(6), out: Dst(3) }.into(),
    ];
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
    let shape = [2, 2].map(Int::Literal).to_vec();
    let viewed: Vec<Node> = vec![exp(1, 5), Reshape { x: Src(5), out: Dst(5), shape }.into(), exp(5, 3)];
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
    let read_twice: Vec<Node> =
        vec![exp(1, 5), exp(5, 6), Sort { x: Src(5), out: Dst(7), axis: 0 }.into(), add(6, 7, 3)];
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
    let nodes: Vec<Node> = vec![
        Neg { x: Src(4), out: Dst(5) }.into(),
        Full {
            out: Dst(4),
            shape: [1, 8, 2].map(Int::Literal).to_vec(),
            v: Float::Literal(1.0),
            scalar_type: DType::F32,
        }
        .into(),
        exp(5, 3),
    ];
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
    let gelu = |x, out| Node::from(Gelu { x: Src(x), out: Dst(out), approximate: ptero_pte::field::GeluForm::Tanh });
    let nodes = vec![gelu(1, 5), gelu(5, 5), gelu(5, 5), gelu(5, 5), gelu(5, 5), gelu(5, 3)];
    let mut long = graph(meta(DType::F32, &[4]), nodes);
    let notes = passes::run(&mut long, &Capabilities::default(), &[]).lines;
    expect![[r#"
        fuse-maps: 0.0: fused into the function that reads it
        fuse-maps: 0.1: fused into the function that reads it
        fuse-maps: 0.2: fused into the function that reads it
        fuse-maps: 0.3: not fused: the function would be too long
        fuse-maps: 0.4: fused into the function that reads it
        fuse-maps: 0.3: not fused: the function would be too long"#]]
    .assert_eq(&notes.join("\n"));
    // A sum of 18 tensors.
    let sort = |out| Node::from(Sort { x: Src(1), out: Dst(out), axis: 0 });
    let mut nodes: Vec<Node> = (10..28).map(sort).collect();
    nodes.push(add(10, 11, 5));
    nodes.extend((12..27).map(|x| add(5, x, 5)));
    nodes.push(add(5, 27, 3));
    let mut wide = graph(meta(DType::F32, &[4]), nodes);
    let notes = passes::run(&mut wide, &Capabilities::default(), &[]).lines;
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
    .assert_eq(&notes.join("\n"));
}
