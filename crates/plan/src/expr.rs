//! Elementwise functions: short lists of scalar steps, each of which names the type it rounds to.

use crate::dim::Dim;
use ptero_tensor::DType;

/// A function of elements. Step `i` may use the results of steps before it; the last one is the result.
///
/// A step of a float type takes its operands as `f32`, computes in `f32` and rounds to its type (`f16`, `bf16` or `f32`). A
/// step of an integer type computes in 64 bits and wraps to its type. A step of type `Bool` gives 0 or 1. So a fused
/// function that rounds where the separate ones rounded gives the same bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// The steps.
    pub steps: Vec<Step>,
}

impl Expr {
    /// The integers of the host that it uses.
    pub fn numbers(&self) -> impl Iterator<Item = &Dim> {
        self.steps.iter().filter_map(|step| if let Scalar::Int(number) = &step.op { Some(number) } else { None })
    }
}

/// One step of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What it computes.
    pub op: Scalar,
    /// The steps it uses; entries beyond the arity of the operation are ignored.
    pub args: [u16; 3],
    /// The type of its result.
    pub dtype: DType,
}

/// A scalar operation. Unless it says otherwise, operands have the type of the step itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// The element of the input of that number; the step has the input's type.
    Load(u16),
    /// A float constant, rounded to the type of the step.
    Float(f32),
    /// An integer that may be known only at run time, converted to the type of the step.
    Int(Dim),
    /// The index along that axis of the output, as an integer.
    Index(u8),
    /// The operand, of any type, converted to the type of the step: floats truncate towards zero, saturate to 64 bits and wrap to
    /// an integer type, NaN gives 0; anything but zero is true as a bool.
    Cast,
    /// An operation with one operand.
    Unary(Unary),
    /// An operation with two operands.
    Binary(Binary),
    /// Compares two operands of one type, which need not be that of the step, `Bool`.
    Compare(Compare),
    /// The second operand where the first, a `Bool`, is true, else the third.
    Select,
}

impl Scalar {
    /// The number of steps that it uses.
    pub fn arity(&self) -> usize {
        match self {
            Scalar::Load(_) | Scalar::Float(_) | Scalar::Int(_) | Scalar::Index(_) => 0,
            Scalar::Cast | Scalar::Unary(_) => 1,
            Scalar::Binary(_) | Scalar::Compare(_) => 2,
            Scalar::Select => 3,
        }
    }
}

/// Operations with one operand. On integers only `Neg`, `Abs`, `Sign`, `Square`, `Not` and `BitNot` exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of the functions")]
pub enum Unary {
    Neg,
    Abs,
    /// -1, 0 or 1; NaN stays.
    Sign,
    Square,
    Sqrt,
    /// One over the square root.
    Rsqrt,
    Reciprocal,
    Exp,
    Expm1,
    /// On our own devices the bits of `ptero_arithmetic::ln`.
    Log,
    Log2,
    Log10,
    Log1p,
    Sin,
    Cos,
    Tan,
    Arcsin,
    Arccos,
    Arctan,
    Sinh,
    Cosh,
    Tanh,
    Arcsinh,
    Arccosh,
    Arctanh,
    Erf,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    Floor,
    Ceil,
    /// Halves round to even.
    Round,
    Trunc,
    /// Logical; the operand and the result are `Bool`.
    Not,
    /// Bitwise; for `Bool` same as `Not`.
    BitNot,
}

/// Operations with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of the functions")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    /// For floats only; integers are converted before.
    Div,
    /// Rounded down; for floats, after the quotient was rounded. Integer division by zero gives 0.
    FloorDiv,
    /// The remainder of `FloorDiv`, with the sign of the divisor. For integers, 0 if the divisor is zero.
    Remainder,
    /// Integers with a negative exponent give 0, except for bases 1 and -1.
    Power,
    /// NaN wins.
    Max,
    /// NaN wins.
    Min,
    Atan2,
    /// `log(exp(a) + exp(b))` without overflow.
    LogAddExp,
    /// Logical, of `Bool`.
    And,
    /// Logical, of `Bool`.
    Or,
    BitAnd,
    BitOr,
    BitXor,
}

/// Comparisons. NaN is unequal to everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are those of the functions")]
pub enum Compare {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
}
