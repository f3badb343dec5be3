//! Measures attention: one token against the bandwidth of memory, a prompt against the peak of the arithmetic.
//!
//! Arguments: see [`harness::Options`]. One token runs through states that together are larger than the caches, unless its case
//! is a cached one. Operations count only visible keys.
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "sizes are small")]

mod harness;

use harness::{Figure, Machine, Options, measure};
use ptero_backend::{Backend, Executable, InputValue, Result, State, run_once};
use ptero_cpu::Cpu;
use ptero_cpu::pool::{Pool, Scratch, Workers};
use ptero_plan::dim::Dim;
use ptero_plan::graph::{Block, Graph, Input, Node, Op, Output};
use ptero_plan::prim::Prim;
use ptero_tensor::DType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes of the keys and values of all states: several times the last-level cache.
const ROTATED: usize = 192 << 20;

/// Causal attention of these sizes: heads, groups, tokens, keys, elements of a key.
struct Case {
    name: &'static str,
    sizes: [usize; 5],
    dtype: DType,
    /// Adds a boolean mask, which allows everything.
    is_masked: bool,
}

const fn case(name: &'static str, sizes: [usize; 5], dtype: DType) -> Case {
    Case { name, sizes, dtype, is_masked: false }
}

const CASES: &[Case] = &[
    case("cached", [9, 3, 1, 1024, 64], DType::F32),
    case("cached", [9, 3, 1, 1024, 64], DType::Bf16),
    case("cached", [32, 8, 1, 256, 128], DType::F32),
    case("decode", [9, 3, 1, 1024, 64], DType::F32),
    case("decode", [32, 8, 1, 4096, 128], DType::F32),
    case("decode", [32, 8, 1, 4096, 128], DType::Bf16),
    case("decode", [32, 8, 1, 4096, 128], DType::F16),
    case("decode", [32, 8, 4, 4096, 128], DType::Bf16),
    Case { name: "decode masked", sizes: [32, 8, 1, 4096, 128], dtype: DType::Bf16, is_masked: true },
    case("prefill", [9, 3, 64, 64, 64], DType::F32),
    case("prefill", [9, 3, 512, 512, 64], DType::F32),
    case("prefill", [9, 3, 512, 512, 64], DType::Bf16),
    Case { name: "prefill masked", sizes: [9, 3, 512, 512, 64], dtype: DType::F32, is_masked: true },
    case("prefill", [32, 8, 16, 4096, 128], DType::F32),
    case("prefill", [32, 8, 256, 2048, 128], DType::F32),
    case("prefill", [32, 8, 256, 2048, 128], DType::Bf16),
];

impl Case {
    /// Shapes and types of queries, keys, values and mask.
    fn inputs(&self) -> Vec<([usize; 4], DType)> {
        let [heads, groups, tokens, keys, depth] = self.sizes;
        let kv = ([1, groups, keys, depth], self.dtype);
        let mask = self.is_masked.then_some(([1, heads, tokens, keys], DType::Bool));
        [([1, heads, tokens, depth], self.dtype), kv, kv].into_iter().chain(mask).collect()
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        let [heads, groups, tokens, keys, depth] = self.sizes;
        let q = graph.value(self.dtype, dims([1, heads, tokens, depth]));
        let [k, v] = [(); 2].map(|()| graph.value(self.dtype, dims([1, groups, keys, depth])));
        let mask = self.is_masked.then(|| graph.value(DType::Bool, dims([1, heads, tokens, keys])));
        let out = graph.value(self.dtype, dims([1, heads, tokens, depth]));
        let (first, causal, window) = (Dim::fixed(0), true, None);
        let attention = Prim::Attention { out, q, k, v, mask, first, causal, window, scale: 0.125 };
        let nodes = vec![Node { op: Op::Prim(attention), origin: (0, 0) }];
        graph.blocks.push(Block { nodes, results: Vec::new() });
        graph.inputs = [q, k, v].into_iter().chain(mask).map(Input::Tensor).collect();
        graph.outputs.push(Output::Tensor(out));
        graph
    }

    fn name(&self) -> String {
        let ([heads, groups, tokens, keys, depth], dtype) = (self.sizes, self.dtype);
        format!("{} {dtype} h{heads} g{groups} t{tokens} s{keys} d{depth}", self.name)
    }

    /// Bytes of keys and values.
    fn bytes(&self) -> usize {
        let [_, groups, _, keys, depth] = self.sizes;
        2 * groups * keys * depth * self.dtype.bytes() as usize
    }

    /// Operations of both products, for visible keys.
    fn operations(&self) -> usize {
        let [heads, _, tokens, keys, depth] = self.sizes;
        4 * heads * depth * (0..tokens).map(|token| keys - token).sum::<usize>()
    }

    /// States with arbitrary contents.
    fn states(&self, executable: &dyn Executable) -> Result<Vec<Box<dyn State>>> {
        let count = if self.name.starts_with("decode") { ROTATED.div_ceil(self.bytes()) } else { 1 };
        let state = |_| {
            let mut state = executable.state(0)?;
            for (number, (shape, dtype)) in self.inputs().into_iter().enumerate() {
                let bytes: Vec<u8> = match dtype {
                    DType::Bool => vec![1; shape.iter().product()],
                    DType::F32 => {
                        (0..shape.iter().product()).flat_map(|at: usize| [7, 9, at as u8 & 0x7F, 0x3E]).collect()
                    }
                    _ => (0..shape.iter().product()).flat_map(|at: usize| [at as u8 & 0x7F, 0x3C]).collect(),
                };
                let shape = shape.map(|size| size as u64);
                state.write(number, InputValue::Tensor { dtype, shape: &shape, bytes: &bytes })?;
            }
            Ok(state)
        };
        (0..count).map(state).collect()
    }
}

fn dims(shape: [usize; 4]) -> Vec<Dim> {
    shape.iter().map(|&size| Dim::fixed(size as i64)).collect()
}

/// A flag that never stops a run.
static NEVER: AtomicBool = AtomicBool::new(false);

fn main() -> Result<()> {
    let options = Options::read();
    let (pool, mut scratch) = (Pool::new(options.threads), Scratch::default());
    let machine = Machine::new(options.isa, options.threads);
    machine.print(&options);
    let cpu = Cpu::with(options.threads, options.isa);
    for case in CASES.iter().filter(|case| options.wants(&case.name())) {
        let executable = cpu.compile(Arc::new(case.graph()))?;
        let mut states = case.states(executable.as_ref())?;
        let limits = machine.limits(&mut Workers { pool: &pool, scratch: &mut scratch });
        let (mut turn, mut outcome) = (0, Ok(()));
        let count = states.len();
        let spread = measure(|| {
            if let (Some(state), Ok(())) = (states.get_mut(turn % count), &outcome) {
                outcome = run_once(executable.as_ref(), state.as_mut(), &NEVER);
            }
            turn += 1;
        });
        outcome?;
        let (name, bytes, operations) = (case.name(), case.bytes() as f64, case.operations() as f64);
        Figure { bench: "attention", name: &name, spread, bytes, operations }.print(&machine, &limits, options.is_json);
    }
    Ok(())
}
