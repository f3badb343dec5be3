//! What is unused, and what is left of a graph without it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "common/program.rs"]
mod program;
#[path = "common/small.rs"]
mod small;

use expect_test::{Expect, expect};
use program::*;
use ptero_plan::passes;
use ptero_pte::field::{Collected, Dst, Int, Src};
use ptero_pte::nodes::RandomBits;
use ptero_pte::{DType, Node};
use small::lower_small;

#[track_caller]
fn check(chains: Vec<Vec<Node>>, wanted: Expect) {
    let mut graph = lower_small(meta(DType::F32, &[4, 3]), chains).unwrap();
    passes::drop_unused(&mut graph);
    graph.verify().unwrap();
    wanted.assert_eq(&graph.to_string());
    let once = graph.to_string();
    passes::drop_unused(&mut graph);
    assert_eq!(graph.to_string(), once, "there is nothing left to drop");
}

#[test]
fn operations_constants_and_host_values_that_are_not_read_are_removed() {
    let nodes: Vec<Node> = vec![
        exp(0, 5),
        sum(2, 0, true, 6),
        item(6, 0),
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
    let nodes = vec![sum(2, 0, true, 6), item(6, 0), full(vec![value(0)], 0.0, 3)];
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
fn branches_lose_results_and_then_are_removed() {
    let chains = |out: u32| {
        // One of two results is an operand of something that is not read.
        let main = vec![item(2, 0), branch(), exp(5, 7), exp(out, 3)];
        vec![main, vec![exp(1, 5), exp(1, 6)], vec![exp(1, 5), exp(5, 6)]]
    };
    check(
        chains(6),
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
        chains(1),
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
fn loops_lose_what_they_carry_and_stack_and_then_are_removed() {
    let chains = |out: u32| {
        let scan = scan(vec![Src(6)], vec![Collected(8), Collected(9)]);
        vec![vec![copy(0, 6), scan, exp(8, 10), exp(out, 3)], vec![add(6, 5, 6), exp(6, 8), exp(5, 9)]]
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
