//! Steps in a few words and with numbers, for people who read a profile: `quant-matmul int4 [1, 576] x [576, 1536]`.

use crate::expr::{Expr, Scalar};
use crate::plan::Plan;
use crate::prim::{Epilogue, Normalize, Prim, QuantFormat, QuantMode, ViewId};
use crate::print::list;

/// Operations of an elementwise function that are named; of the others only the number is.
const NAMED: usize = 3;

impl Plan {
    /// Names a primitive and its sizes. `shape` returns the sizes of a view.
    pub fn label(&self, prim: &Prim, shape: impl Fn(ViewId) -> Vec<usize>) -> String {
        let sizes = sizes(prim, &shape);
        let named = || format!("{} {sizes}", prim.name());
        match prim {
            Prim::Map { expr, .. } => match operations(expr) {
                Some(operations) => format!("map {operations} {sizes}"),
                None => format!("copy {sizes}"),
            },
            Prim::MatMul { b, epilogue, .. } => {
                format!("matmul {} {sizes}{}", self.view(*b).dtype, then(epilogue))
            }
            Prim::QuantMatMul { w, epilogue, .. } => {
                format!("quant-matmul {} {sizes}{}", packing(w.format), then(epilogue))
            }
            Prim::Dequantize { w, .. } => format!("dequantize {} {sizes}", packing(w.format)),
            Prim::Norm { kind: Normalize::Rms, .. } => format!("norm rms {sizes}"),
            Prim::Norm { kind: Normalize::Layer, .. } => format!("norm layer {sizes}"),
            Prim::Reduce { fold, .. } => format!("reduce {} {sizes}", word(fold)),
            Prim::ArgReduce { .. } | Prim::Softmax { .. } | Prim::Rope { .. } | Prim::Attention { .. } => named(),
            Prim::Conv { .. } | Prim::Gather { .. } | Prim::Scatter { .. } | Prim::Sort { .. } => named(),
            Prim::Cumsum { .. } | Prim::GatedDelta(_) | Prim::RandomBits { .. } | Prim::Sample(_) => named(),
        }
    }
}

/// The sizes that determine what a step costs.
fn sizes(prim: &Prim, shape: &impl Fn(ViewId) -> Vec<usize>) -> String {
    let show = |view: &ViewId| brackets(without_ones(&shape(*view)));
    match prim {
        Prim::MatMul { out, a, b, lhs, rhs, .. } => product(&shape(*out), &shape(*a), &shape(*b), lhs.or(*rhs)),
        Prim::QuantMatMul { out, x, w, lhs, rhs, .. } => {
            product(&shape(*out), &shape(*x), &shape(w.codes), lhs.or(*rhs))
        }
        Prim::Attention { q, k, window, .. } => {
            let window = window.map(|window| format!(", window {window}")).unwrap_or_default();
            format!("{} over {}{window}", show(q), show(k))
        }
        Prim::Gather { out, x, .. } => format!("{} of {}", show(out), show(x)),
        Prim::Scatter { out, updates, .. } => format!("{} into {}", show(updates), show(out)),
        Prim::GatedDelta(rule) => format!("{}, state {}", show(&rule.out), show(&rule.state)),
        Prim::Conv { x, w, .. } => format!("{} with {}", show(x), show(w)),
        Prim::Sample(sample) => show(&sample.logits),
        Prim::Reduce { x, .. } | Prim::ArgReduce { x, .. } => show(x),
        Prim::Map { out, .. } | Prim::Softmax { out, .. } | Prim::Norm { out, .. } | Prim::Rope { out, .. } => {
            show(out)
        }
        Prim::Dequantize { out, .. } | Prim::Sort { out, .. } | Prim::Cumsum { out, .. } => show(out),
        Prim::RandomBits { out, .. } => show(out),
    }
}

/// `[M, K] x [K, N]`; before them the number of products if there are several, and of matrices to choose from.
fn product(out: &[usize], left: &[usize], right: &[usize], choice: Option<ViewId>) -> String {
    let last = |shape: &[usize], axis: usize| {
        shape.len().checked_sub(axis).and_then(|at| shape.get(at)).map_or(1, |size| *size)
    };
    let outer = |shape: &[usize]| shape.iter().take(shape.len().saturating_sub(2)).product::<usize>();
    let stacked = |count: usize, matrix: [usize; 2]| {
        let count = Some(count).filter(|count| *count != 1);
        brackets(&count.into_iter().chain(matrix).collect::<Vec<_>>())
    };
    let (rows, columns, depth) = (last(out, 2), last(out, 1), last(left, 1));
    let chosen = if choice.is_some() { " chosen" } else { "" };
    format!("{} x {}{chosen}", stacked(outer(out), [rows, depth]), stacked(outer(right), [depth, columns]))
}

fn brackets(sizes: &[usize]) -> String {
    format!("[{}]", list(sizes))
}

/// Sizes without ones at the start, which say nothing.
fn without_ones(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().take_while(|size| **size == 1).count();
    shape.get(ones.min(shape.len().saturating_sub(1))..).unwrap_or_default()
}

/// The type of quantized weights, by the name that people use for it.
fn packing(format: QuantFormat) -> String {
    match format {
        QuantFormat::Words { mode: QuantMode::Affine, bits, .. } => format!("int{bits}"),
        QuantFormat::Words { mode, .. } => mode.word().to_owned(),
        QuantFormat::Gguf(kind) => format!("{kind:?}"),
    }
}

fn then(epilogue: &Epilogue) -> String {
    let operations = epilogue.as_ref().and_then(|fused| operations(&fused.expr));
    operations.map(|operations| format!(", then {operations}")).unwrap_or_default()
}

/// The operations of an elementwise function, each once; `None` if it only copies.
fn operations(expr: &Expr) -> Option<String> {
    let name = |op: &Scalar| match op {
        Scalar::Load(_) | Scalar::Float(_) | Scalar::Int(_) | Scalar::Index(_) => None,
        Scalar::Cast => Some("cast".to_owned()),
        Scalar::Unary(op) => Some(word(op)),
        Scalar::Binary(op) => Some(word(op)),
        Scalar::Compare(op) => Some(word(op)),
        Scalar::Select => Some("select".to_owned()),
    };
    let mut names: Vec<String> = Vec::new();
    for name in expr.steps.iter().filter_map(|step| name(&step.op)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    // Casts are worth naming only where there is nothing else.
    if names.len() > 1 {
        names.retain(|name| name != "cast");
    }
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let more = if more > 0 { format!("+{more}") } else { String::new() };
    Some(names.join("·") + &more).filter(|names| !names.is_empty())
}

/// The name of an operation: that of its variant, without fields.
fn word(op: &impl std::fmt::Debug) -> String {
    let name = format!("{op:?}").to_lowercase();
    name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}
