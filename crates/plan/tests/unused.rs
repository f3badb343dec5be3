//! What nobody needs, and what is left of a graph without it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "common/program.rs"]
mod program;
#[path = "common/small.rs"]
mod small;

use expect_test::{Expect, expect};
use program::lowered;
use ptero_plan::{Options, passes};
use ptero_pte::field::{Chain, Collected, Dst, DstValue, Fed, Float, Int, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::{DType, Node};
use small::{meta, metas, program};

#[track_caller]
fn check(chains: Vec<Vec<Node>>, wanted: Expect) {
    let mut graph = lowered(&program(metas(meta(DType::F32, &[4, 3])), chains), &Options::default()).unwrap();
    passes::drop_unused(&mut graph);
    graph.verify().unwrap();
    wanted.assert_eq(&graph.to_string());
    let once = graph.to_string();
    passes::drop_unused(&mut graph);
    assert_eq!(graph.to_string(), once, "there is nothing left to drop");
}

fn exp(x: u32, out: u32) -> Node {
    Exp { x: Src(x), out: Dst(out) }.into()
}

#[test]
fn operations_constants_and_host_values_that_nobody_reads_go() {
    let nodes: Vec<Node> = vec![
        exp(0, 5),
        Sum { x: Src(2), out: Dst(6), axes: None, keepdims: true }.into(),
        ItemInt { x: Src(6), out: DstValue(0) }.into(),
        exp(1, 3),
        // A draw without a seed takes a key of the session.
        RandomBits { out: Dst(7), shape: vec![Int::Literal(2)], seed: None, width: 4 }.into(),
    ];
    check(
        vec![nodes],
        expect![[r#"
            state s0 f32[1, 8, 2]
            input 0: v1 f32[4, 3]
            input 1: v2 i64[1]
            block, runs at every call
              0.3      v6 f32[4, 3] = map(v1) { exp(x0) }
              0.4      v7 u32[2] = random-bits()
            output 0: v6 f32[4, 3]
        "#]],
    );
}

#[test]
fn what_sizes_are_computed_from_stays() {
    let nodes: Vec<Node> = vec![
        Sum { x: Src(2), out: Dst(6), axes: None, keepdims: true }.into(),
        ItemInt { x: Src(6), out: DstValue(0) }.into(),
        Full { out: Dst(3), shape: vec![Int::Value(Value(0))], v: Float::Literal(0.0), scalar_type: DType::F32 }.into(),
    ];
    check(
        vec![nodes],
        expect![[r#"
            state s0 f32[1, 8, 2]
            input 0: v1 f32[4, 3]
            input 1: v2 i64[1]
            block, runs at every call
              0.0      v4 i64[1] = reduce(v2) Sum over [0]
              0.1      h0 = item(v4)
              0.2      check 0 <= h0 <= 2147483647: size
              0.2      v5 f32[h0] = map() { 0.0 }
            output 0: v5 f32[h0]
        "#]],
    );
}

#[test]
fn branches_lose_results_and_then_go() {
    let branch = |out: u32| -> Vec<Vec<Node>> {
        let condition = ItemInt { x: Src(2), out: DstValue(0) };
        let branch = If { cond: Int::Value(Value(0)), then_chain_idx: Chain(1), else_chain_idx: Chain(2) };
        // One of two results is an operand of something that nobody reads.
        let main = vec![condition.into(), branch.into(), exp(5, 7), exp(out, 3)];
        vec![main, vec![exp(1, 5), exp(1, 6)], vec![exp(5, 5), exp(5, 6)]]
    };
    let with_first = |out| {
        let mut chains = branch(out);
        chains[2] = vec![exp(1, 5), exp(5, 6)];
        chains
    };
    check(
        with_first(6),
        expect![[r#"
        state s0 f32[1, 8, 2]
        input 0: v1 f32[4, 3]
        input 1: v2 i64[1]
        h0 = input 1[0]
        block, runs at every call
          0.1      v9 f32[4, 3] = if h0
          1.1        v5 f32[4, 3] = map(v1) { exp(x0) }
                     -> v5
                   else
          2.0        v6 f32[4, 3] = map(v1) { exp(x0) }
          2.1        v7 f32[4, 3] = map(v6) { exp(x0) }
                     -> v7
          0.3      v11 f32[4, 3] = map(v9) { exp(x0) }
        output 0: v11 f32[4, 3]
    "#]],
    );
    check(
        with_first(1),
        expect![[r#"
        state s0 f32[1, 8, 2]
        input 0: v1 f32[4, 3]
        input 1: v2 i64[1]
        h0 = input 1[0]
        block, runs at every call
          0.3      v10 f32[4, 3] = map(v1) { exp(x0) }
        output 0: v10 f32[4, 3]
    "#]],
    );
}

#[test]
fn loops_lose_what_they_carry_and_stack_and_then_go() {
    let scan = Scan {
        originals: vec![Src(1)],
        sliced: vec![Fed(5)],
        outputs: vec![Collected(8), Collected(9)],
        carry: vec![Src(6)],
        body_chain_idx: Chain(1),
        scan_axis: 0,
    };
    let body: Vec<Node> = vec![Add { a: Src(6), b: Src(5), out: Dst(6) }.into(), exp(6, 8), exp(5, 9)];
    let chains = |out: u32| {
        let main = vec![IdCopy { x: Src(0), out: Dst(6) }.into(), scan.clone().into(), exp(8, 10), exp(out, 3)];
        vec![main, body.clone()]
    };
    check(
        chains(9),
        expect![[r#"
            constant v0 f32[3], 12 bytes
            state s0 f32[1, 8, 2]
            input 0: v1 f32[4, 3]
            input 1: v2 i64[1]
            block, runs at every call
              0.1      v12 f32[3], v11 f32[4, 3] = for h0 below 4, carrying (v4 = v0)
              0.1        v5 f32[1, 3] = slice(v1) axis 0 from h0 step 1
              0.1        v6 f32[3] = reshape(v5)
              1.0        v7 f32[3] = map(v4, v6) { add(x0, x1) }
              1.2        v9 f32[3] = map(v6) { exp(x0) }
                         -> v7, v9
              0.3      v14 f32[4, 3] = map(v11) { exp(x0) }
            output 0: v14 f32[4, 3]
        "#]],
    );
    check(
        chains(6),
        expect![[r#"
            constant v0 f32[3], 12 bytes
            state s0 f32[1, 8, 2]
            input 0: v1 f32[4, 3]
            input 1: v2 i64[1]
            block, runs at every call
              0.1      v12 f32[3] = for h0 below 4, carrying (v4 = v0)
              0.1        v5 f32[1, 3] = slice(v1) axis 0 from h0 step 1
              0.1        v6 f32[3] = reshape(v5)
              1.0        v7 f32[3] = map(v4, v6) { add(x0, x1) }
                         -> v7
              0.3      v14 f32[3] = map(v12) { exp(x0) }
            output 0: v14 f32[3]
        "#]],
    );
    check(
        chains(1),
        expect![[r#"
            state s0 f32[1, 8, 2]
            input 0: v1 f32[4, 3]
            input 1: v2 i64[1]
            block, runs at every call
              0.3      v14 f32[4, 3] = map(v1) { exp(x0) }
            output 0: v14 f32[4, 3]
        "#]],
    );
}
