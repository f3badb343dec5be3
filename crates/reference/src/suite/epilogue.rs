//! Epilogues: functions that are applied to products before they are stored.

use super::compare::{Rule, allowed, unit};
use super::data::{FLOATS, moderate};
use super::draft::Draft;
use super::map::{changes, nudged, nudges, push};
use super::probe::{Dense, Extra, Seen};
use super::views::Size;
use ptero_backend::number::{Element, Number};
use ptero_plan::expr::{Binary, Expr, Scalar, Step, Unary};
use ptero_plan::graph::{Graph, Value};
use ptero_plan::prim::{Epilogue, Fused, Prim, Tolerance};
use ptero_tensor::DType;

/// Where a product of that type goes, in one of three cases through a function.
pub(super) fn end(draft: &mut Draft, dtype: DType, shape: &[Size]) -> (Value, Epilogue<Value>) {
    if draft.rng.below(3) > 0 {
        return (draft.target(dtype, shape), None);
    }
    let to = if draft.rng.one_in(3) { draft.rng.pick(&FLOATS) } else { dtype };
    let count = draft.rng.within(1, 3) as usize;
    let others: Vec<DType> =
        (0..count).map(|_| if draft.rng.one_in(4) { draft.rng.pick(&FLOATS) } else { to }).collect();
    let within = if draft.rng.one_in(3) { DType::F32 } else { dtype };
    let expr = function(draft, dtype, &others, within, to);
    let (mut ins, mut out) = (Vec::new(), None);
    for other in others {
        let content = moderate(other);
        // The result may replace an operand, such as a residual.
        if other == to && out.is_none() && draft.rng.one_in(3) {
            let (x, changed) = draft.changed(other, shape, &content);
            out = Some(changed);
            ins.push(x);
        } else {
            ins.push(draft.operand(other, shape, &content));
        }
    }
    let out = out.unwrap_or_else(|| draft.target(to, shape));
    (out, Some(Box::new(Fused { dtype, ins, expr })))
}

/// A step that casts another, unless it has the type already.
fn cast(steps: &mut Vec<Step>, x: u16, dtype: DType) -> u16 {
    if steps[usize::from(x)].dtype == dtype { x } else { push(steps, Scalar::Cast, &[x], dtype) }
}

/// A function of a product and of others, computed in the type `within`.
fn function(draft: &mut Draft, product: DType, others: &[DType], within: DType, to: DType) -> Expr {
    let mut steps = Vec::new();
    let loaded = push(&mut steps, Scalar::Load(0), &[], product);
    let mut x = cast(&mut steps, loaded, within);
    match draft.rng.below(4) {
        0 => {
            let sigmoid = push(&mut steps, Scalar::Unary(Unary::Sigmoid), &[x], within);
            x = push(&mut steps, Scalar::Binary(Binary::Mul), &[x, sigmoid], within);
        }
        1 => {
            for (bound, op) in [(-1.5, Binary::Max), (2.0, Binary::Min)] {
                let bound = push(&mut steps, Scalar::Float(bound), &[], within);
                x = push(&mut steps, Scalar::Binary(op), &[x, bound], within);
            }
        }
        _ => {}
    }
    for (index, &other) in others.iter().enumerate() {
        let loaded = push(&mut steps, Scalar::Load(index as u16 + 1), &[], other);
        let other = cast(&mut steps, loaded, within);
        let op = draft.rng.pick(&[Binary::Add, Binary::Mul]);
        x = push(&mut steps, Scalar::Binary(op), &[x, other], within);
    }
    let last = cast(&mut steps, x, to);
    if usize::from(last) + 1 < steps.len() {
        push(&mut steps, Scalar::Cast, &[last], to);
    }
    Expr { steps }
}

fn fused(prim: &Prim<Value>) -> Option<&Fused<Value>> {
    match prim {
        Prim::MatMul { epilogue, .. } | Prim::QuantMatMul { epilogue, .. } => epilogue.as_deref(),
        _ => None,
    }
}

/// The product without its function.
pub(super) fn extras(graph: &Graph, prim: &Prim<Value>) -> Vec<Extra> {
    let Some(fused) = fused(prim) else { return Vec::new() };
    let (shape, plain) = (graph.ty(*prim.out()).shape.clone(), prim.clone());
    let product = move |product: Value| {
        let mut plain = plain.clone();
        if let Prim::MatMul { out, epilogue, .. } | Prim::QuantMatMul { out, epilogue, .. } = &mut plain {
            (*out, *epilogue) = (product, None);
        }
        plain
    };
    vec![(fused.dtype, shape, Box::new(product))]
}

/// What the tolerance is a part of, from that of the product: what the function makes of a product that is off by all that is
/// allowed, and of inexact steps of its own.
pub(super) fn slack(prim: &Prim<Value>, seen: &Seen<'_>, slack: Vec<f64>) -> Vec<f64> {
    let (Some(fused), Some(product)) = (fused(prim), seen.extras.last()) else { return slack };
    let Tolerance::Relative(part) = prim.tolerance() else { unreachable!("products have a relative tolerance") };
    let others = &seen.operands[seen.operands.len() - fused.ins.len()..];
    let mut types = vec![fused.dtype];
    types.extend(fused.ins.iter().map(|value| seen.dtype(*value)));
    let off = |index: usize| {
        let rule = Rule { tolerance: prim.tolerance(), slack: slack[index], number: index };
        allowed(rule, fused.dtype, product.data[index].abs()).max(0.0)
    };
    let apply = |expr: &Expr, by: f64| {
        let data = (0..slack.len()).map(|index| match off(index) {
            off if off.is_finite() => product.data[index] + by * off,
            _ => product.data[index],
        });
        let moved = Dense { shape: product.shape.clone(), data: data.collect() };
        evaluate(expr, &types, &[std::slice::from_ref(&moved), others].concat())
    };
    let base = apply(&fused.expr, 0.0);
    let moved = [1.0, -1.0, 0.5, -0.5].map(|by| apply(&fused.expr, by));
    let within = nudges(&fused.expr).into_iter().flat_map(|at| [1.0, -1.0].map(|by| nudged(&fused.expr, at, by)));
    let within: Vec<Dense> = within.map(|expr| apply(&expr, 0.0)).collect();
    let (moved, within) = (changes(&base, &moved), changes(&base, &within));
    let to = seen.dtype(*prim.out());
    let total = |index: usize| {
        let rounding = 2.0 * unit(to, base.data[index].abs());
        let change = moved[index] + within[index] + if moved[index] > 0.0 { rounding } else { 0.0 };
        if off(index).is_finite() { change / f64::from(part) } else { f64::INFINITY }
    };
    (0..slack.len()).map(total).collect()
}

/// A function of tensors of one shape, as the reference computes it.
fn evaluate(expr: &Expr, types: &[DType], operands: &[Dense]) -> Dense {
    let elements: Vec<Element> = types.iter().filter_map(|dtype| Element::new(*dtype).ok()).collect();
    let number = |index: usize| {
        let operands = elements.iter().zip(operands);
        let numbers: Vec<Number> =
            operands.map(|(element, operand)| element.convert(Number::Float(operand.data[index] as f32))).collect();
        crate::map::evaluate(expr, &numbers, &[], &[]).expect("a function that ran before runs again").float().into()
    };
    Dense { shape: operands[0].shape.clone(), data: (0..operands[0].data.len()).map(number).collect() }
}
