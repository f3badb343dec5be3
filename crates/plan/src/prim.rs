//! The primitives a device implements, and the contract it implements them under.
//!
//! A primitive is written once, over tensors of any kind: values of a graph ([`crate::graph::Value`]), which are never changed,
//! or views of a plan ([`ViewId`]). Every check of shapes and types was made when the graph was built: an implementation may
//! rely on what is stated here. "Computed in f32" means that operands are widened to `f32`, sums and products are `f32`, and
//! the result is rounded once to the type of `out`. In a plan, `out` never shares elements with an input unless both are the
//! same view, and then only where it is stated.

mod parts;

use crate::dim::Dim;
use crate::expr::Expr;
pub use ptero_pte::field::QuantMode;
use ptero_tensor::{DType, GgufType};

/// A buffer of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Buf(pub u32);

/// A view: its number in [`crate::plan::Plan::views`]. Equal views have equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViewId(pub u32);

/// A strided view of a buffer. Offset and strides count elements; a stride may be zero (one element repeated) or negative. A view
/// that is written to holds no element twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The buffer.
    pub buf: Buf,
    /// The type of its elements.
    pub dtype: DType,
    /// Sizes, outermost first.
    pub shape: Vec<Dim>,
    /// Distance between neighbours along each axis.
    pub strides: Vec<Dim>,
    /// The first element.
    pub offset: Dim,
}

/// How a reduction combines elements.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the comment of a variant explains its fields")]
pub enum Fold {
    /// Of floats computed in f32; of integers in 64 bits, wrapped to the type of `out`. Empty: 0.
    Sum,
    /// Computed like `Sum`. Empty: 1.
    Prod,
    /// NaN wins. Never empty.
    Max,
    /// NaN wins. Never empty.
    Min,
    /// True if any element is not zero; `out` is `Bool`. Empty: false.
    Any,
    /// True if no element is zero; `out` is `Bool`. Empty: true.
    All,
    /// Computed in f32 (integers too); `out` is a float. Empty: NaN.
    Mean,
    /// The sum of squared distances from the mean over `count - ddof`, in f32; the divisor is never below zero.
    Var { ddof: i32 },
    /// `log(sum(exp(x)))` in f32, without overflow. All minus infinity: minus infinity.
    LogSumExp,
}

/// How a row is normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalize {
    /// By the root of the mean square.
    Rms,
    /// By mean and variance.
    Layer,
}

/// The angles of a rotary embedding, per pair `i` of `dims / 2`.
#[derive(Clone, Debug, PartialEq)]
pub enum Angles<T = ViewId> {
    /// `position * scale * base^(-2 i / dims)`.
    Base(f32),
    /// `position * scale / periods[i]`; f32, shape `[dims / 2]`.
    Periods(T),
}

/// The position of the first token of each sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum Position<T = ViewId> {
    /// The same for all.
    Host(Dim),
    /// An integer tensor: one element for all, or shape `[B]`, one per outermost index of `x`.
    Tensor(T),
}

/// How quantized weights are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the comment of a variant explains its fields")]
pub enum QuantFormat {
    /// Codes of `bits` bits in `u32` words, filled from the lowest bit, with a scale per `group` elements of the last axis in a
    /// tensor of its own; codes of 3, 5 and 6 bits cross byte borders as one stream of bits, lowest first. `Affine`:
    /// `scale * code + bias`, code unsigned. `Mxfp4`/`Nvfp4`: code is e2m1. `Mxfp8`: code is e4m3. Scales of the `mx` formats
    /// are u8 as e8m0 (`2^(s - 127)`), of `Nvfp4` u8 as e4m3.
    Words { mode: QuantMode, bits: u8, group: u16 },
    /// Blocks of GGUF, which hold their own scales.
    Gguf(GgufType),
}

/// Quantized weights: `rows × columns` matrices, stacked along any outer axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized<T = ViewId> {
    /// `Words`: `u32 [..., rows, columns * bits / 32]`. `Gguf`: `u8 [..., rows, bytes of a row of blocks]`.
    pub codes: T,
    /// Of `Words` only: `[..., rows, columns / group]`.
    pub scales: Option<T>,
    /// Of `Affine` only: same shape as `scales`. Without them, all are zero.
    pub biases: Option<T>,
    /// The packing.
    pub format: QuantFormat,
}

/// Which matrix of a stack each matrix of the output uses: integers in the shape of the output without its last two axes,
/// indexing the stack's outer axes in row-major order. An index out of range is an error of the step.
pub type Choice<T = ViewId> = Option<T>;

/// What a product goes through before it is stored: nothing, or an elementwise function.
pub type Epilogue<T = ViewId> = Option<Box<Fused<T>>>;

/// An elementwise function of a product and of other tensors. Fusing it changes no bit: the product is rounded to its own type
/// first.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused<T = ViewId> {
    /// The product's own type.
    pub dtype: DType,
    /// The other operands, of the shape of `out`.
    pub ins: Vec<T>,
    /// The function: its input 0 is the product, input `i + 1` is `ins[i]`; its last step has the type of `out`.
    pub expr: Expr,
}

/// How an axis is indexed by a gather or scatter: by the sum of an index (an element of a tensor) and a coordinate.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis<T = ViewId> {
    /// Integers, of the shape of `out` (gather) or `updates` (scatter), often with strides of zero. Negative ones count from
    /// the end. An index that is still out of range is an error of the step.
    pub index: Option<T>,
    /// The axis of `out` (gather) or `updates` (scatter) whose coordinate is added.
    pub coordinate: Option<usize>,
}

/// One step of a device. `out` is the result, `x` the operand.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the comment of a variant explains its fields")]
pub enum Prim<T = ViewId> {
    /// `out[p] = expr(ins[0][p], ins[1][p], …)`. All views have the shape of `out`, and the last step of `expr` has its type. `out`
    /// may be one of `ins`.
    Map { out: T, ins: Vec<T>, expr: Expr },
    /// Combines the elements along `axes` (sorted, distinct). `out` has size 1 along those.
    Reduce { out: T, x: T, axes: Vec<usize>, fold: Fold },
    /// The index of the largest (or smallest) element along `axis`: `u32`, size 1 along it. The first of equals; a NaN wins over
    /// all numbers.
    ArgReduce { out: T, x: T, axis: usize, largest: bool },
    /// `exp(x - max) / sum` along `axis`, computed in f32.
    Softmax { out: T, x: T, axis: usize },
    /// Normalises along the last axis, computed in f32: `x / sqrt(mean(x²) + eps) * weight + bias`, or
    /// `(x - mean) / sqrt(var + eps) * weight + bias`. `weight` and `bias` have the size of the last axis.
    Norm { out: T, x: T, weight: Option<T>, bias: Option<T>, eps: f32, kind: Normalize },
    /// Rotates pairs of the first `dims` elements of the last axis of `x [B, …, T, D]` by an angle that grows along the second to
    /// last (the position), computed in f32; the other elements are copied. Pairs are `(2i, 2i + 1)` if `interleaved`, else
    /// `(i, i + dims / 2)`: `(a cos - b sin, a sin + b cos)`. `position` is that of the first row; `scale` multiplies positions.
    Rope { out: T, x: T, dims: usize, interleaved: bool, scale: f32, position: Position<T>, angles: Angles<T> },
    /// `softmax(q k^T * scale + mask) v` per head, computed in f32, over the keys that a query attends to; the other keys are not
    /// read. `q [B, H, T, D]`, `k [B, G, S, D]`, `v [B, G, S, E]`, `out [B, H, T, E]`, `H` a multiple of `G`: head `h` uses
    /// group `h / (H / G)`. A query that attends to no key gives NaN.
    Attention {
        out: T,
        q: T,
        k: T,
        v: T,
        /// `[B, H, T, S]`: `Bool` (true: attend) or a float that is added.
        mask: Option<T>,
        /// The position of the first key. Sums group keys by position, so the result has the same bits whether earlier keys are
        /// left out or masked. Only its remainder by 256 matters.
        first: Dim,
        /// Query `t` attends to keys up to `S - T + t`.
        causal: bool,
        /// With a window, query `t` attends to no key before `S - T + t - window + 1`.
        window: Option<i64>,
        scale: f32,
    },
    /// `out[…] = a[…] b[…]`, computed in f32, rounded to its own type, then the epilogue. `a [..., M, K]`, `b [..., K, N]`,
    /// `out [..., M, N]`; outer axes are equal, except those of an operand whose matrices are chosen by `lhs` or `rhs`.
    MatMul { out: T, a: T, b: T, lhs: Choice<T>, rhs: Choice<T>, epilogue: Epilogue<T> },
    /// `x` times dequantized weights, computed in f32, rounded to its own type, then the epilogue: with `transpose`,
    /// `x [..., M, K]` times the transpose of `w [..., N, K]`; without, times `w [..., K, N]`. Outer axes as in `MatMul`.
    QuantMatMul {
        out: T,
        x: T,
        w: Quantized<T>,
        transpose: bool,
        lhs: Choice<T>,
        rhs: Choice<T>,
        epilogue: Epilogue<T>,
    },
    /// The weights themselves, `[..., rows, columns]`, computed in f32.
    Dequantize { out: T, w: Quantized<T> },
    /// Convolution (correlation) over any number of spatial axes, computed in f32. `x [N, spatial…, C]`,
    /// `w [O, spatial…, C / groups]`, `out [N, spatial…, O]`. With `transposed`, its gradient with respect to the input:
    /// `out[n, i * stride - padding + j * dilation, o] += x[n, i, c] * w[o, j, c]`. `stride`, `padding` (on both sides) and
    /// `dilation` have one entry per spatial axis. Channels are split into `groups`, each with its own filters.
    Conv { out: T, x: T, w: T, stride: Vec<i64>, padding: Vec<i64>, dilation: Vec<i64>, groups: i64, transposed: bool },
    /// `out[p] = x[…]`, the index given per axis of `x`. `out` and `x` have the same type.
    Gather { out: T, x: T, axes: Vec<Axis<T>> },
    /// `base`, with `out[…] = updates[p]`, or `+=` with `add`, for every index `p` of `updates`; the index in `out` is given per
    /// axis of `out`. Where several fall on one element they apply in row-major order of `p`: the last one stays, and sums add up
    /// in that order, rounded to the type of `out` after each addition. `base` has the type and shape of `out`; in a plan it is
    /// the same view.
    Scatter { out: T, base: T, updates: T, axes: Vec<Axis<T>>, add: bool },
    /// Sorts along `axis`, smallest first, NaN last, equals in their order. With `indices`, `out` is `u32` and holds the index
    /// that each element came from.
    Sort { out: T, x: T, axis: usize, indices: bool },
    /// Running sums along `axis`, computed in f32 (floats) or 64 bits (integers); each rounded to the type of `out`. `reverse`:
    /// from the end. Not `inclusive`: without the element itself.
    Cumsum { out: T, x: T, axis: usize, reverse: bool, inclusive: bool },
    /// The gated delta rule, computed in f32, token by token: `s *= g; d = (v - s k) * beta; s += d k^T; out = s q`, where `s`
    /// is the state of a head, `[Dv, Dk]`.
    GatedDelta(Box<GatedDelta<T>>),
    /// Random bits by threefry in MLX's layout over the whole of `out` in row-major order; `u8`, `u16` or `u32`. The seed is an
    /// integer whose 64 bits are the key; without one, the next key of the state's own sequence.
    RandomBits { out: T, seed: Option<Dim> },
    /// A token for each of `B` rows of logits, by the rules of `docs/SEMANTICS.md`, "Sampling". The parameters are in device
    /// memory and are read when the step runs; temperature, top-k, top-p, min-p, seed and exact tail are one element, the
    /// same for all rows, or of shape `[B]`.
    Sample(Box<Sample<T>>),
}

/// The most logits that a row of [`Prim::Sample`] may have.
pub const MOST_TOKENS: i64 = 1 << 23;

/// The tensors of a gated delta rule.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDelta<T = ViewId> {
    /// The result, `[B, T, Hv, Dv]`.
    pub out: T,
    /// The state afterwards, `[B, Hv, Dv, Dk]`; may be the same view as `state`.
    pub state_out: T,
    /// Queries, `[B, T, Hk, Dk]`; `Hv` is a multiple of `Hk`, and head `h` uses group `h / (Hv / Hk)`.
    pub q: T,
    /// Keys, same shape as `q`.
    pub k: T,
    /// Values, `[B, T, Hv, Dv]`.
    pub v: T,
    /// Decay, `[B, T, Hv]`.
    pub g: T,
    /// Learning rate, `[B, T, Hv]`.
    pub beta: T,
    /// The state before, `[B, Hv, Dv, Dk]`.
    pub state: T,
}

/// The tensors of a sampler.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<T = ViewId> {
    /// The tokens, `[B]`; `u32` or `i64`.
    pub out: T,
    /// `[B, V]`, floats; `V` is from 1 to [`MOST_TOKENS`].
    pub logits: T,
    /// `f32`. A row whose temperature is not above 0 gets the first of the largest logits; the others are drawn.
    pub temperature: T,
    /// `i32` or `i64`; less than 1 or more than `V` counts as `V`.
    pub top_k: T,
    /// `f32`; from 1 on it keeps all tokens, not above 0 it keeps the largest.
    pub top_p: T,
    /// `f32`; not above 0 it keeps all tokens, from 1 on it keeps the largest.
    pub min_p: T,
    /// `i32`, `i64` or `u32`, of which the low 32 bits count, sign-extended. One element: the noise is that of the
    /// whole of `[B, V]` in row-major order. `[B]`: each row has that of a `[1, V]` of its own. Without a seed it is that
    /// of the whole with the next key of the state's own sequence, which is taken if any temperature is above 0.
    pub seed: Option<T>,
    /// `i64`; above 0, noise has an exact tail. Without it, none does.
    pub exact_tail: Option<T>,
    /// What changes the logits before the draw; there is one row then.
    pub adjust: Option<Adjust<T>>,
    /// Log-probabilities, if they are asked for when the step runs.
    pub log_probabilities: Option<LogProbabilities<T>>,
}

/// The tensors that change the logits of a row: `ptero_sampling::adjust`. Tokens outside the vocabulary change nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjust<T = ViewId> {
    /// The token at each position, `[C]`, `i32`.
    pub history: T,
    /// The last position whose token counts, one `i64`; up to the end of `history` if it is larger.
    pub last: T,
    /// The position at which the text starts after its prompt, one `i64`.
    pub prompt_end: T,
    /// One `f32`.
    pub repetition: T,
    /// One `f32`.
    pub presence: T,
    /// One `f32`.
    pub frequency: T,
    /// `[N]`, `i32`.
    pub bias_tokens: T,
    /// `[N]`, `f32`.
    pub bias_values: T,
    /// A bit for each token, `[ceil(V / 32)]`, `i32`.
    pub mask: T,
}

/// The tensors of log-probabilities: `ptero_sampling::log_probabilities`.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbabilities<T = ViewId> {
    /// Which ones, one `i64`: none (and the results are zeros), the model's own, or those of what is drawn from.
    pub which: T,
    /// Result: that of the token, `[B]`, `f32`.
    pub token: T,
    /// Result: the likeliest tokens, `[B, 20]`, `i64`.
    pub likeliest: T,
    /// Result: theirs, `[B, 20]`, `f32`.
    pub of_likeliest: T,
}

/// How close a backend must come to the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// To the bit.
    Exact,
    /// Units in the last place of the type of `out`.
    Ulps(u32),
    /// Of the largest element that entered.
    Relative(f32),
}
