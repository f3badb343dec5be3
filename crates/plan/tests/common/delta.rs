//! Programs of one gated delta rule, with the nodes that upstream's exporter writes: a scan over tokens.

pub(crate) use super::program::{add, copy, expand, multiply, repeat, subtract, sum};
use super::program::{lowered, meta, program};
use ptero_plan::Options;
use ptero_plan::graph::Graph;
use ptero_pte::field::{Chain, Collected, Fed, Src};
use ptero_pte::nodes::Scan;
use ptero_pte::{DType, Node, TensorMeta};

pub(crate) const Q: u32 = 0;
pub(crate) const K: u32 = 1;
pub(crate) const V: u32 = 2;
pub(crate) const G: u32 = 3;
pub(crate) const BETA: u32 = 4;
pub(crate) const OUT: u32 = 5;
pub(crate) const STATE: u32 = 6;
pub(crate) const CARRY: u32 = 7;
/// The slot of a slice of an input is that of the input plus this.
pub(crate) const PART: u32 = 10;
/// Temporaries from here on are unused.
pub(crate) const FREE: u32 = 20;

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

/// A program being built. Chain 0 scans with chain 1.
#[derive(Clone)]
pub(crate) struct Delta {
    pub(crate) metas: Vec<TensorMeta>,
    pub(crate) before: Vec<Node>,
    pub(crate) scan: Scan,
    pub(crate) body: Vec<Node>,
    pub(crate) after: Vec<Node>,
    pub(crate) outputs: Vec<u32>,
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

    /// The graph, without passes.
    pub(crate) fn graph(&self) -> Graph {
        let main = [self.before.clone(), vec![self.scan.clone().into()], self.after.clone()].concat();
        let program = program(vec![], &self.outputs, self.metas.clone(), vec![main, self.body.clone()]);
        lowered(&program, &Options::default()).expect("the program is sound")
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
