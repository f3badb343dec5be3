//! What nodes become, as the text of graphs.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "common/program.rs"]
mod program;
#[path = "common/small.rs"]
mod small;

use expect_test::{Expect, expect};
use program::*;
use ptero_plan::{Arena, CacheLayer, KvCache, Options, bufferize};
use ptero_pte::field::{Collected, Dst, DstValue, GeluForm, Int, IntOrSrc, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::{DType, Node, TensorMeta};
use small::{lower_small, small};

/// Checks the operations of a graph, without its constants, states and inputs.
#[track_caller]
fn check(x: TensorMeta, chains: Vec<Vec<Node>>, wanted: Expect) {
    wanted.assert_eq(&operations(&lower_small(x, chains).unwrap()));
}

#[track_caller]
fn refused(x: TensorMeta, nodes: Vec<Node>, wanted: Expect) {
    wanted.assert_eq(&lower_small(x, vec![nodes]).unwrap_err().to_string());
}

#[test]
fn a_graph_begins_with_its_constants_states_and_inputs() {
    let graph = lower_small(meta(DType::F32, &[-1]), vec![vec![exp(1, 3)]]).unwrap();
    expect![[r#"
        constant v0 f32[3], 12 bytes
        state s0 f32[1, 8, 2]
        input 0: v1 f32[h0]
        input 1: v2 i64[1]
        h0 = given, at most 64
        block, runs at every call
          0.0      v3 f32[1, 8, 2] = read(s0)
          0.0      v4 f32[h0] = map(v1) { exp(x0) }
        output 0: v4 f32[h0]
    "#]]
    .assert_eq(&graph.to_string());
}

#[test]
fn operands_are_broadcast_and_promoted() {
    check(
        meta(DType::Bf16, &[2, 1]),
        vec![vec![add(1, 0, 3)]],
        expect![[r#"
            block, runs at every call
              0.0      v3 f32[1, 8, 2] = read(s0)
              0.0      v4 bf16[2, 3] = broadcast(v1)
              0.0      v5 f32[2, 3] = broadcast(v0)
              0.0      v6 f32[2, 3] = map(v4, v5) { add(f32(x0), x1) }
            output 0: v6 f32[2, 3]
        "#]],
    );
}

#[test]
fn gelu_rounds_at_every_step() {
    check(
        meta(DType::Bf16, &[4]),
        vec![vec![Gelu { x: Src(1), out: Dst(3), approximate: GeluForm::Erf }.into()]],
        expect![[r#"
            block, runs at every call
              0.0      v3 f32[1, 8, 2] = read(s0)
              0.0      v4 bf16[4] = map(v1) { mul(0.5, mul(x0, add(1.0, erf(mul(0.70710677, x0))))) }
            output 0: v4 bf16[4]
        "#]],
    );
}

#[test]
fn shapes_are_view_operations() {
    let transpose = Transpose { x: Src(1), out: Dst(5), perm: vec![1, 0, 2] };
    check(
        meta(DType::F32, &[-1, 4, 6]),
        vec![vec![transpose.into(), reshape(5, &[4, -1, 2, 3], 6), reshape(6, &[4, -1], 3)]],
        expect![[r#"
            h0 = given, at most 64
            block, runs at every call
              0.0      v3 f32[1, 8, 2] = read(s0)
              0.0      v4 f32[4, h0, 6] = permute(v1) [1, 0, 2]
              0.1      v5 f32[4, h0, 2, 3] = reshape(v4)
              0.2      v6 f32[4, 6*h0] = reshape(v5)
            output 0: v6 f32[4, 6*h0]
        "#]],
    );
}

#[test]
fn a_cache_is_read_updated_and_written_and_shown_up_to_the_position() {
    let nodes: Vec<Node> = vec![
        item(2, 0),
        SymSize { a: Src(1), dim: 1, out: DstValue(1) }.into(),
        AddInt { a: value(0), b: value(1), out: DstValue(2) }.into(),
        SliceUpdate {
            dst: Src(4),
            update: Src(1),
            out: Dst(4),
            axis: Int::Literal(1),
            start: value(0),
            stop: value(2),
            step: 1,
        }
        .into(),
        Slice { x: Src(4), out: Dst(3), axis: Int::Literal(1), start: Int::Literal(0), stop: value(2), step: 1 }.into(),
    ];
    check(
        meta(DType::F32, &[1, -1, 2]),
        vec![nodes],
        expect![[r#"
        h0 = given, at most 64
        h1 = input 1[0]
        h2 = clamp(h1, 8)
        h3 = clamp(h0 + h1, 8)
        h4 = max(-1*h2 + h3, 0)
        block, runs at every call
          0.0      v3 f32[1, 8, 2] = read(s0)
          0.2      check -2147483648 <= h0 + h1 <= 2147483647: 32-bit integer
          0.3      check h0 == h4: sizes that meet in one operation
          0.3      v4 f32[1, 8, 2] = update(v3, v1) axis 1 from h2 step 1
          0.3      write(s0, v4)
          0.4      v5 f32[1, h3, 2] = slice(v4) axis 1 from 0 step 1
        output 0: v5 f32[1, h3, 2]
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
    let program = small(meta(DType::F32, &[1, 1, 3, 2]), vec![vec![attend.into()]]);
    let layer = CacheLayer { kv_heads: 1, head_dim: 2, window: Some(4) };
    let options = Options { kv_cache: Some(KvCache::new(64, vec![layer]).unwrap()), ..Options::default() };
    expect![[r#"
        h0 = input 1[0]
        h1 = k0
        h2 = k1
        h3 = min(h1, h0)
        h4 = max(h0 + -3, 0)
        h5 = max(h3, h0 + -4)
        h6 = mod(h4, 7)
        h7 = mod(h0, 7)
        h8 = min(3, -1*h7 + 7)
        session int k0: h5 at the start of a call, h5 at its end
        session int k1: h0 at the start of a call, h0 + 3 at its end
        block, runs at every call
          0.0      v3 f32[1, 8, 2] = read(s0)
          0.0      v4 i64[] = reshape(v2)
          0.0      check 0 <= h0 <= 64: position in the cache
          0.0      check 0 <= h0 + 3 <= 64: position in the cache
          0.0      check 0 <= h0 <= h2: position in a sliding-window layer
          0.0      check h3 <= h4 <= h0: oldest position that a sliding window needs
          0.0      v5 f32[1, 1, 14, 2] = read(s1)
          0.0      v6 f32[1, 1, 2, 7, 2] = reshape(v5)
          0.0      v7 f32[1, 1, h8, 2] = slice(v1) axis 2 from 0 step 1
          0.0      v8 f32[1, 1, 1, h8, 2] = reshape(v7)
          0.0      v9 f32[1, 1, 2, h8, 2] = broadcast(v8)
          0.0      v10 f32[1, 1, 2, 7, 2] = update(v6, v9) axis 3 from h7 step 1
          0.0      v11 f32[1, 1, -1*h8 + 3, 2] = slice(v1) axis 2 from h8 step 1
          0.0      v12 f32[1, 1, 1, -1*h8 + 3, 2] = reshape(v11)
          0.0      v13 f32[1, 1, 2, -1*h8 + 3, 2] = broadcast(v12)
          0.0      v14 f32[1, 1, 2, 7, 2] = update(v10, v13) axis 3 from 0 step 1
          0.0      v15 f32[1, 1, 14, 2] = reshape(v14)
          0.0      write(s1, v15)
          0.0      v16 f32[1, 1, h0 + -1*h4 + 3, 2] = slice(v15) axis 2 from h6 step 1
          0.0      v17 f32[1, 1, 14, 2] = read(s2)
          0.0      v18 f32[1, 1, 2, 7, 2] = reshape(v17)
          0.0      v19 f32[1, 1, h8, 2] = slice(v1) axis 2 from 0 step 1
          0.0      v20 f32[1, 1, 1, h8, 2] = reshape(v19)
          0.0      v21 f32[1, 1, 2, h8, 2] = broadcast(v20)
          0.0      v22 f32[1, 1, 2, 7, 2] = update(v18, v21) axis 3 from h7 step 1
          0.0      v23 f32[1, 1, -1*h8 + 3, 2] = slice(v1) axis 2 from h8 step 1
          0.0      v24 f32[1, 1, 1, -1*h8 + 3, 2] = reshape(v23)
          0.0      v25 f32[1, 1, 2, -1*h8 + 3, 2] = broadcast(v24)
          0.0      v26 f32[1, 1, 2, 7, 2] = update(v22, v25) axis 3 from 0 step 1
          0.0      v27 f32[1, 1, 14, 2] = reshape(v26)
          0.0      write(s2, v27)
          0.0      v28 f32[1, 1, h0 + -1*h4 + 3, 2] = slice(v27) axis 2 from h6 step 1
          0.0      v29 f32[1, 1, 3, 2] = attention(v1, v16, v28) from h4, causal true, window 4, scale 1.0
        output 0: v29 f32[1, 1, 3, 2]
    "#]]
    .assert_eq(&operations(&lowered(&program, &options).unwrap()));
}

#[test]
fn a_value_read_from_a_state_keeps_its_old_elements() {
    check(
        meta(DType::F32, &[1]),
        vec![vec![copy(4, 5), add(4, 4, 4), add(5, 4, 3)]],
        expect![[r#"
        block, runs at every call
          0.0      v3 f32[1, 8, 2] = read(s0)
          0.1      v4 f32[1, 8, 2] = map(v3, v3) { add(x0, x1) }
          0.1      write(s0, v4)
          0.2      v5 f32[1, 8, 2] = map(v3, v4) { add(x0, x1) }
        output 0: v5 f32[1, 8, 2]
    "#]],
    );
}

#[test]
fn branches_leave_results_to_the_operation_that_runs_them() {
    check(
        meta(DType::F32, &[1]),
        vec![vec![item(2, 0), branch()], vec![full(vec![], 1.0, 3)], vec![full(vec![], 2.0, 3)]],
        expect![[r#"
            h0 = input 1[0]
            block, runs at every call
              0.0      v3 f32[1, 8, 2] = read(s0)
              0.1      v6 f32[] = if h0
              1.0        v4 f32[] = map() { 1.0 }
                         -> v4
                       else
              2.0        v5 f32[] = map() { 2.0 }
                         -> v5
            output 0: v6 f32[]
        "#]],
    );
}

#[test]
fn a_scan_is_a_loop_that_carries_values_and_stacks_results() {
    check(
        meta(DType::F32, &[4, 3]),
        vec![vec![copy(0, 6), scan(vec![Src(6)], vec![Collected(3)])], vec![add(6, 5, 6), copy(6, 3)]],
        expect![[r#"
            block, runs at every call
              0.0      v3 f32[1, 8, 2] = read(s0)
              0.1      v9 f32[3], v8 f32[4, 3] = for h0 below 4, carrying (v4 = v0)
              0.1        v5 f32[1, 3] = slice(v1) axis 0 from h0 step 1
              0.1        v6 f32[3] = reshape(v5)
              1.0        v7 f32[3] = map(v4, v6) { add(x0, x1) }
                         -> v7, v7
            output 0: v8 f32[4, 3]
        "#]],
    );
}

#[test]
fn integers_known_now_are_computed_now() {
    let nodes: Vec<Node> = vec![
        SymSize { a: Src(1), dim: -1, out: DstValue(0) }.into(),
        FloorDivideInt { a: value(0), b: Int::Literal(-4), out: DstValue(1) }.into(),
        Take { x: Src(1), out: Dst(3), index: IntOrSrc::Value(Value(1)), axis: 0 }.into(),
    ];
    check(
        meta(DType::F32, &[4, 6]),
        vec![nodes],
        expect![[r#"
        block, runs at every call
          0.0      v3 f32[1, 8, 2] = read(s0)
          0.2      v4 f32[1, 6] = slice(v1) axis 0 from 2 step 1
          0.2      v5 f32[6] = reshape(v4)
        output 0: v5 f32[6]
    "#]],
    );
}

#[test]
fn what_does_not_fit_is_named_with_its_instruction() {
    refused(
        meta(DType::F32, &[2]),
        vec![add(1, 0, 3)],
        expect!["instruction 0.0 (Add): shapes [2] and [3] do not fit together"],
    );
    refused(
        meta(DType::F32, &[2]),
        vec![Softmax { x: Src(1), out: Dst(3), axis: 1, precise: true }.into()],
        expect!["instruction 0.0 (Softmax): axis 1 of a tensor of rank 1"],
    );
    refused(
        meta(DType::F32, &[6]),
        vec![reshape(1, &[4, -1], 3)],
        expect!["instruction 0.0 (Reshape): [4, 1] cannot be made of [6]"],
    );
    refused(
        meta(DType::F32, &[6]),
        vec![add(1, 1, 4), copy(1, 3)],
        expect!["instruction 0.0 (Add): writes [6] into state of [1, 8, 2]"],
    );
}

#[test]
fn a_norm_is_as_wide_as_its_weight() {
    let norm = RMSNorm { x: Src(1), weight: Some(Src(0)), out: Dst(3), eps: 0.5 };
    check(
        meta(DType::Bf16, &[2, 3]),
        vec![vec![norm.into()]],
        expect![[r#"
        block, runs at every call
          0.0      v3 f32[1, 8, 2] = read(s0)
          0.0      v4 f32[2, 3] = map(v1) { f32(x0) }
          0.0      v5 f32[2, 3] = norm(v4, v0) Rms, eps 0.5
        output 0: v5 f32[2, 3]
    "#]],
    );
}

#[test]
fn a_kernel_without_an_equivalent_stays_for_the_device_that_runs_it() {
    let kernel = MetalKernel {
        name: "twice".to_owned(),
        source: "…".to_owned(),
        inputs: vec![Src(1)],
        outputs: vec![Dst(3)],
        grid: [6, 1, 1].map(Int::Literal).to_vec(),
        threadgroup: [1, 1, 1].map(Int::Literal).to_vec(),
        header: None,
        input_names: Some(vec!["x".to_owned()]),
        output_names: Some(vec!["out".to_owned()]),
        ensure_row_contiguous: true,
        atomic_outputs: false,
        output_shapes_flat: Some(vec![Int::Literal(6)]),
        output_shape_lengths: Some(vec![1]),
        output_dtypes: Some(vec![DType::F32]),
        template_arg_names: None,
        template_arg_kinds: None,
        template_arg_values: None,
        init_value: None,
    };
    let graph = lower_small(meta(DType::F32, &[6]), vec![vec![kernel.into()]]).unwrap();
    expect![[r#"
        block, runs at every call
          0.0      v3 f32[1, 8, 2] = read(s0)
          0.0      v4 f32[6] = foreign `twice`(v1)
        output 0: v4 f32[6]
    "#]]
    .assert_eq(&operations(&graph));
    expect!["instruction 0.0 (MetalKernel): a kernel that a program brings is not supported"]
        .assert_eq(&bufferize(&graph, Arena::aligned(64)).unwrap_err().to_string());
}

#[test]
fn sizes_that_branches_give_are_known_after_them() {
    let range = |count| vec![arange(Int::Literal(0), Int::Literal(count), 3)];
    check(
        meta(DType::F32, &[1]),
        vec![vec![item(2, 0), branch()], range(2), range(5)],
        expect![[r#"
            h0 = input 1[0]
            block, runs at every call
              0.0      v3 f32[1, 8, 2] = read(s0)
              0.1      v6 i32[h1] = if h0
              1.0        v4 i32[2] = map() { i32(add(mul(i0, 1), 0)) }
              0.1        h1 = if h0: 2, else 5
                         -> v4
                       else
              2.0        v5 i32[5] = map() { i32(add(mul(i0, 1), 0)) }
              0.1        h1 = if h0: 2, else 5
                         -> v5
            output 0: v6 i32[h1]
        "#]],
    );
}
