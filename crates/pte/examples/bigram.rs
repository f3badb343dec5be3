//! Writes `models/bigram.pte`: the smallest program that samples. Its model knows one thing, how often one letter
//! follows another in the text below; its head is the very sequence of nodes that upstream's exporter emits.
//!
//! `cargo run -p ptero-pte --example bigram -- models/bigram.pte`

use ptero_pte::field::{Chain, Dst, DstValue, Int, IntOrSrc, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::schema::{self, EValue, Tensor, TensorShapeDynamism};
use ptero_pte::{
    Bytes, Chains, DType, Delegate, Method, NamedData, NamedSlot, Program, ShapeDim, SlotType, SlotVariant, TensorMeta,
};

/// Letters are bytes.
const VOCABULARY: i32 = 128;
/// The longest input.
const LONGEST: i32 = 64;

const TEXT: &str = "a wing is a slow thing to make and a quick thing to use. the one who made the first of them had no bird to \
look at, only the wind on the water and the leaves that would not come down. there were days when the wind was all that \
moved on the grey shore, and then there was a shadow on the sand, and the shadow had an edge, and the edge was a hand \
with one long finger. it held the air the way a hand holds a thought: lightly, or not at all. ";

/// Constants, in the order of their slots.
const CONSTANTS: [&str; 7] = ["weight", "zero", "two_to_32", "below_one", "minus_infinity", "vocabulary", "infinity"];
/// Inputs, in the order of their slots and of the method.
const INPUTS: [(&str, DType); 5] = [
    ("tokens", DType::I64),
    ("temperature", DType::F32),
    ("top_k", DType::I64),
    ("top_p", DType::F32),
    ("seed", DType::I64),
];
const TOKEN: u32 = 12;
const FIRST_TEMPORARY: u32 = 13;

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "models/bigram.pte".to_owned());
    let mut file = std::fs::File::create(path)?;
    program().write(&mut file)
}

/// The program.
pub(crate) fn program() -> Program {
    let named = |(name, data)| NamedData { key: format!("b16a/{name}"), data };
    let metadata = [("get_vocab_size", VOCABULARY), ("get_max_seq_len", LONGEST), ("get_max_prefill_chunk", LONGEST)];
    let metadata =
        metadata.map(|(name, value)| Method::metadata(name, EValue::Int(schema::Int { int_val: value.into() })));
    let sampling = Method::metadata("use_sampling", EValue::Bool(schema::Bool { bool_val: true }));
    Program {
        methods: [forward()].into_iter().chain(metadata).chain([sampling]).collect(),
        constants: vec![Bytes::default()],
        named_data: CONSTANTS.into_iter().zip(data()).map(named).collect(),
        ..Program::default()
    }
}

fn data() -> [Bytes; 7] {
    let f32 = |value: f32| value.to_le_bytes().to_vec().into();
    let vocabulary = i64::from(VOCABULARY).to_le_bytes().to_vec().into();
    [
        weight(),
        f32(0.0),
        f32(4_294_967_295.0),
        f32(1.0 - f32::EPSILON / 2.0),
        f32(f32::NEG_INFINITY),
        vocabulary,
        f32(f32::INFINITY),
    ]
}

/// Row by row, the logits of the letter that follows: eight for each time it did. Small whole numbers are exact in bf16,
/// whose bits are the upper half of a single's.
fn weight() -> Bytes {
    let side = VOCABULARY as usize;
    let mut logits = vec![-16.0_f32; side * side];
    let letters: Vec<usize> = TEXT.bytes().map(usize::from).collect();
    for pair in letters.windows(2) {
        if let [from, to] = *pair {
            let Some(logit) = logits.get_mut(from * side + to) else { continue };
            *logit = if *logit < 0.0 { 0.0 } else { (*logit + 0.25).min(8.0) };
        }
    }
    logits.iter().flat_map(|logit| logit.to_le_bytes().into_iter().skip(2)).collect::<Vec<u8>>().into()
}

fn forward() -> Method {
    let mut tokens = Tensor::new(DType::I64, vec![1, LONGEST]);
    tokens.shape_dynamism = TensorShapeDynamism::DynamicBound;
    let scalars = INPUTS.iter().skip(1).map(|(_, dtype)| Tensor::new(*dtype, Vec::new()));
    let values = [tokens].into_iter().chain(scalars).chain([Tensor::new(DType::I64, vec![1])]);
    Method::of_graph("forward", graph(), values.map(EValue::Tensor).collect(), (0..5).collect(), vec![5])
}

fn graph() -> Delegate {
    let slot = |idx| SlotVariant { idx, slot_type: SlotType::Tensor };
    let names = CONSTANTS.into_iter().chain(INPUTS.map(|(name, _)| name)).chain(["token"]);
    let named_slots = (0..).zip(names).map(|(idx, name)| NamedSlot { name: format!("b16a/{name}"), slot: slot(idx) });
    let chains = vec![model(), sample(), vec![greedy(FIRST_TEMPORARY)]];
    Delegate {
        version: Some("1".to_owned()),
        num_constant_tensors: 7,
        num_input_tensors: 5,
        num_output_tensors: 1,
        num_mutable_buffer_tensors: 0,
        num_temp_tensors: 6,
        num_values: 4,
        instruction_chains: Chains(chains),
        main_chain_idx: 0,
        init_chain_idx: -1,
        input_map: (7..12).map(slot).collect(),
        output_map: vec![slot(TOKEN)],
        mutable_buffer_map: Vec::new(),
        named_slots: named_slots.collect(),
        tensor_meta: metas(),
    }
}

fn metas() -> Vec<TensorMeta> {
    let fixed = |value| ShapeDim { value, min_value: 0, max_value: -1 };
    let meta = |scalar_type, shape: Vec<ShapeDim>| TensorMeta { scalar_type, shape, dim_order: None };
    let length = ShapeDim { value: -1, min_value: 1, max_value: LONGEST };
    let mut metas = vec![meta(DType::Bf16, vec![fixed(VOCABULARY), fixed(VOCABULARY)])];
    let scalars = [DType::F32, DType::F32, DType::F32, DType::F32, DType::I64, DType::F32];
    metas.extend(scalars.map(|dtype| meta(dtype, Vec::new())));
    metas.push(meta(DType::I64, vec![fixed(1), length]));
    metas.extend(INPUTS.iter().skip(1).map(|(_, dtype)| meta(*dtype, Vec::new())));
    metas.push(meta(DType::I64, vec![fixed(1)]));
    metas
}

/// Looks up the row of the last token, then samples or takes the best.
fn model() -> Vec<Node> {
    let (logits, positive) = (FIRST_TEMPORARY, FIRST_TEMPORARY + 1);
    vec![
        Take { x: Src(7), out: Dst(logits), index: IntOrSrc::Literal(-1), axis: 1 }.into(),
        Take { x: Src(0), out: Dst(logits), index: IntOrSrc::Tensor(Src(logits)), axis: 0 }.into(),
        Greater { a: Src(8), b: Src(1), out: Dst(positive) }.into(),
        ItemInt { x: Src(positive), out: DstValue(0) }.into(),
        If { cond: Int::Value(Value(0)), then_chain_idx: Chain(1), else_chain_idx: Chain(2) }.into(),
    ]
}

fn greedy(x: u32) -> Node {
    Argmax { x: Src(x), out: Dst(TOKEN), axis: -1, keepdims: false }.into()
}

/// `argmax(kept logits / temperature + gumbel noise)`.
fn sample() -> Vec<Node> {
    let [logits, a, noise, scaled, b, c] = [0, 1, 2, 3, 4, 5].map(|index| FIRST_TEMPORARY + index);
    let shape = vec![Int::Literal(1), Int::Literal(VOCABULARY.into())];
    let mut nodes: Vec<Node> = vec![
        ItemInt { x: Src(11), out: DstValue(1) }.into(),
        RandomBits { out: Dst(noise), shape, seed: Some(Value(1)), width: 4 }.into(),
        AsType { x: Src(noise), out: Dst(noise), scalar_type: DType::F32 }.into(),
        Divide { a: Src(noise), b: Src(2), out: Dst(noise) }.into(),
        Minimum { a: Src(noise), b: Src(3), out: Dst(noise) }.into(),
        Log { x: Src(noise), out: Dst(noise) }.into(),
        Neg { x: Src(noise), out: Dst(noise) }.into(),
        Log { x: Src(noise), out: Dst(noise) }.into(),
        Neg { x: Src(noise), out: Dst(noise) }.into(),
        AsType { x: Src(logits), out: Dst(scaled), scalar_type: DType::F32 }.into(),
        Divide { a: Src(scaled), b: Src(8), out: Dst(scaled) }.into(),
    ];
    nodes.extend(top_k(scaled, a, b));
    nodes.extend(top_p(scaled, a, b, c));
    nodes.push(Add { a: Src(scaled), b: Src(noise), out: Dst(scaled) }.into());
    nodes.push(greedy(scaled));
    nodes
}

fn descending(x: u32, out: u32) -> [Node; 3] {
    [
        Neg { x: Src(x), out: Dst(out) }.into(),
        Sort { x: Src(out), out: Dst(out), axis: -1 }.into(),
        Neg { x: Src(out), out: Dst(out) }.into(),
    ]
}

/// What is below the k-th largest becomes minus infinity.
fn top_k(scaled: u32, a: u32, b: u32) -> Vec<Node> {
    let mut nodes: Vec<Node> = vec![
        Minimum { a: Src(9), b: Src(5), out: Dst(a) }.into(),
        ItemInt { x: Src(a), out: DstValue(2) }.into(),
        SubtractInt { a: Int::Value(Value(2)), b: Int::Literal(1), out: DstValue(3) }.into(),
    ];
    nodes.extend(descending(scaled, a));
    nodes.extend([
        Take { x: Src(a), out: Dst(b), index: IntOrSrc::Value(Value(3)), axis: -1 }.into(),
        ExpandDims { x: Src(b), out: Dst(b), axis: -1 }.into(),
        Less { a: Src(scaled), b: Src(b), out: Dst(a) }.into(),
        Where { condition: Src(a), x: Src(4), y: Src(scaled), out: Dst(scaled) }.into(),
    ]);
    nodes
}

/// What comes after the mass `top_p` in descending order becomes minus infinity.
fn top_p(scaled: u32, a: u32, b: u32, c: u32) -> Vec<Node> {
    let mut nodes: Vec<Node> = vec![Softmax { x: Src(scaled), out: Dst(a), axis: -1, precise: false }.into()];
    nodes.extend(descending(a, b));
    nodes.extend([
        Cumsum { x: Src(b), out: Dst(c), axis: -1, reverse: false, inclusive: true }.into(),
        Subtract { a: Src(c), b: Src(b), out: Dst(c) }.into(),
        Greater { a: Src(c), b: Src(10), out: Dst(c) }.into(),
        Where { condition: Src(c), x: Src(6), y: Src(b), out: Dst(b) }.into(),
        Min { x: Src(b), out: Dst(b), axes: Some(vec![-1]), keepdims: true }.into(),
        Less { a: Src(a), b: Src(b), out: Dst(a) }.into(),
        Where { condition: Src(a), x: Src(4), y: Src(scaled), out: Dst(scaled) }.into(),
    ]);
    nodes
}
