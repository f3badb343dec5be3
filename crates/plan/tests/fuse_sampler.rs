//! What the pass `fuse-sampler` makes of sampling heads, and why it leaves others alone.

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

use expect_test::{Expect, expect};
use head::*;
use ptero_plan::passes::optimize;
use ptero_plan::plan::{BufferKind, Plan, PlanStep};
use ptero_plan::prim::Prim;
use ptero_plan::{Options, lower};
use ptero_pte::field::{Dst, DstValue, Int, IntOrSrc, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::{DType, Limits, Node, Verified};
use std::path::Path;

/// Only this pass, and what it says.
fn fuse(plan: &mut Plan) -> Vec<String> {
    optimize(plan, &["fuse-maps".to_owned()]).lines
}

fn steps(plan: &Plan) -> String {
    plan.to_string().split_once("block 0").unwrap().1.to_owned()
}

#[track_caller]
fn check(mut plan: Plan, wanted: Expect) {
    let notes = fuse(&mut plan);
    wanted.assert_eq(&steps(&plan));
    assert!(notes.iter().all(|note| note.ends_with("became one step")), "{notes:?}");
}

#[test]
fn a_sampling_head_becomes_one_step() {
    let head = Head::new(DType::F32, 2, 16);
    expect![[r#"
        , runs at every call
          0.0      b12 bool[] = map(b8 f32[], b0 f32[]) { greater(x0, x1) }
          0.1      h0 = item(b12 bool[])
          0.2      if h0: block 1, else block 2
        block 1
          1.0      h1 = item(b11 i64[])
          1.1      b13 u32[2, 16] = random-bits() seed h1
          1.2      b14 f32[2, 16] = map(b13 u32[2, 16]) { f32(x0) }
          1.3      b15 f32[2, 16] = map(b14 f32[2, 16], b1 f32[2, 16]/[0, 0]) { div(x0, x1) }
          1.4      b16 f32[2, 16] = map(b15 f32[2, 16], b2 f32[2, 16]/[0, 0]) { min(x0, x1) }
          1.5      b17 f32[2, 16] = map(b16 f32[2, 16]) { log(x0) }
          1.6      b18 f32[2, 16] = map(b17 f32[2, 16]) { neg(x0) }
          1.7      b19 f32[2, 16] = map(b18 f32[2, 16]) { log(x0) }
          1.8      b20 f32[2, 16] = map(b19 f32[2, 16]) { neg(x0) }
          1.10     b21 f32[2, 16] = map(b7 f32[2, 16], b8 f32[2, 16]/[0, 0]) { div(x0, x1) }
          1.11     b22 i64[] = map(b9 i64[], b4 i64[]) { min(x0, x1) }
          1.12     h2 = item(b22 i64[])
          1.13     check -2147483648 <= h2 + -1 <= 2147483647: 32-bit integer
          1.14     b23 f32[2, 16] = map(b21 f32[2, 16]) { neg(x0) }
          1.15     b24 f32[2, 16] = sort(b23 f32[2, 16]) over 1
          1.16     b25 f32[2, 16] = map(b24 f32[2, 16]) { neg(x0) }
          1.17     check -16 <= h2 + -1 <= 15: place along an axis
          1.17     h3 = (h2 + -1) mod (16)
          1.19     b26 bool[2, 16] = map(b21 f32[2, 16], b25 f32[2, 16]+h3/[16, 0]) { less(x0, x1) }
          1.20     b27 f32[2, 16] = map(b26 bool[2, 16], b3 f32[2, 16]/[0, 0], b21 f32[2, 16]) { select(x0, x1, x2) }
          1.21     b28 f32[2, 16] = softmax(b27 f32[2, 16]) over 1
          1.22     b29 f32[2, 16] = map(b28 f32[2, 16]) { neg(x0) }
          1.23     b30 f32[2, 16] = sort(b29 f32[2, 16]) over 1
          1.24     b31 f32[2, 16] = map(b30 f32[2, 16]) { neg(x0) }
          1.25     b32 f32[2, 16] = cumsum(b31 f32[2, 16]) over 1, reverse false, inclusive true
          1.26     b33 f32[2, 16] = map(b32 f32[2, 16], b31 f32[2, 16]) { sub(x0, x1) }
          1.27     b34 bool[2, 16] = map(b33 f32[2, 16], b10 f32[2, 16]/[0, 0]) { greater(x0, x1) }
          1.28     b35 f32[2, 16] = map(b34 bool[2, 16], b5 f32[2, 16]/[0, 0], b31 f32[2, 16]) { select(x0, x1, x2) }
          1.29     b36 f32[2, 1] = reduce(b35 f32[2, 16]) Min over [1]
          1.30     b37 bool[2, 16] = map(b28 f32[2, 16], b36 f32[2, 16]/[1, 0]) { less(x0, x1) }
          1.31     b38 f32[2, 16] = map(b37 bool[2, 16], b3 f32[2, 16]/[0, 0], b27 f32[2, 16]) { select(x0, x1, x2) }
          1.32     b39 f32[2, 16] = map(b38 f32[2, 16], b20 f32[2, 16]) { add(x0, x1) }
          1.33     b40 u32[2, 1] = arg-reduce(b39 f32[2, 16]) max over 1
          0.2      b42 u32[2] = map(b40 u32[2]) { x0 }
        block 2
          2.0      b41 u32[2, 1] = arg-reduce(b7 f32[2, 16]) max over 1
          0.2      b42 u32[2] = map(b41 u32[2]) { x0 }
        output 0: b42 u32[2]
    "#]]
    .assert_eq(&steps(&head.plan()));
    check(
        head.plan(),
        expect![[r#"
            , runs at every call
              0.2      b42 u32[2] = sample(b7 f32[2, 16], temperature b8 f32[], top_k b9 i64[], top_p b10 f32[], seed b11 i64[])
            output 0: b42 u32[2]
        "#]],
    );
    let mut plan = head.plan();
    let notes = fuse(&mut plan);
    assert_eq!(notes, ["fuse-sampler: 0.2: the branches that draw a token became one step"]);
    assert_eq!(plan.place().unshared_bytes, 64, "only the tokens are left");
    let mut plan = head.plan();
    let before = plan.to_string();
    optimize(&mut plan, &["fuse-sampler".to_owned(), "fuse-maps".to_owned()]);
    assert_eq!(plan.to_string(), before, "a pass that is switched off does nothing");
}

#[test]
fn logits_may_be_short_floats_widened_before_or_while_they_are_divided() {
    for dtype in [DType::F16, DType::Bf16] {
        let mut head = Head::new(dtype, 1, 8);
        let fused = |head: &Head| {
            let mut plan = head.plan();
            fuse(&mut plan);
            steps(&plan)
        };
        let wanted = format!("sample(b7 {}[1, 8], temperature", dtype.name());
        assert!(fused(&head).contains(&wanted), "{}", fused(&head));
        head.scale.remove(0);
        the!(head.scale, Divide).a = Src(LOGITS);
        assert!(fused(&head).contains(&wanted), "{}", fused(&head));
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
        let mut plan = Head { top_k, top_p, ..head.clone() }.plan();
        let notes = fuse(&mut plan);
        assert_eq!(notes.len(), 1, "{notes:?}");
        let [PlanStep::Device(prim @ Prim::Sample(views))] = plan.blocks[0].steps.as_slice() else { panic!("{plan}") };
        text += &format!("{prim}\n");
        for (name, view) in [("k", &views.top_k), ("p", &views.top_p)] {
            if let BufferKind::Constant(bytes) = &plan.buffers[view.buf.0 as usize].kind {
                text += &format!("  {name} {:?}\n", &**bytes);
            }
        }
    }
    expect![[r#"
        b31 u32[1] = sample(b7 f32[1, 8], temperature b8 f32[], top_k b9 i64[], top_p b32 f32[], seed b11 i64[])
          p [0, 0, 128, 63]
        b36 u32[1] = sample(b7 f32[1, 8], temperature b8 f32[], top_k b37 i64[], top_p b10 f32[], seed b11 i64[])
          k [255, 255, 255, 255, 255, 255, 255, 127]
        b25 u32[1] = sample(b7 f32[1, 8], temperature b8 f32[], top_k b26 i64[], top_p b27 f32[], seed b11 i64[])
          k [255, 255, 255, 255, 255, 255, 255, 127]
          p [0, 0, 128, 63]
        b41 u32[1] = sample(b7 f32[1, 8], temperature b8 f32[], top_k b42 i64[], top_p b10 f32[], seed b11 i64[])
          k [5, 0, 0, 0, 0, 0, 0, 0]
        b30 u32[1] = sample(b7 f32[1, 8], temperature b8 f32[], top_k b31 i64[], top_p b32 f32[], seed b11 i64[])
          k [8, 0, 0, 0, 0, 0, 0, 0]
          p [0, 0, 128, 63]
    "#]]
    .assert_eq(&text);
}

#[test]
fn neither_the_order_of_independent_steps_nor_that_of_operands_matters() {
    let mut head = Head::new(DType::F32, 1, 8);
    let expected = {
        let mut plan = head.plan();
        fuse(&mut plan);
        plan.blocks[0].steps[0].to_string().split_once("sample").unwrap().1.to_owned()
    };
    let add = the!(head.pick, Add);
    std::mem::swap(&mut add.a, &mut add.b);
    let minimum = the!(head.top_k, Minimum);
    std::mem::swap(&mut minimum.a, &mut minimum.b);
    let parts = [&head.scale, &head.top_k, &head.top_p, &head.noise, &head.pick];
    let mut plan = head.plan_with(parts.into_iter().flatten().cloned().collect());
    fuse(&mut plan);
    assert!(plan.blocks[0].steps[0].to_string().ends_with(&expected), "{plan}");
}

#[test]
fn a_model_before_the_head_and_steps_after_it_stay() {
    let mut head = Head::new(DType::Bf16, 1, 8);
    head.metas[LOGITS as usize] = meta(DType::Bf16, &[2, -1, 8]);
    let last = FREE;
    let model: Vec<Node> = vec![Take { x: Src(LOGITS), out: Dst(last), index: IntOrSrc::Literal(-1), axis: 1 }.into()];
    head.before = [model, head.before].concat();
    the!(head.noise, RandomBits).shape[0] = Int::Literal(2);
    the!(head.scale, AsType).x = Src(last);
    head.greedy = vec![argmax(last)];
    head.after = vec![Add { a: Src(TOKEN), b: Src(TOKEN), out: Dst(TOKEN) }.into()];
    check(
        head.plan(),
        expect![[r#"
            , runs at every call
              0.0      check -1*h0 <= -1 <= h0 + -1: place along an axis
              0.3      b43 u32[2] = sample(b7 bf16[2, 8]+8*h0 + -8/[8*h0, 1], temperature b8 f32[], top_k b9 i64[], top_p b10 f32[], seed b11 i64[])
              0.4      b44 u32[2] = map(b43 u32[2], b43 u32[2]) { add(x0, x1) }
            output 0: b44 u32[2]
        "#]],
    );
}

#[test]
fn rows_may_vary_and_tokens_may_keep_their_axis() {
    let mut head = Head::new(DType::F32, -1, 8);
    the!(head.pick, Argmax).keepdims = true;
    the!(head.greedy, Argmax).keepdims = true;
    check(
        head.plan(),
        expect![[r#"
            , runs at every call
              0.2      b42 u32[h0] = sample(b7 f32[h0, 8], temperature b8 f32[], top_k b9 i64[], top_p b10 f32[], seed b11 i64[])
            output 0: b42 u32[h0, 1]
        "#]],
    );
}

#[test]
fn tokens_may_lie_along_the_second_axis() {
    let mut head = Head::new(DType::F32, 3, 8);
    let turned = Reshape { x: Src(TOKEN), out: Dst(TOKEN), shape: vec![Int::Literal(1), Int::Literal(3)] };
    head.pick.push(turned.clone().into());
    head.greedy.push(turned.into());
    check(
        head.plan(),
        expect![[r#"
        , runs at every call
          0.2      b42 u32[3] = sample(b7 f32[3, 8], temperature b8 f32[], top_k b9 i64[], top_p b10 f32[], seed b11 i64[])
        output 0: b42 u32[1, 3]
    "#]],
    );
}

#[test]
fn a_seed_may_be_known_or_read_before_the_branch_or_missing() {
    // Read before the branch, where something else uses it too.
    let mut head = Head::new(DType::F32, 1, 8);
    head.before.push(ItemInt { x: Src(SEED), out: DstValue(1) }.into());
    head.noise.remove(0);
    check(
        head.plan(),
        expect![[r#"
            , runs at every call
              0.3      b42 u32[1] = sample(b7 f32[1, 8], temperature b8 f32[], top_k b9 i64[], top_p b10 f32[], seed b11 i64[])
            output 0: b42 u32[1]
        "#]],
    );
    // A constant is known when the program is lowered.
    let mut head = Head::new(DType::F32, 1, 8);
    the!(head.noise, ItemInt).x = Src(VOCABULARY);
    let mut plan = head.plan();
    fuse(&mut plan);
    assert!(steps(&plan).contains("seed b"), "{plan}");
    assert!(
        matches!(&plan.buffers.last().unwrap().kind, BufferKind::Constant(bytes) if **bytes == 8_i64.to_le_bytes())
    );
    let mut head = Head::new(DType::F32, 1, 8);
    head.noise.remove(0);
    the!(head.noise, RandomBits).seed = None;
    let mut plan = head.plan();
    fuse(&mut plan);
    assert!(steps(&plan).contains("sample(") && !steps(&plan).contains("seed"), "{plan}");
}

#[test]
fn two_heads_on_one_temperature_become_two_steps() {
    let head = Head::new(DType::F32, 1, 8);
    let (program, mut graph) = {
        let parts = [&head.noise, &head.scale, &head.top_k, &head.top_p, &head.pick];
        head.graph_with(parts.into_iter().flatten().cloned().collect())
    };
    let branch = graph.instruction_chains.0[0].last().unwrap().clone();
    let keep = IdCopy { x: Src(TOKEN), out: Dst(FREE) };
    graph.instruction_chains.0[0].extend([keep.into(), branch]);
    graph.output_map.push(ptero_pte::SlotVariant { idx: FREE, slot_type: ptero_pte::SlotType::Tensor });
    check(
        lower(&program, &graph, &Options::default()).unwrap(),
        expect![[r#"
            , runs at every call
              0.2      b42 u32[1] = sample(b7 f32[1, 8], temperature b8 f32[], top_k b9 i64[], top_p b10 f32[], seed b11 i64[])
              0.4      b72 u32[1] = sample(b7 f32[1, 8], temperature b8 f32[], top_k b9 i64[], top_p b10 f32[], seed b11 i64[])
            output 0: b72 u32[1]
            output 1: b42 u32[1]
        "#]],
    );
}

#[test]
fn what_the_host_reads_for_others_stays() {
    let mut head = Head::new(DType::F32, 1, 8);
    head.before.push(ItemInt { x: Src(SEED), out: DstValue(1) }.into());
    head.noise.remove(0);
    let (start, stop) = (Int::Value(Value(0)), Int::Value(Value(1)));
    head.after = vec![ARange { out: Dst(FREE), start, stop, step: Int::Literal(1), scalar_type: None }.into()];
    head.outputs = vec![TOKEN, FREE];
    check(
        head.plan(),
        expect![[r#"
            , runs at every call
              0.0      b12 bool[] = map(b8 f32[], b0 f32[]) { greater(x0, x1) }
              0.1      h0 = item(b12 bool[])
              0.2      h1 = item(b11 i64[])
              0.3      b42 u32[1] = sample(b7 f32[1, 8], temperature b8 f32[], top_k b9 i64[], top_p b10 f32[], seed b11 i64[])
              0.4      h4 = max(-1*h0 + h1, 0)
              0.4      b43 i32[h4] = map() { i32(add(mul(i0, 1), h0)) }
            output 0: b42 u32[1]
            output 1: b43 i32[h4]
        "#]],
    );
}

/// Needs `PTERO_CORPUS`, the folder of an unpacked corpus.
#[test]
fn all_heads_of_the_corpus_fuse() {
    let Some(corpus) = std::env::var_os("PTERO_CORPUS") else { return };
    let names =
        ["greedy", "greedy_batch", "greedy_bf16", "greedy_eps", "greedy_neg", "seeded", "top_k", "top_p", "unseeded"];
    for name in names {
        let path = Path::new(&corpus).join(format!("sample_{name}/model.pte"));
        assert_fuses(&path);
    }
}

#[test]
fn the_program_in_the_repository_fuses() {
    assert_fuses(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/bigram.pte"));
}

#[track_caller]
fn assert_fuses(path: &Path) {
    let program = Verified::open(path, &Limits::DEFAULT).unwrap();
    let (_, graph) = program.methods.iter().flat_map(|method| method.mlx_delegates()).next().unwrap();
    let mut plan = lower(&program, graph, &Options::default()).unwrap();
    fuse(&mut plan);
    assert_eq!(plan.blocks.len(), 1, "{}: {plan}", path.display());
    assert!(plan.to_string().contains(" = sample("), "{}: {plan}", path.display());
    assert!(!plan.to_string().contains("item("), "{}: {plan}", path.display());
}
