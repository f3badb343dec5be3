//! Programs of one gated delta rule, with the nodes that upstream's exporter writes: a scan over tokens.

use super::program::{lowered, verified};
use ptero_plan::Options;
use ptero_plan::graph::Graph;
use ptero_pte::field::{Chain, Collected, Dst, Fed, Int, Src};
use ptero_pte::nodes::*;
use ptero_pte::{Chains, DType, Delegate, NamedSlot, Node, ShapeDim, SlotType, SlotVariant, TensorMeta};

pub(crate) const Q: u32 = 0;
pub(crate) const K: u32 = 1;
pub(crate) const V: u32 = 2;
pub(crate) const G: u32 = 3;
pub(crate) const BETA: u32 = 4;
pub(crate) const OUT: u32 = 5;
pub(crate) const STATE: u32 = 6;
pub(crate) const CARRY: u32 = 7;
/// What the scan shows of an input lies so much further.
pub(crate) const PART: u32 = 10;
/// Slots of temporaries from here on are free.
pub(crate) const FREE: u32 = 20;

const NAMES: [&str; 7] = ["q", "k", "v", "g", "beta", "out", "state"];
/// Temporaries of the body.
const A: u32 = 8;
const B: u32 = 9;

/// Sizes of a rule; tokens may be -1, which varies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batches: i32,
    pub(crate) tokens: i32,
    pub(crate) groups: i32,
    pub(crate) heads: i32,
    /// Of a key.
    pub(crate) depth: i32,
    /// Of a value.
    pub(crate) width: i32,
}

/// A program in the making. Chain 0 scans with chain 1.
#[derive(Clone)]
pub(crate) struct Delta {
    pub(crate) metas: Vec<TensorMeta>,
    pub(crate) before: Vec<Node>,
    pub(crate) scan: Scan,
    pub(crate) body: Vec<Node>,
    pub(crate) after: Vec<Node>,
    pub(crate) outputs: Vec<u32>,
}

/// A size of -1 varies.
fn meta(scalar_type: DType, sizes: &[i32]) -> TensorMeta {
    let dim = |&value: &i32| ShapeDim { value, min_value: 0, max_value: if value == -1 { 64 } else { -1 } };
    TensorMeta { shape: sizes.iter().map(dim).collect(), scalar_type, dim_order: None }
}

pub(crate) fn copy(x: u32, out: u32) -> Node {
    IdCopy { x: Src(x), out: Dst(out) }.into()
}

pub(crate) fn multiply(a: u32, b: u32, out: u32) -> Node {
    Multiply { a: Src(a), b: Src(b), out: Dst(out) }.into()
}

pub(crate) fn subtract(a: u32, b: u32, out: u32) -> Node {
    Subtract { a: Src(a), b: Src(b), out: Dst(out) }.into()
}

pub(crate) fn add(a: u32, b: u32, out: u32) -> Node {
    Add { a: Src(a), b: Src(b), out: Dst(out) }.into()
}

pub(crate) fn expand(x: u32, axis: i32, out: u32) -> Node {
    ExpandDims { x: Src(x), out: Dst(out), axis }.into()
}

pub(crate) fn sum(x: u32, axis: i32, keepdims: bool, out: u32) -> Node {
    Sum { x: Src(x), out: Dst(out), axes: Some(vec![axis]), keepdims }.into()
}

pub(crate) fn cast(x: u32, scalar_type: DType, out: u32) -> Node {
    AsType { x: Src(x), out: Dst(out), scalar_type }.into()
}

pub(crate) fn repeat(x: u32, times: i32, out: u32) -> Node {
    Repeat { x: Src(x), out: Dst(out), repeats: Int::Literal(times.into()), axis: 2 }.into()
}

impl Delta {
    /// With operands and a state of these types.
    pub(crate) fn new(dtype: DType, state: DType, sizes: Sizes) -> Self {
        let Sizes { batches, tokens, groups, heads, depth, width } = sizes;
        let (narrow, wide) = ([batches, tokens, groups, depth], [batches, tokens, heads, width]);
        let factors = [batches, tokens, heads];
        let shapes: [&[i32]; 7] = [&narrow, &narrow, &wide, &factors, &factors, &wide, &[batches, heads, width, depth]];
        let types = [dtype, dtype, dtype, dtype, dtype, dtype, state];
        let (mut before, mut originals) = (Vec::new(), vec![Q, K, V, G, BETA]);
        if groups != heads {
            before = vec![repeat(Q, heads / groups, FREE), repeat(K, heads / groups, FREE + 1)];
            (originals[0], originals[1]) = (FREE, FREE + 1);
        }
        before.push(copy(STATE, CARRY));
        Self {
            metas: types.into_iter().zip(shapes).map(|(dtype, shape)| meta(dtype, shape)).collect(),
            before,
            scan: Scan {
                originals: originals.into_iter().map(Src).collect(),
                sliced: (Q..=BETA).map(|input| Fed(PART + input)).collect(),
                outputs: vec![Collected(OUT)],
                carry: vec![Src(CARRY)],
                body_chain_idx: Chain(1),
                scan_axis: 1,
            },
            body: body(),
            after: vec![copy(CARRY, STATE)],
            outputs: vec![OUT],
        }
    }

    fn delegate(&self) -> Delegate {
        let slot = |idx| SlotVariant { idx, slot_type: SlotType::Tensor };
        let main = [self.before.clone(), vec![self.scan.clone().into()], self.after.clone()].concat();
        let names = (0..).zip(NAMES).map(|(idx, name)| NamedSlot { name: name.to_owned(), slot: slot(idx) });
        Delegate {
            version: None,
            num_constant_tensors: 0,
            num_input_tensors: 5,
            num_output_tensors: 1,
            num_mutable_buffer_tensors: 1,
            num_temp_tensors: 30,
            num_values: 0,
            instruction_chains: Chains(vec![main, self.body.clone()]),
            main_chain_idx: 0,
            init_chain_idx: -1,
            input_map: (Q..=BETA).map(slot).collect(),
            output_map: self.outputs.iter().copied().map(slot).collect(),
            mutable_buffer_map: vec![slot(STATE)],
            named_slots: names.collect(),
            tensor_meta: self.metas.clone(),
        }
    }

    /// The graph, without passes.
    pub(crate) fn graph(&self) -> Graph {
        lowered(&verified(self.delegate(), vec![]), &Options::default()).expect("the program is sound")
    }
}

/// A rule whose scan carries the mutable buffer itself, without a copy.
pub(crate) fn in_the_buffer(sizes: Sizes) -> Delta {
    let mut delta = Delta::new(DType::F32, DType::F32, sizes);
    delta.before.pop();
    delta.after.clear();
    delta.scan.carry = vec![Src(STATE)];
    delta.body[2] = multiply(STATE, A, STATE);
    delta.body[4] = multiply(STATE, A, B);
    delta.body[12] = add(STATE, A, STATE);
    delta.body[14] = multiply(STATE, A, A);
    delta
}

/// One token.
fn body() -> Vec<Node> {
    let [q, k, v, g, beta] = [Q, K, V, G, BETA].map(|input| PART + input);
    vec![
        expand(g, -1, A),
        expand(A, -1, A),
        multiply(CARRY, A, CARRY),
        expand(k, -2, A),
        multiply(CARRY, A, B),
        sum(B, -1, false, B),
        subtract(v, B, B),
        expand(beta, -1, A),
        multiply(B, A, B),
        expand(k, -2, A),
        expand(B, -1, B),
        multiply(A, B, A),
        add(CARRY, A, CARRY),
        expand(q, -2, A),
        multiply(CARRY, A, A),
        sum(A, -1, false, OUT),
    ]
}
