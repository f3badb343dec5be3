//! Why the pass declines programs: a test for each reason.

use super::head::*;
use super::program::{arange, copy, item, multiply, neg, subtract, value};
use super::{fuse, unchanged};
use expect_test::{Expect, expect};
use ptero_plan::dim::Dim;
use ptero_plan::graph::{Graph, Op};
use ptero_plan::prim::Prim;
use ptero_pte::field::{Dst, DstValue, Int, IntOrSrc, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::{DType, Node};

/// Checks why the pass declines, without its name and the words `not fused`.
#[track_caller]
fn declined(graph: Graph, wanted: Expect) {
    unchanged::declined(graph, fuse, "fuse-sampler", wanted);
}

/// The graph of a head with `rows` rows that is not quite as it should be.
fn changed(rows: i32, change: &dyn Fn(&mut Head)) -> Graph {
    let mut head = Head::new(DType::F32, rows, 8);
    change(&mut head);
    head.graph()
}

#[test]
fn random_bits_without_a_branch_are_left() {
    let head = Head::new(DType::F32, 1, 8);
    let mut head = Head { after: vec![copy(FREE, FREE + 1)], ..head };
    let bits = RandomBits { out: Dst(FREE), shape: vec![Int::Literal(3)], seed: None, width: 4 };
    head.before.push(bits.into());
    let mut graph = head.graph();
    expect![[r#"
        fuse-sampler: 0.3: the branches that draw a token became one operation
        fuse-sampler: 0.2: not fused: random bits outside a branch on the temperature"#]]
    .assert_eq(&fuse(&mut graph).join("\n"));
}

#[test]
fn scores_that_are_not_those_of_a_sampler_are_left() {
    let with = |change: &dyn Fn(&mut Head)| changed(2, change);
    declined(
        with(&|head| {
            head.pick.push(neg(LOGITS, FREE));
            head.greedy.push(Abs { x: Src(LOGITS), out: Dst(FREE) }.into());
            head.outputs.push(FREE);
        }),
        expect!["0.2: the branches give more than tokens and the scores that these are drawn by"],
    );
    declined(
        with(&|head| {
            head.pick[1] = Argmin { x: Src(15), out: Dst(TOKEN), axis: -1, keepdims: false }.into();
        }),
        expect!["1.33: a token is not the index of the largest score of a row"],
    );
    declined(
        with(&|head| {
            head.pick[0] = subtract(15, 14, 15);
        }),
        expect!["1.32: scores are not logits and noise"],
    );
    declined(
        with(&|head| the!(head.scale, Divide).b = Src(LOGITS)),
        expect!["1.10: the temperature is not one element"],
    );
    declined(
        with(&|head| {
            head.scale[1] = multiply(15, TEMPERATURE, 15);
        }),
        expect!["1.10: what is kept is not logits over a temperature"],
    );
    declined(
        with(&|head| {
            head.before.push(neg(LOGITS, FREE));
            head.greedy = vec![argmax(FREE)];
        }),
        expect!["2.0: the other branch does not take the largest of the same logits"],
    );
    declined(with(&|head| head.noise.push(neg(TEMPERATURE, STATE))), expect!["1.9: the branch does more than sample"]);
}

#[test]
fn noise_that_is_not_a_samplers_is_left() {
    let with = |change: &dyn Fn(&mut Head)| changed(2, change);
    declined(with(&|head| drop(head.noise.remove(7))), expect!["1.6: the noise is not -log(-log(u))"]);
    declined(
        with(&|head| head.constants[BELOW_ONE as usize] = 1_f32.to_le_bytes().to_vec()),
        expect!["1.4: the noise is not of 32 random bits over 2^32 - 1, below one"],
    );
    declined(
        with(&|head| head.constants[MOST as usize] = 65536_f32.to_le_bytes().to_vec()),
        expect!["1.3: the noise is not of 32 random bits over 2^32 - 1, below one"],
    );
    declined(
        with(&|head| the!(head.noise, RandomBits).width = 2),
        expect!["1.2: the noise is not of 32 random bits over 2^32 - 1, below one"],
    );
    declined(
        with(&|head| the!(head.noise, RandomBits).shape[0] = Int::Literal(1)),
        expect!["1.32: the random bits are not one stream over the logits"],
    );
    declined(
        with(&|head| head.metas[SEED as usize] = meta(DType::I16, &[])),
        expect!["1.1: the seed is not one element of type i32, i64 or u32"],
    );
    declined(
        with(&|head| {
            let next = SubtractInt { a: value(1), b: Int::Literal(1), out: DstValue(1) };
            head.noise.insert(1, next.into());
        }),
        expect!["1.2: the seed is not one element of type i32, i64 or u32"],
    );
    let mut graph = Head::new(DType::F32, 2, 8).graph();
    for node in graph.blocks.iter_mut().flat_map(|block| &mut block.nodes) {
        if let Op::Prim(Prim::RandomBits { seed, .. }) = &mut node.op {
            *seed = Some(Dim::fixed(1 << 40));
        }
    }
    declined(graph, expect!["1.1: the seed is not one element of type i32, i64 or u32"]);
}

#[test]
fn filters_that_are_not_a_samplers_are_left() {
    let with = |change: &dyn Fn(&mut Head)| changed(1, change);
    declined(
        with(&|head| head.constants[MINUS_INFINITY as usize] = (-1e9_f32).to_le_bytes().to_vec()),
        expect!["1.31: logits become minus infinity for another reason than top-k, top-p or min-p"],
    );
    declined(
        with(&|head| the!(head.top_k, Less).b = Src(TOP_P)),
        expect!["1.19: logits become minus infinity for another reason than top-k, top-p or min-p"],
    );
    declined(
        with(&|head| head.constants[INFINITY as usize] = 2_f32.to_le_bytes().to_vec()),
        expect!["1.28: what is kept is not the largest mass up to top-p"],
    );
    declined(
        with(&|head| the!(head.top_p, Cumsum).inclusive = false),
        expect!["1.25: what is kept is not the largest mass up to top-p"],
    );
    declined(
        with(&|head| the!(head.top_p, Subtract).b = Src(18)),
        expect!["1.22: what is kept is not the largest mass up to top-p"],
    );
    declined(
        with(&|head| the!(head.top_p, Softmax).x = Src(LOGITS)),
        expect!["1.21: what is kept is not the largest mass up to top-p"],
    );
    declined(
        with(&|head| head.constants[VOCABULARY as usize] = 7_i64.to_le_bytes().to_vec()),
        expect!["1.11: what is kept is not the k largest"],
    );
    declined(
        with(&|head| {
            the!(head.top_k, ItemInt).x = Src(TOP_K);
            head.top_k.remove(0);
        }),
        expect!["1.13: what is kept is not the k largest"],
    );
    declined(
        with(&|head| std::mem::swap(&mut head.top_k, &mut head.top_p)),
        expect!["1.21: what is kept is not logits over a temperature"],
    );
}

#[test]
fn vocabularies_that_vary_or_are_too_large_are_left() {
    let mut head = Head::new(DType::F32, 1, (1 << 23) + 1);
    declined(head.graph(), expect!["1.10: the vocabulary is too large"]);
    head.metas[LOGITS as usize] = meta(DType::F32, &[1, -1]);
    the!(head.noise, RandomBits).shape[1] = value(5);
    head.before.push(SymSize { a: Src(LOGITS), dim: 1, out: DstValue(5) }.into());
    declined(head.graph(), expect!["1.14: the vocabulary has no fixed size"]);
    head.top_k.clear();
    declined(head.graph(), expect!["1.10: the vocabulary has no fixed size"]);
}

#[test]
fn branches_on_something_else_than_the_temperature_are_left() {
    let with = |change: &dyn Fn(&mut Head)| changed(1, change);
    declined(
        with(&|head| the!(head.before, Greater).a = Src(TOP_P)),
        expect!["0.2: tokens are not drawn where just that temperature is above 0"],
    );
    declined(
        with(&|head| head.constants[ZERO as usize] = 0.5_f32.to_le_bytes().to_vec()),
        expect!["0.2: tokens are not drawn where just that temperature is above 0"],
    );
    declined(
        with(&|head| {
            head.before[0] = Less { a: Src(TEMPERATURE), b: Src(ZERO), out: Dst(13) }.into();
        }),
        expect!["0.2: tokens are not drawn where just that temperature is above 0"],
    );
    declined(
        with(&|head| the!(head.before, ItemInt).x = Src(TOP_K)),
        expect!["0.2: tokens are not drawn where just that temperature is above 0"],
    );
    // The temperature is a state that changes after it was compared.
    declined(
        with(&|head| {
            the!(head.before, Greater).a = Src(STATE);
            head.before.push(Add { a: Src(STATE), b: Src(TEMPERATURE), out: Dst(STATE) }.into());
            the!(head.scale, Divide).b = Src(STATE);
        }),
        expect!["0.3: tokens are not drawn where just that temperature is above 0"],
    );
}

#[test]
fn what_is_used_elsewhere_is_left() {
    // A caller gets as many numbers as tokens were left.
    let mut head = Head::new(DType::F32, 1, 8);
    head.greedy.push(item(TOP_K, 2));
    head.after = vec![arange(Int::Literal(0), value(2), FREE)];
    head.outputs.push(FREE);
    declined(head.graph(), expect!["0.2: the branch does more than sample"]);
    // A table holds the mass for each k, so that the sampler would need k to find it.
    let mut head = Head::new(DType::F32, 1, 8);
    head.metas[TOP_P as usize] = meta(DType::F32, &[8]);
    head.top_p.insert(0, Take { x: Src(TOP_P), out: Dst(FREE), index: IntOrSrc::Value(Value(3)), axis: 0 }.into());
    the!(head.top_p, Greater).b = Src(FREE);
    declined(head.graph(), expect!["1.22: a parameter depends on what the branch computes"]);
    // The mass is computed in the branch.
    let mut head = Head::new(DType::F32, 1, 8);
    head.top_p.insert(0, neg(TOP_P, FREE));
    the!(head.top_p, Greater).b = Src(FREE);
    declined(head.graph(), expect!["1.22: a parameter depends on what the branch computes"]);
}
