//! Primitives and plans as text: one line per step, with the instruction it came from.

use crate::error::Shape;
use crate::expr::{Expr, Scalar, Step};
use crate::host::{Check, HostOp};
use crate::plan::{Block, BufferKind, Input, Output, Plan, PlanStep};
use crate::prim::{Prim, QuantFormat, Sample, View, ViewId};
use std::fmt;

impl fmt::Display for View {
    /// `b3 f32[2, h0]`, with offset and strides where they are not those of a whole row-major buffer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{} {}{}", self.buf.0, self.dtype, Shape(self.shape.clone()))?;
        if !self.offset.is(0) {
            write!(f, "+{}", self.offset)?;
        }
        if self.is_row_major() { Ok(()) } else { write!(f, "/{}", Shape(self.strides.clone())) }
    }
}

impl fmt::Display for Expr {
    /// The result as a formula of the inputs `x0`, `x1`, …; a cast is written as its type. A long function is written step by
    /// step, since a formula repeats steps that are used twice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((last, steps)) = self.steps.split_last() else { return Ok(()) };
        if steps.len() < LONG {
            return self.formula(f, last, &|f, arg| self.nested(f, arg));
        }
        for (index, step) in self.steps.iter().enumerate() {
            write!(f, "{}%{index} = ", if index == 0 { "" } else { "; " })?;
            self.formula(f, step, &|f, arg| write!(f, "%{arg}"))?;
        }
        Ok(())
    }
}

/// From this many steps, a function is written step by step.
const LONG: usize = 16;

type ShowArg<'a> = &'a dyn Fn(&mut fmt::Formatter<'_>, u16) -> fmt::Result;

impl Expr {
    fn nested(&self, f: &mut fmt::Formatter<'_>, arg: u16) -> fmt::Result {
        match self.steps.get(usize::from(arg)) {
            Some(step) => self.formula(f, step, &|f, arg| self.nested(f, arg)),
            None => f.write_str("?"),
        }
    }

    fn formula(&self, f: &mut fmt::Formatter<'_>, step: &Step, show: ShowArg<'_>) -> fmt::Result {
        let name = match &step.op {
            Scalar::Load(input) => return write!(f, "x{input}"),
            Scalar::Float(value) => return write!(f, "{value:?}"),
            Scalar::Int(value) => return write!(f, "{value}"),
            Scalar::Index(axis) => return write!(f, "i{axis}"),
            Scalar::Cast => step.dtype.name().to_owned(),
            Scalar::Unary(op) => format!("{op:?}").to_lowercase(),
            Scalar::Binary(op) => format!("{op:?}").to_lowercase(),
            Scalar::Compare(op) => format!("{op:?}").to_lowercase(),
            Scalar::Select => "select".to_owned(),
        };
        write!(f, "{name}(")?;
        for (index, arg) in step.args.iter().take(step.op.arity()).enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            show(f, *arg)?;
        }
        f.write_str(")")
    }
}

pub(crate) fn list(items: impl IntoIterator<Item = impl ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// Labels of the tensors that a sampler reads.
fn sample_labels<T>(sample: &Sample<T>) -> Vec<&'static str> {
    let mut labels = vec!["", "temperature ", "top_k ", "top_p ", "min_p "];
    labels.extend(sample.seed.is_some().then_some("seed "));
    labels.extend(sample.exact_tail.is_some().then_some("exact_tail "));
    if sample.adjust.is_some() {
        labels.extend(["history ", "last ", "prompt_end ", "repetition ", "presence ", "frequency "]);
        labels.extend(["bias_tokens ", "bias_values ", "mask "]);
    }
    labels.extend(sample.log_probabilities.is_some().then_some("log_probabilities "));
    labels
}

/// A primitive without its results: `softmax(v3) over 1`.
pub(crate) fn show_prim<T: Copy>(prim: &Prim<T>, show: &dyn Fn(&T) -> String) -> String {
    let labels = if let Prim::Sample(sample) = prim { sample_labels(sample) } else { Vec::new() };
    let label = |index: usize| labels.get(index).copied().unwrap_or_default();
    let reads =
        prim.reads().into_iter().enumerate().map(|(index, tensor)| format!("{}{}", label(index), show(&tensor)));
    format!("{}({}){}", prim.name(), list(reads), settings(prim))
}

/// The settings of a primitive.
fn settings<T>(prim: &Prim<T>) -> String {
    let quantized = |format: &QuantFormat| match format {
        QuantFormat::Words { mode, bits, group } => format!(" {} {bits} bits, groups of {group}", mode.word()),
        QuantFormat::Gguf(kind) => format!(" {kind:?}"),
    };
    let fused = |epilogue: &crate::prim::Epilogue<T>| match epilogue {
        Some(fused) => format!(", then {{ {} }}", fused.expr),
        None => String::new(),
    };
    match prim {
        Prim::Map { expr, .. } => format!(" {{ {expr} }}"),
        Prim::Reduce { axes, fold, .. } => format!(" {fold:?} over {axes:?}"),
        Prim::ArgReduce { axis, largest, .. } => format!(" {} over {axis}", if *largest { "max" } else { "min" }),
        Prim::Softmax { axis, .. } => format!(" over {axis}"),
        Prim::Sort { axis, indices, .. } => format!(" over {axis}{}", if *indices { ", indices" } else { "" }),
        Prim::Cumsum { axis, reverse, inclusive, .. } => {
            format!(" over {axis}, reverse {reverse}, inclusive {inclusive}")
        }
        Prim::Norm { kind, eps, .. } => format!(" {kind:?}, eps {eps:?}"),
        Prim::Rope { dims, interleaved, scale, .. } => {
            format!(" dims {dims}, interleaved {interleaved}, scale {scale:?}")
        }
        Prim::Attention { first, causal, window, scale, .. } => {
            let first = if first.is(0) { String::new() } else { format!(" from {first},") };
            let window = window.map(|window| format!(", window {window}")).unwrap_or_default();
            format!("{first} causal {causal}{window}, scale {scale:?}")
        }
        Prim::MatMul { epilogue, .. } => fused(epilogue),
        Prim::QuantMatMul { w, transpose, epilogue, .. } => {
            quantized(&w.format) + if *transpose { "" } else { ", not transposed" } + &fused(epilogue)
        }
        Prim::Dequantize { w, .. } => quantized(&w.format),
        Prim::Conv { stride, padding, dilation, groups, transposed, .. } => format!(
            " stride {stride:?}, padding {padding:?}, dilation {dilation:?}, groups {groups}, transposed {transposed}"
        ),
        Prim::RandomBits { seed, .. } => seed.as_ref().map(|seed| format!(" seed {seed}")).unwrap_or_default(),
        Prim::Scatter { add, .. } => if *add { " add" } else { "" }.to_owned(),
        Prim::Gather { .. } | Prim::GatedDelta(_) | Prim::Sample(_) => String::new(),
    }
}

impl fmt::Display for HostOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostOp::Given { most: Some(most) } => write!(f, "given, at most {most}"),
            HostOp::Given { most: None } => f.write_str("given"),
            HostOp::Element { input, at } => write!(f, "input {input}[{at}]"),
            HostOp::Item(value) => write!(f, "item({value})"),
            HostOp::Index { count } => write!(f, "index below {count}"),
            HostOp::SessionInt(number) => write!(f, "k{number}"),
            HostOp::Binary(op, a, b) => write!(f, "{}({a}, {b})", op.name()),
            HostOp::Chosen(condition, then, otherwise) => write!(f, "if {condition}: {then}, else {otherwise}"),
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Check::Equal(a, b, what) => write!(f, "check {a} == {b}: {what}"),
            Check::Within { value, low, high, what } => write!(f, "check {low} <= {value} <= {high}: {what}"),
            Check::NotZero(value) => write!(f, "check {value} != 0: a divisor"),
        }
    }
}

impl Plan {
    fn show_block(&self, f: &mut fmt::Formatter<'_>, block: &Block) -> fmt::Result {
        for (step, (chain, index)) in block.steps.iter().zip(&block.origin) {
            writeln!(f, "  {:8} {}", format!("{chain}.{index}"), self.show_step(step))?;
        }
        Ok(())
    }

    fn show_step(&self, step: &PlanStep) -> String {
        match step {
            PlanStep::Device(prim) => {
                let show = |view: &ViewId| self.view(*view).to_string();
                format!("{} = {}", list(prim.writes().into_iter().map(show)), show_prim(prim, &show))
            }
            PlanStep::Host(var) => format!("h{} = {}", var.0, list(self.host.get(var.0 as usize))),
            PlanStep::Item(var, view) => format!("h{} = item({})", var.0, self.view(*view)),
            PlanStep::Check(check) => check.to_string(),
            PlanStep::If { condition, then, otherwise } => {
                format!("if {condition}: block {then}, else block {otherwise}")
            }
            PlanStep::Loop { index, count, body } => format!("for h{} below {count}: block {body}", index.0),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "buffers")?;
        for (index, buffer) in self.buffers.iter().enumerate() {
            let kind = match &buffer.kind {
                BufferKind::Constant(_) => "constant".to_owned(),
                BufferKind::Derived => "derived".to_owned(),
                BufferKind::Input(input) => format!("input {input}"),
                BufferKind::State => "state".to_owned(),
                BufferKind::Temporary => "temporary".to_owned(),
            };
            writeln!(f, "  b{index:<4} {:5} {:12} {kind}", buffer.dtype, buffer.elements.to_string())?;
        }
        for (index, input) in self.inputs.iter().enumerate() {
            match input {
                Input::Tensor { buf, dtype, shape } => {
                    writeln!(f, "input {index}: b{} {dtype}{}", buf.0, Shape(shape.clone()))?;
                }
                Input::Int(var) => writeln!(f, "input {index}: h{}", var.0)?,
            }
        }
        writeln!(f, "before every call")?;
        self.show_block(f, &self.advance)?;
        for (index, block) in self.blocks.iter().enumerate() {
            let role = match (index == self.main, Some(index) == self.init) {
                (true, _) => ", runs at every call",
                (false, true) => ", runs once at load",
                (false, false) => "",
            };
            writeln!(f, "block {index}{role}")?;
            self.show_block(f, block)?;
        }
        for (index, output) in self.outputs.iter().enumerate() {
            match output {
                Output::Tensor(view) => writeln!(f, "output {index}: {}", self.view(*view))?,
                Output::Int(value) => writeln!(f, "output {index}: {value}")?,
            }
        }
        Ok(())
    }
}
