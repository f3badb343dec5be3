//! The sampling heads. Upstream's: `argmax(logits / temperature + gumbel noise)` over what top-k and top-p keep, as the exact sequence
//! of nodes that upstream's exporter emits for `mlx::sample`. Programs stay portable, and passes that fuse the sequence need
//! to know only one form.
//!
//! ```text
//! main    temperature > 0 ? sample : greedy
//! sample  g = -log(-log(min(f32(bits) / 2^32, 1 - 2^-24)))          the noise, f32 whatever the logits are (S0.4)
//!         s = f32(logits) / temperature
//!         s = where(s < the top_k-th largest of s, -inf, s)
//!         p = softmax(s), in descending order, and c the mass before each
//!         s = where(p < min(where(c > top_p, inf, p)), -inf, s)
//!         token = argmax(s + g)
//! greedy  token = argmax(logits)                                    exact: no division, no noise (S0.5)
//! ```
//!
//! The full head, which has every option, is in `full.rs`.

mod full;

use crate::builder::{GraphBuilder, Tensor};
use ptero_pte::field::{Int, IntOrSrc};
use ptero_pte::nodes::{
    Add, Argmax, AsType, Cumsum, Divide, ExpandDims, Greater, If, ItemInt, Less, Log, Min, Minimum, Neg, RandomBits,
    Softmax, Sort, Subtract, SubtractInt, SymSize, Take, Where,
};
use ptero_pte::{DType, ShapeDim};
use ptero_sampling::inputs::{Head, SAMPLER_OUTPUTS, Scalar};
use ptero_sampling::log_probabilities::MOST_LIKELIEST;
use ptero_sampling::noise::BELOW_ONE;

/// All bits set, which as a single is 2^32.
const LARGEST_BITS: f32 = 4_294_967_295.0;

/// Logits of the last position, `(batch, vocabulary)`, of any floating type (S4.1).
#[derive(Clone, Debug)]
pub struct Logits {
    /// The tensor.
    pub tensor: Tensor,
    /// How many rows it has.
    pub batch: ShapeDim,
    /// How many logits a row has.
    pub vocabulary: i32,
}

impl Logits {
    /// The shape `[batch, vocabulary]`.
    pub(crate) fn shape(&self, b: &mut GraphBuilder) -> Vec<Int> {
        let rows = match self.batch.value {
            -1 => b.value(|out| SymSize { a: self.tensor.src(), dim: 0, out }).int(),
            rows => Int::Literal(rows.into()),
        };
        vec![rows, Int::Literal(self.vocabulary.into())]
    }

    /// Checks that the full head can take them.
    fn check_full(&self) -> Result<(), HeadError> {
        let (batch, vocabulary) = (self.batch.value, self.vocabulary);
        if batch != 1 {
            return Err(HeadError::SeveralRows { batch });
        }
        let is_enough = usize::try_from(vocabulary).is_ok_and(|vocabulary| vocabulary >= MOST_LIKELIEST);
        if is_enough { Ok(()) } else { Err(HeadError::SmallVocabulary { vocabulary }) }
    }
}

/// The inputs of a call that the full head keeps, so that it knows the text so far.
#[derive(Clone, Copy, Debug)]
pub struct TextInputs {
    /// The tokens, `i64 [1, length]`.
    pub tokens: Tensor,
    /// Their positions, `i64 [length]`.
    pub positions: Tensor,
    /// How many positions a text may have.
    pub context: i32,
}

/// Why logits do not get a head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum HeadError {
    #[error("the full sampling head draws one token, but the logits have {} rows", shown(*batch))]
    SeveralRows { batch: i32 },
    #[error("a vocabulary of {vocabulary}; the full sampling head returns the {MOST_LIKELIEST} likeliest tokens")]
    SmallVocabulary { vocabulary: i32 },
    #[error("the full sampling head needs the tokens of the call and their positions")]
    NoText,
}

/// A number of rows; it is negative if it varies.
fn shown(batch: i32) -> String {
    if batch < 0 { "a varying number of".to_owned() } else { batch.to_string() }
}

/// The tensors that hold the parameters of upstream's head.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the table of inputs says what each is")]
pub struct SamplerSlots {
    pub temperature: Tensor,
    pub top_k: Tensor,
    pub top_p: Tensor,
    /// Without one, the runtime draws from its own sequence of keys.
    pub seed: Option<Tensor>,
}

/// A head whose inputs are declared and whose logits fit.
#[derive(Debug)]
pub(crate) struct DeclaredHead {
    plain: SamplerSlots,
    full: Option<(full::FullSlots, TextInputs)>,
}

impl DeclaredHead {
    /// Declares the inputs of a head in the order of the table, after the first ones, which are `given`.
    pub(crate) fn new(
        b: &mut GraphBuilder,
        logits: &Logits,
        head: Head,
        text: Option<TextInputs>,
        given: &[Tensor],
    ) -> Result<Self, HeadError> {
        let text = match (head, text) {
            (Head::Unseeded | Head::Plain, _) => None,
            (Head::Full, Some(text)) => Some(text),
            (Head::Full, None) => return Err(HeadError::NoText),
        };
        text.map_or(Ok(()), |_| logits.check_full())?;
        let vocabulary = usize::try_from(logits.vocabulary).unwrap_or(0);
        let size = |size: usize| ShapeDim::fixed(i32::try_from(size).expect("fewer than a vocabulary, or constant"));
        let mut inputs = given.to_vec();
        for input in head.inputs().skip(given.len()) {
            inputs.push(b.input(input.name, input.dtype, input.shape.size(vocabulary).map(size)));
        }
        let (&[temperature, top_k, top_p], rest) = inputs.split_first_chunk().expect("every head takes these");
        let plain = SamplerSlots { temperature, top_k, top_p, seed: rest.first().copied() };
        Ok(Self { plain, full: text.and_then(|text| Some((full::FullSlots::new(rest.get(1..)?)?, text))) })
    }

    /// Emits the nodes, which write `token`. The full head declares further outputs: those of [`SAMPLER_OUTPUTS`].
    pub(crate) fn emit(&self, b: &mut GraphBuilder, logits: &Logits, token: Tensor) {
        let Some((slots, text)) = &self.full else { return sampling_head(b, logits, &self.plain, token) };
        let [log_probability, likeliest, of_likeliest] = SAMPLER_OUTPUTS.map(|output| {
            let size = output.size.map(|size| ShapeDim::fixed(i32::try_from(size).expect("a small constant")));
            b.output(output.name, output.dtype, [logits.batch.clone()].into_iter().chain(size))
        });
        let outputs = full::Outputs { token, log_probability, likeliest, of_likeliest };
        full::emit(b, logits, &self.plain, slots, text, &outputs);
    }
}

/// Declares the parameters as inputs and what the head returns as outputs, and draws the token from the logits.
///
/// # Errors
/// When the full head is asked for: without the inputs of the text, or for logits that it cannot take.
pub fn sampled_output(
    b: &mut GraphBuilder,
    logits: &Logits,
    head: Head,
    text: Option<TextInputs>,
) -> Result<Tensor, HeadError> {
    let head = DeclaredHead::new(b, logits, head, text, &[])?;
    let token = b.output("token", DType::I64, [logits.batch.clone()]);
    head.emit(b, logits, token);
    Ok(token)
}

/// Emits upstream's head: it draws one token for each row of the logits, `[batch]`, and writes them to `token`.
pub fn sampling_head(b: &mut GraphBuilder, logits: &Logits, inputs: &SamplerSlots, token: Tensor) {
    let zero = b.scalar(Scalar::F32(0.0));
    let is_hot = b.node(|out| Greater { a: inputs.temperature.src(), b: zero.src(), out });
    let cond = b.value(|out| ItemInt { x: is_hot.src(), out });
    let then_chain_idx = b.chain(|b| sample(b, logits, inputs, token));
    let else_chain_idx = b.chain(|b| best(b, logits.tensor, token));
    b.emit(If { cond: cond.int(), then_chain_idx, else_chain_idx });
}

fn best(b: &mut GraphBuilder, x: Tensor, token: Tensor) {
    b.emit(Argmax { x: x.src(), out: token.dst(), axis: -1, keepdims: false });
}

fn sample(b: &mut GraphBuilder, logits: &Logits, inputs: &SamplerSlots, token: Tensor) {
    let noise = gumbel(b, logits, inputs.seed);
    let scaled = b.node(|out| AsType { x: logits.tensor.src(), out, scalar_type: DType::F32 });
    b.emit(Divide { a: scaled.src(), b: inputs.temperature.src(), out: scaled.dst() });
    let forbidden = b.scalar(Scalar::F32(f32::NEG_INFINITY));
    let likely = top_k(b, scaled, logits.vocabulary, inputs.top_k, forbidden);
    let kept = top_p(b, likely, inputs.top_p, forbidden);
    b.emit(Add { a: kept.src(), b: noise.src(), out: kept.dst() });
    best(b, kept, token);
}

/// Noise of the Gumbel distribution from uniform random bits.
fn gumbel(b: &mut GraphBuilder, logits: &Logits, seed: Option<Tensor>) -> Tensor {
    let shape = logits.shape(b);
    let seed = seed.map(|seed| b.value(|out| ItemInt { x: seed.src(), out }).value());
    let uniform = b.node(|out| RandomBits { out, shape, seed, width: 4 });
    b.emit(AsType { x: uniform.src(), out: uniform.dst(), scalar_type: DType::F32 });
    let largest = b.scalar(Scalar::F32(LARGEST_BITS));
    b.emit(Divide { a: uniform.src(), b: largest.src(), out: uniform.dst() });
    let below_one = b.scalar(Scalar::F32(BELOW_ONE));
    b.emit(Minimum { a: uniform.src(), b: below_one.src(), out: uniform.dst() });
    let noise = b.node(|out| Log { x: uniform.src(), out });
    b.emit(Neg { x: noise.src(), out: noise.dst() });
    b.emit(Log { x: noise.src(), out: noise.dst() });
    b.emit(Neg { x: noise.src(), out: noise.dst() });
    noise
}

/// The rows in descending order: there is only one sort, and it ascends.
fn descending(b: &mut GraphBuilder, x: Tensor) -> Tensor {
    let sorted = b.node(|out| Neg { x: x.src(), out });
    b.emit(Sort { x: sorted.src(), out: sorted.dst(), axis: -1 });
    b.emit(Neg { x: sorted.src(), out: sorted.dst() });
    sorted
}

/// What is below the k-th largest of its row becomes `forbidden`. A `top_k` above the vocabulary keeps everything.
fn top_k(b: &mut GraphBuilder, scaled: Tensor, vocabulary: i32, top_k: Tensor, forbidden: Tensor) -> Tensor {
    let all = b.scalar(Scalar::I64(vocabulary.into()));
    let clipped = b.node(|out| Minimum { a: top_k.src(), b: all.src(), out });
    let count = b.value(|out| ItemInt { x: clipped.src(), out });
    let last = b.value(|out| SubtractInt { a: count.int(), b: Int::Literal(1), out });
    let sorted = descending(b, scaled);
    let least = b.node(|out| Take { x: sorted.src(), out, index: IntOrSrc::Value(last.value()), axis: -1 });
    b.emit(ExpandDims { x: least.src(), out: least.dst(), axis: -1 });
    let is_below = b.node(|out| Less { a: scaled.src(), b: least.src(), out });
    b.node(|out| Where { condition: is_below.src(), x: forbidden.src(), y: scaled.src(), out })
}

/// What comes after the mass `top_p`, most likely first, becomes `forbidden`.
fn top_p(b: &mut GraphBuilder, scaled: Tensor, top_p: Tensor, forbidden: Tensor) -> Tensor {
    let likelihood = b.node(|out| Softmax { x: scaled.src(), out, axis: -1, precise: false });
    let sorted = descending(b, likelihood);
    let before = b.node(|out| Cumsum { x: sorted.src(), out, axis: -1, reverse: false, inclusive: true });
    b.emit(Subtract { a: before.src(), b: sorted.src(), out: before.dst() });
    let is_after = b.node(|out| Greater { a: before.src(), b: top_p.src(), out });
    let infinity = b.scalar(Scalar::F32(f32::INFINITY));
    let candidates = b.node(|out| Where { condition: is_after.src(), x: infinity.src(), y: sorted.src(), out });
    let least = b.node(|out| Min { x: candidates.src(), out, axes: Some(vec![-1]), keepdims: true });
    let is_below = b.node(|out| Less { a: likelihood.src(), b: least.src(), out });
    b.node(|out| Where { condition: is_below.src(), x: forbidden.src(), y: scaled.src(), out })
}
