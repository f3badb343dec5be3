//! What the pass `fuse-gated-delta` makes of loops over tokens, and why it leaves others alone.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "fuse_gated_delta/declined.rs"]
mod declined;
#[path = "common/delta.rs"]
mod delta;

use delta::*;
use expect_test::{Expect, expect};
use ptero_plan::passes::optimize;
use ptero_plan::plan::Plan;
use ptero_pte::DType;
use ptero_pte::field::Src;

const SIZES: Sizes = Sizes { batches: 1, tokens: 5, groups: 2, heads: 2, depth: 16, width: 8 };

/// Only this pass, and what it says.
fn fuse(plan: &mut Plan) -> Vec<String> {
    optimize(plan, &["fuse-sampler".to_owned(), "fuse-maps".to_owned()]).lines
}

fn steps(plan: &Plan) -> String {
    plan.to_string().split_once("block 0").unwrap().1.to_owned()
}

#[track_caller]
fn check(delta: &Delta, wanted: Expect) {
    let mut plan = delta.plan();
    let notes = fuse(&mut plan);
    wanted.assert_eq(&steps(&plan));
    assert!(notes.iter().all(|note| note.ends_with("the loop became one step")), "{notes:?}");
}

fn new(change: impl FnOnce(&mut Delta)) -> Delta {
    let mut delta = Delta::new(DType::F32, DType::F32, SIZES);
    change(&mut delta);
    delta
}

#[test]
fn a_loop_over_tokens_becomes_one_step_that_changes_the_state_in_place() {
    let delta = new(|_| {});
    expect![[r#"
        , runs at every call
          0.1      b6 f32[1, 2, 8, 16] = map(b0 f32[1, 2, 8, 16]) { x0 }
          0.1      for h0 below 5: block 1
          0.2      b0 f32[1, 2, 8, 16] = map(b6 f32[1, 2, 8, 16]) { x0 }
        block 1
          1.2      b7 f32[1, 2, 8, 16] = map(b6 f32[1, 2, 8, 16], b4 f32[1, 2, 8, 16]+2*h0/[10, 1, 0, 0]) { mul(x0, x1) }
          1.4      b8 f32[1, 2, 8, 16] = map(b7 f32[1, 2, 8, 16], b2 f32[1, 2, 8, 16]+32*h0/[160, 16, 0, 1]) { mul(x0, x1) }
          1.5      b9 f32[1, 2, 8, 1] = reduce(b8 f32[1, 2, 8, 16]) Sum over [3]
          1.6      b10 f32[1, 2, 8] = map(b3 f32[1, 2, 8]+16*h0, b9 f32[1, 2, 8]) { sub(x0, x1) }
          1.8      b11 f32[1, 2, 8] = map(b10 f32[1, 2, 8], b5 f32[1, 2, 8]+2*h0/[10, 1, 0]) { mul(x0, x1) }
          1.11     b12 f32[1, 2, 8, 16] = map(b2 f32[1, 2, 8, 16]+32*h0/[160, 16, 0, 1], b11 f32[1, 2, 8, 16]/[16, 8, 1, 0]) { mul(x0, x1) }
          1.12     b13 f32[1, 2, 8, 16] = map(b7 f32[1, 2, 8, 16], b12 f32[1, 2, 8, 16]) { add(x0, x1) }
          1.14     b14 f32[1, 2, 8, 16] = map(b13 f32[1, 2, 8, 16], b1 f32[1, 2, 8, 16]+32*h0/[160, 16, 0, 1]) { mul(x0, x1) }
          1.15     b15 f32[1, 2, 8, 1] = reduce(b14 f32[1, 2, 8, 16]) Sum over [3]
          0.1      b16 f32[1, 2, 8]+16*h0 = map(b15 f32[1, 2, 8]) { x0 }
          0.1      b6 f32[1, 2, 8, 16] = map(b13 f32[1, 2, 8, 16]) { x0 }
        output 0: b16 f32[1, 5, 2, 8]
    "#]].assert_eq(&steps(&delta.plan()));
    check(
        &delta,
        expect![[r#"
        , runs at every call
          0.1      b16 f32[1, 5, 2, 8], b0 f32[1, 2, 8, 16] = gated-delta(b1 f32[1, 5, 2, 16], b2 f32[1, 5, 2, 16], b3 f32[1, 5, 2, 8], b4 f32[1, 5, 2], b5 f32[1, 5, 2], b0 f32[1, 2, 8, 16])
        output 0: b16 f32[1, 5, 2, 8]
    "#]],
    );
    let mut plan = delta.plan();
    assert_eq!(fuse(&mut plan), ["fuse-gated-delta: 0.1: the loop became one step"]);
    assert_eq!(plan.blocks.len(), 1, "the body of the loop is gone");
    let mut plan = delta.plan();
    let before = plan.to_string();
    optimize(&mut plan, &["fuse-gated-delta".to_owned(), "fuse-maps".to_owned()]);
    assert_eq!(plan.to_string(), before, "a pass that is switched off does nothing");
}

#[test]
fn heads_that_were_repeated_are_read_where_they_were_not() {
    check(
        &Delta::new(DType::F32, DType::F32, Sizes { heads: 6, ..SIZES }),
        expect![[r#"
        , runs at every call
          0.3      b18 f32[1, 5, 6, 8], b0 f32[1, 6, 8, 16] = gated-delta(b1 f32[1, 5, 2, 16], b2 f32[1, 5, 2, 16], b3 f32[1, 5, 6, 8], b4 f32[1, 5, 6], b5 f32[1, 5, 6], b0 f32[1, 6, 8, 16])
        output 0: b18 f32[1, 5, 6, 8]
    "#]],
    );
    check(
        &Delta::new(DType::F32, DType::F32, Sizes { groups: 1, ..SIZES }),
        expect![[r#"
        , runs at every call
          0.3      b16 f32[1, 5, 2, 8], b0 f32[1, 2, 8, 16] = gated-delta(b1 f32[1, 5, 1, 16], b2 f32[1, 5, 1, 16], b3 f32[1, 5, 2, 8], b4 f32[1, 5, 2], b5 f32[1, 5, 2], b0 f32[1, 2, 8, 16])
        output 0: b16 f32[1, 5, 2, 8]
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
        , runs at every call
          0.7      b22 f32[1, 5, 8, 8], b0 f32[1, 8, 8, 16] = gated-delta(b1 bf16[1, 5, 2, 16], b2 bf16[1, 5, 2, 16], b3 bf16[1, 5, 8, 8], b4 bf16[1, 5, 8], b5 bf16[1, 5, 8], b0 f32[1, 8, 8, 16])
        output 0: b22 f32[1, 5, 8, 8]
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
        , runs at every call
          0.0      b6 f32[1, 5, 2, 2, 16] = map(b1 f32[1, 5, 2, 2, 16]/[160, 32, 16, 0, 1]) { x0 }
          0.2      b17 f32[1, 5, 4, 8], b0 f32[1, 4, 8, 16] = gated-delta(b6 f32[1, 5, 4, 16], b2 f32[1, 5, 4, 16], b3 f32[1, 5, 4, 8], b4 f32[1, 5, 4], b5 f32[1, 5, 4], b0 f32[1, 4, 8, 16])
        output 0: b17 f32[1, 5, 4, 8]
    "#]],
    );
}

#[test]
fn tokens_may_vary_in_number_and_lie_on_another_axis() {
    check(
        &Delta::new(DType::Bf16, DType::F32, Sizes { tokens: -1, ..SIZES }),
        expect![[r#"
        , runs at every call
          0.1      check 1 <= h0 <= 9223372036854775807: number of rounds of a scan
          0.1      b16 f32[1, h0, 2, 8], b0 f32[1, 2, 8, 16] = gated-delta(b1 bf16[1, h0, 2, 16], b2 bf16[1, h0, 2, 16], b3 bf16[1, h0, 2, 8], b4 bf16[1, h0, 2], b5 bf16[1, h0, 2], b0 f32[1, 2, 8, 16])
        output 0: b16 f32[1, h0, 2, 8]
    "#]],
    );
    check(
        &Delta::new(DType::F16, DType::F16, Sizes { tokens: 1, ..SIZES }),
        expect![[r#"
        , runs at every call
          0.1      b16 f16[1, 1, 2, 8], b0 f16[1, 2, 8, 16] = gated-delta(b1 f16[1, 1, 2, 16], b2 f16[1, 1, 2, 16], b3 f16[1, 1, 2, 8], b4 f16[1, 1, 2], b5 f16[1, 1, 2], b0 f16[1, 2, 8, 16])
        output 0: b16 f16[1, 1, 2, 8]
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
        , runs at every call
          0.1      b16 f32[1, 5, 2, 8]/[80, 8, 40, 1], b0 f32[1, 2, 8, 16] = gated-delta(b1 f32[1, 5, 2, 16]/[160, 16, 80, 1], b2 f32[1, 5, 2, 16]/[160, 16, 80, 1], b3 f32[1, 5, 2, 8]/[80, 8, 40, 1], b4 f32[1, 5, 2]/[10, 1, 5], b5 f32[1, 5, 2]/[10, 1, 5], b0 f32[1, 2, 8, 16])
        output 0: b16 f32[1, 2, 5, 8]
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
    let (mut swapped, mut plain) = (swapped.plan(), new(|_| {}).plan());
    fuse(&mut swapped);
    fuse(&mut plain);
    let rule = |plan: &Plan| {
        let text = steps(plan);
        text.split_once("gated-delta").unwrap_or_else(|| panic!("{text}")).1.to_owned()
    };
    assert_eq!(rule(&swapped).split_once("output").unwrap().0, rule(&plain).split_once("output").unwrap().0);
}

#[test]
fn copies_of_the_state_stay_where_somebody_needs_them() {
    // The state is also an output.
    check(
        &new(|delta| delta.outputs.push(CARRY)),
        expect![[r#"
        , runs at every call
          0.1      b16 f32[1, 5, 2, 8], b6 f32[1, 2, 8, 16] = gated-delta(b1 f32[1, 5, 2, 16], b2 f32[1, 5, 2, 16], b3 f32[1, 5, 2, 8], b4 f32[1, 5, 2], b5 f32[1, 5, 2], b0 f32[1, 2, 8, 16])
          0.2      b0 f32[1, 2, 8, 16] = map(b6 f32[1, 2, 8, 16]) { x0 }
        output 0: b16 f32[1, 5, 2, 8]
        output 1: b6 f32[1, 2, 8, 16]
    "#]],
    );
    // The state is read between the loop and its copy.
    check(
        &new(|delta| {
            delta.after.insert(0, add(STATE, STATE, FREE));
            delta.outputs.push(FREE);
        }),
        expect![[r#"
            , runs at every call
              0.1      b16 f32[1, 5, 2, 8], b6 f32[1, 2, 8, 16] = gated-delta(b1 f32[1, 5, 2, 16], b2 f32[1, 5, 2, 16], b3 f32[1, 5, 2, 8], b4 f32[1, 5, 2], b5 f32[1, 5, 2], b0 f32[1, 2, 8, 16])
              0.2      b17 f32[1, 2, 8, 16] = map(b0 f32[1, 2, 8, 16], b0 f32[1, 2, 8, 16]) { add(x0, x1) }
              0.3      b0 f32[1, 2, 8, 16] = map(b6 f32[1, 2, 8, 16]) { x0 }
            output 0: b16 f32[1, 5, 2, 8]
            output 1: b17 f32[1, 2, 8, 16]
        "#]],
    );
    // What is carried starts from something computed.
    check(
        &new(|delta| delta.before = vec![add(STATE, STATE, CARRY)]),
        expect![[r#"
        , runs at every call
          0.0      b6 f32[1, 2, 8, 16] = map(b0 f32[1, 2, 8, 16], b0 f32[1, 2, 8, 16]) { add(x0, x1) }
          0.1      b17 f32[1, 5, 2, 8], b0 f32[1, 2, 8, 16] = gated-delta(b1 f32[1, 5, 2, 16], b2 f32[1, 5, 2, 16], b3 f32[1, 5, 2, 8], b4 f32[1, 5, 2], b5 f32[1, 5, 2], b6 f32[1, 2, 8, 16])
        output 0: b17 f32[1, 5, 2, 8]
    "#]],
    );
    // The copy is read by another.
    check(
        &new(|delta| {
            delta.before.push(add(CARRY, CARRY, FREE));
            delta.outputs.push(FREE);
        }),
        expect![[r#"
            , runs at every call
              0.1      b6 f32[1, 2, 8, 16] = map(b0 f32[1, 2, 8, 16], b0 f32[1, 2, 8, 16]) { add(x0, x1) }
              0.2      b17 f32[1, 5, 2, 8], b0 f32[1, 2, 8, 16] = gated-delta(b1 f32[1, 5, 2, 16], b2 f32[1, 5, 2, 16], b3 f32[1, 5, 2, 8], b4 f32[1, 5, 2], b5 f32[1, 5, 2], b0 f32[1, 2, 8, 16])
            output 0: b17 f32[1, 5, 2, 8]
            output 1: b6 f32[1, 2, 8, 16]
        "#]],
    );
}

#[test]
fn a_state_that_the_loop_itself_writes_is_changed_in_place() {
    let direct = in_the_buffer(SIZES);
    assert_eq!(direct.plan().blocks[1].steps.len(), 12, "it is written twice for each token");
    check(
        &direct,
        expect![[r#"
        , runs at every call
          0.0      b15 f32[1, 5, 2, 8], b0 f32[1, 2, 8, 16] = gated-delta(b1 f32[1, 5, 2, 16], b2 f32[1, 5, 2, 16], b3 f32[1, 5, 2, 8], b4 f32[1, 5, 2], b5 f32[1, 5, 2], b0 f32[1, 2, 8, 16])
        output 0: b15 f32[1, 5, 2, 8]
    "#]],
    );
}
