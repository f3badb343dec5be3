//! What the pass `fuse-gated-delta` does with loops over tokens, and why it declines others.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "fuse_gated_delta/declined.rs"]
mod declined;
#[path = "common/delta.rs"]
mod delta;
#[path = "common/program.rs"]
mod program;
#[path = "common/unchanged.rs"]
mod unchanged;

use delta::*;
use expect_test::{Expect, expect};
use program::{cast, operations, reshape};
use ptero_plan::graph::{Graph, Op};
use ptero_plan::{Capabilities, passes};
use ptero_pte::field::Src;
use ptero_pte::{DType, ShapeDim};

const SIZES: Sizes = Sizes { batches: 1, tokens: 5, groups: 2, heads: 2, depth: 16, width: 8 };

/// Runs only this pass, and returns its notes.
fn fuse(graph: &mut Graph) -> Vec<String> {
    passes::run(graph, &Capabilities::default(), &["fuse-sampler".to_owned(), "fuse-maps".to_owned()]).lines
}

/// Compares the operations after the pass, which fuses all loops.
#[track_caller]
fn check(delta: &Delta, wanted: Expect) {
    let mut graph = delta.graph();
    let notes = fuse(&mut graph);
    wanted.assert_eq(&operations(&graph));
    assert!(notes.iter().all(|note| note.ends_with("the loop became one operation")), "{notes:?}");
}

fn new(change: impl FnOnce(&mut Delta)) -> Delta {
    let mut delta = Delta::new(DType::F32, DType::F32, SIZES);
    change(&mut delta);
    delta
}

#[test]
fn a_loop_over_tokens_becomes_one_operation_between_reading_and_writing_the_state() {
    let delta = new(|_| {});
    expect![[r#"
        block, runs at every call
          0.0      v5 f32[1, 2, 8, 16] = read(s0)
          0.1      v42 f32[1, 2, 8, 16], v41 f32[1, 5, 2, 8] = for h0 below 5, carrying (v6 = v5)
          0.1        v7 f32[1, 1, 2, 16] = slice(v0) axis 1 from h0 step 1
          0.1        v8 f32[1, 2, 16] = reshape(v7)
          0.1        v9 f32[1, 1, 2, 16] = slice(v1) axis 1 from h0 step 1
          0.1        v10 f32[1, 2, 16] = reshape(v9)
          0.1        v11 f32[1, 1, 2, 8] = slice(v2) axis 1 from h0 step 1
          0.1        v12 f32[1, 2, 8] = reshape(v11)
          0.1        v13 f32[1, 1, 2] = slice(v3) axis 1 from h0 step 1
          0.1        v14 f32[1, 2] = reshape(v13)
          0.1        v15 f32[1, 1, 2] = slice(v4) axis 1 from h0 step 1
          0.1        v16 f32[1, 2] = reshape(v15)
          1.0        v17 f32[1, 2, 1] = reshape(v14)
          1.1        v18 f32[1, 2, 1, 1] = reshape(v17)
          1.2        v19 f32[1, 2, 8, 16] = broadcast(v18)
          1.2        v20 f32[1, 2, 8, 16] = map(v6, v19) { mul(x0, x1) }
          1.3        v21 f32[1, 2, 1, 16] = reshape(v10)
          1.4        v22 f32[1, 2, 8, 16] = broadcast(v21)
          1.4        v23 f32[1, 2, 8, 16] = map(v20, v22) { mul(x0, x1) }
          1.5        v24 f32[1, 2, 8, 1] = reduce(v23) Sum over [3]
          1.5        v25 f32[1, 2, 8] = reshape(v24)
          1.6        v26 f32[1, 2, 8] = map(v12, v25) { sub(x0, x1) }
          1.7        v27 f32[1, 2, 1] = reshape(v16)
          1.8        v28 f32[1, 2, 8] = broadcast(v27)
          1.8        v29 f32[1, 2, 8] = map(v26, v28) { mul(x0, x1) }
          1.9        v30 f32[1, 2, 1, 16] = reshape(v10)
          1.10       v31 f32[1, 2, 8, 1] = reshape(v29)
          1.11       v32 f32[1, 2, 8, 16] = broadcast(v30)
          1.11       v33 f32[1, 2, 8, 16] = broadcast(v31)
          1.11       v34 f32[1, 2, 8, 16] = map(v32, v33) { mul(x0, x1) }
          1.12       v35 f32[1, 2, 8, 16] = map(v20, v34) { add(x0, x1) }
          1.13       v36 f32[1, 2, 1, 16] = reshape(v8)
          1.14       v37 f32[1, 2, 8, 16] = broadcast(v36)
          1.14       v38 f32[1, 2, 8, 16] = map(v35, v37) { mul(x0, x1) }
          1.15       v39 f32[1, 2, 8, 1] = reduce(v38) Sum over [3]
          1.15       v40 f32[1, 2, 8] = reshape(v39)
                     -> v35, v40
          0.2      write(s0, v42)
        output 0: v41 f32[1, 5, 2, 8]
    "#]]
    .assert_eq(&operations(&delta.graph()));
    check(
        &delta,
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.1      v41 f32[1, 5, 2, 8], v42 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.2      write(s0, v42)
            output 0: v41 f32[1, 5, 2, 8]
        "#]],
    );
    let mut graph = delta.graph();
    assert_eq!(fuse(&mut graph), ["fuse-gated-delta: 0.1: the loop became one operation"]);
    assert!(graph.blocks.iter().skip(1).all(|block| block.nodes.is_empty()), "the body of the loop is gone");
    for (capabilities, skip) in [
        (Capabilities::default(), &["fuse-gated-delta".to_owned(), "fuse-maps".to_owned()][..]),
        (Capabilities { is_inexact: true, ..Capabilities::default() }, &["fuse-maps".to_owned()]),
    ] {
        let mut graph = delta.graph();
        passes::run(&mut graph, &capabilities, skip);
        assert_eq!(graph.to_string(), delta.graph().to_string(), "a pass that is switched off does nothing");
    }
}

#[test]
fn heads_that_were_repeated_are_read_where_they_were_not() {
    check(
        &Delta::new(DType::F32, DType::F32, Sizes { heads: 6, ..SIZES }),
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 6, 8, 16] = read(s0)
              0.3      v47 f32[1, 5, 6, 8], v48 f32[1, 6, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.4      write(s0, v48)
            output 0: v47 f32[1, 5, 6, 8]
        "#]],
    );
    check(
        &Delta::new(DType::F32, DType::F32, Sizes { groups: 1, ..SIZES }),
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.3      v47 f32[1, 5, 2, 8], v48 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.4      write(s0, v48)
            output 0: v47 f32[1, 5, 2, 8]
        "#]],
    );
    // Twice, with a conversion between.
    let mut twice = Delta::new(DType::Bf16, DType::F32, Sizes { heads: 8, ..SIZES });
    let pair = |input: u32, at: u32| [repeat(input, 2, at), cast(at, DType::F32, at), repeat(at, 2, at)];
    twice.before = [pair(Q, FREE), pair(K, FREE + 1)].concat();
    twice.before.push(copy(STATE, CARRY));
    check(
        &twice,
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 8, 8, 16] = read(s0)
              0.7      v55 f32[1, 5, 8, 8], v56 f32[1, 8, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.8      write(s0, v56)
            output 0: v55 f32[1, 5, 8, 8]
        "#]],
    );
    // Only queries: the loop's own are taken.
    let mut only_q = Delta::new(DType::F32, DType::F32, Sizes { heads: 4, ..SIZES });
    only_q.metas[K as usize] = only_q.metas[V as usize].clone();
    only_q.metas[K as usize].shape[3].value = 16;
    only_q.before.remove(1);
    only_q.scan.originals[1] = Src(K);
    check(
        &only_q,
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 4, 8, 16] = read(s0)
              0.0      v6 f32[1, 5, 2, 1, 16] = reshape(v0)
              0.0      v7 f32[1, 5, 2, 2, 16] = broadcast(v6)
              0.0      v8 f32[1, 5, 4, 16] = reshape(v7)
              0.2      v44 f32[1, 5, 4, 8], v45 f32[1, 4, 8, 16] = gated-delta(v8, v1, v2, v3, v4, v5)
              0.3      write(s0, v45)
            output 0: v44 f32[1, 5, 4, 8]
        "#]],
    );
}

#[test]
fn tokens_may_vary_in_number_and_lie_on_another_axis() {
    check(
        &Delta::new(DType::Bf16, DType::F32, Sizes { tokens: -1, ..SIZES }),
        expect![[r#"
            h0 = given, at most 64
            h1 = given, at most 64
            h2 = given, at most 64
            h3 = given, at most 64
            h4 = given, at most 64
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.1      check 1 <= h0 <= 9223372036854775807: number of rounds of a scan
              0.1      v43 bf16[1, h0, 2, 16] = strided(v1) [32, 32, 16, 1] from 0
              0.1      v44 bf16[1, h0, 2, 8] = strided(v2) [16, 16, 8, 1] from 0
              0.1      v45 bf16[1, h0, 2] = strided(v3) [2, 2, 1] from 0
              0.1      v46 bf16[1, h0, 2] = strided(v4) [2, 2, 1] from 0
              0.1      v41 f32[1, h0, 2, 8], v42 f32[1, 2, 8, 16] = gated-delta(v0, v43, v44, v45, v46, v5)
              0.2      write(s0, v42)
            output 0: v41 f32[1, h0, 2, 8]
        "#]],
    );
    check(
        &Delta::new(DType::F16, DType::F16, Sizes { tokens: 1, ..SIZES }),
        expect![[r#"
            block, runs at every call
              0.0      v5 f16[1, 2, 8, 16] = read(s0)
              0.1      v41 f16[1, 1, 2, 8], v42 f16[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.2      write(s0, v42)
            output 0: v41 f16[1, 1, 2, 8]
        "#]],
    );
    let swapped = new(|delta| {
        for meta in &mut delta.metas[..6] {
            meta.shape.swap(1, 2);
        }
        delta.scan.scan_axis = 2;
    });
    check(
        &swapped,
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.1      v43 f32[1, 5, 2, 16] = permute(v0) [0, 2, 1, 3]
              0.1      v44 f32[1, 5, 2, 16] = permute(v1) [0, 2, 1, 3]
              0.1      v45 f32[1, 5, 2, 8] = permute(v2) [0, 2, 1, 3]
              0.1      v46 f32[1, 5, 2] = permute(v3) [0, 2, 1]
              0.1      v47 f32[1, 5, 2] = permute(v4) [0, 2, 1]
              0.1      v48 f32[1, 5, 2, 8], v42 f32[1, 2, 8, 16] = gated-delta(v43, v44, v45, v46, v47, v5)
              0.1      v41 f32[1, 2, 5, 8] = permute(v48) [0, 2, 1, 3]
              0.2      write(s0, v42)
            output 0: v41 f32[1, 2, 5, 8]
        "#]],
    );
}

#[test]
fn factors_and_terms_may_change_places_and_sums_may_keep_their_axis() {
    let swapped = new(|delta| {
        let [q, k, v, beta] = [Q, K, V, BETA].map(|input| PART + input);
        delta.body.splice(
            3..,
            [
                expand(k, -2, FREE),
                multiply(FREE, CARRY, FREE + 1),
                sum(FREE + 1, -1, true, FREE + 1),
                expand(v, -1, FREE + 2),
                subtract(FREE + 2, FREE + 1, FREE + 1),
                expand(beta, -1, FREE + 2),
                expand(FREE + 2, -1, FREE + 2),
                multiply(FREE + 2, FREE + 1, FREE + 1),
                multiply(FREE + 1, FREE, FREE),
                add(FREE, CARRY, CARRY),
                expand(q, -2, FREE),
                multiply(FREE, CARRY, FREE),
                sum(FREE, 3, false, OUT),
            ],
        );
    });
    check(
        &swapped,
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.1      v40 f32[1, 5, 2, 8], v41 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.2      write(s0, v41)
            output 0: v40 f32[1, 5, 2, 8]
        "#]],
    );
}

#[test]
fn the_state_before_and_after_the_loop_may_have_other_readers() {
    // The state is also an output.
    check(
        &new(|delta| delta.outputs.push(CARRY)),
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.1      v41 f32[1, 5, 2, 8], v42 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.2      write(s0, v42)
            output 0: v41 f32[1, 5, 2, 8]
            output 1: v42 f32[1, 2, 8, 16]
        "#]],
    );
    // The old state is read after the loop.
    check(
        &new(|delta| {
            delta.after.insert(0, add(STATE, STATE, FREE));
            delta.outputs.push(FREE);
        }),
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.1      v41 f32[1, 5, 2, 8], v42 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.2      v43 f32[1, 2, 8, 16] = map(v5, v5) { add(x0, x1) }
              0.3      write(s0, v42)
            output 0: v41 f32[1, 5, 2, 8]
            output 1: v43 f32[1, 2, 8, 16]
        "#]],
    );
    // What is carried starts from something computed.
    check(
        &new(|delta| delta.before = vec![add(STATE, STATE, CARRY)]),
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.0      v6 f32[1, 2, 8, 16] = map(v5, v5) { add(x0, x1) }
              0.1      v42 f32[1, 5, 2, 8], v43 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v6)
              0.2      write(s0, v43)
            output 0: v42 f32[1, 5, 2, 8]
        "#]],
    );
    // Another operation reads what the loop starts from.
    check(
        &new(|delta| {
            delta.before.push(add(CARRY, CARRY, FREE));
            delta.outputs.push(FREE);
        }),
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.1      v6 f32[1, 2, 8, 16] = map(v5, v5) { add(x0, x1) }
              0.2      v42 f32[1, 5, 2, 8], v43 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.3      write(s0, v43)
            output 0: v42 f32[1, 5, 2, 8]
            output 1: v6 f32[1, 2, 8, 16]
        "#]],
    );
}

#[test]
fn a_state_that_the_loop_itself_writes_is_read_and_written_once() {
    let direct = in_the_buffer(SIZES);
    let body = direct.graph().blocks[1].nodes.clone();
    let writes = body.iter().filter(|node| matches!(node.op, Op::Write { .. }));
    assert_eq!(writes.count(), 2, "it is written twice for each token");
    check(
        &direct,
        expect![[r#"
            block, runs at every call
              0.0      v43 f32[1, 2, 8, 16] = read(s0)
              0.0      v41 f32[1, 5, 2, 8], v44 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v43)
              0.0      write(s0, v44)
            output 0: v41 f32[1, 5, 2, 8]
        "#]],
    );
}

#[test]
fn a_short_state_is_widened_and_rounded_by_the_rule() {
    let mut short = Delta::new(DType::Bf16, DType::Bf16, SIZES);
    short.before = vec![cast(STATE, DType::F32, CARRY)];
    short.after = vec![cast(CARRY, DType::Bf16, STATE)];
    check(
        &short,
        expect![[r#"
            block, runs at every call
              0.0      v5 bf16[1, 2, 8, 16] = read(s0)
              0.1      v42 f32[1, 5, 2, 8], v44 bf16[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.2      write(s0, v44)
            output 0: v42 f32[1, 5, 2, 8]
        "#]],
    );
    // Another operation reads it before it is rounded.
    short.outputs.push(CARRY);
    check(
        &short,
        expect![[r#"
            block, runs at every call
              0.0      v5 bf16[1, 2, 8, 16] = read(s0)
              0.1      v42 f32[1, 5, 2, 8], v43 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.2      v44 bf16[1, 2, 8, 16] = map(v43) { bf16(x0) }
              0.2      write(s0, v44)
            output 0: v42 f32[1, 5, 2, 8]
            output 1: v43 f32[1, 2, 8, 16]
        "#]],
    );
}

#[test]
fn operands_are_read_before_they_were_widened() {
    let mut wide = Delta::new(DType::F16, DType::F32, SIZES);
    wide.before.extend((Q..=BETA).map(|input| cast(input, DType::F32, FREE + input)));
    wide.scan.originals = (Q..=BETA).map(|input| Src(FREE + input)).collect();
    check(
        &wide,
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.6      v46 f32[1, 5, 2, 8], v47 f32[1, 2, 8, 16] = gated-delta(v0, v1, v2, v3, v4, v5)
              0.7      write(s0, v47)
            output 0: v46 f32[1, 5, 2, 8]
        "#]],
    );
    // In another shape since.
    wide.metas[V as usize].shape = wide.metas[V as usize].shape[..2].to_vec();
    wide.metas[V as usize].shape.push(ShapeDim { value: 16, min_value: 0, max_value: -1 });
    wide.before.push(reshape(FREE + V, &[1, 5, 2, 8], FREE + V));
    check(
        &wide,
        expect![[r#"
            block, runs at every call
              0.0      v5 f32[1, 2, 8, 16] = read(s0)
              0.7      v49 f16[1, 5, 2, 8] = reshape(v2)
              0.7      v47 f32[1, 5, 2, 8], v48 f32[1, 2, 8, 16] = gated-delta(v0, v1, v49, v3, v4, v5)
              0.8      write(s0, v48)
            output 0: v47 f32[1, 5, 2, 8]
        "#]],
    );
}
