//! Cases of elementwise functions.

mod accuracy;

use super::data::{ALL, FLOATS, any, is_float, moderate, variants};
use super::draft::Draft;
use super::probe::{Dense, Extra, Seen};
pub(super) use accuracy::{nudged, nudges};

use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Compare, Expr, Scalar, Step, Unary};
use ptero_plan::graph::{Graph, Value};
use ptero_plan::prim::Prim;
use ptero_tensor::DType;

pub(super) fn case(draft: &mut Draft) {
    let rank = draft.rank(0);
    let shape = draft.shape(rank, 3000);
    let ins: Vec<DType> = (0..draft.rng.pick(&[0, 1, 1, 1, 1, 2, 2, 2, 3, 4])).map(|_| dtype(draft)).collect();
    let is_tame = draft.rng.one_in(2);
    let mut function = Function { draft, steps: Vec::new(), rank, is_tame };
    for (index, dtype) in ins.iter().enumerate() {
        function.push(Scalar::Load(index as u16), &[], *dtype);
    }
    let expr = function.write();
    let to = expr.steps.last().map_or(DType::F32, |step| step.dtype);
    // The result may replace one of the operands, or be in the same tensor.
    let alike = (0..ins.len()).find(|&index| ins[index] == to);
    let (mut out, mut views) = (None, Vec::new());
    for (index, &dtype) in ins.iter().enumerate() {
        let content = &if is_tame { moderate(dtype) } else { any(dtype) };
        if alike == Some(index) && draft.rng.one_in(3) {
            let (x, changed) = draft.changed(dtype, &shape, content);
            out = Some(changed);
            views.push(x);
        } else if alike == Some(index) {
            let (x, beside) = draft.operand_and_target((dtype, dtype), &shape, content);
            out = Some(beside);
            views.push(x);
        } else {
            views.push(draft.operand(dtype, &shape, content));
        }
    }
    let out = out.unwrap_or_else(|| draft.target(to, &shape));
    draft.test(Prim::Map { out, ins: views, expr });
}

fn dtype(draft: &mut Draft) -> DType {
    if draft.rng.one_in(2) { draft.rng.pick(&FLOATS) } else { draft.rng.pick(&ALL) }
}

const FLOAT_UNARY: [Unary; 31] = variants!(Unary:
    Neg Abs Sign Square Sqrt Rsqrt Reciprocal Exp Expm1 Log Log2 Log10 Log1p Sin Cos Tan Arcsin Arccos Arctan
    Sinh Cosh Tanh Arcsinh Arccosh Arctanh Erf Sigmoid Floor Ceil Round Trunc);
const INTEGER_UNARY: [Unary; 5] = variants!(Unary: Neg Abs Sign Square BitNot);
const BOOL_UNARY: [Unary; 2] = variants!(Unary: Not BitNot);

const FLOAT_BINARY: [Binary; 11] = variants!(Binary: Add Sub Mul Div FloorDiv Remainder Power Max Min Atan2 LogAddExp);
const INTEGER_BINARY: [Binary; 11] =
    variants!(Binary: Add Sub Mul FloorDiv Remainder Power Max Min BitAnd BitOr BitXor);
const BOOL_BINARY: [Binary; 7] = variants!(Binary: And Or BitAnd BitOr BitXor Max Min);
const COMPARE: [Compare; 6] = variants!(Compare: Less LessEqual Greater GreaterEqual Equal NotEqual);

/// The operations of a type.
fn operations(dtype: DType) -> (&'static [Unary], &'static [Binary]) {
    match dtype {
        DType::Bool => (&BOOL_UNARY, &BOOL_BINARY),
        dtype if is_float(dtype) => (&FLOAT_UNARY, &FLOAT_BINARY),
        _ => (&INTEGER_UNARY, &INTEGER_BINARY),
    }
}

/// Adds a step to a function, and returns its index.
pub(super) fn push(steps: &mut Vec<Step>, op: Scalar, args: &[u16], dtype: DType) -> u16 {
    let mut padded = [0; 3];
    padded[..args.len()].copy_from_slice(args);
    steps.push(Step { op, args: padded, dtype });
    steps.len() as u16 - 1
}

/// A random function that is being built.
struct Function<'a> {
    draft: &'a mut Draft,
    steps: Vec<Step>,
    rank: usize,
    /// Operands are moderate: they can be cast to integers as they are.
    is_tame: bool,
}

impl Function<'_> {
    fn push(&mut self, op: Scalar, args: &[u16], dtype: DType) -> u16 {
        push(&mut self.steps, op, args, dtype)
    }

    fn write(mut self) -> Expr {
        let count = if self.draft.rng.one_in(3) { 1 } else { 1 + self.draft.rng.below(5) };
        for _ in 0..count {
            self.operation();
        }
        // Every loaded operand is used.
        while let Some(load) = self.unused().into_iter().find(|&at| usize::from(at) + 1 < self.steps.len()) {
            let last = self.steps.len() as u16 - 1;
            let dtype = self.steps[usize::from(last)].dtype;
            let (op, load) = (self.draft.rng.pick(operations(dtype).1), self.cast(load, dtype));
            self.push(Scalar::Binary(op), &[last, load], dtype);
        }
        if self.draft.rng.one_in(3) {
            let dtype = self.draft.rng.pick(&ALL);
            self.cast(self.steps.len() as u16 - 1, dtype);
        }
        Expr { steps: self.steps }
    }

    fn operation(&mut self) {
        let dtype = match self.steps.last() {
            Some(last) if !self.draft.rng.one_in(5) => last.dtype,
            Some(_) | None => dtype(self.draft),
        };
        let (unary, binary) = operations(dtype);
        let x = self.value(dtype, &[]);
        match self.draft.rng.below(10) {
            0..4 => {
                let op = self.draft.rng.pick(unary);
                self.push(Scalar::Unary(op), &[x], dtype);
            }
            4..7 => {
                let (op, y) = (self.draft.rng.pick(binary), self.value(dtype, &[x]));
                self.push(Scalar::Binary(op), &[x, y], dtype);
            }
            7 => {
                let (op, y) = (self.draft.rng.pick(&COMPARE), self.value(dtype, &[x]));
                self.push(Scalar::Compare(op), &[x, y], DType::Bool);
            }
            8 => {
                let (y, condition) = (self.value(dtype, &[x]), self.value(DType::Bool, &[]));
                self.push(Scalar::Select, &[condition, x, y], dtype);
            }
            _ => {
                let to = self.draft.rng.pick(&ALL);
                self.cast(x, to);
            }
        }
    }

    /// The steps that nothing uses yet.
    fn unused(&self) -> Vec<u16> {
        let used: Vec<u16> = self.steps.iter().flat_map(|step| &step.args[..step.op.arity()]).copied().collect();
        (0..self.steps.len() as u16).filter(|at| !used.contains(at)).collect()
    }

    /// A step of that type, if possible none of the others: one that is not used yet, any, a constant, an index.
    fn value(&mut self, dtype: DType, others: &[u16]) -> u16 {
        let is_same = |at: &u16| self.steps[usize::from(*at)].dtype == dtype && !others.contains(at);
        let unused: Vec<u16> = self.unused().into_iter().filter(|at| !others.contains(at)).collect();
        let fitting: Vec<u16> = unused.iter().copied().filter(is_same).collect();
        let same: Vec<u16> = (0..self.steps.len() as u16).filter(is_same).collect();
        match self.draft.rng.below(8) {
            0..4 if !fitting.is_empty() => self.draft.rng.pick(&fitting),
            0..6 if !unused.is_empty() => {
                let from = self.draft.rng.pick(&unused);
                self.cast(from, dtype)
            }
            0..6 if !same.is_empty() => self.draft.rng.pick(&same),
            6 if self.rank > 0 => {
                let axis = self.draft.rng.below(self.rank) as u8;
                let index = self.draft.rng.pick(&[DType::I64, DType::I32, DType::U32]);
                let index = self.push(Scalar::Index(axis), &[], index);
                self.cast(index, dtype)
            }
            _ if is_float(dtype) && self.draft.rng.one_in(2) => {
                let value = self.draft.rng.pick(&[0.5, -1.0, 2.0, 0.0, 1e-3, 3.25, 0.1]);
                self.push(Scalar::Float(value), &[], dtype)
            }
            _ => {
                let value: Dim = self.draft.size(&[-7, -1, 0, 1, 2, 5, 100, 300]).dim;
                self.push(Scalar::Int(value), &[], dtype)
            }
        }
    }

    /// Clamps a float before it becomes an integer, because casts beyond 64 bits are not specified.
    fn cast(&mut self, mut from: u16, to: DType) -> u16 {
        let step = self.steps[usize::from(from)].clone();
        if step.dtype == to {
            return from;
        }
        let is_moderate = self.is_tame && matches!(step.op, Scalar::Load(_));
        if is_float(step.dtype) && !is_float(to) && to != DType::Bool && !is_moderate {
            if step.dtype != DType::F32 {
                from = self.push(Scalar::Cast, &[from], DType::F32);
            }
            for (bound, op) in [(-3e9, Binary::Max), (5e9, Binary::Min)] {
                let bound = self.push(Scalar::Float(bound), &[], DType::F32);
                from = self.push(Scalar::Binary(op), &[from, bound], DType::F32);
            }
        }
        self.push(Scalar::Cast, &[from], to)
    }
}

/// The function itself, and with each of its inexact steps nudged up and down.
pub(super) fn extras(graph: &Graph, out: Value, ins: &[Value], expr: &Expr) -> Vec<Extra> {
    let mut functions = vec![expr.clone()];
    for at in nudges(expr) {
        functions.extend([nudged(expr, at, 1.0), nudged(expr, at, -1.0)]);
    }
    let extra = |expr: Expr| -> Extra {
        let (ins, ty) = (ins.to_vec(), graph.ty(out));
        (ty.dtype, ty.shape.clone(), Box::new(move |out| Prim::Map { out, ins: ins.clone(), expr: expr.clone() }))
    };
    functions.into_iter().map(extra).collect()
}

/// The sum of what the nudges change, each up or down, whichever is more.
pub(super) fn slack(_: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let Some((base, nudged)) = seen.extras.split_first() else { return Vec::new() };
    vec![changes(base, nudged)]
}

/// For each element of `base`, the sum of what the nudges change, which come in pairs.
pub(super) fn changes(base: &Dense, nudged: &[Dense]) -> Vec<f64> {
    let change = |place: usize, other: f64| match base.data[place] {
        base if base == other || base.is_nan() && other.is_nan() => 0.0,
        base => Some((base - other).abs()).filter(|change| change.is_finite()).unwrap_or(f64::INFINITY),
    };
    let element = |place: usize| {
        let pairs = nudged.chunks(2);
        pairs.map(|pair| pair.iter().fold(0.0, |most: f64, other| most.max(change(place, other.data[place])))).sum()
    };
    (0..base.data.len()).map(element).collect()
}
