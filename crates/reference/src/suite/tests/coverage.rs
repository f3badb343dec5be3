//! What the cases cover, counted.

use super::super::*;
use crate::suite::views::RandomView;
use ptero_plan::expr::Scalar;
use ptero_plan::graph::{Input, StateId, ViewOp};
use ptero_plan::prim::{Angles, Position, QuantFormat};
use std::collections::BTreeSet;

/// The operations that are tested.
fn tested(case: &Case) -> Vec<Op> {
    case.finished.tested.iter().map(|&index| case.graph.blocks[0].nodes[index].op.clone()).collect()
}

/// What `note` says of all operations of 400 cases.
fn noted(primitive: &str, note: impl Fn(&Case, &Op) -> Vec<String>) -> BTreeSet<String> {
    let cases = (0..400).map(|number| Case::new(primitive, 3, number));
    cases.flat_map(|case| tested(&case).iter().flat_map(|op| note(&case, op)).collect::<Vec<_>>()).collect()
}

/// The same for primitives.
fn noted_of_prims(primitive: &str, note: impl Fn(&Case, &Prim<Value>) -> Vec<String>) -> BTreeSet<String> {
    noted(primitive, |case, op| if let Op::Prim(prim) = op { note(case, prim) } else { Vec::new() })
}

fn assert_covers(primitive: &str, found: &BTreeSet<String>, wanted: &[&str]) {
    for wanted in wanted {
        assert!(found.contains(*wanted), "{primitive} has no case of {wanted}: {found:?}");
    }
}

#[test]
fn a_case_is_of_its_primitive_and_always_the_same() {
    for primitive in PRIMITIVES {
        let (one, two) = (Case::new(primitive, 5, 17), Case::new(primitive, 5, 17));
        let name = |op: &Op| match op {
            Op::Prim(prim) => prim.name(),
            Op::Concat { .. } => "concat",
            Op::Update { .. } => "update",
            Op::If { .. } => "if",
            Op::Loop(_) => "loop",
            op => panic!("{op:?} is not tested"),
        };
        assert!(tested(&one).iter().all(|op| name(op) == *primitive));
        assert_eq!(one.graph.to_string(), two.graph.to_string());
        assert_eq!(format!("{:?}", one.finished.given), format!("{:?}", two.finished.given));
        assert_ne!(one.graph.to_string(), Case::new(primitive, 6, 17).graph.to_string());
    }
}

/// Where a value comes from, and how it is seen.
fn views(case: &Case, value: Value) -> Vec<String> {
    let ty = case.graph.ty(value);
    let sizes: Vec<i64> = ty.shape.iter().map(|size| size.eval(&case.finished.values[0])).collect();
    let mut notes = vec![ty.dtype.to_string(), format!("rank {}", sizes.len())];
    let mut note = |is_so: bool, what: &str| notes.extend(is_so.then(|| what.to_owned()));
    note(ty.shape.iter().any(|size| size.as_fixed().is_none()), "symbolic");
    note(sizes.contains(&0), "empty");
    note(sizes.iter().any(|&size| size > 1000), "long");
    let (mut root, nodes) = (value, &case.graph.blocks[0].nodes);
    while let Some(Op::View { x, how, .. }) = nodes.iter().map(|node| &node.op).find(|op| op.outs().contains(&root)) {
        match how {
            ViewOp::Reshape => note(true, "reshaped"),
            ViewOp::Permute(_) => note(true, "transposed"),
            ViewOp::Broadcast => note(true, "broadcast"),
            ViewOp::Slice { start, step, .. } => {
                note(!start.is(0), "offset");
                note(*step < 0, "backwards");
            }
            ViewOp::Strided { .. } => note(true, "strided"),
        }
        root = *x;
    }
    let is_input = |input: &Input| matches!(input, Input::Tensor(value) if *value == root);
    note(case.graph.constants.iter().any(|(value, _)| *value == root), "constant");
    note(case.graph.inputs.iter().any(is_input), "input");
    note(case.graph.blocks[1].nodes.iter().any(|node| node.op.outs().contains(&root)), "derived");
    match nodes.iter().map(|node| &node.op).find(|op| op.outs().contains(&root)) {
        Some(Op::Read { .. }) => note(true, "state"),
        Some(_) => note(true, "temporary"),
        None => {}
    }
    notes
}

#[test]
fn operands_of_every_primitive_come_from_everywhere_and_are_seen_in_every_way() {
    for primitive in PRIMITIVES.iter().filter(|primitive| !["random-bits", "if"].contains(primitive)) {
        let found = noted(primitive, |case, op| op.ins().iter().flat_map(|value| views(case, *value)).collect());
        let common =
            ["constant", "derived", "input", "state", "temporary", "offset", "broadcast", "backwards", "strided"];
        assert_covers(primitive, &found, &common);
        // A loop carries rows, which have one axis.
        if *primitive != "loop" {
            assert_covers(primitive, &found, &["empty", "transposed"]);
        }
        if *primitive != "dequantize" {
            assert_covers(primitive, &found, &["symbolic", "f32", "f16"]);
        }
    }
    for primitive in ["map", "reduce", "arg-reduce", "softmax", "norm", "gather", "scatter", "sort", "cumsum"] {
        let found = noted(primitive, |case, op| op.ins().iter().flat_map(|value| views(case, *value)).collect());
        let types = ["i32", "u8", "bool", "i64", "bf16"];
        assert_covers(primitive, &found, &["rank 1", "rank 2", "rank 3", "rank 4", "long"]);
        assert_covers(primitive, &found, &types);
    }
}

/// How a result lies where it goes.
fn notes_of_view(view: &RandomView) -> Vec<&'static str> {
    let mut notes = Vec::new();
    for (index, laid) in view.axes.iter().enumerate() {
        notes.extend((laid.axis != index).then_some("transposed"));
        notes.extend(laid.is_flipped.then_some("backwards"));
        notes.extend((laid.step > 1).then_some("thinned"));
        notes.extend((!laid.start.dim.is(0)).then_some("offset"));
        notes.extend((laid.size.at[0] == 0).then_some("empty"));
    }
    notes
}

#[test]
fn results_of_every_primitive_are_windows_too() {
    for primitive in PRIMITIVES {
        let found = noted(primitive, |case, _| {
            let mut notes = Vec::new();
            for shown in &case.finished.shown {
                for part in &shown.parts {
                    notes.push(if shown.after.is_some() { "state" } else { "temporary" });
                    notes.extend(notes_of_view(&part.view));
                    notes.extend(shown.before.map(|_| "kept"));
                }
                notes.extend((shown.parts.is_empty() && shown.before.is_some()).then_some("still read"));
            }
            notes.into_iter().map(str::to_owned).collect()
        });
        assert_covers(primitive, &found, &["state", "temporary", "kept", "still read"]);
        assert_covers(primitive, &found, &["offset", "backwards", "empty", "thinned"]);
        // Tokens have one axis.
        if *primitive != "sample" {
            assert_covers(primitive, &found, &["transposed"]);
        }
    }
}

/// The state that a value is a view of.
fn state_of(case: &Case, mut value: Value) -> Option<StateId> {
    let nodes = &case.graph.blocks[0].nodes;
    loop {
        match nodes.iter().map(|node| &node.op).find(|op| op.outs().contains(&value))? {
            Op::View { x, .. } => value = *x,
            Op::Read { state, .. } => return Some(*state),
            _ => return None,
        }
    }
}

#[test]
fn results_may_go_to_the_state_of_an_operand() {
    for primitive in ["map", "softmax", "norm", "rope", "cumsum", "scatter", "gated-delta", "update", "matmul"] {
        let found = noted(primitive, |case, op| {
            let written =
                case.finished.shown.iter().filter(|shown| !shown.parts.is_empty()).filter_map(|shown| shown.after);
            let written: Vec<StateId> = written.collect();
            let reads = op.ins().into_iter().filter_map(|value| state_of(case, value));
            reads.filter(|state| written.contains(state)).map(|_| "in place".to_owned()).collect()
        });
        assert_covers(primitive, &found, &["in place"]);
    }
}

#[test]
fn maps_use_every_operation() {
    let found = noted_of_prims("map", |_, prim| {
        let Prim::Map { expr, .. } = prim else { return Vec::new() };
        let name = |op: &Scalar| match op {
            Scalar::Load(_) | Scalar::Float(_) | Scalar::Int(_) | Scalar::Index(_) => "leaf".to_owned(),
            Scalar::Cast | Scalar::Unary(_) | Scalar::Binary(_) | Scalar::Compare(_) | Scalar::Select => {
                format!("{op:?}")
            }
        };
        expr.steps.iter().map(|step| name(&step.op)).collect()
    });
    // 33 unary, 16 binary, 6 comparisons; cast, select and leaves.
    assert_eq!(found.len(), 33 + 16 + 6 + 3, "{found:?}");
}

#[test]
fn products_go_through_functions_of_one_to_three_others() {
    for primitive in ["matmul", "quant-matmul"] {
        let found = noted_of_prims(primitive, |case, prim| match prim {
            Prim::MatMul { epilogue: Some(fused), out, .. } | Prim::QuantMatMul { epilogue: Some(fused), out, .. } => {
                let to = case.graph.ty(*out).dtype;
                let mut notes: Vec<String> = fused.expr.steps.iter().map(|step| format!("{:?}", step.op)).collect();
                notes.extend([format!("{} others", fused.ins.len()), format!("{} to {to}", fused.dtype)]);
                notes
            }
            _ => vec!["plain".to_owned()],
        });
        assert_covers(primitive, &found, &["plain", "1 others", "2 others", "3 others"]);
        let functions = ["Binary(Add)", "Binary(Mul)", "Unary(Sigmoid)", "Binary(Max)", "Cast"];
        assert_covers(primitive, &found, &functions);
        assert_covers(primitive, &found, &["f32 to f32", "bf16 to bf16", "f32 to bf16", "f16 to f32"]);
    }
}

#[test]
fn quantized_cases_have_every_format_both_ways() {
    let format = |format: QuantFormat| match format {
        QuantFormat::Words { mode, bits, group } => format!("{mode:?} {bits} {group}"),
        QuantFormat::Gguf(kind) => format!("{kind:?}"),
    };
    let found = noted_of_prims("dequantize", |_, prim| match prim {
        Prim::Dequantize { w, .. } => vec![format(w.format)],
        _ => Vec::new(),
    });
    // Six widths in three groups, three small floats, three of GGUF.
    assert_eq!(found.len(), 6 * 3 + 3 + 3, "{found:?}");
    let found = noted_of_prims("quant-matmul", |_, prim| match prim {
        Prim::QuantMatMul { w, transpose, lhs, rhs, .. } => {
            let choices = format!("{} {}", lhs.is_some(), rhs.is_some());
            vec![format(w.format), format!("{:?} {transpose}", std::mem::discriminant(&w.format)), choices]
        }
        _ => Vec::new(),
    });
    assert_eq!(found.len(), 24 + 2 * 2 + 2 * 2, "{found:?}");
}

#[test]
fn parameters_take_every_value() {
    let found = noted_of_prims("rope", |case, prim| match prim {
        Prim::Rope { interleaved, position, angles, dims, x, .. } => vec![
            format!("interleaved {interleaved}"),
            if matches!(position, Position::Host(_)) { "host" } else { "tensor" }.to_owned(),
            if matches!(angles, Angles::Base(_)) { "base" } else { "periods" }.to_owned(),
            format!("all {}", case.graph.ty(*x).shape.last().is_some_and(|size| size.is(*dims as i64))),
        ],
        _ => Vec::new(),
    });
    assert_eq!(found.len(), 8, "{found:?}");
    let found = noted_of_prims("attention", |case, prim| match prim {
        Prim::Attention { mask, causal, window, q, k, .. } => vec![
            format!("mask {:?}", mask.map(|mask| case.graph.ty(mask).dtype == ptero_tensor::DType::Bool)),
            format!("causal {causal} window {}", window.is_some()),
            format!("grouped {}", case.graph.ty(*q).shape[1] != case.graph.ty(*k).shape[1]),
        ],
        _ => Vec::new(),
    });
    assert_eq!(found.len(), 3 + 3 + 2, "{found:?}");
    let found = noted_of_prims("conv", |_, prim| match prim {
        Prim::Conv { stride, transposed, groups, .. } => {
            vec![format!("{} axes {transposed}", stride.len()), format!("groups {}", *groups > 1)]
        }
        _ => Vec::new(),
    });
    assert_eq!(found.len(), 6 + 2, "{found:?}");
}
