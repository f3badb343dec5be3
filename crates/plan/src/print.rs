//! Plans as text: one line per step, with the instruction it came from.

use crate::error::Shape;
use crate::expr::{Expr, Scalar, Step};
use crate::passes::Uses;
use crate::plan::{Block, BufferKind, Check, HostOp, Input, Output, Plan, PlanStep};
use crate::prim::{Buf, Prim, QuantFormat, View};
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
    /// The result as a formula of the inputs `x0`, `x1`, …; a cast is written as its type. A long function is written
    /// step by step, since parts that are used twice would be written twice.
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

/// Steps from which a function is written step by step.
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
        let (name, count) = match &step.op {
            Scalar::Load(input) => return write!(f, "x{input}"),
            Scalar::Float(value) => return write!(f, "{value:?}"),
            Scalar::Int(value) => return write!(f, "{value}"),
            Scalar::Index(axis) => return write!(f, "i{axis}"),
            Scalar::Cast => (step.dtype.name().to_owned(), 1),
            Scalar::Unary(op) => (format!("{op:?}").to_lowercase(), 1),
            Scalar::Binary(op) => (format!("{op:?}").to_lowercase(), 2),
            Scalar::Compare(op) => (format!("{op:?}").to_lowercase(), 2),
            Scalar::Select => ("select".to_owned(), 3),
        };
        write!(f, "{name}(")?;
        for (index, arg) in step.args.iter().take(count).enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            show(f, *arg)?;
        }
        f.write_str(")")
    }
}

/// What the views are that a sampler reads.
const SAMPLE: &[&str] = &["", "temperature ", "top_k ", "top_p ", "seed "];

impl fmt::Display for Prim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, view) in self.writes().into_iter().enumerate() {
            write!(f, "{}{view}", if index == 0 { "" } else { ", " })?;
        }
        write!(f, " = {}(", self.name())?;
        for (index, view) in self.reads().into_iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            // Views that only their order would tell apart.
            let labels = if let Prim::Sample(_) = self { SAMPLE } else { &[] };
            write!(f, "{}{view}", labels.get(index).unwrap_or(&""))?;
        }
        f.write_str(")")?;
        match self {
            Prim::Map { expr, .. } => write!(f, " {{ {expr} }}"),
            Prim::Reduce { axes, fold, .. } => write!(f, " {fold:?} over {axes:?}"),
            Prim::ArgReduce { axis, largest, .. } => write!(f, " {} over {axis}", if *largest { "max" } else { "min" }),
            Prim::Softmax { axis, .. } => write!(f, " over {axis}"),
            Prim::Sort { axis, indices, .. } => write!(f, " over {axis}{}", if *indices { ", places" } else { "" }),
            Prim::Cumsum { axis, reverse, inclusive, .. } => {
                write!(f, " over {axis}, reverse {reverse}, inclusive {inclusive}")
            }
            Prim::Norm { kind, eps, .. } => write!(f, " {kind:?}, eps {eps:?}"),
            Prim::Rope { dims, interleaved, scale, .. } => {
                write!(f, " dims {dims}, interleaved {interleaved}, scale {scale:?}")
            }
            Prim::Attention { causal, window, scale, .. } => {
                let window = window.map(|window| format!(", window {window}")).unwrap_or_default();
                write!(f, " causal {causal}{window}, scale {scale:?}")
            }
            Prim::QuantMatMul { w, .. } | Prim::Dequantize { w, .. } => match w.format {
                QuantFormat::Words { mode, bits, group } => {
                    write!(f, " {} {bits} bits, groups of {group}", mode.word())
                }
                QuantFormat::Gguf(kind) => write!(f, " {kind:?}"),
            },
            Prim::Conv { stride, padding, dilation, groups, transposed, .. } => write!(
                f,
                " stride {stride:?}, padding {padding:?}, dilation {dilation:?}, groups {groups}, transposed {transposed}"
            ),
            Prim::RandomBits { seed, .. } => match seed {
                Some(seed) => write!(f, " seed {seed}"),
                None => Ok(()),
            },
            Prim::Scatter { add, .. } => write!(f, "{}", if *add { " add" } else { "" }),
            Prim::MatMul { .. } | Prim::Gather { .. } | Prim::GatedDelta(_) | Prim::Sample(_) => Ok(()),
        }
    }
}

impl fmt::Display for HostOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostOp::Item(view) => write!(f, "item({view})"),
            HostOp::Copy(value) => write!(f, "{value}"),
            HostOp::FloorDiv(a, b) => write!(f, "floor(({a}) / ({b}))"),
            HostOp::Mod(a, b) => write!(f, "({a}) mod ({b})"),
            HostOp::Min(a, b) => write!(f, "min({a}, {b})"),
            HostOp::Max(a, b) => write!(f, "max({a}, {b})"),
            HostOp::Clamp(a, b) => write!(f, "clamp({a}, {b})"),
            HostOp::ClampBackward(a, b) => write!(f, "clamp_backward({a}, {b})"),
        }
    }
}

impl fmt::Display for PlanStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanStep::Device(prim) => write!(f, "{prim}"),
            PlanStep::Host { out, op } => write!(f, "h{} = {op}", out.0),
            PlanStep::Check(Check::Equal(a, b, what)) => write!(f, "check {a} == {b}: {what}"),
            PlanStep::Check(Check::Within { value, low, high, what }) => {
                write!(f, "check {low} <= {value} <= {high}: {what}")
            }
            PlanStep::If { condition, then, otherwise } => {
                write!(f, "if {condition}: block {then}, else block {otherwise}")
            }
            PlanStep::Loop { index, count, body } => write!(f, "for h{} below {count}: block {body}", index.0),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "buffers")?;
        let uses = Uses::of(self);
        for (index, buffer) in self.buffers.iter().enumerate() {
            let buf = Buf(u32::try_from(index).unwrap_or(u32::MAX));
            // What passes left behind gets no memory.
            if matches!(buffer.kind, BufferKind::Temporary) && uses.reads(buf) + uses.writes(buf) == 0 {
                continue;
            }
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
        for (index, block) in self.blocks.iter().enumerate() {
            let role = match (index == self.main, Some(index) == self.init) {
                (true, _) => ", runs at every call",
                (false, true) => ", runs once at load",
                (false, false) => "",
            };
            writeln!(f, "block {index}{role}")?;
            write!(f, "{block}")?;
        }
        for (index, output) in self.outputs.iter().enumerate() {
            match output {
                Output::Tensor(view) => writeln!(f, "output {index}: {view}")?,
                Output::Int(value) => writeln!(f, "output {index}: {value}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (step, (chain, index)) in self.steps.iter().zip(&self.origin) {
            writeln!(f, "  {:8} {step}", format!("{chain}.{index}"))?;
        }
        Ok(())
    }
}
