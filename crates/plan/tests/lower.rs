//! What nodes become, as the text of plans.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use expect_test::{Expect, expect};
use ptero_plan::passes::optimize;
use ptero_plan::{CacheLayer, KvCache, Options, lower};
use ptero_pte::field::{Chain, Collected, Dst, DstValue, Fed, Float, GeluForm, Int, IntOrSrc, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::{
    Bytes, Chains, DType, Delegate, NamedData, NamedSlot, Node, Program, ShapeDim, SlotType, SlotVariant, TensorMeta,
};

fn slot(idx: u32) -> SlotVariant {
    SlotVariant { idx, slot_type: SlotType::Tensor }
}

/// A size of -1 varies.
fn meta(scalar_type: DType, sizes: &[i32]) -> TensorMeta {
    let dim = |&value: &i32| ShapeDim { value, min_value: 0, max_value: if value == -1 { 64 } else { -1 } };
    TensorMeta { shape: sizes.iter().map(dim).collect(), scalar_type, dim_order: None }
}

/// A program of one constant (t0), two inputs (t1, t2), one output (t3), one state (t4) and temporaries from t5 on.
fn program(metas: [TensorMeta; 5], chains: Vec<Vec<Node>>) -> (Program, Delegate) {
    let data: Bytes = vec![0; usize::try_from(metas[0].byte_count().unwrap()).unwrap()].into();
    let names = ["w", "x", "y", "out", "state"];
    let named_slots = (0..).zip(names).map(|(idx, name)| NamedSlot { name: name.to_owned(), slot: slot(idx) });
    let graph = Delegate {
        version: None,
        num_constant_tensors: 1,
        num_input_tensors: 2,
        num_output_tensors: 1,
        num_mutable_buffer_tensors: 1,
        num_temp_tensors: 8,
        num_values: 8,
        instruction_chains: Chains(chains),
        main_chain_idx: 0,
        init_chain_idx: -1,
        input_map: vec![slot(1), slot(2)],
        output_map: vec![slot(3)],
        mutable_buffer_map: vec![slot(4)],
        named_slots: named_slots.collect(),
        tensor_meta: metas.to_vec(),
    };
    let named_data = vec![NamedData { key: "w".to_owned(), data }];
    (Program { named_data, ..Program::default() }, graph)
}

fn metas(x: TensorMeta) -> [TensorMeta; 5] {
    [meta(DType::F32, &[3]), x, meta(DType::I64, &[1]), meta(DType::F32, &[2, 3]), meta(DType::F32, &[1, 8, 2])]
}

/// The steps of the plan, and its output.
#[track_caller]
fn check(metas: [TensorMeta; 5], chains: Vec<Vec<Node>>, wanted: Expect) {
    let (program, graph) = program(metas, chains);
    let plan = lower(&program, &graph, &Options::default()).unwrap().to_string();
    wanted.assert_eq(plan.split_once("block 0").unwrap().1);
}

#[track_caller]
fn refused(metas: [TensorMeta; 5], chains: Vec<Vec<Node>>, wanted: Expect) {
    let (program, graph) = program(metas, chains);
    wanted.assert_eq(&lower(&program, &graph, &Options::default()).unwrap_err().to_string());
}

#[test]
fn operands_are_broadcast_and_promoted() {
    check(
        metas(meta(DType::Bf16, &[2, 1])),
        vec![vec![Add { a: Src(1), b: Src(0), out: Dst(3) }.into()]],
        expect![[r#"
            , runs at every call
              0.0      b4 f32[2, 3] = map(b2 bf16[2, 3]/[1, 0], b0 f32[2, 3]/[0, 1]) { add(f32(x0), x1) }
            output 0: b4 f32[2, 3]
        "#]],
    );
}

#[test]
fn fuse_maps_joins_elementwise_steps_and_keeps_their_rounding() {
    let nodes: Vec<Node> = vec![
        Multiply { a: Src(1), b: Src(1), out: Dst(5) }.into(),
        Silu { x: Src(5), out: Dst(5) }.into(),
        Add { a: Src(5), b: Src(1), out: Dst(6) }.into(),
        Sum { x: Src(6), out: Dst(7), axes: None, keepdims: false }.into(),
        Add { a: Src(7), b: Src(0), out: Dst(3) }.into(),
    ];
    let (program, graph) = program(metas(meta(DType::Bf16, &[4])), vec![nodes]);
    let mut plan = lower(&program, &graph, &Options::default()).unwrap();
    let notes = optimize(&mut plan, &[]);
    expect![[r#"
        , runs at every call
          0.2      b6 bf16[4] = map(b2 bf16[4]) { add(mul(mul(x0, x0), sigmoid(mul(x0, x0))), x0) }
          0.3      b7 bf16[1] = reduce(b6 bf16[4]) Sum over [0]
          0.4      b8 f32[3] = map(b7 bf16[3]/[0], b0 f32[3]) { add(f32(x0), x1) }
        output 0: b8 f32[3]
    "#]]
    .assert_eq(plan.to_string().split_once("block 0").unwrap().1);
    assert_eq!(
        notes.lines,
        ["fuse-maps: 0.0: fused into the step that reads it", "fuse-maps: 0.1: fused into the step that reads it"]
    );
    let mut untouched = lower(&program, &graph, &Options::default()).unwrap();
    let before = untouched.to_string();
    assert_eq!(optimize(&mut untouched, &["fuse-maps".to_owned()]).lines.len(), 0);
    assert_eq!(untouched.to_string(), before, "a pass that is switched off does nothing");
}

#[test]
fn fuse_maps_leaves_what_is_written_in_between() {
    // t5 reads the state before it changes; fused, it would read it afterwards.
    let nodes: Vec<Node> = vec![
        Neg { x: Src(4), out: Dst(5) }.into(),
        Full {
            out: Dst(4),
            shape: [1, 8, 2].map(Int::Literal).to_vec(),
            v: Float::Literal(1.0),
            scalar_type: DType::F32,
        }
        .into(),
        Exp { x: Src(5), out: Dst(3) }.into(),
    ];
    let (program, graph) = program(metas(meta(DType::F32, &[1])), vec![nodes]);
    let mut plan = lower(&program, &graph, &Options::default()).unwrap();
    optimize(&mut plan, &[]);
    expect![[r#"
        , runs at every call
          0.0      b4 f32[1, 8, 2] = map(b1 f32[1, 8, 2]) { neg(x0) }
          0.1      b1 f32[1, 8, 2] = map() { 1.0 }
          0.2      b6 f32[1, 8, 2] = map(b4 f32[1, 8, 2]) { exp(x0) }
        output 0: b6 f32[1, 8, 2]
    "#]]
    .assert_eq(plan.to_string().split_once("block 0").unwrap().1);
}

#[test]
fn temporaries_that_are_not_alive_together_share_memory() {
    // Ten sorts in a row: only what one reads and what it writes are alive at once.
    let sorts = (0..10).map(|step| {
        let (x, out) = if step == 0 {
            (1, 5)
        } else if step == 9 {
            (5, 3)
        } else {
            (5, 5)
        };
        Node::from(Sort { x: Src(x), out: Dst(out), axis: 0 })
    });
    let (program, graph) = program(metas(meta(DType::F32, &[-1, 4])), vec![sorts.collect()]);
    let placement = lower(&program, &graph, &Options::default()).unwrap().place();
    assert_eq!(placement.unbounded, 0);
    assert_eq!(placement.unshared_bytes, 10 * 64 * 4 * 4);
    assert_eq!(placement.arena_bytes, 2 * 64 * 4 * 4);
    let offsets: Vec<u64> = placement.places.iter().flatten().map(|place| place.start).collect();
    assert!(offsets.windows(2).all(|pair| pair[0] != pair[1]), "neighbours do not overlap: {offsets:?}");
}

#[test]
fn what_a_loop_touches_lives_through_all_its_rounds() {
    let scan = Scan {
        originals: vec![Src(1)],
        sliced: vec![Fed(5)],
        outputs: vec![Collected(3)],
        carry: vec![],
        body_chain_idx: Chain(1),
        scan_axis: 0,
    };
    // t7 is made before the loop and read at its start; t8 is made in the loop after that. They may not share.
    let body: Vec<Node> = vec![
        Sort { x: Src(7), out: Dst(8), axis: 0 }.into(),
        Sort { x: Src(8), out: Dst(9), axis: 0 }.into(),
        Sort { x: Src(9), out: Dst(3), axis: 0 }.into(),
    ];
    let chains = vec![vec![Sort { x: Src(0), out: Dst(7), axis: 0 }.into(), scan.into()], body];
    let (program, graph) = program(metas(meta(DType::F32, &[4, 3])), chains);
    let plan = lower(&program, &graph, &Options::default()).unwrap();
    let placement = plan.place();
    let mut offsets: Vec<u64> = placement.places.iter().flatten().map(|place| place.start).collect();
    let count = offsets.len();
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), count, "all five of them are alive in every round");
}

#[test]
fn a_size_without_a_bound_is_left_to_the_call() {
    let nodes: Vec<Node> = vec![
        ItemInt { x: Src(2), out: DstValue(0) }.into(),
        Full { out: Dst(3), shape: vec![Int::Value(Value(0)); 3], v: Float::Literal(0.0), scalar_type: DType::F32 }
            .into(),
    ];
    let (program, graph) = program(metas(meta(DType::F32, &[1])), vec![nodes]);
    let placement = lower(&program, &graph, &Options::default()).unwrap().place();
    assert_eq!((placement.arena_bytes, placement.unbounded), (0, 1));
}

#[test]
fn gelu_rounds_at_every_step() {
    check(
        metas(meta(DType::Bf16, &[4])),
        vec![vec![Gelu { x: Src(1), out: Dst(3), approximate: GeluForm::Erf }.into()]],
        expect![[r#"
            , runs at every call
              0.0      b4 bf16[4] = map(b2 bf16[4]) { mul(0.5, mul(x0, add(1.0, erf(mul(0.70710677, x0))))) }
            output 0: b4 bf16[4]
        "#]],
    );
}

#[test]
fn shapes_are_views_and_only_what_must_be_is_copied() {
    let transpose = Transpose { x: Src(1), out: Dst(5), perm: vec![1, 0, 2] };
    let split = |x, out, shape: &[i64]| {
        Node::from(Reshape { x: Src(x), out: Dst(out), shape: shape.iter().map(|size| Int::Literal(*size)).collect() })
    };
    check(
        metas(meta(DType::F32, &[-1, 4, 6])),
        vec![vec![transpose.into(), split(5, 6, &[4, -1, 2, 3]), split(6, 3, &[4, -1])]],
        expect![[r#"
            , runs at every call
              0.2      b4 f32[4, h0, 2, 3] = map(b2 f32[4, h0, 2, 3]/[6, 24, 3, 1]) { x0 }
            output 0: b4 f32[4, 6*h0]
        "#]],
    );
}

#[test]
fn a_cache_is_written_in_place_and_read_up_to_the_position() {
    let nodes: Vec<Node> = vec![
        ItemInt { x: Src(2), out: DstValue(0) }.into(),
        SymSize { a: Src(1), dim: 1, out: DstValue(1) }.into(),
        AddInt { a: Int::Value(Value(0)), b: Int::Value(Value(1)), out: DstValue(2) }.into(),
        SliceUpdate {
            dst: Src(4),
            update: Src(1),
            out: Dst(4),
            axis: Int::Literal(1),
            start: Int::Value(Value(0)),
            stop: Int::Value(Value(2)),
            step: 1,
        }
        .into(),
        Slice {
            x: Src(4),
            out: Dst(3),
            axis: Int::Literal(1),
            start: Int::Literal(0),
            stop: Int::Value(Value(2)),
            step: 1,
        }
        .into(),
    ];
    check(
        metas(meta(DType::F32, &[1, -1, 2])),
        vec![nodes],
        expect![[r#"
            , runs at every call
              0.0      h1 = item(b3 i64[1])
              0.2      check -2147483648 <= h0 + h1 <= 2147483647: 32-bit integer
              0.3      h2 = clamp(h1, 8)
              0.3      h3 = clamp(h0 + h1, 8)
              0.3      h4 = max(-1*h2 + h3, 0)
              0.3      check h0 == h4: sizes that meet in one operation
              0.3      b1 f32[1, h4, 2]+2*h2 = map(b2 f32[1, h4, 2]) { x0 }
            output 0: b1 f32[1, h3, 2]
        "#]],
    );
}

#[test]
fn a_sliding_window_is_written_twice_and_read_in_one_piece() {
    let attend = UpdateAndAttend {
        q: Src(1),
        k: Src(1),
        v: Src(1),
        position: Src(2),
        out: Dst(3),
        layer_id: Some(0),
        scale: Some(1.0),
        out_dtype: None,
    };
    let (program, graph) = program(metas(meta(DType::F32, &[1, 1, 3, 2])), vec![vec![attend.into()]]);
    let layer = CacheLayer { kv_heads: 1, head_dim: 2, window: Some(4) };
    let options = Options { kv_cache: Some(KvCache::new(64, vec![layer], DType::F32).unwrap()) };
    expect![[r#"
        , runs at every call
          0.0      h0 = item(b3 i64[])
          0.0      check 0 <= h0 <= 64: position in the cache
          0.0      check 0 <= h0 + 3 <= 64: position in the cache
          0.0      h1 = item(b7 i32[])
          0.0      h2 = item(b7 i32[]+1)
          0.0      check 0 <= h0 <= h2: position in a sliding-window layer
          0.0      h3 = min(h1, h0)
          0.0      h4 = max(h0 + -3, 0)
          0.0      check h3 <= h4 <= h0: oldest position that a sliding window needs
          0.0      h5 = max(h3, h0 + -4)
          0.0      b7 i32[] = map() { h5 }
          0.0      b7 i32[]+1 = map() { h0 }
          0.0      h6 = (h0) mod (7)
          0.0      h7 = min(3, -1*h6 + 7)
          0.0      b4 f32[1, 1, 2, h7, 2]+2*h6/[28, 28, 14, 2, 1] = map(b2 f32[1, 1, 2, h7, 2]/[6, 6, 0, 2, 1]) { x0 }
          0.0      b4 f32[1, 1, 2, -1*h7 + 3, 2]/[28, 28, 14, 2, 1] = map(b2 f32[1, 1, 2, -1*h7 + 3, 2]+2*h7/[6, 6, 0, 2, 1]) { x0 }
          0.0      b5 f32[1, 1, 2, h7, 2]+2*h6/[28, 28, 14, 2, 1] = map(b2 f32[1, 1, 2, h7, 2]/[6, 6, 0, 2, 1]) { x0 }
          0.0      b5 f32[1, 1, 2, -1*h7 + 3, 2]/[28, 28, 14, 2, 1] = map(b2 f32[1, 1, 2, -1*h7 + 3, 2]+2*h7/[6, 6, 0, 2, 1]) { x0 }
          0.0      h8 = (h4) mod (7)
          0.0      b6 f32[1, 1, 3, 2] = attention(b2 f32[1, 1, 3, 2], b4 f32[1, 1, h0 + -1*h4 + 3, 2]+2*h8, b5 f32[1, 1, h0 + -1*h4 + 3, 2]+2*h8) causal true, window 4, scale 1.0
          0.0      b7 i32[]+1 = map() { h0 + 3 }
        output 0: b6 f32[1, 1, 3, 2]
    "#]]
    .assert_eq(lower(&program, &graph, &options).unwrap().to_string().split_once("block 0").unwrap().1);
}

#[test]
fn what_still_shows_a_state_keeps_its_old_elements() {
    let nodes: Vec<Node> = vec![
        IdCopy { x: Src(4), out: Dst(5) }.into(),
        Add { a: Src(4), b: Src(4), out: Dst(4) }.into(),
        Add { a: Src(5), b: Src(4), out: Dst(3) }.into(),
    ];
    check(
        metas(meta(DType::F32, &[1])),
        vec![nodes],
        expect![[r#"
            , runs at every call
              0.1      b4 f32[1, 8, 2] = map(b1 f32[1, 8, 2], b1 f32[1, 8, 2]) { add(x0, x1) }
              0.1      b5 f32[1, 8, 2] = map(b1 f32[1, 8, 2]) { x0 }
              0.1      b1 f32[1, 8, 2] = map(b4 f32[1, 8, 2]) { x0 }
              0.2      b6 f32[1, 8, 2] = map(b5 f32[1, 8, 2], b1 f32[1, 8, 2]) { add(x0, x1) }
            output 0: b6 f32[1, 8, 2]
        "#]],
    );
}

#[test]
fn branches_leave_their_results_in_one_place() {
    let full =
        |value| Node::from(Full { out: Dst(3), shape: vec![], v: Float::Literal(value), scalar_type: DType::F32 });
    let condition = ItemInt { x: Src(2), out: DstValue(0) };
    let branch = If { cond: Int::Value(Value(0)), then_chain_idx: Chain(1), else_chain_idx: Chain(2) };
    check(
        metas(meta(DType::F32, &[1])),
        vec![vec![condition.into(), branch.into()], vec![full(1.0)], vec![full(2.0)]],
        expect![[r#"
            , runs at every call
              0.0      h0 = item(b3 i64[1])
              0.1      if h0: block 1, else block 2
            block 1
              1.0      b4 f32[] = map() { 1.0 }
              0.1      b6 f32[] = map(b4 f32[]) { x0 }
            block 2
              2.0      b5 f32[] = map() { 2.0 }
              0.1      b6 f32[] = map(b5 f32[]) { x0 }
            output 0: b6 f32[]
        "#]],
    );
}

#[test]
fn a_scan_is_a_loop_over_views_with_its_carry_in_a_buffer() {
    let scan = Scan {
        originals: vec![Src(1)],
        sliced: vec![Fed(5)],
        outputs: vec![Collected(3)],
        carry: vec![Src(6)],
        body_chain_idx: Chain(1),
        scan_axis: 0,
    };
    let body: Vec<Node> =
        vec![Add { a: Src(6), b: Src(5), out: Dst(6) }.into(), IdCopy { x: Src(6), out: Dst(3) }.into()];
    check(
        metas(meta(DType::F32, &[4, 3])),
        vec![vec![IdCopy { x: Src(0), out: Dst(6) }.into(), scan.into()], body],
        expect![[r#"
            , runs at every call
              0.1      b4 f32[3] = map(b0 f32[3]) { x0 }
              0.1      for h0 below 4: block 1
            block 1
              1.0      b5 f32[3] = map(b4 f32[3], b2 f32[3]+3*h0) { add(x0, x1) }
              0.1      b6 f32[3]+3*h0 = map(b5 f32[3]) { x0 }
              0.1      b4 f32[3] = map(b5 f32[3]) { x0 }
            output 0: b6 f32[4, 3]
        "#]],
    );
}

#[test]
fn integers_known_now_are_computed_now() {
    let nodes: Vec<Node> = vec![
        SymSize { a: Src(1), dim: -1, out: DstValue(0) }.into(),
        FloorDivideInt { a: Int::Value(Value(0)), b: Int::Literal(-4), out: DstValue(1) }.into(),
        Take { x: Src(1), out: Dst(3), index: IntOrSrc::Value(Value(1)), axis: 0 }.into(),
    ];
    check(
        metas(meta(DType::F32, &[4, 6])),
        vec![nodes],
        expect![[r#"
            , runs at every call
            output 0: b2 f32[6]+12
        "#]],
    );
}

#[test]
fn what_does_not_fit_is_named_with_its_instruction() {
    refused(
        metas(meta(DType::F32, &[2])),
        vec![vec![Add { a: Src(1), b: Src(0), out: Dst(3) }.into()]],
        expect!["instruction 0.0 (Add): shapes [2] and [3] do not fit together"],
    );
    refused(
        metas(meta(DType::F32, &[2])),
        vec![vec![Softmax { x: Src(1), out: Dst(3), axis: 1, precise: true }.into()]],
        expect!["instruction 0.0 (Softmax): axis 1 of a tensor of rank 1"],
    );
    refused(
        metas(meta(DType::F32, &[6])),
        vec![vec![Reshape { x: Src(1), out: Dst(3), shape: vec![Int::Literal(4), Int::Literal(-1)] }.into()]],
        expect!["instruction 0.0 (Reshape): [4, 1] cannot be made of [6]"],
    );
    refused(
        metas(meta(DType::F32, &[6])),
        vec![vec![Add { a: Src(1), b: Src(1), out: Dst(4) }.into()]],
        expect!["instruction 0.0 (Add): writes [6] into state of [1, 8, 2]"],
    );
    let kernel = MetalKernel {
        name: "evil".to_owned(),
        source: "…".to_owned(),
        inputs: vec![],
        outputs: vec![],
        grid: vec![],
        threadgroup: vec![],
        header: None,
        input_names: None,
        output_names: None,
        ensure_row_contiguous: true,
        atomic_outputs: false,
        output_shapes_flat: None,
        output_shape_lengths: None,
        output_dtypes: None,
        template_arg_names: None,
        template_arg_kinds: None,
        template_arg_values: None,
        init_value: None,
    };
    refused(
        metas(meta(DType::F32, &[6])),
        vec![vec![kernel.into()]],
        expect![
            "instruction 0.0 (MetalKernel): Metal kernel `evil` (source b4935894c8ce16bd, header e3b0c44298fc1c14) has no equivalent here"
        ],
    );
}

#[test]
fn a_norm_is_as_wide_as_its_weight() {
    let norm = RMSNorm { x: Src(1), weight: Some(Src(0)), out: Dst(3), eps: 0.5 };
    check(
        metas(meta(DType::Bf16, &[2, 3])),
        vec![vec![norm.into()]],
        expect![[r#"
        , runs at every call
          0.0      b4 f32[2, 3] = map(b2 bf16[2, 3]) { f32(x0) }
          0.0      b5 f32[2, 3] = norm(b4 f32[2, 3], b0 f32[3]) Rms, eps 0.5
        output 0: b5 f32[2, 3]
    "#]],
    );
}
