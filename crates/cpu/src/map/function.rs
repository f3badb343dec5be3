//! A compiled function: every step has its registers assigned.
#![allow(clippy::indexing_slicing, reason = "`start` allocates all registers; steps read earlier steps")]

use super::CHUNK;
use crate::element::Number;
use crate::simd::Isa;
use crate::simd::numeric::{each, float, int};
use ptero_plan::dim::Dim;
use ptero_plan::expr::{Binary, Compare, Expr, Scalar, Step, Unary};
use ptero_tensor::DType;
use std::collections::VecDeque;

/// A register: an index in the bank of floats or in that of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    Float(usize),
    Int(usize),
}

/// The operation of a step and its operands: registers, unless it says otherwise.
#[derive(Clone, Debug)]
enum Op {
    /// An input of the function.
    Load(usize),
    Float(f32),
    Int(Dim),
    /// Coordinates along an axis of the output.
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
    /// The type that the result is rounded or wrapped to, unless it is known to fit.
    fit: Option<DType>,
}

/// A function that is ready to run over chunks.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// Steps whose result is the same for every chunk, computed once per task.
    constants: Vec<Compiled>,
    steps: Vec<Compiled>,
    pub(crate) result: Register,
    /// The axes of the output whose coordinates the function uses.
    pub(super) axes: Vec<usize>,
    floats: usize,
    ints: usize,
}

/// A chunk of elements: loads what is not in registers.
pub(crate) trait Chunk {
    fn load<N: Number>(&self, input: usize, to: &mut [N]);
    fn coordinates(&self, axis: usize, to: &mut [i64]);
}

impl Function {
    pub(crate) fn new(expr: &Expr) -> Self {
        let mut compiler = Compiler::new(expr);
        expr.steps.iter().enumerate().for_each(|(at, step)| compiler.step(at, step));
        let result = compiler.held.last().copied().unwrap_or(Register::Float(0));
        let axis = |step: &Step| if let Scalar::Index(axis) = step.op { Some(usize::from(axis)) } else { None };
        let axes = expr.steps.iter().filter_map(axis).collect();
        let (floats, ints) = (compiler.floats.count, compiler.ints.count);
        let (constants, steps) =
            compiler.done.into_iter().partition(|step| matches!(step.op, Op::Float(_) | Op::Int(_)));
        Self { constants, steps, result, axes, floats, ints }
    }

    /// Prepares the registers of a task.
    pub(crate) fn start(&self, isa: Isa, values: &[i64], registers: &mut Registers) {
        registers.floats.resize_with(self.floats.max(registers.floats.len()), || vec![0.0; CHUNK]);
        registers.ints.resize_with(self.ints.max(registers.ints.len()), || vec![0; CHUNK]);
        for step in &self.constants {
            step.run(isa, values, CHUNK, &NoInputs, registers);
        }
    }

    /// Runs the steps over a chunk of `length` elements.
    pub(crate) fn run(&self, isa: Isa, values: &[i64], length: usize, chunk: &impl Chunk, registers: &mut Registers) {
        for step in &self.steps {
            step.run(isa, values, length, chunk, registers);
        }
    }
}

/// The chunk of constants, which load nothing.
struct NoInputs;

impl Chunk for NoInputs {
    fn load<N: Number>(&self, _: usize, _: &mut [N]) {}
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
        &self.floats[register][..length]
    }

    pub(super) fn int(&self, register: usize, length: usize) -> &[i64] {
        &self.ints[register][..length]
    }
}

impl Compiled {
    fn run(&self, isa: Isa, values: &[i64], length: usize, chunk: &impl Chunk, registers: &mut Registers) {
        // The result's register is not among the operands: it is taken out while they are borrowed.
        match self.to {
            Register::Float(to) => {
                let mut register = std::mem::take(&mut registers.floats[to]);
                self.floats(isa, values, chunk, registers, &mut register[..length]);
                registers.floats[to] = register;
            }
            Register::Int(to) => {
                let mut register = std::mem::take(&mut registers.ints[to]);
                self.ints(isa, values, chunk, registers, &mut register[..length]);
                registers.ints[to] = register;
            }
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "rounds to nearest, as a cast must")]
    fn floats(&self, isa: Isa, values: &[i64], chunk: &impl Chunk, registers: &Registers, to: &mut [f32]) {
        let f = |register: usize| registers.float(register, to.len());
        let i = |register: usize| registers.int(register, to.len());
        match &self.op {
            Op::Load(input) => chunk.load(*input, to),
            Op::Float(value) => to.fill(*value),
            Op::Int(dim) => to.fill(dim.eval(values) as f32),
            Op::FloatOfInt(x) => float::from_ints(isa, i(*x), to),
            Op::Copy(x) => to.copy_from_slice(f(*x)),
            Op::Unary(op, x) => float::unary(isa, *op, f(*x), to),
            Op::Binary(op, [a, b]) => float::binary(isa, *op, f(*a), f(*b), to),
            Op::Select([condition, yes, no]) => each::select(isa, i(*condition), f(*yes), f(*no), to),
            // Their results are integers.
            Op::Index(_) | Op::IntOfFloat(_) | Op::TruthOfFloat(_) | Op::CompareFloats(..) | Op::CompareInts(..) => {}
        }
        if let Some(dtype) = self.fit {
            f32::fit(isa, dtype, to);
        }
    }

    fn ints(&self, isa: Isa, values: &[i64], chunk: &impl Chunk, registers: &Registers, to: &mut [i64]) {
        let f = |register: usize| registers.float(register, to.len());
        let i = |register: usize| registers.int(register, to.len());
        match &self.op {
            Op::Load(input) => chunk.load(*input, to),
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
            // Their results are floats.
            Op::Float(_) | Op::FloatOfInt(_) => {}
        }
        if let Some(dtype) = self.fit {
            i64::fit(isa, dtype, to);
        }
    }
}

/// The registers of one type.
#[derive(Default)]
struct RegisterBank {
    free: Vec<usize>,
    count: usize,
}

impl RegisterBank {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        })
    }
}

#[derive(Default)]
struct Compiler {
    /// By step of the function: the last step that reads it.
    last_use: Vec<usize>,
    /// By step: its register.
    held: Vec<Register>,
    /// The registers of the constants that are still to come.
    constants: VecDeque<Register>,
    floats: RegisterBank,
    ints: RegisterBank,
    /// Registers of temporaries, free again after the current step.
    temporaries: Vec<Register>,
    done: Vec<Compiled>,
}

fn is_constant(step: &Step) -> bool {
    matches!(step.op, Scalar::Float(_) | Scalar::Int(_))
}

impl Compiler {
    fn new(expr: &Expr) -> Self {
        let mut compiler = Self::default();
        // Every chunk reads the constants, and the result is read last.
        let is_kept = |(at, step): (usize, &Step)| is_constant(step) || at + 1 == expr.steps.len();
        let last_use = |step| if is_kept(step) { usize::MAX } else { 0 };
        compiler.last_use = expr.steps.iter().enumerate().map(last_use).collect();
        for (at, step) in expr.steps.iter().enumerate() {
            for arg in operands(step) {
                compiler.last_use[arg] = compiler.last_use[arg].max(at);
            }
        }
        // Constants are computed before the first step, so no other step may have used their registers.
        for step in expr.steps.iter().filter(|step| is_constant(step)) {
            let register = compiler.take(step.dtype.is_float());
            compiler.constants.push_back(register);
        }
        compiler
    }

    fn step(&mut self, at: usize, step: &Step) {
        let is_float = step.dtype.is_float();
        let args = step.args.map(usize::from);
        let (op, fits) = match &step.op {
            Scalar::Load(input) => (Op::Load(usize::from(*input)), true),
            Scalar::Float(value) if is_float => (Op::Float(*value), false),
            Scalar::Float(value) if step.dtype == DType::Bool => (Op::Int(Dim::fixed((*value != 0.0).into())), true),
            #[allow(clippy::cast_possible_truncation, reason = "a cast truncates")]
            Scalar::Float(value) => (Op::Int(Dim::fixed(*value as i64)), false),
            Scalar::Int(dim) => (Op::Int(dim.clone()), false),
            Scalar::Index(axis) if is_float => {
                (Op::FloatOfInt(self.temporary(Op::Index(usize::from(*axis)), false)), false)
            }
            Scalar::Index(axis) => (Op::Index(usize::from(*axis)), false),
            Scalar::Cast if step.dtype == DType::Bool => match self.held[args[0]] {
                Register::Float(x) => (Op::TruthOfFloat(x), true),
                Register::Int(x) => (Op::Copy(x), false),
            },
            Scalar::Cast => (Op::Copy(self.operand(args[0], is_float)), false),
            Scalar::Unary(op) => {
                let op = if *op == Unary::BitNot && step.dtype == DType::Bool { Unary::Not } else { *op };
                (Op::Unary(op, self.operand(args[0], is_float)), false)
            }
            Scalar::Binary(op) => (Op::Binary(*op, [args[0], args[1]].map(|arg| self.operand(arg, is_float))), false),
            Scalar::Compare(op) => {
                let are_ints = [args[0], args[1]].iter().all(|&arg| matches!(self.held[arg], Register::Int(_)));
                let operands = [args[0], args[1]].map(|arg| self.operand(arg, !are_ints));
                let op = if are_ints { Op::CompareInts(*op, operands) } else { Op::CompareFloats(*op, operands) };
                // A comparison gives integers, whatever the step's type.
                (if is_float { Op::FloatOfInt(self.temporary(op, false)) } else { op }, true)
            }
            Scalar::Select => {
                let condition = match self.held[args[0]] {
                    Register::Int(x) => x,
                    Register::Float(x) => self.temporary(Op::TruthOfFloat(x), false),
                };
                let [yes, no] = [args[1], args[2]].map(|arg| self.operand(arg, is_float));
                (Op::Select([condition, yes, no]), false)
            }
        };
        let reserved = if is_constant(step) { self.constants.pop_front() } else { None };
        let to = reserved.unwrap_or_else(|| self.take(is_float));
        self.done.push(Compiled { op, to, fit: (!fits).then_some(step.dtype) });
        self.held.push(to);
        self.release(at, step);
    }

    /// The register of an operand in the wanted bank, converted if necessary.
    fn operand(&mut self, step: usize, is_float: bool) -> usize {
        match (self.held[step], is_float) {
            (Register::Float(x), true) | (Register::Int(x), false) => x,
            (Register::Int(x), true) => self.temporary(Op::FloatOfInt(x), true),
            (Register::Float(x), false) => self.temporary(Op::IntOfFloat(x), false),
        }
    }

    /// Adds a step whose result is needed only by the current one.
    fn temporary(&mut self, op: Op, is_float: bool) -> usize {
        let to = self.take(is_float);
        self.done.push(Compiled { op, to, fit: None });
        self.temporaries.push(to);
        let (Register::Float(index) | Register::Int(index)) = to;
        index
    }

    fn take(&mut self, is_float: bool) -> Register {
        if is_float { Register::Float(self.floats.take()) } else { Register::Int(self.ints.take()) }
    }

    /// Frees temporaries and the registers that step `at` was the last to read.
    fn release(&mut self, at: usize, step: &Step) {
        let mut args: Vec<usize> = operands(step).filter(|&arg| self.last_use[arg] == at).collect();
        args.sort_unstable();
        args.dedup();
        for register in self.temporaries.drain(..).chain(args.into_iter().map(|arg| self.held[arg])) {
            match register {
                Register::Float(x) => self.floats.free.push(x),
                Register::Int(x) => self.ints.free.push(x),
            }
        }
    }
}

/// The steps whose results a step reads.
fn operands(step: &Step) -> impl Iterator<Item = usize> {
    step.args.into_iter().take(step.op.arity()).map(usize::from)
}
