//! What the cases cover, counted.

use super::super::*;
use ptero_plan::expr::Scalar;
use ptero_plan::plan::{BufferKind, PlanStep};
use ptero_plan::prim::{Angles, Position, QuantFormat, View};
use std::collections::BTreeSet;

fn tested(case: &Case) -> Vec<Prim> {
    let prim = |&at: &usize| match &case.plan.blocks[0].steps[at] {
        PlanStep::Device(prim) => prim.clone(),
        step => panic!("{step} is not tested"),
    };
    case.finished.tested.iter().map(prim).collect()
}

/// What `note` says of all steps of 400 cases.
fn noted(primitive: &str, note: impl Fn(&Case, &Prim) -> Vec<String>) -> BTreeSet<String> {
    let cases = (0..400).map(|number| Case::new(primitive, 3, number));
    cases.flat_map(|case| tested(&case).iter().flat_map(|prim| note(&case, prim)).collect::<Vec<_>>()).collect()
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
        assert!(tested(&one).iter().all(|prim| prim.name() == *primitive));
        assert_eq!(one.plan.to_string(), two.plan.to_string());
        assert_eq!(format!("{:?}", one.finished.given), format!("{:?}", two.finished.given));
        assert_ne!(one.plan.to_string(), Case::new(primitive, 6, 17).plan.to_string());
    }
}

/// How an operand lies in memory.
fn layouts(case: &Case, view: &View) -> Vec<String> {
    let kind = match case.plan.buffers[view.buf.0 as usize].kind {
        BufferKind::Constant(_) => "constant",
        BufferKind::Derived => "derived",
        BufferKind::Input(_) => "input",
        BufferKind::State => "state",
        BufferKind::Temporary => "temporary",
    };
    let mut notes = vec![kind.to_owned(), view.dtype.to_string(), format!("rank {}", view.shape.len())];
    let sizes: Vec<i64> = view.shape.iter().map(|size| size.eval(&case.finished.values[0])).collect();
    let mut note = |is_so: bool, what: &str| notes.extend(is_so.then(|| what.to_owned()));
    note(view.shape.iter().any(|size| size.as_fixed().is_none()), "symbolic");
    note(sizes.contains(&0), "empty");
    note(sizes.iter().any(|&size| size > 1000), "long");
    note(!view.offset.is(0), "offset");
    let strides: Vec<i64> = view.strides.iter().map(|stride| stride.eval(&case.finished.values[0])).collect();
    note(strides.contains(&0), "broadcast");
    note(strides.iter().any(|&stride| stride < 0), "backwards");
    note(strides.windows(2).any(|pair| 0 < pair[0] && pair[0] < pair[1]), "transposed");
    notes
}

#[test]
fn operands_of_every_primitive_come_from_everywhere_and_lie_in_every_way() {
    for primitive in PRIMITIVES.iter().filter(|&&primitive| primitive != "random-bits") {
        let found = noted(primitive, |case, prim| prim.reads().iter().flat_map(|view| layouts(case, view)).collect());
        let common = ["constant", "input", "state", "temporary", "offset", "broadcast", "backwards", "transposed"];
        assert_covers(primitive, &found, &common);
        assert_covers(primitive, &found, &["empty"]);
        if *primitive != "dequantize" {
            assert_covers(primitive, &found, &["symbolic", "f32", "f16", "bf16"]);
        }
    }
    for primitive in ["map", "reduce", "arg-reduce", "softmax", "norm", "gather", "scatter", "sort", "cumsum"] {
        let found = noted(primitive, |case, prim| prim.reads().iter().flat_map(|view| layouts(case, view)).collect());
        assert_covers(primitive, &found, &["rank 1", "rank 2", "rank 3", "rank 4", "long", "i32", "u8", "bool", "i64"]);
    }
}

#[test]
fn results_of_every_primitive_are_windows_too() {
    for primitive in PRIMITIVES {
        let found = noted(primitive, |case, prim| prim.writes().iter().flat_map(|view| layouts(case, view)).collect());
        assert_covers(primitive, &found, &["state", "temporary", "offset", "backwards", "empty"]);
        // Tokens have one axis.
        if *primitive != "sample" {
            assert_covers(primitive, &found, &["transposed"]);
        }
    }
}

#[test]
fn results_may_lie_in_the_buffer_of_an_operand() {
    for primitive in ["map", "softmax", "norm", "rope", "cumsum"] {
        let found = noted(primitive, |_, prim| {
            let out = prim.out();
            let beside = |view: &&View| view.buf == out.buf && *view != out;
            prim.reads().into_iter().find(beside).map(|_| "beside".to_owned()).into_iter().collect()
        });
        assert_covers(primitive, &found, &["beside"]);
    }
}

#[test]
fn maps_use_every_operation() {
    let found = noted("map", |_, prim| {
        let Prim::Map { out, ins, expr } = prim else { return Vec::new() };
        let name = |op: &Scalar| match op {
            Scalar::Load(_) | Scalar::Float(_) | Scalar::Int(_) | Scalar::Index(_) => "leaf".to_owned(),
            Scalar::Cast | Scalar::Unary(_) | Scalar::Binary(_) | Scalar::Compare(_) | Scalar::Select => {
                format!("{op:?}")
            }
        };
        let in_place = ins.contains(out).then(|| "in place".to_owned());
        expr.steps.iter().map(|step| name(&step.op)).chain(in_place).collect()
    });
    // 33 unary, 16 binary, 6 comparisons; cast, select, leaves, and in place.
    assert_eq!(found.len(), 33 + 16 + 6 + 4, "{found:?}");
}

#[test]
fn quantized_cases_have_every_format_both_ways() {
    let format = |format: QuantFormat| match format {
        QuantFormat::Words { mode, bits, group } => format!("{mode:?} {bits} {group}"),
        QuantFormat::Gguf(kind) => format!("{kind:?}"),
    };
    let found = noted("dequantize", |_, prim| match prim {
        Prim::Dequantize { w, .. } => vec![format(w.format)],
        _ => Vec::new(),
    });
    // Six widths in three groups, three small floats, three of GGUF.
    assert_eq!(found.len(), 6 * 3 + 3 + 3, "{found:?}");
    let found = noted("quant-matmul", |_, prim| match prim {
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
    let found = noted("rope", |_, prim| match prim {
        Prim::Rope { interleaved, position, angles, dims, x, .. } => vec![
            format!("interleaved {interleaved}"),
            if matches!(position, Position::Host(_)) { "host" } else { "tensor" }.to_owned(),
            if matches!(angles, Angles::Base(_)) { "base" } else { "periods" }.to_owned(),
            format!("all {}", x.shape.last().is_some_and(|size| size.is(*dims as i64))),
        ],
        _ => Vec::new(),
    });
    assert_eq!(found.len(), 8, "{found:?}");
    let found = noted("attention", |_, prim| match prim {
        Prim::Attention { mask, causal, window, q, k, .. } => vec![
            format!("mask {:?}", mask.as_ref().map(|mask| mask.dtype == ptero_tensor::DType::Bool)),
            format!("causal {causal} window {}", window.is_some()),
            format!("grouped {}", q.shape[1] != k.shape[1]),
        ],
        _ => Vec::new(),
    });
    assert_eq!(found.len(), 3 + 3 + 2, "{found:?}");
    let found = noted("conv", |_, prim| match prim {
        Prim::Conv { stride, transposed, groups, .. } => {
            vec![format!("{} axes {transposed}", stride.len()), format!("groups {}", *groups > 1)]
        }
        _ => Vec::new(),
    });
    assert_eq!(found.len(), 6 + 2, "{found:?}");
    let found = noted("gated-delta", |_, prim| match prim {
        Prim::GatedDelta(rule) => vec![format!("in place {}", rule.state == rule.state_out)],
        _ => Vec::new(),
    });
    assert_eq!(found.len(), 2, "{found:?}");
}
