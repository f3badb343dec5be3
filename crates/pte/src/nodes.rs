//! The table of node types: one row per node, in the order of upstream's union, fields in the order of upstream's schema.
//!
//! Reading, writing, printing, slot use, sampling and dispatch follow from a row; there is no second list. A row is
//! `tag Name { field: Type = default, … }`, where the type says everything about the field (see [`crate::field`]).
//! `docs/ADDING.md` walks through adding one.

use crate::error::{Fault, Result, Step};
use crate::field::{
    Chain, Collected, Datum, Dst, DstValue, Fed, Float, GeluForm, Int, IntOrSrc, NodeField, PadMode, QuantMode, Slot,
    Src, Use, Value, ValueOrSrc, read, records,
};
use crate::wire::{Table, WireValue};
use ptero_tensor::fault::AtStep;
use ptero_tensor::{DType, SplitMix64};
use std::fmt;

/// A row of the table: one node type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number in the union.
    pub tag: u8,
    /// Its name; upstream's has `Node` after it.
    pub name: &'static str,
    /// Name, type and default (empty when there is none) of its fields.
    pub fields: &'static [[&'static str; 3]],
}

macro_rules! nodes {
    ($( $tag:literal $name:ident { $( $field:ident : $ty:ty $(= $default:expr)? ),* $(,)? } )*) => {
        records! { $(
            #[doc = concat!("Node ", $tag, ", upstream's `", stringify!($name), "Node`.")]
            $name { $(
                #[allow(missing_docs, reason = "upstream's name for it; docs/SEMANTICS.md says what it does")]
                $field: $ty $(= $default)?
            ),* }
        )* }

        $(
            impl From<$name> for Node {
                fn from(node: $name) -> Node {
                    Node::$name(Box::new(node))
                }
            }
        )*

        /// One instruction of a graph. Boxed, because the largest row is thirty times the size of the usual one.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant is the row of its name")]
        pub enum Node { $( $name(Box<$name>) ),* }

        #[allow(unused_variables, reason = "a node may have no field")]
        impl Node {
            /// The table itself, in the order of the tags.
            pub const ROWS: &[Row] = &[$( Row {
                tag: $tag,
                name: stringify!($name),
                fields: &[$( [stringify!($field), stringify!($ty), concat!("" $(, stringify!($default))?)] ),*],
            } ),*];

            /// The row that describes this node.
            pub fn row(&self) -> &'static Row {
                // Tags count up from one without a gap; a test holds that.
                #[allow(clippy::indexing_slicing, reason = "the table is a constant of this file")]
                match self { $( Node::$name(_) => const { &Self::ROWS[$tag - 1] } ),* }
            }

            fn read(tag: u8, instruction: &Table<'_>) -> Result<Node> {
                match tag {
                    $( $tag => read::<$name>(instruction, 1, None).map(Node::from), )*
                    _ => Err(unknown(tag)),
                }
            }

            fn payload(&self) -> WireValue<'_> {
                match self { $( Node::$name(node) => WireValue::Child(&**node) ),* }
            }

            /// The fields by name, as they are shown.
            pub fn fields(&self) -> Vec<(&'static str, Datum)> {
                match self {
                    $( Node::$name(node) => vec![$( (stringify!($field), NodeField::datum(&node.$field)) ),*], )*
                }
            }

            /// Calls `see` with every slot and chain that the node touches and the field that names it.
            pub fn uses(&self, see: &mut dyn FnMut(&'static str, Use)) {
                match self {
                    $( Node::$name(node) => {
                        $( NodeField::uses(&node.$field, &mut |used| see(stringify!($field), used)); )*
                    } )*
                }
            }

            /// Renumbers every slot and chain of the node by `to`.
            pub fn rewire(&mut self, to: &mut dyn FnMut(Use) -> u32) {
                match self {
                    $( Node::$name(node) => { $( NodeField::rewire(&mut node.$field, to); )* } )*
                }
            }

            /// A random node of the row `tag`, or `None` where there is no such row.
            pub fn sample(tag: u8, rng: &mut SplitMix64) -> Option<Node> {
                match tag {
                    $( $tag => Some($name { $( $field: <$ty as NodeField>::sample(rng) ),* }.into()), )*
                    _ => None,
                }
            }
        }
    };
}

fn unknown(tag: u8) -> crate::Error {
    match tag {
        0 => Fault::Missing.into(),
        _ => Fault::Newer { what: "node type", found: tag.to_string(), known: "136 of ExecuTorch 1.5.1" }.into(),
    }
}

impl Node {
    /// Upstream's name without `Node`.
    pub fn name(&self) -> &'static str {
        self.row().name
    }

    /// The location of instruction `index` of `chain`, given the tag of its node.
    fn step(chain: usize, index: usize, tag: u8) -> Step {
        let row = usize::from(tag).checked_sub(1).and_then(|at| Self::ROWS.get(at));
        Step::Instruction(chain, index, row.map_or("unknown node", |row| row.name))
    }

    /// The union in entries 0 (tag) and 1 (table) of an instruction.
    pub(crate) fn of_instruction(instruction: &Table<'_>, chain: usize, index: usize) -> Result<Node> {
        let tag = read(instruction, 0, None)?;
        Node::read(tag, instruction).at(|| Self::step(chain, index, tag))
    }

    pub(crate) fn instruction(&self) -> [WireValue<'_>; 2] {
        [WireValue::scalar([self.row().tag]), self.payload()]
    }
}

/// A node in the notation of `ptero inspect --nodes`; see [`Node::notation`].
pub struct Notation<'a> {
    node: &'a Node,
    name: &'a dyn Fn(Slot) -> Option<&'a str>,
}

impl Node {
    /// `t9 = RMSNorm(x=t0, weight=t3:norm.weight, eps=1e-5)`: what is written, the node, and its present fields.
    /// `name` gives the names that some slots have.
    pub fn notation<'a>(&'a self, name: &'a dyn Fn(Slot) -> Option<&'a str>) -> Notation<'a> {
        Notation { node: self, name }
    }
}

impl fmt::Display for Notation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = Vec::new();
        self.node.uses(&mut |field, used| match used {
            Use::Write(slot) | Use::Collect(slot) => written.push((field, slot)),
            Use::Read(_) | Use::Feed(_) | Use::Chain(_) => {}
        });
        for (index, (_, slot)) in written.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { ", " })?;
            self.datum(f, &Datum::Slot(*slot))?;
        }
        write!(f, "{}{}(", if written.is_empty() { "" } else { " = " }, self.node.name())?;
        let mut separator = "";
        for (name, datum) in self.node.fields() {
            if datum != Datum::Absent && written.iter().all(|(field, _)| *field != name) {
                write!(f, "{separator}{name}=")?;
                self.datum(f, &datum)?;
                separator = ", ";
            }
        }
        f.write_str(")")
    }
}

impl Notation<'_> {
    fn datum(&self, f: &mut fmt::Formatter<'_>, datum: &Datum) -> fmt::Result {
        match datum {
            Datum::Slot(slot) => match (self.name)(*slot) {
                Some(name) => write!(f, "{slot}:{}", shortened(name).escape_debug()),
                None => write!(f, "{slot}"),
            },
            // The source of a kernel is too long to show.
            Datum::Text(text) if text.len() > 60 => write!(f, "<{} bytes of text>", text.len()),
            Datum::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    self.datum(f, item)?;
                }
                f.write_str("]")
            }
            Datum::Text(text) => write!(f, "{text:?}"),
            Datum::Absent => f.write_str("-"),
            Datum::Bool(value) => write!(f, "{value}"),
            Datum::Int(value) => write!(f, "{value}"),
            Datum::Single(value) => write!(f, "{value:?}"),
            Datum::Double(value) => write!(f, "{value:?}"),
            Datum::Word(word) => f.write_str(word),
            Datum::Chain(chain) => write!(f, "chain {chain}"),
        }
    }
}

/// The first 120 characters: one long name, shown wherever its slot is used, could fill the memory.
fn shortened(name: &str) -> &str {
    name.char_indices().nth(120).map_or(name, |(end, _)| name.get(..end).unwrap_or(name))
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notation(&|_| None).fmt(f)
    }
}

nodes! {
    1 Noop {}
    2 IdCopy { x: Src, out: Dst }
    3 Addmm { mat1: Src, mat2: Src, out: Dst, bias: Option<Src>, alpha: f32 = 1.0, beta: f32 = 1.0 }
    4 ItemInt { x: Src, out: DstValue }
    5 ExpandDims { x: Src, out: Dst, axis: i32 }
    6 Tile { x: Src, out: Dst, reps: Vec<Int> }
    7 TakeAlongAxis { x: Src, indices: Src, out: Dst, axis: i32 }
    8 Take { x: Src, out: Dst, index: IntOrSrc, axis: i32 }
    9 RMSNorm { x: Src, weight: Option<Src>, out: Dst, eps: f32 }
    10 LayerNorm { x: Src, out: Dst, weight: Option<Src>, bias: Option<Src>, eps: f32 }
    11 Rope {
        x: Src, out: Dst, dims: i32, offset: ValueOrSrc, freqs: Option<Src>, traditional: bool = false,
        base: f32 = 500000.0, scale: f32 = 1.0,
    }
    12 Sdpa { q: Src, k: Src, v: Src, out: Dst, scale: f32, mask: Option<Src>, causal: bool = false }
    13 Add { a: Src, b: Src, out: Dst }
    14 AddInt { a: Int, b: Int, out: DstValue }
    15 SubtractInt { a: Int, b: Int, out: DstValue }
    16 MultiplyInt { a: Int, b: Int, out: DstValue }
    17 FloorDivideInt { a: Int, b: Int, out: DstValue }
    18 SymSize { a: Src, dim: i32, out: DstValue }
    19 Multiply { a: Src, b: Src, out: Dst }
    20 Divide { a: Src, b: Src, out: Dst }
    21 Subtract { a: Src, b: Src, out: Dst }
    22 Conv1D { x: Src, w: Src, out: Dst, stride: i32 = 1, padding: i32 = 0, dilation: i32 = 1, groups: i32 = 1 }
    23 Conv2D {
        x: Src, w: Src, out: Dst, stride_h: i32 = 1, stride_w: i32 = 1, padding_h: i32 = 0, padding_w: i32 = 0,
        dilation_h: i32 = 1, dilation_w: i32 = 1, groups: i32 = 1,
    }
    24 Conv3D {
        x: Src, w: Src, out: Dst, stride_d: i32 = 1, stride_h: i32 = 1, stride_w: i32 = 1, padding_d: i32 = 0,
        padding_h: i32 = 0, padding_w: i32 = 0, dilation_d: i32 = 1, dilation_h: i32 = 1, dilation_w: i32 = 1,
        groups: i32 = 1,
    }
    25 Gelu { x: Src, out: Dst, approximate: GeluForm }
    26 ARange { out: Dst, start: Int, stop: Int, step: Int, scalar_type: Option<DType> }
    27 Silu { x: Src, out: Dst }
    28 Sigmoid { x: Src, out: Dst }
    29 Tanh { x: Src, out: Dst }
    30 Squeeze { x: Src, out: Dst, dims: Option<Vec<i32>> }
    31 Split { x: Src, outs: Vec<Dst>, sizes: Vec<Int>, axis: i32 }
    32 Rsqrt { x: Src, out: Dst }
    33 Maximum { a: Src, b: Src, out: Dst }
    34 Minimum { a: Src, b: Src, out: Dst }
    35 Log { x: Src, out: Dst }
    36 Softmax { x: Src, out: Dst, axis: i32, precise: bool = false }
    37 BroadcastTo { x: Src, out: Dst, shape: Vec<Int> }
    38 Pad { x: Src, out: Dst, pad_width: Vec<Int>, mode: PadMode, constant_value: f32 = 0.0 }
    39 Where { condition: Src, x: Src, y: Src, out: Dst }
    40 Reshape { x: Src, out: Dst, shape: Vec<Int> }
    41 Transpose { x: Src, out: Dst, perm: Vec<i32> }
    42 AsStrided { x: Src, out: Dst, shape: Vec<Int>, strides: Vec<Int>, offset: u64 = 0 }
    43 Contiguous { x: Src, out: Dst }
    44 Gather { x: Src, indices: Vec<Src>, out: Dst, axes: Vec<i32>, slice_sizes: Vec<i32> }
    45 Slice { x: Src, out: Dst, axis: Int, start: Int, stop: Int, step: i32 = 1 }
    46 AsType { x: Src, out: Dst, scalar_type: DType }
    47 Concatenate { tensors: Vec<Src>, out: Dst, axis: i32 }
    48 Full { out: Dst, shape: Vec<Int>, v: Float, scalar_type: DType }
    49 FullLike { x: Src, out: Dst, v: Float, scalar_type: Option<DType> }
    50 Argmax { x: Src, out: Dst, axis: i32, keepdims: bool = false }
    51 SliceUpdate { dst: Src, update: Src, out: Dst, axis: Int, start: Int, stop: Int, step: i32 = 1 }
    52 IndexCopy { dst: Src, update: Src, indices: Src, out: Dst, axis: i32 }
    53 Dequantize {
        w: Src, scales: Src, out: Dst, biases: Option<Src>, group_size: i32, bits: i32, mode: QuantMode,
        global_scale: Option<Src>, dtype: Option<DType>,
    }
    54 Less { a: Src, b: Src, out: Dst }
    55 LessEqual { a: Src, b: Src, out: Dst }
    56 Greater { a: Src, b: Src, out: Dst }
    57 GreaterEqual { a: Src, b: Src, out: Dst }
    58 Equal { a: Src, b: Src, out: Dst }
    59 NotEqual { a: Src, b: Src, out: Dst }
    60 LogicalNot { x: Src, out: Dst }
    61 LogicalAnd { a: Src, b: Src, out: Dst }
    62 LogicalOr { a: Src, b: Src, out: Dst }
    63 Tri { out: Dst, n: Int, m: Int, k: i32 = 0, scalar_type: DType }
    64 Tril { x: Src, out: Dst, k: i32 = 0 }
    65 Triu { x: Src, out: Dst, k: i32 = 0 }
    66 Floor { x: Src, out: Dst }
    67 Ceil { x: Src, out: Dst }
    68 Square { x: Src, out: Dst }
    69 Exp { x: Src, out: Dst }
    70 Sin { x: Src, out: Dst }
    71 Cos { x: Src, out: Dst }
    72 Tan { x: Src, out: Dst }
    73 Arcsin { x: Src, out: Dst }
    74 Arccos { x: Src, out: Dst }
    75 Arctan { x: Src, out: Dst }
    76 Sinh { x: Src, out: Dst }
    77 Cosh { x: Src, out: Dst }
    78 Arcsinh { x: Src, out: Dst }
    79 Arccosh { x: Src, out: Dst }
    80 Arctanh { x: Src, out: Dst }
    81 Log2 { x: Src, out: Dst }
    82 Log10 { x: Src, out: Dst }
    83 Log1p { x: Src, out: Dst }
    84 Erf { x: Src, out: Dst }
    85 Expm1 { x: Src, out: Dst }
    86 Round { x: Src, out: Dst, decimals: i32 = 0 }
    87 Reciprocal { x: Src, out: Dst }
    88 Sqrt { x: Src, out: Dst }
    89 Abs { x: Src, out: Dst }
    90 Neg { x: Src, out: Dst }
    91 Atan2 { a: Src, b: Src, out: Dst }
    92 LogAddExp { a: Src, b: Src, out: Dst }
    93 FloorDivide { a: Src, b: Src, out: Dst }
    94 Power { a: Src, b: Src, out: Dst }
    95 LogSumExp { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false }
    96 Sum { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false }
    97 Mean { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false }
    98 Var { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false, ddof: i32 = 0 }
    99 Std { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false, ddof: i32 = 0 }
    100 Prod { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false }
    101 Max { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false }
    102 Min { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false }
    103 Argmin { x: Src, out: Dst, axis: i32, keepdims: bool = false }
    104 Median { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false }
    105 ModInt { a: Int, b: Int, out: DstValue }
    106 Remainder { a: Src, b: Src, out: Dst }
    107 ConvTranspose1D {
        x: Src, w: Src, out: Dst, stride: i32 = 1, padding: i32 = 0, dilation: i32 = 1, output_padding: i32 = 0,
        groups: i32 = 1,
    }
    108 ConvTranspose2D {
        x: Src, w: Src, out: Dst, stride_h: i32 = 1, stride_w: i32 = 1, padding_h: i32 = 0, padding_w: i32 = 0,
        dilation_h: i32 = 1, dilation_w: i32 = 1, output_padding_h: i32 = 0, output_padding_w: i32 = 0,
        groups: i32 = 1,
    }
    109 ConvTranspose3D {
        x: Src, w: Src, out: Dst, stride_d: i32 = 1, stride_h: i32 = 1, stride_w: i32 = 1, padding_d: i32 = 0,
        padding_h: i32 = 0, padding_w: i32 = 0, dilation_d: i32 = 1, dilation_h: i32 = 1, dilation_w: i32 = 1,
        output_padding_d: i32 = 0, output_padding_h: i32 = 0, output_padding_w: i32 = 0, groups: i32 = 1,
    }
    110 Clip { x: Src, out: Dst, a_min: Option<Src>, a_max: Option<Src> }
    111 Cumsum { x: Src, out: Dst, axis: i32, reverse: bool = false, inclusive: bool = true }
    112 Stack { tensors: Vec<Src>, out: Dst, axis: i32 = 0 }
    113 Sign { x: Src, out: Dst }
    114 Any { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false }
    115 All { x: Src, out: Dst, axes: Option<Vec<i32>>, keepdims: bool = false }
    116 Repeat { x: Src, out: Dst, repeats: Int, axis: i32 }
    117 Sort { x: Src, out: Dst, axis: i32 }
    118 Argsort { x: Src, out: Dst, axis: i32 }
    119 Partition { x: Src, out: Dst, kth: Int, axis: i32 }
    120 ArgPartition { x: Src, out: Dst, kth: Int, axis: i32 }
    121 QuantizedMatmul {
        x: Src, w: Src, scales: Src, out: Dst, biases: Option<Src>, group_size: i32, bits: i32, mode: QuantMode,
        transpose: bool = true,
    }
    122 ScatterAdd { x: Src, indices: Src, updates: Src, out: Dst, axis: i32 }
    123 GatherMm {
        a: Src, b: Src, out: Dst, lhs_indices: Option<Src>, rhs_indices: Option<Src>, sorted_indices: bool = false,
        sorted_indices_flag: Option<Int>,
    }
    124 GatherQmm {
        x: Src, w: Src, scales: Src, out: Dst, mode: QuantMode, biases: Option<Src>, lhs_indices: Option<Src>,
        rhs_indices: Option<Src>, transpose: bool = true, group_size: i32, bits: i32, sorted_indices: bool = false,
        sorted_indices_flag: Option<Int>,
    }
    125 Scan {
        originals: Vec<Src>, sliced: Vec<Fed>, outputs: Vec<Collected>, carry: Vec<Src>, body_chain_idx: Chain,
        scan_axis: i32 = 1,
    }
    126 MetalKernel {
        name: String, source: String, inputs: Vec<Src>, outputs: Vec<Dst>, grid: Vec<Int>, threadgroup: Vec<Int>,
        header: Option<String>, input_names: Option<Vec<String>>, output_names: Option<Vec<String>>,
        ensure_row_contiguous: bool = true, atomic_outputs: bool = false, output_shapes_flat: Option<Vec<Int>>,
        output_shape_lengths: Option<Vec<i32>>, output_dtypes: Option<Vec<DType>>,
        template_arg_names: Option<Vec<String>>, template_arg_kinds: Option<Vec<i8>>,
        template_arg_values: Option<Vec<i32>>, init_value: Option<f32>,
    }
    127 BitwiseInvert { x: Src, out: Dst }
    128 Roll { x: Src, out: Dst, shift: Vec<Int>, axes: Vec<i32> }
    129 BitwiseAnd { a: Src, b: Src, out: Dst }
    130 BitwiseOr { a: Src, b: Src, out: Dst }
    131 BitwiseXor { a: Src, b: Src, out: Dst }
    132 If { cond: Int, then_chain_idx: Chain, else_chain_idx: Chain }
    133 RandomBits { out: Dst, shape: Vec<Int>, seed: Option<Value>, width: i32 = 4 }
    134 UpdateAndAttend {
        q: Src, k: Src, v: Src, position: Src, out: Dst, layer_id: Option<i32>, scale: Option<f32>,
        out_dtype: Option<DType>,
    }
    135 Trunc { x: Src, out: Dst }
    136 Flip { x: Src, out: Dst, axes: Vec<i32> }
}
