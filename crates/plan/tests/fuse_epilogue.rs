//! What the pass `fuse-epilogue` makes of functions of products, and why it leaves others alone.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "common/program.rs"]
mod program;
#[path = "common/small.rs"]
mod small;

use expect_test::{Expect, expect};
use program::*;
use ptero_plan::expr::Expr;
use ptero_plan::graph::{Graph, Op, Value};
use ptero_plan::prim::Prim;
use ptero_plan::{Capabilities, Options, passes};
use ptero_pte::field::{Dst, QuantMode, Src};
use ptero_pte::nodes::{Addmm, QuantizedMatmul, Tril};
use ptero_pte::{DType, Node, TensorMeta};
use small::with_metas;

/// A device with epilogues.
fn device() -> Capabilities {
    Capabilities { epilogues: true, ..Capabilities::default() }
}

/// Weights t0 `[3, 3]` of that type, an input t1 `[2, 3]` and a state t4 `[2, 3]`.
fn graph(weights: DType, nodes: Vec<Node>) -> Graph {
    let x = meta(DType::F32, &[2, 3]);
    graph_of([meta(weights, &[3, 3]), x.clone(), x.clone(), x], nodes)
}

fn graph_of(metas: [TensorMeta; 4], nodes: Vec<Node>) -> Graph {
    lowered(&with_metas(metas, vec![nodes]), &Options::default()).unwrap()
}

/// What passes say, without those that are skipped.
fn notes(graph: &mut Graph, skip: &[String]) -> String {
    passes::run(graph, &device(), skip).lines.join("\n")
}

#[track_caller]
fn check(mut graph: Graph, wanted: Expect, said: Expect) {
    said.assert_eq(&notes(&mut graph, &[]));
    wanted.assert_eq(&operations(&graph));
}

fn product(x: u32, out: u32) -> Node {
    Addmm { mat1: Src(x), mat2: Src(0), out: Dst(out), bias: None, alpha: 1.0, beta: 1.0 }.into()
}

#[test]
fn a_residual_and_a_gate_become_epilogues() {
    let nodes = vec![product(1, 5), product(1, 6), silu(5, 7), multiply(7, 6, 7), product(7, 8), add(1, 8, 3)];
    let before = graph(DType::F32, nodes);
    expect![[r#"
        block, runs at every call
          0.0      v3 f32[2, 3] = read(s0)
          0.0      v4 f32[2, 3] = matmul(v1, v0)
          0.1      v5 f32[2, 3] = matmul(v1, v0)
          0.2      v6 f32[2, 3] = map(v4) { mul(x0, sigmoid(x0)) }
          0.3      v7 f32[2, 3] = map(v6, v5) { mul(x0, x1) }
          0.4      v8 f32[2, 3] = matmul(v7, v0)
          0.5      v9 f32[2, 3] = map(v1, v8) { add(x0, x1) }
        output 0: v9 f32[2, 3]
    "#]]
    .assert_eq(&operations(&before));
    check(
        before.clone(),
        expect![[r#"
        block, runs at every call
          0.0      v4 f32[2, 3] = matmul(v1, v0)
          0.1      v7 f32[2, 3] = matmul(v1, v0, v4), then { mul(mul(x1, sigmoid(x1)), x0) }
          0.4      v9 f32[2, 3] = matmul(v7, v0, v1), then { add(x1, x0) }
        output 0: v9 f32[2, 3]
    "#]],
        expect![[r#"
        fuse-maps: 0.2: fused into the function that reads it
        fuse-epilogue: 0.1: the function that reads it became its epilogue
        fuse-epilogue: 0.4: the function that reads it became its epilogue"#]],
    );
    // A device without epilogues, and the pass switched off.
    for (capabilities, skip) in [(Capabilities::default(), ""), (device(), "fuse-epilogue")] {
        let (mut untouched, mut wanted) = (before.clone(), before.clone());
        passes::run(&mut untouched, &capabilities, &[skip.to_owned()]);
        passes::run(&mut wanted, &Capabilities::default(), &[]);
        assert_eq!(untouched.to_string(), wanted.to_string(), "a pass that is switched off does nothing");
    }
}

#[test]
fn a_bias_is_added_after_the_product_was_rounded() {
    let bias = Addmm { mat1: Src(1), mat2: Src(0), out: Dst(3), bias: Some(Src(1)), alpha: 1.0, beta: 1.0 };
    check(
        graph(DType::Bf16, vec![cast(1, DType::Bf16, 1), bias.into()]),
        expect![[r#"
        block, runs at every call
          0.0      v4 bf16[2, 3] = map(v1) { bf16(x0) }
          0.1      v6 bf16[2, 3] = matmul(v4, v0, v4), then { bf16(add(mul(f32(x0), 1.0), mul(f32(x1), 1.0))) }
        output 0: v6 bf16[2, 3]
    "#]],
        expect!["fuse-epilogue: 0.1: the function that reads it became its epilogue"],
    );
}

#[test]
fn a_product_with_quantized_weights_has_an_epilogue_too() {
    let [x, out, scales] = [[2, 32], [2, 3], [3, 1]].map(|sizes| meta(DType::F32, &sizes));
    let product = QuantizedMatmul {
        x: Src(1),
        w: Src(0),
        scales: Src(4),
        out: Dst(5),
        biases: Some(Src(4)),
        group_size: 32,
        bits: 4,
        mode: QuantMode::Affine,
        transpose: true,
    };
    check(
        graph_of([meta(DType::U32, &[3, 4]), x, out, scales], vec![product.into(), silu(5, 3)]),
        expect![[r#"
        block, runs at every call
          0.0      v3 f32[3, 1] = read(s0)
          0.0      v5 f32[2, 3] = quant-matmul(v1, v0, v3, v3) affine 4 bits, groups of 32, then { mul(x0, sigmoid(x0)) }
        output 0: v5 f32[2, 3]
    "#]],
        expect!["fuse-epilogue: 0.0: the function that reads it became its epilogue"],
    );
}

#[test]
fn of_two_products_the_last_takes_the_function() {
    check(
        graph(DType::F32, vec![product(1, 5), product(5, 6), product(1, 7), add(6, 7, 3)]),
        expect![[r#"
            block, runs at every call
              0.0      v4 f32[2, 3] = matmul(v1, v0)
              0.1      v5 f32[2, 3] = matmul(v4, v0)
              0.2      v7 f32[2, 3] = matmul(v1, v0, v5), then { add(x1, x0) }
            output 0: v7 f32[2, 3]
        "#]],
        expect!["fuse-epilogue: 0.2: the function that reads it became its epilogue"],
    );
}

#[test]
fn the_same_product_twice_is_one_operand() {
    check(
        graph(DType::F32, vec![product(1, 5), add(5, 5, 3)]),
        expect![[r#"
        block, runs at every call
          0.0      v5 f32[2, 3] = matmul(v1, v0), then { add(x0, x0) }
        output 0: v5 f32[2, 3]
    "#]],
        expect!["fuse-epilogue: 0.0: the function that reads it became its epilogue"],
    );
}

#[test]
fn functions_of_products_that_others_read_are_left() {
    check(
        graph(DType::F32, vec![product(1, 5), sort(5, 6), add(5, 6, 3)]),
        expect![[r#"
        block, runs at every call
          0.0      v4 f32[2, 3] = matmul(v1, v0)
          0.1      v5 f32[2, 3] = sort(v4) over 0
          0.2      v6 f32[2, 3] = map(v4, v5) { add(x0, x1) }
        output 0: v6 f32[2, 3]
    "#]],
        expect!["fuse-epilogue: 0.0: not fused: the product is read elsewhere too"],
    );
}

#[test]
fn functions_of_the_index_are_left() {
    check(
        graph(DType::F32, vec![product(1, 5), Tril { x: Src(5), out: Dst(3), k: 0 }.into()]),
        expect![[r#"
        block, runs at every call
          0.0      v4 f32[2, 3] = matmul(v1, v0)
          0.1      v5 f32[2, 3] = map(v4) { select(lessequal(i1, add(i0, 0)), x0, 0) }
        output 0: v5 f32[2, 3]
    "#]],
        expect!["fuse-epilogue: 0.0: not fused: the function depends on the index of an element"],
    );
}

#[test]
fn a_product_gets_one_epilogue_only() {
    // Together they would be too long, so that two functions follow the product.
    let mut nodes = vec![product(1, 5)];
    nodes.extend((0..5).map(|_| gelu(5, 5)));
    nodes.push(gelu(5, 3));
    let mut graph = graph(DType::F32, nodes);
    expect![[r#"
        fuse-epilogue: 0.0: the function that reads it became its epilogue
        fuse-epilogue: 0.0: not fused: the product has an epilogue already"#]]
    .assert_eq(&notes(&mut graph, &["fuse-maps".to_owned()]));
}

#[test]
fn functions_with_too_many_inputs_or_steps_are_left() {
    let mut wide = graph(DType::F32, vec![product(1, 5), add(5, 1, 3)]);
    let mut long = wide.clone();
    let map = |graph: &mut Graph, change: &dyn Fn(&mut Vec<Value>, &mut Expr)| {
        for node in graph.blocks.iter_mut().flat_map(|block| &mut block.nodes) {
            if let Op::Prim(Prim::Map { ins, expr, .. }) = &mut node.op {
                change(ins, expr);
            }
        }
    };
    map(&mut wide, &|ins, _| ins.extend(vec![ins[1]; 15]));
    expect!["fuse-epilogue: 0.0: not fused: the function has too many inputs"].assert_eq(&notes(&mut wide, &[]));
    map(&mut long, &|_, expr| expr.steps.splice(..0, vec![expr.steps[0].clone(); 62]).for_each(drop));
    expect!["fuse-epilogue: 0.0: not fused: the function is too long"].assert_eq(&notes(&mut long, &[]));
}
