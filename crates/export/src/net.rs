//! Building blocks of models. A family's file says which of them follow each other, by the names that the checkpoint gives
//! their weights; how a weight is stored, and which nodes that takes, is decided here.

mod attention;
mod delta;
mod experts;
mod linear;
mod rope;
mod window;

pub(crate) use attention::{Attention, KvCache};
pub(crate) use delta::{CarryMask, DeltaHeads, DeltaRule};
pub(crate) use experts::Experts;
use linear::{Stack, Stored};
pub(crate) use rope::{Rope, RopeConfig};

use crate::builder::{GraphBuilder, Tensor, Value};
use crate::config::unsupported;
use crate::error::{ExportError, Result};
use crate::recipe::{Recipe, Storage};
use crate::weights::{Form, Weight, WeightRows, extend};
use ptero_checkpoint::{Checkpoint, Format, TensorEntry};
use ptero_pte::field::{GeluForm, Int, IntOrSrc};
use ptero_pte::nodes::{
    ARange, Add, AddInt, AsType, Divide, ExpandDims, Gelu, IdCopy, ItemInt, Multiply, RMSNorm, Reshape, Sigmoid, Silu,
    Slice, SliceUpdate, SubtractInt, SymSize, Take, Tanh, Transpose,
};
use ptero_pte::{DType, Pending, ShapeDim};
use ptero_tensor::ScaleType;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use window::Ring;

/// Linear layers whose errors cost the most: values are copied from token to token as they are, and what a feed-forward
/// network adds to the residual has the largest outliers.
const SENSITIVE: &[&str] = &["v_proj", "down_proj"];

/// An activation function: its name, and the key of the configuration that names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activation<'a> {
    pub(crate) key: &'static str,
    pub(crate) name: &'a str,
}

/// A model being built over the tensors of a checkpoint.
///
/// Activations have the shape `[1, length, width]`. A tensor that the checkpoint lacks is recorded and building continues
/// without it, so that one error lists everything that is missing.
#[derive(Debug)]
pub(crate) struct Net<'a> {
    pub(crate) graph: GraphBuilder,
    pub(crate) recipe: &'a Recipe,
    /// Weights that share a scale, where they are quantized.
    group: usize,
    /// Positions that the state has room for.
    pub(crate) context: i32,
    /// Tokens that one call takes.
    pub(crate) prefill: i32,
    /// Ids of the tokens, `[1, length]`.
    pub(crate) tokens: Tensor,
    /// Their positions, `[length]`.
    pub(crate) positions: Tensor,
    /// How many tokens there are.
    pub(crate) length: Value,
    /// The position of the first.
    pub(crate) position: Value,
    /// The position after the last.
    pub(crate) end: Value,
    checkpoint: &'a Checkpoint,
    /// The prefix of the names of weights.
    scope: String,
    /// `true` within the first and the last layer.
    is_outer_layer: bool,
    /// Names of layers that are as sensitive as [`SENSITIVE`], although they are called otherwise.
    sensitive: BTreeSet<String>,
    /// Weights that are already constants, by name.
    stored: HashMap<String, Stored>,
    /// By the size of the window.
    rings: HashMap<i32, Ring>,
    pub(crate) weights: Vec<Weight>,
    wanted: BTreeMap<String, Vec<u64>>,
    ignored: Vec<String>,
    /// Outputs of layers, by name and width.
    pub(crate) taps: Vec<(String, Tensor, i32)>,
}

impl<'a> Net<'a> {
    /// Declares the inputs of every model: `tokens`, `[1, length]`, and `input_pos`, `[length]`, whose first element is read.
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        recipe: &'a Recipe,
        group: usize,
        [context, prefill]: [i32; 2],
    ) -> Self {
        let mut graph = GraphBuilder::new("");
        let length = ShapeDim::between(1, prefill);
        let tokens = graph.input("tokens", DType::I64, [ShapeDim::fixed(1), length.clone()]);
        let positions = graph.input("input_pos", DType::I64, [length]);
        let length = graph.value(|out| SymSize { a: tokens.src(), dim: 1, out });
        let first = graph.node(|out| Take { x: positions.src(), out, index: IntOrSrc::Literal(0), axis: 0 });
        let position = graph.value(|out| ItemInt { x: first.src(), out });
        let end = graph.value(|out| AddInt { a: position.int(), b: length.int(), out });
        Self {
            graph,
            recipe,
            group,
            context,
            prefill,
            tokens,
            positions,
            length,
            position,
            end,
            checkpoint,
            scope: String::new(),
            is_outer_layer: false,
            sensitive: BTreeSet::new(),
            stored: HashMap::new(),
            rings: HashMap::new(),
            weights: Vec::new(),
            wanted: BTreeMap::new(),
            ignored: Vec::new(),
            taps: Vec::new(),
        }
    }

    /// Builds a part of the model whose weights' names start with `name` and a dot.
    pub(crate) fn within<T>(&mut self, name: &str, build: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.scope.len();
        self.scope.push_str(name);
        self.scope.push('.');
        let built = build(self);
        self.scope.truncate(outer);
        built
    }

    /// Builds a layer of a stack: its weights' names start with `stack` and its index.
    pub(crate) fn layer<T>(
        &mut self,
        stack: &str,
        layer: usize,
        layers: &Range<usize>,
        build: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.is_outer_layer = layer == layers.start || layer + 1 == layers.end;
        let built = self.within(&format!("{stack}.{layer}"), build);
        self.is_outer_layer = false;
        built
    }

    /// Stores a linear layer like those called [`SENSITIVE`].
    pub(crate) fn mark_sensitive(&mut self, name: &str) {
        let name = self.full_name(name);
        self.sensitive.insert(name);
    }

    /// How the recipe stores the linear layer of this name.
    pub(crate) fn storage(&self, name: &str) -> Storage {
        let is_sensitive = self.is_outer_layer
            || SENSITIVE.contains(&name)
            || !self.sensitive.is_empty() && self.sensitive.contains(&self.full_name(name));
        if is_sensitive { self.recipe.sensitive() } else { self.recipe.linear }
    }

    /// The type of the activations.
    pub(crate) fn dtype(&self) -> DType {
        self.recipe.dtype.dtype()
    }

    /// The name that the checkpoint gives.
    pub(crate) fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.scope)
    }

    /// Ignores tensors whose names have one of these prefixes, such as those of a vision tower.
    pub(crate) fn ignore(&mut self, prefixes: &[&str]) {
        self.ignored.extend(prefixes.iter().map(|prefix| (*prefix).to_owned()));
    }

    /// Returns `true` if the checkpoint has this tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.checkpoint.tensor(&self.full_name(name)).is_ok()
    }

    /// All rows of a tensor of this shape, or `None` if the checkpoint has no such tensor.
    pub(crate) fn rows_of(&mut self, name: &str, shape: &[i32]) -> Option<WeightRows> {
        let name = self.full_name(name);
        let shape: Vec<u64> = shape.iter().map(|size| u64::try_from(*size).unwrap_or(0)).collect();
        let found = self.checkpoint.find(&name, &shape);
        self.wanted.insert(name, shape);
        found.map(WeightRows::whole)
    }

    /// A constant in the type of the activations, with `change` applied to each of its numbers.
    pub(crate) fn changed(&mut self, name: &str, shape: &[i32], change: Option<fn(f32) -> f32>) -> Tensor {
        self.constant_of(name, shape, shape, self.dtype(), change)
    }

    /// A constant in the type of the activations.
    pub(crate) fn weight(&mut self, name: &str, shape: &[i32]) -> Tensor {
        self.changed(name, shape, None)
    }

    /// A constant of any floating type; the checkpoint may have it in another shape of as many elements.
    pub(crate) fn constant_of(
        &mut self,
        name: &str,
        found: &[i32],
        shape: &[i32],
        dtype: DType,
        change: Option<fn(f32) -> f32>,
    ) -> Tensor {
        let full = self.full_name(name);
        if let Some(Stored::Alone(Stack::Plain(tensor))) = self.stored.get(&full) {
            return *tensor;
        }
        let parts: Vec<WeightRows> = self.rows_of(name, found).into_iter().collect();
        let tensor = self.store_plain(&full, parts, shape, dtype, change);
        self.stored.insert(full, Stored::Alone(Stack::Plain(tensor)));
        tensor
    }

    fn store_plain(
        &mut self,
        name: &str,
        parts: Vec<WeightRows>,
        shape: &[i32],
        dtype: DType,
        change: Option<fn(f32) -> f32>,
    ) -> Tensor {
        let columns = parts.first().map_or(1, |part| usize::try_from(part.entry.columns()).unwrap_or(1));
        let is_same = |part: &WeightRows| part.entry.format() == Format::Plain(dtype) && change.is_none();
        let form = match ScaleType::new(dtype) {
            Some(float) if !parts.iter().all(is_same) => Form::Plain(float),
            _ => Form::Bytes,
        };
        let (tensor, pending) = self.declare(name, dtype, shape);
        self.weights.push(Weight { parts, columns, change, form, data: vec![pending] });
        tensor
    }

    /// A constant of the program whose bytes come later.
    fn declare(&mut self, name: &str, dtype: DType, shape: &[i32]) -> (Tensor, Pending) {
        let (tensor, key) = self.graph.pending(name, dtype, shape);
        let elements: u64 = shape.iter().map(|size| u64::try_from(*size).unwrap_or(0)).product();
        (tensor, Pending { key, bytes: elements.saturating_mul(dtype.bytes()) })
    }

    /// The numbers of a short tensor that is needed while the graph is built; zeros if it is missing.
    pub(crate) fn read(&mut self, name: &str, size: i32) -> Result<Vec<f32>> {
        let mut numbers = vec![0.0; usize::try_from(size).unwrap_or(0)];
        if let Some(part) = self.rows_of(name, &[size]) {
            part.entry.read_rows(part.rows, &mut numbers)?;
        }
        Ok(numbers)
    }

    /// A constant that is computed here, not read from the checkpoint.
    pub(crate) fn numbers(&mut self, name: &str, numbers: &[f32], float: ScaleType) -> Tensor {
        let mut bytes = Vec::new();
        extend(&mut bytes, numbers, float);
        let size = i32::try_from(numbers.len()).unwrap_or(i32::MAX);
        let name = self.full_name(name);
        self.graph.constant(&name, float.dtype(), [size], bytes)
    }

    /// One number, in the type of the activations.
    pub(crate) fn number(&mut self, number: f32) -> Tensor {
        let dtype = self.dtype();
        let mut bytes = Vec::new();
        extend(&mut bytes, &[number], self.recipe.dtype);
        self.graph.scalar_of(&format!("_scalar_{:?}", f64::from(number)), dtype, bytes)
    }

    /// Normalizes the last axis to a mean square of one, and multiplies by `name.weight`.
    pub(crate) fn rms_norm(&mut self, name: &str, x: Tensor, width: i32, eps: f32) -> Tensor {
        let weight = self.weight(&format!("{name}.weight"), &[width]);
        self.rms_norm_by(x, Some(weight), eps)
    }

    /// Same as [`Net::rms_norm`], with a weight that is already a constant, or none.
    pub(crate) fn rms_norm_by(&mut self, x: Tensor, weight: Option<Tensor>, eps: f32) -> Tensor {
        self.graph.node(|out| RMSNorm { x: x.src(), weight: weight.map(Tensor::src), out, eps })
    }

    pub(crate) fn add(&mut self, a: Tensor, b: Tensor) -> Tensor {
        self.graph.node(|out| Add { a: a.src(), b: b.src(), out })
    }

    pub(crate) fn multiply(&mut self, a: Tensor, b: Tensor) -> Tensor {
        self.graph.node(|out| Multiply { a: a.src(), b: b.src(), out })
    }

    /// `x * factor`, with the factor in the type of the activations.
    pub(crate) fn scale(&mut self, x: Tensor, factor: f32) -> Tensor {
        let factor = self.number(factor);
        self.multiply(x, factor)
    }

    pub(crate) fn silu(&mut self, x: Tensor) -> Tensor {
        self.graph.node(|out| Silu { x: x.src(), out })
    }

    pub(crate) fn sigmoid(&mut self, x: Tensor) -> Tensor {
        self.graph.node(|out| Sigmoid { x: x.src(), out })
    }

    /// The activation that a config names.
    pub(crate) fn activation(&mut self, Activation { key, name }: Activation<'_>, x: Tensor) -> Result<Tensor> {
        let gelu = |net: &mut Self, approximate| net.graph.node(|out| Gelu { x: x.src(), out, approximate });
        match name {
            "silu" | "swish" => Ok(self.silu(x)),
            "gelu" => Ok(gelu(self, GeluForm::Erf)),
            "gelu_pytorch_tanh" | "gelu_new" => Ok(gelu(self, GeluForm::Tanh)),
            other => Err(unsupported(key, other)),
        }
    }

    /// A gated feed-forward network: `down(activation(gate(x)) * up(x))`. `shape` is its width outside and inside.
    pub(crate) fn feed_forward(
        &mut self,
        x: Tensor,
        [width, inner]: [i32; 2],
        activation: Activation<'_>,
        has_bias: bool,
    ) -> Result<Tensor> {
        let [gate, up] = self.linears("gate_up_proj", [("gate_proj", inner), ("up_proj", inner)], x, width, has_bias);
        let gate = self.activation(activation, gate)?;
        let gated = self.multiply(gate, up);
        Ok(self.linear_with("down_proj", gated, [width, inner], has_bias))
    }

    /// `cap * tanh(x / cap)`, in f32.
    pub(crate) fn soft_cap(&mut self, x: Tensor, cap: f32) -> Tensor {
        let x = self.cast(x, DType::F32);
        let cap = self.graph.scalar(ptero_sampling::inputs::Scalar::F32(cap));
        let part = self.graph.node(|out| Divide { a: x.src(), b: cap.src(), out });
        let bent = self.graph.node(|out| Tanh { x: part.src(), out });
        self.multiply(bent, cap)
    }

    pub(crate) fn cast(&mut self, x: Tensor, dtype: DType) -> Tensor {
        self.graph.node(|out| AsType { x: x.src(), out, scalar_type: dtype })
    }

    /// WeightRows of an axis.
    pub(crate) fn slice(&mut self, x: Tensor, axis: i64, from: Int, to: Int) -> Tensor {
        self.graph.node(|out| Slice { x: x.src(), out, axis: Int::Literal(axis), start: from, stop: to, step: 1 })
    }

    /// One index of an axis, which is removed.
    pub(crate) fn take(&mut self, x: Tensor, axis: i32, index: i64) -> Tensor {
        self.graph.node(|out| Take { x: x.src(), out, index: IntOrSrc::Literal(index), axis })
    }

    /// The integers from `start` up to, not including, `stop`.
    fn range(&mut self, start: Int, stop: Int) -> Tensor {
        let step = Int::Literal(1);
        self.graph.node(|out| ARange { out, start, stop, step, scalar_type: Some(DType::I64) })
    }

    /// Inserts an axis of size one.
    fn expand(&mut self, x: Tensor, axis: i32) -> Tensor {
        self.graph.node(|out| ExpandDims { x: x.src(), out, axis })
    }

    /// Overwrites `start` to `stop` of an axis of a state.
    fn write(&mut self, state: Tensor, new: Tensor, axis: i64, start: Int, stop: Int) {
        let (dst, update, out, axis) = (state.src(), new.src(), state.dst(), Int::Literal(axis));
        self.graph.emit(SliceUpdate { dst, update, out, axis, start, stop, step: 1 });
    }

    /// Splits the last axis into consecutive parts.
    pub(crate) fn split<const N: usize>(&mut self, x: Tensor, sizes: [i32; N]) -> [Tensor; N] {
        let mut start = 0;
        sizes.map(|size| self.next_part(x, &mut start, size))
    }

    /// The next `size` elements of the last axis from `start`, which moves past them.
    fn next_part(&mut self, x: Tensor, start: &mut i64, size: i32) -> Tensor {
        let end = *start + i64::from(size);
        let part = self.slice(x, -1, Int::Literal(*start), Int::Literal(end));
        *start = end;
        part
    }

    pub(crate) fn reshape(&mut self, x: Tensor, shape: Vec<Int>) -> Tensor {
        self.graph.node(|out| Reshape { x: x.src(), out, shape })
    }

    /// `[1, length, heads * width]` as `[1, length, heads, width]`.
    pub(crate) fn split_heads(&mut self, x: Tensor, heads: i32, width: i32) -> Tensor {
        let shape = vec![Int::Literal(1), self.length.int(), Int::Literal(heads.into()), Int::Literal(width.into())];
        self.reshape(x, shape)
    }

    /// `[1, length, heads, n]` as `[1, length, width]`.
    pub(crate) fn join_heads(&mut self, x: Tensor, width: i32) -> Tensor {
        self.reshape(x, vec![Int::Literal(1), self.length.int(), Int::Literal(width.into())])
    }

    pub(crate) fn transpose(&mut self, x: Tensor, perm: &[i32]) -> Tensor {
        self.graph.node(|out| Transpose { x: x.src(), out, perm: perm.to_vec() })
    }

    /// Records the output of a layer, for comparisons.
    pub(crate) fn tap(&mut self, name: &str, x: Tensor, width: i32) {
        if self.recipe.tap_layers {
            // The slot of `x` may be reused, that of a copy is not.
            let kept = self.graph.node(|out| IdCopy { x: x.src(), out });
            self.taps.push((self.full_name(name), kept, width));
        }
    }

    /// The last position alone, `[1, width]`, so that what follows is computed for one position (S4.1).
    pub(crate) fn last_position(&mut self, x: Tensor) -> Tensor {
        if self.recipe.every_position {
            return x;
        }
        let last = self.graph.value(|out| SubtractInt { a: self.length.int(), b: Int::Literal(1), out });
        self.graph.node(|out| Take { x: x.src(), out, index: IntOrSrc::Value(last.value()), axis: 1 })
    }

    /// How many parameters the model has.
    pub(crate) fn parameters(&self) -> u64 {
        let elements = |shape: &Vec<u64>| shape.iter().fold(1_u64, |product, size| product.saturating_mul(*size));
        self.wanted.values().map(elements).fold(0, u64::saturating_add)
    }

    /// Checks that the checkpoint has exactly the tensors that the model needs.
    pub(crate) fn check(&self) -> Result<()> {
        let wanted = self.wanted.iter().map(|(name, shape)| (name.as_str(), shape.as_slice()));
        let mut differences = self.checkpoint.compare(wanted);
        differences.surplus.retain(|tensor| !self.ignored.iter().any(|prefix| tensor.name.starts_with(prefix)));
        differences.require_none()?;
        for name in self.wanted.keys() {
            if let Ok(format) = self.checkpoint.tensor(name).map(TensorEntry::format)
                && !format.is_float()
            {
                return Err(ExportError::NotWeights { name: name.clone(), format: format.name() });
            }
        }
        Ok(())
    }
}
