//! A function, compiled: every step knows its registers.

use crate::element::is_float;
use crate::simd::Isa;
use crate::simd::numeric::{convert, each, float, int};
use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Compare, Expr, Scalar, Step, Unary};
use ptero_tensor::DType;

/// A register: a place in the bank of floats or in that of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Float(usize),
    Int(usize),
}

/// What a step does. Operands are registers of floats (`f`) or of integers (`i`).
#[derive(Clone, Debug)]
enum Op {
    Load(usize),
    Float(f32),
    Int(Dim),
    Index(usize),
    FloatOfInt(usize),
    IntOfFloat(usize),
    TruthOfFloat(usize),
    Copy(usize),
    Unary(Unary, usize),
    Binary(Binary, [usize; 2]),
    CompareFloats(Compare, [usize; 2]),
    CompareInts(Compare, [usize; 2]),
    /// The first is a register of integers.
    Select([usize; 3]),
}

#[derive(Clone, Debug)]
struct Compiled {
    op: Op,
    to: Register,
    /// The type that the result is rounded or wrapped to, if it may not be of that type already.
    fit: Option<DType>,
}

/// A function that is ready to run over chunks.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// What is the same for every chunk, computed once per task.
    constants: Vec<Compiled>,
    steps: Vec<Compiled>,
    pub(crate) result: Register,
    /// The axes of the output whose coordinates are asked for.
    pub(super) axes: Vec<usize>,
    floats: usize,
    ints: usize,
}

/// Where a chunk gets what is not in registers.
pub(crate) trait Chunk {
    fn load_floats(&self, input: usize, to: &mut [f32]);
    fn load_ints(&self, input: usize, to: &mut [i64]);
    fn coordinates(&self, axis: usize, to: &mut [i64]);
}

impl Function {
    pub(crate) fn new(expr: &Expr) -> Self {
        let mut compiler = Compiler::new(expr);
        for (at, step) in expr.steps.iter().enumerate() {
            compiler.step(at, step);
        }
        let result = compiler.held.last().copied().unwrap_or(Register::Float(0));
        let axis = |step: &Step| if let Scalar::Index(axis) = step.op { Some(usize::from(axis)) } else { None };
        let axes = expr.steps.iter().filter_map(axis).collect();
        let (floats, ints) = (compiler.floats.count, compiler.ints.count);
        let (constants, steps) =
            compiler.done.into_iter().partition(|step| matches!(step.op, Op::Float(_) | Op::Int(_)));
        Self { constants, steps, result, axes, floats, ints }
    }

    /// Readies the registers of a task.
    pub(crate) fn start(&self, isa: Isa, values: &[i64], registers: &mut Registers) {
        registers.floats.resize_with(self.floats.max(registers.floats.len()), || vec![0.0; super::CHUNK]);
        registers.ints.resize_with(self.ints.max(registers.ints.len()), || vec![0; super::CHUNK]);
        for step in &self.constants {
            step.run(isa, values, super::CHUNK, &Nothing, registers);
        }
    }

    /// Runs the steps over a chunk of `length` elements.
    pub(crate) fn run(&self, isa: Isa, values: &[i64], length: usize, chunk: &impl Chunk, registers: &mut Registers) {
        for step in &self.steps {
            step.run(isa, values, length, chunk, registers);
        }
    }
}

/// Constants load nothing.
struct Nothing;

impl Chunk for Nothing {
    fn load_floats(&self, _: usize, _: &mut [f32]) {}
    fn load_ints(&self, _: usize, _: &mut [i64]) {}
    fn coordinates(&self, _: usize, _: &mut [i64]) {}
}

/// The registers of a thread. They stay allocated.
#[derive(Debug, Default)]
pub struct Registers {
    floats: Vec<Vec<f32>>,
    ints: Vec<Vec<i64>>,
}

impl Registers {
    pub(crate) fn float(&self, register: usize, length: usize) -> &[f32] {
        self.floats.get(register).and_then(|register| register.get(..length)).unwrap_or_default()
    }

    pub(super) fn int(&self, register: usize, length: usize) -> &[i64] {
        self.ints.get(register).and_then(|register| register.get(..length)).unwrap_or_default()
    }
}

impl Compiled {
    fn run(&self, isa: Isa, values: &[i64], length: usize, chunk: &impl Chunk, registers: &mut Registers) {
        // The result's register is none of the operands': it is taken out while they are borrowed.
        match self.to {
            Register::Float(to) => {
                let Some(mut register) = registers.floats.get_mut(to).map(std::mem::take) else { return };
                self.floats(isa, values, chunk, registers, register.get_mut(..length).unwrap_or_default());
                registers.floats.iter_mut().skip(to).take(1).for_each(|place| *place = std::mem::take(&mut register));
            }
            Register::Int(to) => {
                let Some(mut register) = registers.ints.get_mut(to).map(std::mem::take) else { return };
                self.ints(isa, values, chunk, registers, register.get_mut(..length).unwrap_or_default());
                registers.ints.iter_mut().skip(to).take(1).for_each(|place| *place = std::mem::take(&mut register));
            }
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "rounds to nearest, as a cast must")]
    fn floats(&self, isa: Isa, values: &[i64], chunk: &impl Chunk, registers: &Registers, to: &mut [f32]) {
        let f = |register: usize| registers.float(register, to.len());
        let i = |register: usize| registers.int(register, to.len());
        match &self.op {
            Op::Load(input) => chunk.load_floats(*input, to),
            Op::Float(value) => to.fill(*value),
            Op::Int(dim) => to.fill(dim.eval(values) as f32),
            Op::FloatOfInt(x) => float::from_ints(isa, i(*x), to),
            Op::Copy(x) => to.copy_from_slice(f(*x)),
            Op::Unary(op, x) => float::unary(isa, *op, f(*x), to),
            Op::Binary(op, [a, b]) => float::binary(isa, *op, f(*a), f(*b), to),
            Op::Select([condition, yes, no]) => each::select(isa, i(*condition), f(*yes), f(*no), to),
            // These give integers.
            Op::Index(_) | Op::IntOfFloat(_) | Op::TruthOfFloat(_) | Op::CompareFloats(..) | Op::CompareInts(..) => {}
        }
        match self.fit {
            Some(DType::F16) => convert::round_f16(isa, to),
            Some(DType::Bf16) => convert::round_bf16(isa, to),
            _ => {}
        }
    }

    fn ints(&self, isa: Isa, values: &[i64], chunk: &impl Chunk, registers: &Registers, to: &mut [i64]) {
        let f = |register: usize| registers.float(register, to.len());
        let i = |register: usize| registers.int(register, to.len());
        match &self.op {
            Op::Load(input) => chunk.load_ints(*input, to),
            Op::Int(dim) => to.fill(dim.eval(values)),
            Op::Index(axis) => chunk.coordinates(*axis, to),
            Op::IntOfFloat(x) => int::from_floats(isa, f(*x), to),
            Op::TruthOfFloat(x) => int::are_true(isa, f(*x), to),
            Op::Copy(x) => to.copy_from_slice(i(*x)),
            Op::Unary(op, x) => int::unary(isa, *op, i(*x), to),
            Op::Binary(op, [a, b]) => int::binary(isa, *op, i(*a), i(*b), to),
            Op::CompareFloats(op, [a, b]) => each::compare(isa, *op, f(*a), f(*b), to),
            Op::CompareInts(op, [a, b]) => each::compare(isa, *op, i(*a), i(*b), to),
            Op::Select([condition, yes, no]) => each::select(isa, i(*condition), i(*yes), i(*no), to),
            // These give floats.
            Op::Float(_) | Op::FloatOfInt(_) => {}
        }
        if let Some(dtype) = self.fit {
            int::wrap(isa, dtype, to);
        }
    }
}

/// Registers of one bank that nobody holds.
#[derive(Default)]
struct Bank {
    free: Vec<usize>,
    count: usize,
}

impl Bank {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }
}

struct Compiler<'a> {
    expr: &'a Expr,
    /// By step of the function: the last step that reads it.
    last_use: Vec<usize>,
    /// By step: its register.
    held: Vec<Register>,
    /// The registers of constants that are still to come, the last first.
    constants: Vec<Register>,
    floats: Bank,
    ints: Bank,
    done: Vec<Compiled>,
}

impl<'a> Compiler<'a> {
    fn new(expr: &'a Expr) -> Self {
        let mut last_use = vec![0; expr.steps.len()];
        for (at, step) in expr.steps.iter().enumerate() {
            for &arg in step.args.iter().take(operands(&step.op)) {
                last_use.iter_mut().skip(arg.into()).take(1).for_each(|last| *last = at);
            }
        }
        // The result is read when all is done, and constants by every chunk.
        for (last, step) in last_use.iter_mut().zip(&expr.steps) {
            if matches!(step.op, Scalar::Float(_) | Scalar::Int(_)) {
                *last = usize::MAX;
            }
        }
        last_use.iter_mut().next_back().into_iter().for_each(|last| *last = usize::MAX);
        let (held, done) = (Vec::new(), Vec::new());
        let (mut floats, mut ints) = (Bank::default(), Bank::default());
        // Constants are there before the first step: their registers were never another's.
        let is_constant = |step: &&Step| matches!(step.op, Scalar::Float(_) | Scalar::Int(_));
        let mut constants: Vec<Register> = expr
            .steps
            .iter()
            .filter(is_constant)
            .map(|step| if is_float(step.dtype) { Register::Float(floats.take()) } else { Register::Int(ints.take()) })
            .collect();
        constants.reverse();
        Self { expr, last_use, held, constants, floats, ints, done }
    }

    fn step(&mut self, at: usize, step: &Step) {
        let is_float = is_float(step.dtype);
        let mut lent = Vec::new();
        let args = step.args.map(usize::from);
        let (op, fits) = match &step.op {
            Scalar::Load(input) => (Op::Load(usize::from(*input)), true),
            Scalar::Float(value) if is_float => (Op::Float(*value), false),
            #[allow(clippy::cast_possible_truncation, reason = "a cast truncates")]
            Scalar::Float(value) if step.dtype == DType::Bool => (Op::Int(Dim::fixed((*value != 0.0).into())), true),
            #[allow(clippy::cast_possible_truncation, reason = "a cast truncates")]
            Scalar::Float(value) => (Op::Int(Dim::fixed(*value as i64)), false),
            Scalar::Int(dim) => (Op::Int(dim.clone()), false),
            Scalar::Index(axis) if is_float => {
                let index = self.emit_temporary(Op::Index(usize::from(*axis)), None, &mut lent);
                (Op::FloatOfInt(index), false)
            }
            Scalar::Index(axis) => (Op::Index(usize::from(*axis)), false),
            Scalar::Cast if step.dtype == DType::Bool => match self.register(args[0]) {
                Register::Float(x) => (Op::TruthOfFloat(x), true),
                Register::Int(x) => (Op::Copy(x), false),
            },
            Scalar::Cast => (Op::Copy(self.operand(args[0], is_float, &mut lent)), false),
            Scalar::Unary(op) => {
                let op = if *op == Unary::BitNot && step.dtype == DType::Bool { Unary::Not } else { *op };
                (Op::Unary(op, self.operand(args[0], is_float, &mut lent)), false)
            }
            Scalar::Binary(op) => {
                let operands = [args[0], args[1]].map(|arg| self.operand(arg, is_float, &mut lent));
                (Op::Binary(*op, operands), false)
            }
            Scalar::Compare(op) => {
                let are_ints = [args[0], args[1]].iter().all(|&arg| matches!(self.register(arg), Register::Int(_)));
                let operands = [args[0], args[1]].map(|arg| self.operand(arg, !are_ints, &mut lent));
                (if are_ints { Op::CompareInts(*op, operands) } else { Op::CompareFloats(*op, operands) }, true)
            }
            Scalar::Select => {
                let condition = self.truth(args[0], &mut lent);
                let (yes, no) =
                    (self.operand(args[1], is_float, &mut lent), self.operand(args[2], is_float, &mut lent));
                (Op::Select([condition, yes, no]), false)
            }
        };
        let (op, is_float) = match op {
            // A comparison gives integers, whatever the step's type.
            op @ (Op::CompareFloats(..) | Op::CompareInts(..)) if is_float => {
                let truth = self.emit_temporary(op, None, &mut lent);
                (Op::FloatOfInt(truth), true)
            }
            op => (op, is_float),
        };
        let reserved = if matches!(op, Op::Float(_) | Op::Int(_)) { self.constants.pop() } else { None };
        let to = reserved.unwrap_or_else(|| {
            if is_float { Register::Float(self.floats.take()) } else { Register::Int(self.ints.take()) }
        });
        self.done.push(Compiled { op, to, fit: (!fits).then_some(step.dtype) });
        self.held.push(to);
        lent.into_iter().for_each(|register| self.give_back(register));
        self.release(at);
    }

    /// The register that holds the result of a step.
    fn register(&self, step: usize) -> Register {
        self.held.get(step).copied().unwrap_or(Register::Int(0))
    }

    /// The operand in the bank where it is wanted.
    fn operand(&mut self, step: usize, is_float: bool, lent: &mut Vec<Register>) -> usize {
        match (self.register(step), is_float) {
            (Register::Float(x), true) | (Register::Int(x), false) => x,
            (Register::Int(x), true) => {
                let to = self.floats.take();
                self.done.push(Compiled { op: Op::FloatOfInt(x), to: Register::Float(to), fit: None });
                lent.push(Register::Float(to));
                to
            }
            (Register::Float(x), false) => self.emit_temporary(Op::IntOfFloat(x), None, lent),
        }
    }

    fn truth(&mut self, step: usize, lent: &mut Vec<Register>) -> usize {
        match self.register(step) {
            Register::Int(x) => x,
            Register::Float(x) => self.emit_temporary(Op::TruthOfFloat(x), None, lent),
        }
    }

    /// A step of our own that gives integers, whose register is given back after the next one.
    fn emit_temporary(&mut self, op: Op, fit: Option<DType>, lent: &mut Vec<Register>) -> usize {
        let to = self.ints.take();
        self.done.push(Compiled { op, to: Register::Int(to), fit });
        lent.push(Register::Int(to));
        to
    }

    fn give_back(&mut self, register: Register) {
        match register {
            Register::Float(x) => self.floats.free.push(x),
            Register::Int(x) => self.ints.free.push(x),
        }
    }

    /// Gives back the registers that step `at` was the last to read.
    fn release(&mut self, at: usize) {
        let Some(step) = self.expr.steps.get(at) else { return };
        let mut args: Vec<usize> = step.args.iter().take(operands(&step.op)).map(|&arg| arg.into()).collect();
        args.sort_unstable();
        args.dedup();
        for arg in args {
            if self.last_use.get(arg) == Some(&at) {
                self.give_back(self.register(arg));
            }
        }
    }
}

/// How many operands an operation takes.
fn operands(op: &Scalar) -> usize {
    match op {
        Scalar::Load(_) | Scalar::Float(_) | Scalar::Int(_) | Scalar::Index(_) => 0,
        Scalar::Cast | Scalar::Unary(_) => 1,
        Scalar::Binary(_) | Scalar::Compare(_) => 2,
        Scalar::Select => 3,
    }
}
