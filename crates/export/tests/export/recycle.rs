//! Slots that are used again never mix up what they hold: random graphs with a slot for every tensor, before and after.

use crate::generate::Rng;
use crate::trace::trace;
use ptero_export::GraphBuilder;
use ptero_pte::field::{Chain, Collected, Dst, DstValue, Fed, Int, Src, Value};
use ptero_pte::nodes::{Add, IdCopy, If, ItemInt, Scan};
use ptero_pte::{Chains, DType, Delegate, Limits, Method, Node, Payload, Program, Verified};

/// Writes nodes over ever new temporaries, most of which are soon forgotten.
struct Weaver {
    rng: Rng,
    chains: Vec<Vec<Node>>,
    next: u32,
    /// Chains that the main chain runs, and what they leave written.
    run: Vec<(Chain, u32)>,
}

impl Weaver {
    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    /// One of the last few, or sometimes any.
    fn pick(&mut self, live: &[u32]) -> u32 {
        let recent = &live[live.len().saturating_sub(3)..];
        if self.rng.below(8) == 0 { *self.rng.pick(live) } else { *self.rng.pick(recent) }
    }

    fn put(&mut self, chain: usize, node: impl Into<Node>) {
        self.chains[chain].push(node.into());
    }

    fn copy(&mut self, chain: usize, live: &[u32], out: u32) {
        let x = self.pick(live);
        self.put(chain, IdCopy { x: Src(x), out: Dst(out) });
    }

    /// A chain that starts with what is there and leaves `out` written.
    fn body(&mut self, live: &[u32], out: u32, depth: u32) -> Chain {
        let chain = self.chains.len();
        self.chains.push(Vec::new());
        let mut live = live.to_vec();
        self.fill(chain, &mut live, depth + 1);
        self.copy(chain, &live, out);
        Chain(u32::try_from(chain).unwrap())
    }

    fn fill(&mut self, chain: usize, live: &mut Vec<u32>, depth: u32) {
        for _ in 0..2 + self.rng.below(8) {
            let (a, b) = (self.pick(live), self.pick(live));
            let kind = if depth < 3 { self.rng.below(10) } else { 9 };
            let mut out = if self.rng.below(6) == 0 && b >= FIRST { b } else { self.fresh() };
            match kind {
                0 => {
                    let then_chain_idx = self.body(live, out, depth);
                    let is_same = self.rng.below(4) == 0;
                    let else_chain_idx = if is_same { then_chain_idx } else { self.body(live, out, depth) };
                    self.put(chain, If { cond: Int::Value(Value(0)), then_chain_idx, else_chain_idx });
                    self.run.extend((depth == 0).then_some((then_chain_idx, out)));
                }
                2 if depth == 0 && !self.run.is_empty() => {
                    let (again, written) = *self.rng.pick(&self.run);
                    out = written;
                    let cond = Int::Value(Value(0));
                    self.put(chain, If { cond, then_chain_idx: again, else_chain_idx: again });
                }
                1 => {
                    let sliced = self.fresh();
                    let known: Vec<u32> = live.iter().copied().chain([sliced]).collect();
                    let body_chain_idx = self.body(&known, out, depth);
                    let (originals, outputs) = (vec![Src(a)], vec![Collected(out)]);
                    let (sliced, carry) = (vec![Fed(sliced)], vec![Src(b)]);
                    self.put(chain, Scan { originals, sliced, outputs, carry, body_chain_idx, scan_axis: 0 });
                }
                _ => self.put(chain, Add { a: Src(a), b: Src(b), out: Dst(out) }),
            }
            live.push(out);
        }
    }
}

/// Slots 0 and 1 are the input and the output.
const FIRST: u32 = 2;

fn graph(seed: u64) -> Delegate {
    let mut b = GraphBuilder::new("");
    let x = b.input("x", DType::I64, []);
    let y = b.output("y", DType::I64, []);
    b.emit(IdCopy { x: x.src(), out: y.dst() });
    let mut weaver = Weaver { rng: Rng::new(seed), chains: vec![Vec::new()], next: FIRST, run: Vec::new() };
    weaver.put(0, ItemInt { x: Src(0), out: DstValue(0) });
    let mut live = vec![0];
    while weaver.chains[0].len() < 40 {
        weaver.fill(0, &mut live, 0);
    }
    weaver.copy(0, &live, 1);
    let (instruction_chains, num_temp_tensors) = (Chains(weaver.chains), weaver.next - FIRST);
    Delegate { instruction_chains, num_temp_tensors, num_values: 1, ..b.finish().graph }
}

fn program(graph: Delegate) -> Verified {
    let tensor = ptero_pte::schema::Tensor::new(DType::I64, Vec::new());
    let values = vec![ptero_pte::schema::EValue::Tensor(tensor); 2];
    let methods = vec![Method::of_graph("forward", graph, values, vec![0], vec![1])];
    Verified::new(Program { methods, ..Program::default() }, &Limits::DEFAULT).unwrap()
}

#[test]
fn a_graph_with_far_fewer_slots_computes_the_same() {
    let (mut slots, mut tensors) = (0, 0);
    for seed in 0..300 {
        let before = program(graph(seed));
        let Payload::Mlx(graph) = &before.methods[0].delegates[0].payload else { panic!() };
        let after = program(GraphBuilder::resume((**graph).clone(), []).finish().graph);
        let Payload::Mlx(fewer) = &after.methods[0].delegates[0].payload else { panic!() };
        assert_eq!(trace(&after, fewer), trace(&before, graph), "seed {seed}");
        slots += fewer.num_temp_tensors;
        tensors += graph.num_temp_tensors;
    }
    assert!(slots * 3 < tensors, "{slots} slots for {tensors} tensors");
}

/// A hundred thousand nodes in a line, and as many that run the line again from a chain that nothing runs: what a file of a few
/// megabytes can ask for. A test beside the code counts how often each is looked at.
#[test]
fn what_a_chain_touches_lives_until_it_is_run_for_the_last_time() {
    const MANY: u32 = 100_000;
    let again = If { cond: Int::Value(Value(0)), then_chain_idx: Chain(1), else_chain_idx: Chain(1) };
    let line = |index| Node::from(IdCopy { x: Src(index), out: Dst(index + 1) });
    let mut b = GraphBuilder::new("");
    let x = b.input("x", DType::I64, []);
    let y = b.output("y", DType::I64, []);
    b.emit(IdCopy { x: x.src(), out: y.dst() });
    let mut graph = b.finish().graph;
    let start = Node::from(IdCopy { x: Src(0), out: Dst(FIRST) });
    let line = [start].into_iter().chain((FIRST..FIRST + MANY).map(line)).collect();
    graph.instruction_chains.0.extend([line, vec![again.into(); MANY as usize]]);
    graph.num_temp_tensors = MANY + 1;
    graph.num_values = 1;
    let before = program(graph);
    let Payload::Mlx(graph) = &before.methods[0].delegates[0].payload else { panic!() };
    let after = GraphBuilder::resume((**graph).clone(), []).finish().graph;
    assert_eq!(after.num_temp_tensors, MANY + 1);
    Verified::new(program(after).into_program(), &Limits::DEFAULT).unwrap();
}
