//! Our names for types and functions in the shim's words.

use crate::bridge::ffi::{BinaryOp, CompareOp, FoldOp, Kind, QuantKind, UnaryOp};
use ptero_backend::Fault;
use ptero_backend::number::Element;
use ptero_plan::expr::{Binary, Compare, Unary};
use ptero_plan::prim::{Fold, QuantMode};
use ptero_tensor::DType;

pub(crate) fn kind(dtype: DType) -> Result<Kind, Fault> {
    Ok(match Element::new(dtype)? {
        Element::Bool => Kind::Bool,
        Element::U8 => Kind::U8,
        Element::I8 => Kind::I8,
        Element::U16 => Kind::U16,
        Element::I16 => Kind::I16,
        Element::U32 => Kind::U32,
        Element::I32 => Kind::I32,
        Element::I64 => Kind::I64,
        Element::F16 => Kind::F16,
        Element::Bf16 => Kind::Bf16,
        Element::F32 => Kind::F32,
    })
}

/// One name per variant, the same on both sides.
macro_rules! same {
    ($function:ident: $from:ident => $to:ident { $( $name:ident )* }) => {
        pub(crate) fn $function(op: $from) -> $to {
            match op { $( $from::$name => $to::$name, )* }
        }
    };
}

same! { unary: Unary => UnaryOp {
    Neg Abs Sign Square Sqrt Rsqrt Reciprocal Exp Expm1 Log Log2 Log10 Log1p Sin Cos Tan Arcsin Arccos Arctan Sinh Cosh Tanh
    Arcsinh Arccosh Arctanh Erf Sigmoid Floor Ceil Round Trunc Not BitNot
} }
same! { binary: Binary => BinaryOp {
    Add Sub Mul Div FloorDiv Remainder Power Max Min Atan2 LogAddExp And Or BitAnd BitOr BitXor
} }
same! { compare: Compare => CompareOp { Less LessEqual Greater GreaterEqual Equal NotEqual } }
same! { quant: QuantMode => QuantKind { Affine Mxfp4 Nvfp4 Mxfp8 } }

pub(crate) fn fold(fold: Fold) -> (FoldOp, i32) {
    match fold {
        Fold::Sum => (FoldOp::Sum, 0),
        Fold::Prod => (FoldOp::Prod, 0),
        Fold::Max => (FoldOp::Max, 0),
        Fold::Min => (FoldOp::Min, 0),
        Fold::Any => (FoldOp::Any, 0),
        Fold::All => (FoldOp::All, 0),
        Fold::Mean => (FoldOp::Mean, 0),
        Fold::Var { ddof } => (FoldOp::Var, ddof),
        Fold::LogSumExp => (FoldOp::LogSumExp, 0),
    }
}
