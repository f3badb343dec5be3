//! What the pass `fuse-sampler` does with sampling heads, and why it declines others.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

/// The one node of a type.
macro_rules! the {
    ($nodes:expr, $type:ident) => {
        $nodes.iter_mut().find_map(|node| if let Node::$type(node) = node { Some(node) } else { None }).unwrap()
    };
}

#[path = "fuse_sampler/declined.rs"]
mod declined;
#[path = "common/head.rs"]
mod head;
#[path = "common/program.rs"]
mod program;
#[path = "common/unchanged.rs"]
mod unchanged;

use expect_test::{Expect, expect};
use head::*;
use program::{add, arange, branch, copy, item, operations, reshape, value};
use ptero_plan::graph::{Graph, Op, Value};
use ptero_plan::prim::{Prim, Sample};
use ptero_plan::{Capabilities, Options, lower, passes};
use ptero_pte::field::{Dst, Int, IntOrSrc, Src};
use ptero_pte::nodes::Take;
use ptero_pte::{DType, Limits, Node, Verified};
use std::path::Path;

/// Runs only this pass, and returns its notes.
fn fuse(graph: &mut Graph) -> Vec<String> {
    passes::run(graph, &Capabilities::default(), &["fuse-maps".to_owned()]).lines
}

/// The graph of a head after the pass.
fn fused(head: &Head) -> Graph {
    let mut graph = head.graph();
    fuse(&mut graph);
    graph
}

/// The sampler that the main block ends with.
fn sampler(graph: &Graph) -> &Sample<Value> {
    match &graph.block(graph.main).nodes.last().unwrap().op {
        Op::Prim(Prim::Sample(sample)) => sample,
        _ => panic!("{graph}"),
    }
}

/// The bytes of a constant.
fn constant(graph: &Graph, value: Value) -> Option<&[u8]> {
    graph.constants.iter().find(|(constant, _)| *constant == value).map(|(_, bytes)| &**bytes)
}

#[track_caller]
fn check(mut graph: Graph, wanted: Expect) {
    let notes = fuse(&mut graph);
    wanted.assert_eq(&operations(&graph));
    assert!(notes.iter().all(|note| note.ends_with("became one operation")), "{notes:?}");
}

#[test]
fn a_sampling_head_becomes_one_operation() {
    let head = Head::new(DType::F32, 2, 16);
    expect![[r#"
        h1 = input 4[0]
        block, runs at every call
          0.0      v11 f32[] = read(s0)
          0.0      v12 bool[] = map(v7, v0) { greater(x0, x1) }
          0.1      h0 = item(v12)
          0.2      v56 u32[2] = if h0
          1.1        v13 u32[2, 16] = random-bits() seed h1
          1.2        v14 f32[2, 16] = map(v13) { f32(x0) }
          1.3        v15 f32[2, 16] = broadcast(v1)
          1.3        v16 f32[2, 16] = map(v14, v15) { div(x0, x1) }
          1.4        v17 f32[2, 16] = broadcast(v2)
          1.4        v18 f32[2, 16] = map(v16, v17) { min(x0, x1) }
          1.5        v19 f32[2, 16] = map(v18) { log(x0) }
          1.6        v20 f32[2, 16] = map(v19) { neg(x0) }
          1.7        v21 f32[2, 16] = map(v20) { log(x0) }
          1.8        v22 f32[2, 16] = map(v21) { neg(x0) }
          1.10       v23 f32[2, 16] = broadcast(v7)
          1.10       v24 f32[2, 16] = map(v6, v23) { div(x0, x1) }
          1.11       v25 i64[] = map(v8, v4) { min(x0, x1) }
          1.12       h2 = item(v25)
          1.13       check -2147483648 <= h2 + -1 <= 2147483647: 32-bit integer
          1.14       v26 f32[2, 16] = map(v24) { neg(x0) }
          1.15       v27 f32[2, 16] = sort(v26) over 1
          1.16       v28 f32[2, 16] = map(v27) { neg(x0) }
          1.17       check -16 <= h2 + -1 <= 15: index along an axis
          1.17       h3 = mod(h2 + -1, 16)
          1.17       v29 f32[2, 1] = slice(v28) axis 1 from h3 step 1
          1.17       v30 f32[2] = reshape(v29)
          1.18       v31 f32[2, 1] = reshape(v30)
          1.19       v32 f32[2, 16] = broadcast(v31)
          1.19       v33 bool[2, 16] = map(v24, v32) { less(x0, x1) }
          1.20       v34 f32[2, 16] = broadcast(v3)
          1.20       v35 f32[2, 16] = map(v33, v34, v24) { select(x0, x1, x2) }
          1.21       v36 f32[2, 16] = softmax(v35) over 1
          1.22       v37 f32[2, 16] = map(v36) { neg(x0) }
          1.23       v38 f32[2, 16] = sort(v37) over 1
          1.24       v39 f32[2, 16] = map(v38) { neg(x0) }
          1.25       v40 f32[2, 16] = cumsum(v39) over 1, reverse false, inclusive true
          1.26       v41 f32[2, 16] = map(v40, v39) { sub(x0, x1) }
          1.27       v42 f32[2, 16] = broadcast(v9)
          1.27       v43 bool[2, 16] = map(v41, v42) { greater(x0, x1) }
          1.28       v44 f32[2, 16] = broadcast(v5)
          1.28       v45 f32[2, 16] = map(v43, v44, v39) { select(x0, x1, x2) }
          1.29       v46 f32[2, 1] = reduce(v45) Min over [1]
          1.30       v47 f32[2, 16] = broadcast(v46)
          1.30       v48 bool[2, 16] = map(v36, v47) { less(x0, x1) }
          1.31       v49 f32[2, 16] = broadcast(v3)
          1.31       v50 f32[2, 16] = map(v48, v49, v35) { select(x0, x1, x2) }
          1.32       v51 f32[2, 16] = map(v50, v22) { add(x0, x1) }
          1.33       v52 u32[2, 1] = arg-reduce(v51) max over 1
          1.33       v53 u32[2] = reshape(v52)
                     -> v53
                   else
          2.0        v54 u32[2, 1] = arg-reduce(v6) max over 1
          2.0        v55 u32[2] = reshape(v54)
                     -> v55
        output 0: v56 u32[2]
    "#]]
    .assert_eq(&operations(&head.graph()));
    check(
        head.graph(),
        expect![[r#"
            h1 = input 4[0]
            block, runs at every call
              0.2      v56 u32[2] = sample(v6, temperature v7, top_k v8, top_p v9, min_p v57, seed v10)
            output 0: v56 u32[2]
        "#]],
    );
    let mut graph = head.graph();
    assert_eq!(fuse(&mut graph), ["fuse-sampler: 0.2: the branches that draw a token became one operation"]);
    assert_eq!(graph.constants.len(), 1, "min-p is 0");
    assert_eq!(constant(&graph, sampler(&graph).min_p), Some(&[0; 4][..]));
    assert!(graph.blocks.iter().skip(1).all(|block| block.nodes.is_empty()));
    for (capabilities, skip) in [
        (Capabilities::default(), &["fuse-sampler".to_owned(), "fuse-maps".to_owned()][..]),
        (Capabilities { is_inexact: true, ..Capabilities::default() }, &["fuse-maps".to_owned()]),
    ] {
        let (mut graph, mut before) = (head.graph(), head.graph());
        passes::run(&mut graph, &capabilities, skip);
        passes::drop_unused(&mut before);
        assert_eq!(graph.to_string(), before.to_string(), "a pass that is switched off does nothing");
    }
}

#[test]
fn logits_may_be_short_floats_widened_before_or_while_they_are_divided() {
    for dtype in [DType::F16, DType::Bf16] {
        let mut head = Head::new(dtype, 1, 8);
        let logits = |head: &Head| {
            let graph = fused(head);
            graph.ty(sampler(&graph).logits).dtype
        };
        assert_eq!(logits(&head), dtype);
        head.scale.remove(0);
        the!(head.scale, Divide).a = Src(LOGITS);
        assert_eq!(logits(&head), dtype);
    }
}

#[test]
fn filters_that_are_missing_or_known_become_constants() {
    let head = Head::new(DType::F32, 1, 8);
    let cases = [
        (head.top_k.clone(), vec![]),
        (vec![], head.top_p.clone()),
        (vec![], vec![]),
        (top_k_of(5), head.top_p.clone()),
        (top_k_of(0), vec![]),
    ];
    let mut text = String::new();
    for (top_k, top_p) in cases {
        let mut graph = Head { top_k, top_p, ..head.clone() }.graph();
        let notes = fuse(&mut graph);
        assert_eq!(notes.len(), 1, "{notes:?}");
        let sample = sampler(&graph);
        let [k, p] = [sample.top_k, sample.top_p].map(|value| constant(&graph, value));
        text += &format!("k {k:?}, p {p:?}\n");
    }
    expect![[r#"
        k None, p Some([0, 0, 128, 63])
        k Some([255, 255, 255, 255, 255, 255, 255, 127]), p None
        k Some([255, 255, 255, 255, 255, 255, 255, 127]), p Some([0, 0, 128, 63])
        k Some([5, 0, 0, 0, 0, 0, 0, 0]), p None
        k Some([8, 0, 0, 0, 0, 0, 0, 0]), p Some([0, 0, 128, 63])
    "#]]
    .assert_eq(&text);
}

#[test]
fn neither_the_order_of_independent_operations_nor_that_of_operands_matters() {
    let mut head = Head::new(DType::F32, 1, 8);
    let expected = operations(&fused(&head)).split_once("sample").unwrap().1.to_owned();
    let add = the!(head.pick, Add);
    std::mem::swap(&mut add.a, &mut add.b);
    let minimum = the!(head.top_k, Minimum);
    std::mem::swap(&mut minimum.a, &mut minimum.b);
    let parts = [&head.scale, &head.top_k, &head.top_p, &head.noise, &head.pick];
    let mut graph = head.graph_with(parts.into_iter().flatten().cloned().collect());
    fuse(&mut graph);
    assert!(operations(&graph).ends_with(&expected), "{graph}");
}

#[test]
fn a_model_before_the_head_and_operations_after_it_stay() {
    let mut head = Head::new(DType::Bf16, 1, 8);
    head.metas[LOGITS as usize] = meta(DType::Bf16, &[2, -1, 8]);
    let last = FREE;
    let model: Vec<Node> = vec![Take { x: Src(LOGITS), out: Dst(last), index: IntOrSrc::Literal(-1), axis: 1 }.into()];
    head.before = [model, head.before].concat();
    the!(head.noise, RandomBits).shape[0] = Int::Literal(2);
    the!(head.scale, AsType).x = Src(last);
    head.greedy = vec![argmax(last)];
    head.after = vec![add(TOKEN, TOKEN, TOKEN)];
    check(
        head.graph(),
        expect![[r#"
            h0 = given, at most 64
            h2 = input 4[0]
            block, runs at every call
              0.0      check -1*h0 <= -1 <= h0 + -1: index along an axis
              0.0      v12 bf16[2, 1, 8] = slice(v6) axis 1 from h0 + -1 step 1
              0.0      v13 bf16[2, 8] = reshape(v12)
              0.3      v59 u32[2] = sample(v13, temperature v7, top_k v8, top_p v9, min_p v61, seed v10)
              0.4      v60 u32[2] = map(v59, v59) { add(x0, x1) }
            output 0: v60 u32[2]
        "#]],
    );
}

#[test]
fn rows_may_vary_and_tokens_may_keep_their_axis() {
    let mut head = Head::new(DType::F32, -1, 8);
    the!(head.pick, Argmax).keepdims = true;
    the!(head.greedy, Argmax).keepdims = true;
    check(
        head.graph(),
        expect![[r#"
            h0 = given, at most 64
            h2 = input 4[0]
            block, runs at every call
              0.2      v56 u32[h0] = sample(v6, temperature v7, top_k v8, top_p v9, min_p v55, seed v10)
              0.2      v54 u32[h0, 1] = reshape(v56)
            output 0: v54 u32[h0, 1]
        "#]],
    );
}

#[test]
fn tokens_may_lie_along_the_second_axis() {
    let mut head = Head::new(DType::F32, 3, 8);
    for nodes in [&mut head.pick, &mut head.greedy] {
        nodes.push(reshape(TOKEN, &[1, 3], TOKEN));
    }
    check(
        head.graph(),
        expect![[r#"
            h1 = input 4[0]
            block, runs at every call
              0.2      v60 u32[3] = sample(v6, temperature v7, top_k v8, top_p v9, min_p v59, seed v10)
              0.2      v58 u32[1, 3] = reshape(v60)
            output 0: v58 u32[1, 3]
        "#]],
    );
}

#[test]
fn a_seed_may_be_known_or_read_before_the_branch_or_missing() {
    // Read before the branch, where something else uses it too.
    let mut head = Head::new(DType::F32, 1, 8);
    head.before.push(item(SEED, 1));
    head.noise.remove(0);
    check(
        head.graph(),
        expect![[r#"
            h1 = input 4[0]
            block, runs at every call
              0.3      v56 u32[1] = sample(v6, temperature v7, top_k v8, top_p v9, min_p v57, seed v10)
            output 0: v56 u32[1]
        "#]],
    );
    // A constant is known when the program is lowered.
    let mut head = Head::new(DType::F32, 1, 8);
    the!(head.noise, ItemInt).x = Src(VOCABULARY);
    let graph = fused(&head);
    let seed = sampler(&graph).seed.and_then(|seed| constant(&graph, seed));
    assert_eq!(seed, Some(&8_i64.to_le_bytes()[..]), "{graph}");
    let mut head = Head::new(DType::F32, 1, 8);
    head.noise.remove(0);
    the!(head.noise, RandomBits).seed = None;
    let graph = fused(&head);
    assert_eq!(sampler(&graph).seed, None, "{graph}");
}

#[test]
fn two_heads_on_one_temperature_become_two_operations() {
    let head = Head::new(DType::F32, 1, 8);
    let head = Head { after: vec![copy(TOKEN, FREE), branch()], outputs: vec![TOKEN, FREE], ..head };
    check(
        head.graph(),
        expect![[r#"
            h1 = input 4[0]
            block, runs at every call
              0.2      v56 u32[1] = sample(v6, temperature v7, top_k v8, top_p v9, min_p v101, seed v10)
              0.4      v100 u32[1] = sample(v6, temperature v7, top_k v8, top_p v9, min_p v102, seed v10)
            output 0: v100 u32[1]
            output 1: v56 u32[1]
        "#]],
    );
}

#[test]
fn what_the_host_reads_for_others_stays() {
    let mut head = Head::new(DType::F32, 1, 8);
    head.before.push(item(SEED, 1));
    head.noise.remove(0);
    head.after = vec![arange(value(0), value(1), FREE)];
    head.outputs = vec![TOKEN, FREE];
    check(
        head.graph(),
        expect![[r#"
            h1 = input 4[0]
            block, runs at every call
              0.0      v12 bool[] = map(v7, v0) { greater(x0, x1) }
              0.1      h0 = item(v12)
              0.3      v56 u32[1] = sample(v6, temperature v7, top_k v8, top_p v9, min_p v58, seed v10)
              0.4      h4 = max(-1*h0 + h1, 0)
              0.4      v57 i32[h4] = map() { i32(add(mul(i0, 1), h0)) }
            output 0: v56 u32[1]
            output 1: v57 i32[h4]
        "#]],
    );
}

#[test]
fn all_heads_of_upstreams_suite_fuse() {
    let heads = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/heads");
    let heads: Vec<_> = heads.read_dir().unwrap().map(|head| head.unwrap().path()).collect();
    assert_eq!(heads.len(), 9);
    for head in heads {
        assert_fuses(&head.join("model.pte"));
    }
}

#[test]
fn the_program_in_the_repository_fuses() {
    assert_fuses(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/bigram.pte"));
}

#[track_caller]
fn assert_fuses(path: &Path) {
    let program = Verified::open(path, &Limits::DEFAULT).unwrap();
    let (_, delegate) = program.methods.iter().flat_map(|method| program.delegates(&method.name)).next().unwrap();
    let mut graph = lower(delegate, &Options::default()).unwrap();
    fuse(&mut graph);
    let nodes = || graph.blocks.iter().flat_map(|block| &block.nodes);
    assert!(graph.to_string().contains(" = sample("), "{}: {graph}", path.display());
    assert!(!nodes().any(|node| matches!(node.op, Op::If { .. } | Op::Host(_))), "{}: {graph}", path.display());
}

#[test]
fn parameters_may_be_elements_of_larger_tensors() {
    let mut head = Head::new(DType::F32, 1, 8);
    let take = |x, index, out| Node::from(Take { x: Src(x), out: Dst(out), index: IntOrSrc::Literal(index), axis: 0 });
    for (at, input) in [TEMPERATURE, TOP_K, TOP_P, SEED].into_iter().enumerate() {
        head.metas[input as usize].shape = meta(DType::F32, &[4]).shape;
        head.before.insert(0, take(input, i64::try_from(at).unwrap(), FREE + u32::try_from(at).unwrap()));
    }
    the!(head.before, Greater).a = Src(FREE);
    the!(head.scale, Divide).b = Src(FREE);
    the!(head.top_k, Minimum).a = Src(FREE + 1);
    the!(head.top_p, Greater).b = Src(FREE + 2);
    the!(head.noise, ItemInt).x = Src(FREE + 3);
    check(
        head.graph(),
        expect![[r#"
            h1 = input 4[3]
            block, runs at every call
              0.1      v14 f32[1] = slice(v9) axis 0 from 2 step 1
              0.1      v15 f32[] = reshape(v14)
              0.2      v16 i64[1] = slice(v8) axis 0 from 1 step 1
              0.2      v17 i64[] = reshape(v16)
              0.3      v18 f32[1] = slice(v7) axis 0 from 0 step 1
              0.3      v19 f32[] = reshape(v18)
              0.6      v66 i64[] = strided(v10) [] from 3
              0.6      v64 u32[1] = sample(v6, temperature v19, top_k v17, top_p v15, min_p v65, seed v66)
            output 0: v64 u32[1]
        "#]],
    );
}
