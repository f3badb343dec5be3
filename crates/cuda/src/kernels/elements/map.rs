//! Elementwise functions: `map.cu`, with a function generated for each expression.

use crate::kernels::together::{Part, part};
use crate::module::Variant;
use crate::program::MOST_AXES;
use crate::step::{Launch, Number, Step, ViewArg, tag};
use bytemuck::{Pod, Zeroable};
use ptero_backend::Fault;
use ptero_plan::bound::BoundView;
use ptero_plan::expr::{Binary, Compare, Expr, Scalar, Step as ExprStep, Unary};
use ptero_plan::prim::ViewId;
use ptero_tensor::DType;
use smallvec::SmallVec;
use std::fmt::Write;

pub(crate) static MAP: Part = part!("map", "MapArgs");

/// The most inputs of a function: `MOST_INPUTS` in map.cuh.
const MOST_INPUTS: usize = 18;
/// The most integers of the host in a function: as many as it has steps.
const MOST_NUMBERS: usize = 64;

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Operand {
    buffer: u64,
    region: u32,
    unused: u32,
    offset: Number,
    strides: [Number; MOST_AXES],
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct MapArgs {
    launch: Launch,
    out: ViewArg,
    ins: [Operand; MOST_INPUTS],
    numbers: [Number; MOST_NUMBERS],
}

const _: () = assert!(size_of::<MapArgs>() == 2264, "the layout of `MapArgs` in map.cuh");

impl From<ViewArg> for Operand {
    fn from(view: ViewArg) -> Self {
        let ViewArg { buffer, region, offset, strides, .. } = view;
        Self { buffer, region: region.into(), unused: 0, offset, strides }
    }
}

/// Threads of a block.
const THREADS: u32 = 256;

pub(crate) fn map(step: &mut Step<'_>, out: ViewId, ins: &[ViewId], expr: &Expr) -> Result<(), Fault> {
    let (to, from) = simplified(step, out, ins, expr);
    launch(step, to, &from, expr)
}

/// Applies a function to views of one shape.
pub(crate) fn launch(step: &mut Step<'_>, out: ViewArg, ins: &[ViewArg], expr: &Expr) -> Result<(), Fault> {
    let mut args = MapArgs { launch: step.launch(), out, ..MapArgs::zeroed() };
    if ins.len() > MOST_INPUTS || expr.numbers().count() > MOST_NUMBERS {
        return Err(Fault::Contract("a function has at most 18 inputs and 64 integers"));
    }
    args.ins.iter_mut().zip(ins).for_each(|(to, from)| *to = Operand::from(*from));
    args.numbers.iter_mut().zip(expr.numbers()).for_each(|(to, number)| *to = step.number(number));
    let items = step.count(&out);
    let (text, inputs) = (format!("using Point = MapPoint;\n{}", function_text(expr)), ins.len().to_string());
    let variant = Variant { defines: &[("INPUTS", &inputs), ("OUT", result_tag(expr))], generated: &text };
    step.run_part(&MAP, variant, step.grid(items, THREADS as usize, THREADS), &args);
    Ok(())
}

/// The views as the kernel gets them. Axes that are adjacent in the memory of all of them are merged, if no number of theirs
/// changes from step to step and the function does not ask for coordinates.
fn simplified(step: &Step<'_>, out: ViewId, ins: &[ViewId], expr: &Expr) -> (ViewArg, SmallVec<[ViewArg; 4]>) {
    let uses_coordinates = expr.steps.iter().any(|step| matches!(step.op, Scalar::Index(_)));
    let mut all = std::iter::once(&out).chain(ins);
    if uses_coordinates || !all.all(|view| step.is_fixed(*view)) {
        return (step.view(out), ins.iter().map(|view| step.view(*view)).collect());
    }
    let mut views: SmallVec<[BoundView; 4]> =
        std::iter::once(&out).chain(ins).map(|view| step.shape(*view).clone()).collect();
    merge_axes(&mut views);
    let mut args = views.iter().map(|view| step.view_of(view));
    let out = args.next().unwrap_or_else(ViewArg::zeroed);
    (out, args.collect())
}

/// Merges axes of views of one shape.
fn merge_axes(views: &mut [BoundView]) {
    let rank = views.first().map_or(0, |view| view.shape.len());
    for axis in (1..rank).rev() {
        let merges = |view: &BoundView| {
            view.size(axis) == 1
                || view.size(axis - 1) == 1
                || view.stride(axis - 1) == view.stride(axis) * view.size(axis).cast_signed()
        };
        if !views.iter().all(merges) {
            continue;
        }
        for view in views.iter_mut() {
            let (size, stride) = (view.size(axis), view.stride(axis));
            let outer_stride = view.stride(axis - 1);
            if let (Some(outer), Some(outer_stride_slot)) =
                (view.shape.get_mut(axis - 1), view.strides.get_mut(axis - 1))
            {
                *outer_stride_slot = if size == 1 { outer_stride } else { stride };
                *outer *= size;
            }
            view.shape.remove(axis);
            view.strides.remove(axis);
        }
    }
}

/// The tag of the type of a function's result.
fn result_tag(expr: &Expr) -> &'static str {
    expr.steps.last().map_or("F32", |step| tag(step.dtype))
}

/// A function `function` of a `Point`.
pub(crate) fn function_text(expr: &Expr) -> String {
    let mut text = String::new();
    let out = result_tag(expr);
    let mut numbers = 0;
    // Writing to a string cannot fail.
    let _ = writeln!(text, "__device__ __forceinline__ {out}::Element function(const Point &point) {{");
    for (index, step) in expr.steps.iter().enumerate() {
        let kind = if step.dtype.is_float() { "float" } else { "i64" };
        let value = value(expr, step, &mut numbers);
        let _ = writeln!(text, "    const {kind} s{index} = {value};");
    }
    let last = expr.steps.len().saturating_sub(1);
    let kind = if expr.steps.last().is_none_or(|step| step.dtype.is_float()) { "float" } else { "int" };
    let _ = writeln!(text, "    return {out}::from_{kind}(s{last});\n}}");
    text
}

/// The value of a step, rounded or wrapped to its type.
fn value(expr: &Expr, step: &ExprStep, numbers: &mut usize) -> String {
    let tag = tag(step.dtype);
    let is_float = step.dtype.is_float();
    let [a, b, c] = step.args.map(|arg| format!("s{arg}"));
    let is_float_step = |arg: u16| expr.steps.get(usize::from(arg)).is_some_and(|step| step.dtype.is_float());
    let fit = |value: String| match (is_float, step.dtype) {
        (true, DType::F32) | (false, DType::I64) => value,
        (true, _) => format!("round_to<{tag}>({value})"),
        (false, _) => format!("wrap_to<{tag}>({value})"),
    };
    // An operand of another kind, as a number of this one.
    let convert = |arg: u16, name: &str| match (is_float_step(arg), is_float) {
        (true, false) if step.dtype == DType::Bool => format!("(i64)({name} != 0.0f)"),
        (true, false) => format!("float_to_int({name})"),
        (false, true) => format!("(float){name}"),
        (true, true) | (false, false) => name.to_owned(),
    };
    let [first, second, third] = step.args;
    match &step.op {
        Scalar::Load(input) => {
            let kind = if is_float { "float" } else { "int" };
            format!("{tag}::to_{kind}(point.element<{tag}>({input}))")
        }
        Scalar::Float(number) => {
            let bits = format!("__uint_as_float({:#x}u)", number.to_bits());
            fit(if is_float { bits } else { format!("float_to_int({bits})") })
        }
        Scalar::Int(_) => {
            let at = std::mem::replace(numbers, *numbers + 1);
            fit(format!("{}point.number({at})", if is_float { "(float)" } else { "" }))
        }
        Scalar::Index(axis) => fit(format!("{}point.coordinates[{axis}]", if is_float { "(float)" } else { "" })),
        Scalar::Cast => fit(convert(first, &a)),
        Scalar::Unary(op) => fit(unary(*op, step.dtype, &convert(first, &a))),
        Scalar::Binary(op) => fit(binary(*op, is_float, &convert(first, &a), &convert(second, &b))),
        Scalar::Compare(op) => {
            // Two of one type; a comparison with a float is one of floats.
            let mixed = is_float_step(first) != is_float_step(second);
            let side = |arg: u16, name: &str| {
                if mixed && !is_float_step(arg) { format!("(float){name}") } else { name.to_owned() }
            };
            fit(format!("(i64)({} {} {})", side(first, &a), comparison(*op), side(second, &b)))
        }
        Scalar::Select => fit(format!("({a} != 0 ? {} : {})", convert(second, &b), convert(third, &c))),
    }
}

fn comparison(op: Compare) -> &'static str {
    match op {
        Compare::Less => "<",
        Compare::LessEqual => "<=",
        Compare::Greater => ">",
        Compare::GreaterEqual => ">=",
        Compare::Equal => "==",
        Compare::NotEqual => "!=",
    }
}

fn unary(op: Unary, dtype: DType, x: &str) -> String {
    let prefix = if dtype.is_float() { "f" } else { "i" };
    let name = match op {
        Unary::Not => return format!("(i64)({x} == 0)"),
        Unary::BitNot if dtype == DType::Bool => return format!("(i64)({x} == 0)"),
        Unary::BitNot => "bit_not",
        Unary::Neg => "neg",
        Unary::Abs => "abs",
        Unary::Sign => "sign",
        Unary::Square => "square",
        Unary::Sqrt => "sqrt",
        Unary::Rsqrt => "rsqrt",
        Unary::Reciprocal => "reciprocal",
        Unary::Exp => "exp",
        Unary::Expm1 => "expm1",
        Unary::Log => "log",
        Unary::Log2 => "log2",
        Unary::Log10 => "log10",
        Unary::Log1p => "log1p",
        Unary::Sin => "sin",
        Unary::Cos => "cos",
        Unary::Tan => "tan",
        Unary::Arcsin => "arcsin",
        Unary::Arccos => "arccos",
        Unary::Arctan => "arctan",
        Unary::Sinh => "sinh",
        Unary::Cosh => "cosh",
        Unary::Tanh => "tanh",
        Unary::Arcsinh => "arcsinh",
        Unary::Arccosh => "arccosh",
        Unary::Arctanh => "arctanh",
        Unary::Erf => "erf",
        Unary::Sigmoid => "sigmoid",
        Unary::Floor => "floor",
        Unary::Ceil => "ceil",
        Unary::Round => "round",
        Unary::Trunc => "trunc",
    };
    format!("{prefix}_{name}({x})")
}

fn binary(op: Binary, is_float: bool, a: &str, b: &str) -> String {
    let prefix = if is_float { "f" } else { "i" };
    let name = match op {
        Binary::And => return format!("(i64)({a} != 0 && {b} != 0)"),
        Binary::Or => return format!("(i64)({a} != 0 || {b} != 0)"),
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        Binary::Div => "div",
        Binary::FloorDiv => "floor_div",
        Binary::Remainder => "remainder",
        Binary::Power => "power",
        Binary::Max => "max",
        Binary::Min => "min",
        Binary::Atan2 => "atan2",
        Binary::LogAddExp => "log_add_exp",
        Binary::BitAnd => "bit_and",
        Binary::BitOr => "bit_or",
        Binary::BitXor => "bit_xor",
    };
    format!("{prefix}_{name}({a}, {b})")
}
