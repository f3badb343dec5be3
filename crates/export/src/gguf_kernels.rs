//! Weights that stay in the k-quant blocks of a GGUF file: linear layers and embeddings as `MetalKernel` nodes. MLX runs our
//! Metal source, `kernels/*.metal`; elsewhere the lowerer knows it by its hash and replaces it by primitives.

use crate::builder::{GraphBuilder, Tensor};
use ptero_pte::field::Int;
use ptero_pte::nodes::{AddInt, FloorDivideInt, MetalKernel, MultiplyInt};
use ptero_pte::{Bytes, DType};
use ptero_tensor::GgufType;

/// Threads of a simdgroup, each of which decodes an equal part of a block.
const LANES: i64 = 32;
/// Threads of a group: a few simdgroups that share nothing.
const GROUP: i64 = 64;
/// Rows of `x` of a simdgroup in `linear.metal`.
const TILE: i64 = 8;

/// What is the same for all sources of a kind: how a lane decodes its part of a block.
fn header(kind: GgufType) -> &'static str {
    match kind {
        GgufType::Q4K => concat!(include_str!("kernels/common.metal"), include_str!("kernels/q4k.metal")),
        GgufType::Q5K => concat!(include_str!("kernels/common.metal"), include_str!("kernels/q5k.metal")),
        GgufType::Q6K => concat!(include_str!("kernels/common.metal"), include_str!("kernels/q6k.metal")),
    }
}

const LINEAR: &str = concat!("float added = 0.0f;\n", include_str!("kernels/linear.metal"));
const LINEAR_BIAS: &str =
    concat!("float added = float(bias[thread_position_in_grid.x / 32]);\n", include_str!("kernels/linear.metal"));
const EMBEDDING: &str = include_str!("kernels/embedding.metal");

/// A matrix in blocks, a row after another, as a GGUF file holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgufMatrix {
    weight: Tensor,
    kind: GgufType,
    rows: i32,
    columns: i32,
}

/// The arguments that a kernel is compiled for: name, kind and value.
type Template<'a> = &'a [(&'a str, i8, i32)];

/// Upstream's number for the kind of an integer argument.
const INT: i8 = 0;
/// Upstream's number for the kind of an argument that is an element type.
const TYPE: i8 = 2;

impl GgufMatrix {
    /// Declares the blocks as a constant of bytes, `[rows, bytes of a row]`. `None` where rows are not whole blocks.
    pub fn constant(
        b: &mut GraphBuilder,
        name: &str,
        kind: GgufType,
        [rows, columns]: [i32; 2],
        data: impl Into<Bytes>,
    ) -> Option<Self> {
        let [block, block_bytes] = [kind.block_len(), kind.block_bytes()].map(i32::try_from);
        let (block, block_bytes) = (block.ok()?, block_bytes.ok()?);
        if rows < 1 || columns < 1 || columns % block != 0 {
            return None;
        }
        let row_bytes = (columns / block).checked_mul(block_bytes)?;
        let weight = b.constant(name, DType::U8, [rows, row_bytes], data);
        Some(Self::new(weight, kind, [rows, columns]))
    }

    /// A constant that was declared so, with rows of whole blocks.
    pub(crate) fn new(weight: Tensor, kind: GgufType, [rows, columns]: [i32; 2]) -> Self {
        Self { weight, kind, rows, columns }
    }

    /// `x` times the transpose, and a bias `[rows]` where there is one: from `[outer.., columns]` to `[outer.., rows]`, both of
    /// type `dtype`. There is at least one outer size; those that are known only at run time are host values.
    pub fn linear(&self, b: &mut GraphBuilder, x: Tensor, outer: &[Int], dtype: DType, bias: Option<Tensor>) -> Tensor {
        let rows = product(b, outer);
        let tiles = tiles(b, rows);
        let (name, source) = if bias.is_some() { ("linear_bias", LINEAR_BIAS) } else { ("linear", LINEAR) };
        let inputs: Vec<_> =
            [("x", x), ("weight", self.weight)].into_iter().chain(bias.map(|bias| ("bias", bias))).collect();
        let grid = [Int::Literal(LANES * i64::from(self.rows)), tiles];
        let code = dtype.code().into();
        let template = [("InT", TYPE, code), ("OutT", TYPE, code), ("N", INT, self.rows)];
        self.kernel(b, (name, source), &inputs, grid, (outer, self.rows, dtype), &template)
    }

    /// The rows that `indices` name, `[outer..]` of integers: `[outer.., columns]` of type `dtype`. There is at least one outer
    /// size; those that are known only at run time are host values.
    pub fn embedding(&self, b: &mut GraphBuilder, indices: Tensor, outer: &[Int], dtype: DType) -> Tensor {
        let count = product(b, outer);
        let inputs = [("weight", self.weight), ("indices", indices)];
        let threads = i64::from(self.columns) / 256 * LANES;
        let template = [("OutT", TYPE, dtype.code().into()), ("V", INT, self.rows)];
        let result = (outer, self.columns, dtype);
        self.kernel(b, ("embedding", EMBEDDING), &inputs, [Int::Literal(threads), count], result, &template)
    }

    /// A kernel with one result, `[outer.., last]` of a type. The number of columns is always among the template's.
    fn kernel(
        &self,
        b: &mut GraphBuilder,
        (name, source): (&str, &str),
        inputs: &[(&str, Tensor)],
        [wide, high]: [Int; 2],
        (outer, last, dtype): (&[Int], i32, DType),
        template: Template<'_>,
    ) -> Tensor {
        let template: Vec<_> = template.iter().copied().chain([("K", INT, self.columns)]).collect();
        let shape: Vec<Int> = outer.iter().copied().chain([Int::Literal(last.into())]).collect();
        let rank = i32::try_from(shape.len()).expect("a tensor has few dimensions");
        let kind = match self.kind {
            GgufType::Q4K => "q4k",
            GgufType::Q5K => "q5k",
            GgufType::Q6K => "q6k",
        };
        b.node(|out| MetalKernel {
            name: format!("ptero_gguf_{kind}_{name}"),
            source: source.to_owned(),
            inputs: inputs.iter().map(|(_, tensor)| tensor.src()).collect(),
            outputs: vec![out],
            grid: vec![wide, high, Int::Literal(1)],
            threadgroup: vec![Int::Literal(GROUP), Int::Literal(1), Int::Literal(1)],
            header: Some(header(self.kind).to_owned()),
            input_names: Some(inputs.iter().map(|(name, _)| (*name).to_owned()).collect()),
            output_names: Some(vec!["out".to_owned()]),
            ensure_row_contiguous: true,
            atomic_outputs: false,
            output_shapes_flat: Some(shape),
            output_shape_lengths: Some(vec![rank]),
            output_dtypes: Some(vec![dtype]),
            template_arg_names: Some(template.iter().map(|(name, ..)| (*name).to_owned()).collect()),
            template_arg_kinds: Some(template.iter().map(|(_, kind, _)| *kind).collect()),
            template_arg_values: Some(template.iter().map(|(.., value)| *value).collect()),
            init_value: None,
        })
    }
}

/// The product of outer sizes.
fn product(b: &mut GraphBuilder, sizes: &[Int]) -> Int {
    sizes.iter().fold(Int::Literal(1), |product, size| match (product, *size) {
        (Int::Literal(a), Int::Literal(b)) => Int::Literal(a * b),
        (Int::Literal(1), other) | (other, Int::Literal(1)) => other,
        (x, y) => b.value(|out| MultiplyInt { a: x, b: y, out }).int(),
    })
}

/// The number of tiles of `rows` rows of `x`.
fn tiles(b: &mut GraphBuilder, rows: Int) -> Int {
    match rows {
        Int::Literal(rows) => Int::Literal((rows + TILE - 1) / TILE),
        Int::Value(_) => {
            let more = b.value(|out| AddInt { a: rows, b: Int::Literal(TILE - 1), out });
            b.value(|out| FloorDivideInt { a: more.int(), b: Int::Literal(TILE), out }).int()
        }
    }
}
