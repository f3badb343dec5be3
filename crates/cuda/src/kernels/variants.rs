//! Variants of the sources of primitives, for a test that compiles them all: each macro with every kind of value that it has.

use super::attention::ATTENTION;
use super::attention::attention_row::ATTENTION_ROW;
use super::attention::rope::{ROPE, ROPE_ROW};
use super::elements::index::{GATHER, INDEX};
use super::elements::map::MAP;
use super::elements::order::ORDER;
use super::elements::random::RANDOM;
use super::follow::FOLLOW;
use super::head::HEAD;
use super::products::by_choice::BY_CHOICE;
use super::products::matmul::MATMUL;
use super::products::matmul_row::MATMUL_ROW;
use super::quant::dequantize::DEQUANTIZE;
use super::quant::quant_many::QUANT_MANY;
use super::quant::quant_matmul::QUANT_MATMUL;
use super::quant::quant_row::QUANT_ROW;
use super::quant::quantize::QUANTIZE;
use super::reductions::norm::{NORM, NORMALIZE_ROWS};
use super::reductions::reduce::REDUCE;
use super::reductions::route::ROUTE;
use super::reductions::softmax::SOFTMAX;
use super::reductions::sum_rows::SUM_ROWS;
use super::state::conv::CONV;
use super::state::conv_state::CONV_STATE;
use super::state::gated_delta::{GATED_DELTA, GATED_DELTA_ROW};
use super::together::{Body, Part, TOGETHER, text};
use crate::launch::Grid;
use crate::module::{Source, Variant};

const fn with(defines: &'static [(&'static str, &'static str)]) -> Variant<'static> {
    Variant { defines, generated: "" }
}

/// A function with all that expressions are made of: loads, numbers, coordinates, conversions, operations.
const FUNCTION: &str = "using Point = MapPoint;
__device__ __forceinline__ OUT::Element function(const Point &point) {
    const float s0 = Bf16::to_float(point.element<Bf16>(0));
    const i64 s1 = Bool::to_int(point.element<Bool>(1));
    const i64 s2 = point.number(0);
    const i64 s3 = wrap_to<I32>(point.coordinates[0]);
    const float s4 = round_to<Bf16>(f_sigmoid(s0));
    const float s5 = round_to<Bf16>(f_power(s4, (float)s2));
    const i64 s6 = i_power(s3, float_to_int(s5));
    const float s7 = (s1 != 0 ? s5 : (float)s6);
    return OUT::from_float(s7);
}
";

/// The function before a sum.
const PROLOGUE: &str = "namespace prologue {
using Point = ProloguePoint;
__device__ __forceinline__ F32::Element function(const Point &point) {
    const float s0 = F32::to_float(point.element<F32>(0));
    return F32::from_float(f_mul(s0, f_sigmoid(s0)));
}
}
";

/// The prologue of a product of one row with quantized weights.
const LOADED: &str = "namespace prologue {
typedef LoadedPoint<1> Point;
__device__ __forceinline__ Point loaded(const ProloguePoint &point) {
    return {{word_of(point.element<F32>(0))}};
}
__device__ __forceinline__ F32::Element function(const Point &point) {
    const float s0 = F32::to_float(point.element<F32>(0));
    return F32::from_float(f_mul(s0, f_sigmoid(s0)));
}
}
";

/// The epilogue of a product or a convolution.
const EPILOGUE: &str = "namespace epilogue {
using Point = EpiloguePoint;
__device__ __forceinline__ F32::Element function(const Point &point) {
    const float s0 = Bf16::to_float(point.element<Bf16>(0));
    const float s1 = F32::to_float(point.element<F32>(1));
    const float s2 = f_add(s0, s1);
    return F32::from_float(s2);
}
}
";

/// The functions before and after the filters of a convolution with a state.
const KEPT_ROW_AND_RESULT: &str = "namespace prologue {
using Point = ProloguePoint;
__device__ __forceinline__ Bf16::Element function(const Point &point) {
    const float s0 = Bf16::to_float(point.element<Bf16>(0));
    const float s1 = F32::to_float(point.element<F32>(1));
    return Bf16::from_float(f_mul(s0, s1));
}
}
namespace epilogue {
using Point = EpiloguePoint;
__device__ __forceinline__ F32::Element function(const Point &point) {
    const float s0 = F32::to_float(point.element<F32>(0));
    return F32::from_float(f_mul(s0, f_sigmoid(s0)));
}
}
";

/// Sources of primitives, each with macros that a program may give it.
pub const VARIANTS: &[(Source, Variant<'static>)] = &[
    (BY_CHOICE, with(&[])),
    (HEAD, with(&[])),
    (INDEX, with(&[])),
    (ORDER, with(&[])),
    (RANDOM, with(&[])),
    (REDUCE, with(&[("X", "Bf16")])),
    (REDUCE, with(&[("X", "I64")])),
    (SOFTMAX, with(&[("X", "Bf16"), ("OUT", "F32")])),
    (SOFTMAX, with(&[("X", "F32"), ("OUT", "F16")])),
    (CONV, with(&[("X", "Bf16"), ("W", "F16"), ("OUT", "F32"), ("TAPS", "4"), ("HAS_EPILOGUE", "0")])),
    (
        CONV,
        Variant {
            defines: &[("X", "Bf16"), ("W", "F32"), ("OUT", "F32"), ("TAPS", "3"), ("HAS_EPILOGUE", "1")],
            generated: EPILOGUE,
        },
    ),
    (
        NORM,
        with(&[
            ("X", "Bf16"),
            ("WEIGHT", "F32"),
            ("BIAS", "F16"),
            ("OUT", "Bf16"),
            ("HAS_WEIGHT", "1"),
            ("HAS_BIAS", "1"),
            ("WIDE", "0"),
        ]),
    ),
    (
        NORM,
        with(&[
            ("X", "F32"),
            ("WEIGHT", "F32"),
            ("BIAS", "F32"),
            ("OUT", "F32"),
            ("HAS_WEIGHT", "0"),
            ("HAS_BIAS", "0"),
            ("WIDE", "1"),
        ]),
    ),
    (
        ROPE,
        with(&[
            ("X", "Bf16"),
            ("OUT", "Bf16"),
            ("POSITION", "I64"),
            ("HOST_POSITION", "1"),
            ("PERIODS", "F32"),
            ("USES_PERIODS", "0"),
        ]),
    ),
    (
        ROPE,
        with(&[
            ("X", "F32"),
            ("OUT", "F32"),
            ("POSITION", "I32"),
            ("HOST_POSITION", "0"),
            ("PERIODS", "F32"),
            ("USES_PERIODS", "1"),
        ]),
    ),
    (
        ATTENTION,
        with(&[("Q", "Bf16"), ("K", "Bf16"), ("V", "Bf16"), ("OUT", "Bf16"), ("MASK", "Bool"), ("MASK_KIND", "0")]),
    ),
    (
        ATTENTION,
        with(&[("Q", "F32"), ("K", "F16"), ("V", "F16"), ("OUT", "F32"), ("MASK", "Bool"), ("MASK_KIND", "1")]),
    ),
    (ATTENTION, with(&[("Q", "F32"), ("K", "F32"), ("V", "F32"), ("OUT", "F32"), ("MASK", "F32"), ("MASK_KIND", "2")])),
    (
        MATMUL,
        with(&[("A", "Bf16"), ("B", "Bf16"), ("OUT", "Bf16"), ("ROWS", "1"), ("VECTOR", "1"), ("HAS_EPILOGUE", "0")]),
    ),
    (
        MATMUL,
        Variant {
            defines: &[
                ("A", "F32"),
                ("B", "F16"),
                ("OUT", "F32"),
                ("ROWS", "4"),
                ("VECTOR", "0"),
                ("HAS_EPILOGUE", "1"),
            ],
            generated: EPILOGUE,
        },
    ),
    (QUANTIZE, with(&[("X", "Bf16"), ("SINGLE", "0"), ("STEP", "64"), ("INTERLEAVED", "1")])),
    (QUANTIZE, with(&[("X", "F32"), ("SINGLE", "1"), ("STEP", "16"), ("INTERLEAVED", "0")])),
    (
        QUANT_MATMUL,
        with(&[
            ("FORMAT", "AFFINE"),
            ("BITS", "4"),
            ("GROUP", "64"),
            ("SCALE", "Bf16"),
            ("BIAS", "Bf16"),
            ("HAS_BIAS", "1"),
            ("VECTOR", "1"),
            ("OUT", "Bf16"),
            ("SINGLE", "0"),
            ("ROWS", "1"),
        ]),
    ),
    (
        QUANT_MATMUL,
        with(&[
            ("FORMAT", "NVFP4"),
            ("BITS", "4"),
            ("GROUP", "16"),
            ("SCALE", "U8"),
            ("BIAS", "F32"),
            ("HAS_BIAS", "0"),
            ("VECTOR", "0"),
            ("OUT", "F32"),
            ("SINGLE", "1"),
            ("ROWS", "2"),
        ]),
    ),
    (QUANT_MATMUL, with(&[("FORMAT", "Q4_K"), ("VECTOR", "1"), ("OUT", "F32"), ("SINGLE", "1"), ("ROWS", "2")])),
    (QUANT_MATMUL, with(&[("FORMAT", "Q6_K"), ("VECTOR", "1"), ("OUT", "Bf16"), ("SINGLE", "0"), ("ROWS", "1")])),
    (
        QUANT_MANY,
        with(&[
            ("FORMAT", "AFFINE"),
            ("BITS", "4"),
            ("GROUP", "64"),
            ("SCALE", "Bf16"),
            ("BIAS", "Bf16"),
            ("HAS_BIAS", "1"),
            ("VECTOR", "1"),
            ("OUT", "Bf16"),
            ("SINGLE", "0"),
            ("TILE_M", "64"),
            ("SORTED", "0"),
            ("HAS_EPILOGUE", "0"),
        ]),
    ),
    (
        QUANT_MANY,
        Variant {
            defines: &[
                ("FORMAT", "Q6_K"),
                ("VECTOR", "1"),
                ("OUT", "F32"),
                ("SINGLE", "1"),
                ("TILE_M", "32"),
                ("SORTED", "1"),
                ("HAS_EPILOGUE", "1"),
            ],
            generated: EPILOGUE,
        },
    ),
];

/// Kernels that are parts of launches, as [`VARIANTS`].
const PARTS: &[(&Part, Variant<'static>)] = &[
    (
        &DEQUANTIZE,
        with(&[
            ("FORMAT", "MXFP8"),
            ("BITS", "8"),
            ("GROUP", "32"),
            ("SCALE", "U8"),
            ("BIAS", "F32"),
            ("HAS_BIAS", "0"),
            ("VECTOR", "1"),
            ("OUT", "F32"),
        ]),
    ),
    (
        &DEQUANTIZE,
        with(&[
            ("FORMAT", "AFFINE"),
            ("BITS", "3"),
            ("GROUP", "64"),
            ("SCALE", "F16"),
            ("BIAS", "F16"),
            ("HAS_BIAS", "1"),
            ("VECTOR", "0"),
            ("OUT", "Bf16"),
        ]),
    ),
    (&DEQUANTIZE, with(&[("FORMAT", "Q5_K"), ("VECTOR", "1"), ("OUT", "F32")])),
    (&GATHER, with(&[])),
    (&FOLLOW, with(&[])),
    (&ROUTE, with(&[("X", "F32"), ("INDEX", "U32")])),
    (&MAP, Variant { defines: &[("INPUTS", "2"), ("OUT", "Bf16")], generated: FUNCTION }),
    (
        &CONV_STATE,
        Variant {
            defines: &[("X", "Bf16"), ("W", "Bf16"), ("OUT", "F32"), ("TAPS", "4")],
            generated: KEPT_ROW_AND_RESULT,
        },
    ),
    (
        &SUM_ROWS,
        Variant {
            defines: &[("X", "F32"), ("OUT", "Bf16"), ("ROWS", "8"), ("HAS_EPILOGUE", "0"), ("AT", "0")],
            generated: PROLOGUE,
        },
    ),
    (
        &ATTENTION_ROW,
        with(&[
            ("Q", "Bf16"),
            ("K", "Bf16"),
            ("V", "Bf16"),
            ("OUT", "Bf16"),
            ("HEADS", "3"),
            ("DEPTH", "64"),
            ("WIDTH", "64"),
        ]),
    ),
    (
        &ATTENTION_ROW,
        with(&[
            ("Q", "F32"),
            ("K", "F16"),
            ("V", "F32"),
            ("OUT", "F32"),
            ("HEADS", "8"),
            ("DEPTH", "80"),
            ("WIDTH", "256"),
        ]),
    ),
    (
        &GATED_DELTA,
        with(&[
            ("Q", "Bf16"),
            ("K", "Bf16"),
            ("V", "Bf16"),
            ("G", "F32"),
            ("BETA", "F32"),
            ("STATE", "F32"),
            ("STATE_OUT", "F32"),
            ("OUT", "Bf16"),
            ("DK", "128"),
        ]),
    ),
    (
        &GATED_DELTA_ROW,
        with(&[
            ("Q", "Bf16"),
            ("K", "Bf16"),
            ("V", "Bf16"),
            ("G", "F32"),
            ("BETA", "F32"),
            ("STATE", "F32"),
            ("STATE_OUT", "F32"),
            ("OUT", "Bf16"),
            ("DK", "128"),
        ]),
    ),
    (
        &MATMUL_ROW,
        with(&[
            ("PROLOGUE", "PLAIN_ROW"),
            ("X", "Bf16"),
            ("ROW", "Bf16"),
            ("WEIGHT", "F32"),
            ("BIAS_ROW", "F16"),
            ("HAS_WEIGHT", "0"),
            ("HAS_BIAS_ROW", "0"),
            ("B", "Bf16"),
            ("OUT", "Bf16"),
            ("HAS_EPILOGUE", "0"),
        ]),
    ),
    (
        &MATMUL_ROW,
        Variant {
            defines: &[
                ("PROLOGUE", "NORM_ROW"),
                ("X", "Bf16"),
                ("ROW", "F32"),
                ("WEIGHT", "F32"),
                ("BIAS_ROW", "F16"),
                ("HAS_WEIGHT", "1"),
                ("HAS_BIAS_ROW", "1"),
                ("B", "F32"),
                ("OUT", "F32"),
                ("HAS_EPILOGUE", "1"),
            ],
            generated: EPILOGUE,
        },
    ),
    (
        &QUANT_ROW,
        Variant {
            defines: &[
                ("FORMAT", "AFFINE"),
                ("BITS", "4"),
                ("GROUP", "64"),
                ("SCALE", "Bf16"),
                ("BIAS", "Bf16"),
                ("HAS_BIAS", "1"),
                ("VECTOR", "1"),
                ("PROLOGUE", "NORM_ROW"),
                ("X", "F32"),
                ("ROW", "Bf16"),
                ("WEIGHT", "Bf16"),
                ("BIAS_ROW", "F32"),
                ("HAS_WEIGHT", "1"),
                ("HAS_BIAS_ROW", "1"),
                ("INDEX", "U32"),
                ("HAS_EPILOGUE", "1"),
                ("CHOSEN", "1"),
                ("SINGLE", "0"),
                ("WARPS", "8"),
                ("SPLIT", "4"),
                ("DEPTH", "2"),
                ("WHOLE", "1"),
                ("OUT", "F32"),
            ],
            generated: EPILOGUE,
        },
    ),
    (
        &QUANT_ROW,
        Variant {
            defines: &[
                ("FORMAT", "Q5_K"),
                ("VECTOR", "1"),
                ("PROLOGUE", "MAP_ROW"),
                ("X", "F32"),
                ("ROW", "F32"),
                ("WEIGHT", "F32"),
                ("BIAS_ROW", "F32"),
                ("HAS_WEIGHT", "0"),
                ("HAS_BIAS_ROW", "0"),
                ("INDEX", "I64"),
                ("HAS_EPILOGUE", "0"),
                ("CHOSEN", "0"),
                ("SINGLE", "1"),
                ("WARPS", "8"),
                ("SPLIT", "1"),
                ("DEPTH", "4"),
                ("OUT", "F32"),
            ],
            generated: LOADED,
        },
    ),
    (
        &NORMALIZE_ROWS,
        with(&[
            ("X", "Bf16"),
            ("WEIGHT", "F32"),
            ("BIAS", "F16"),
            ("OUT", "Bf16"),
            ("HAS_WEIGHT", "1"),
            ("HAS_BIAS", "1"),
        ]),
    ),
    (
        &NORMALIZE_ROWS,
        with(&[
            ("X", "F32"),
            ("WEIGHT", "F32"),
            ("BIAS", "F32"),
            ("OUT", "F16"),
            ("HAS_WEIGHT", "0"),
            ("HAS_BIAS", "0"),
        ]),
    ),
    (&ROPE_ROW, with(&[("X", "Bf16"), ("OUT", "F32")])),
];

/// The source of launches that do steps side by side, and what is generated for each part alone, and for several of all parts at once.
pub fn launches() -> (Source, Vec<String>) {
    let body =
        |(part, variant): &(&'static Part, Variant<'static>)| Body::new(part, *variant, Grid::new(1, 128), &0_u64);
    let alone = PARTS.iter().map(|part| text(&[body(part)]));
    let several: Vec<Body> = PARTS.iter().map(|part| body(part).twice()).collect();
    (TOGETHER, alone.chain([text(&several)]).collect())
}

/// The files of parts.
pub fn files_of_parts() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(part, _)| part.file)
}
