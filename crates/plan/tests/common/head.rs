//! Programs that draw tokens, with the nodes that upstream's exporter writes.

pub(crate) use super::program::meta;
use super::program::{branch, cast, item, lowered, neg, program};
use ptero_plan::Options;
use ptero_plan::graph::Graph;
use ptero_pte::field::{Dst, DstValue, Int, IntOrSrc, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::{DType, Node, TensorMeta};

pub(crate) const ZERO: u32 = 0;
pub(crate) const MOST: u32 = 1;
pub(crate) const BELOW_ONE: u32 = 2;
pub(crate) const MINUS_INFINITY: u32 = 3;
pub(crate) const VOCABULARY: u32 = 4;
pub(crate) const INFINITY: u32 = 5;
pub(crate) const LOGITS: u32 = 6;
pub(crate) const TEMPERATURE: u32 = 7;
pub(crate) const TOP_K: u32 = 8;
pub(crate) const TOP_P: u32 = 9;
pub(crate) const SEED: u32 = 10;
pub(crate) const TOKEN: u32 = 11;
pub(crate) const STATE: u32 = 12;
/// Temporaries from here on are unused.
pub(crate) const FREE: u32 = 30;

const POSITIVE: u32 = 13;
const NOISE: u32 = 14;
const SCALED: u32 = 15;

/// A program being built. Chain 0 branches to chain 1, which draws, or to chain 2, which takes the largest.
#[derive(Clone)]
pub(crate) struct Head {
    pub(crate) metas: Vec<TensorMeta>,
    pub(crate) constants: Vec<Vec<u8>>,
    /// Before the branch.
    pub(crate) before: Vec<Node>,
    pub(crate) noise: Vec<Node>,
    pub(crate) scale: Vec<Node>,
    pub(crate) top_k: Vec<Node>,
    pub(crate) top_p: Vec<Node>,
    pub(crate) pick: Vec<Node>,
    pub(crate) greedy: Vec<Node>,
    /// After the branch.
    pub(crate) after: Vec<Node>,
    pub(crate) outputs: Vec<u32>,
}

fn log(slot: u32) -> Node {
    Log { x: Src(slot), out: Dst(slot) }.into()
}

fn descending(x: u32, out: u32) -> [Node; 3] {
    [neg(x, out), Sort { x: Src(out), out: Dst(out), axis: -1 }.into(), neg(out, out)]
}

pub(crate) fn argmax(x: u32) -> Node {
    Argmax { x: Src(x), out: Dst(TOKEN), axis: -1, keepdims: false }.into()
}

impl Head {
    /// Logits of that type, `[rows, vocabulary]`; -1 rows vary.
    pub(crate) fn new(dtype: DType, rows: i32, vocabulary: i32) -> Self {
        let f32 = |value: f32| value.to_le_bytes().to_vec();
        let constants = vec![
            f32(0.0),
            f32(4_294_967_295.0),
            f32(1.0 - f32::EPSILON / 2.0),
            f32(f32::NEG_INFINITY),
            i64::from(vocabulary).to_le_bytes().to_vec(),
            f32(f32::INFINITY),
        ];
        let scalar = |dtype| meta(dtype, &[]);
        let floats = [DType::F32, DType::F32, DType::F32, DType::F32, DType::I64, DType::F32].map(scalar);
        let inputs = [DType::F32, DType::I64, DType::F32, DType::I64].map(scalar);
        let metas = floats.into_iter().chain([meta(dtype, &[rows, vocabulary])]).chain(inputs);
        let metas = metas.chain([meta(DType::I64, &[rows]), meta(DType::F32, &[])]).collect();
        Self {
            metas,
            constants,
            before: vec![Greater { a: Src(TEMPERATURE), b: Src(ZERO), out: Dst(POSITIVE) }.into(), item(POSITIVE, 0)],
            noise: noise(rows, vocabulary),
            scale: vec![
                cast(LOGITS, DType::F32, SCALED),
                Divide { a: Src(SCALED), b: Src(TEMPERATURE), out: Dst(SCALED) }.into(),
            ],
            top_k: top_k(),
            top_p: top_p(),
            pick: vec![Add { a: Src(SCALED), b: Src(NOISE), out: Dst(SCALED) }.into(), argmax(SCALED)],
            greedy: vec![argmax(LOGITS)],
            after: Vec::new(),
            outputs: vec![TOKEN],
        }
    }

    /// The graph, without passes.
    pub(crate) fn graph(&self) -> Graph {
        let parts = [&self.noise, &self.scale, &self.top_k, &self.top_p, &self.pick];
        self.graph_with(parts.into_iter().flatten().cloned().collect())
    }

    /// The graph with chain 1 made of these instead, in their order.
    pub(crate) fn graph_with(&self, draw: Vec<Node>) -> Graph {
        let main = [self.before.clone(), vec![branch()], self.after.clone()].concat();
        let chains = vec![main, draw, self.greedy.clone()];
        let program = program(self.constants.clone(), &self.outputs, self.metas.clone(), chains);
        lowered(&program, &Options::default()).expect("the program is sound")
    }
}

fn noise(rows: i32, vocabulary: i32) -> Vec<Node> {
    let rows = if rows == -1 { Int::Value(Value(4)) } else { Int::Literal(rows.into()) };
    let shape = vec![rows, Int::Literal(vocabulary.into())];
    let size = if let Int::Value(value) = rows {
        Some(SymSize { a: Src(LOGITS), dim: 0, out: DstValue(value.0) }.into())
    } else {
        None
    };
    let nodes: [Node; 9] = [
        item(SEED, 1),
        RandomBits { out: Dst(NOISE), shape, seed: Some(Value(1)), width: 4 }.into(),
        cast(NOISE, DType::F32, NOISE),
        Divide { a: Src(NOISE), b: Src(MOST), out: Dst(NOISE) }.into(),
        Minimum { a: Src(NOISE), b: Src(BELOW_ONE), out: Dst(NOISE) }.into(),
        log(NOISE),
        neg(NOISE, NOISE),
        log(NOISE),
        neg(NOISE, NOISE),
    ];
    size.into_iter().chain(nodes).collect()
}

/// Masks what is below the k-th largest.
fn top_k() -> Vec<Node> {
    let (sorted, least) = (16, 17);
    let mut nodes: Vec<Node> = vec![
        Minimum { a: Src(TOP_K), b: Src(VOCABULARY), out: Dst(sorted) }.into(),
        item(sorted, 2),
        SubtractInt { a: Int::Value(Value(2)), b: Int::Literal(1), out: DstValue(3) }.into(),
    ];
    nodes.extend(descending(SCALED, sorted));
    nodes.extend([
        Take { x: Src(sorted), out: Dst(least), index: IntOrSrc::Value(Value(3)), axis: -1 }.into(),
        ExpandDims { x: Src(least), out: Dst(least), axis: -1 }.into(),
        Less { a: Src(SCALED), b: Src(least), out: Dst(sorted) }.into(),
        Where { condition: Src(sorted), x: Src(MINUS_INFINITY), y: Src(SCALED), out: Dst(SCALED) }.into(),
    ]);
    nodes
}

/// Masks what comes after the mass `top_p` in descending order.
fn top_p() -> Vec<Node> {
    let (mass, sorted, before) = (18, 19, 20);
    let mut nodes: Vec<Node> = vec![Softmax { x: Src(SCALED), out: Dst(mass), axis: -1, precise: false }.into()];
    nodes.extend(descending(mass, sorted));
    nodes.extend([
        Cumsum { x: Src(sorted), out: Dst(before), axis: -1, reverse: false, inclusive: true }.into(),
        Subtract { a: Src(before), b: Src(sorted), out: Dst(before) }.into(),
        Greater { a: Src(before), b: Src(TOP_P), out: Dst(before) }.into(),
        Where { condition: Src(before), x: Src(INFINITY), y: Src(sorted), out: Dst(sorted) }.into(),
        Min { x: Src(sorted), out: Dst(sorted), axes: Some(vec![-1]), keepdims: true }.into(),
        Less { a: Src(mass), b: Src(sorted), out: Dst(mass) }.into(),
        Where { condition: Src(mass), x: Src(MINUS_INFINITY), y: Src(SCALED), out: Dst(SCALED) }.into(),
    ]);
    nodes
}

/// The nodes of top-k for a fixed `k`.
pub(crate) fn top_k_of(k: i64) -> Vec<Node> {
    let mut nodes = top_k();
    nodes.drain(..3);
    for node in &mut nodes {
        if let Node::Take(take) = node {
            take.index = IntOrSrc::Literal(k - 1);
        }
    }
    nodes
}
