//! Compares the gated delta rule as a loop over tokens with one fused step, on the reference and on the CPU.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes are small")]

#[allow(dead_code, unused_imports, reason = "the tests of the pass use the rest")]
#[path = "../../plan/tests/common/delta.rs"]
mod delta;
#[path = "../../plan/tests/common/program.rs"]
mod program;

use delta::{CARRY, Delta, FREE, STATE, Sizes, copy, in_the_buffer};
use half::{bf16, f16};
use ptero_backend::{Backend, Executable, InputValue, OutputValue, State, run_once};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_plan::graph::Op;
use ptero_plan::passes;
use ptero_plan::prim::Prim;
use ptero_pte::{DType, TensorMeta};
use ptero_reference::Reference;
use ptero_tensor::SplitMix64;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Random numbers.
struct Numbers(SplitMix64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.below(from.len() as u64) as usize]
    }

    fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.0.unit_f32()
    }
}

fn bytes(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let bytes_of = |number: &f32| match dtype {
        DType::F16 => f16::from_f32(*number).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f32(*number).to_le_bytes().to_vec(),
        _ => number.to_le_bytes().to_vec(),
    };
    numbers.iter().flat_map(bytes_of).collect()
}

fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let short = |raw: &[u8; 2]| match dtype {
        DType::F16 => f16::from_le_bytes(*raw).to_f32(),
        _ => bf16::from_le_bytes(*raw).to_f32(),
    };
    match dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect(),
        _ => bytes.as_chunks().0.iter().map(short).collect(),
    }
}

/// A call: the number of tokens, and the five operands.
struct Call {
    tokens: i32,
    operands: [Vec<f32>; 5],
}

impl Call {
    fn new(numbers: &mut Numbers, sizes: Sizes, tokens: i32) -> Self {
        let Sizes { batches, groups, heads, depth, width, .. } = sizes;
        let mut draw = |count: i32, low: f32, high: f32| -> Vec<f32> {
            (0..batches * tokens * count).map(|_| numbers.between(low, high)).collect()
        };
        // With keys of length below one the state decays, and errors with it.
        let most = 1.0 / (depth as f32).sqrt();
        let operands = [
            draw(groups * depth, -most, most),
            draw(groups * depth, -most, most),
            draw(heads * width, -2.0, 2.0),
            draw(heads, 0.3, 1.0),
            draw(heads, 0.0, 1.0),
        ];
        Self { tokens, operands }
    }
}

fn write(state: &mut dyn State, meta: &TensorMeta, input: usize, tokens: i32, numbers: &[f32]) {
    let size = |size: i32| if size == -1 { tokens } else { size };
    let shape: Vec<u64> = meta.shape.iter().map(|dim| size(dim.value) as u64).collect();
    let bytes = bytes(meta.scalar_type, numbers);
    let value = InputValue::Tensor { dtype: meta.scalar_type, shape: &shape, bytes: &bytes };
    state.write(input, value).expect("the input fits");
}

/// Compiles with or without the pass that fuses the rule.
fn compile(delta: &Delta, backend: &dyn Backend, is_fused: bool) -> Box<dyn Executable> {
    let mut graph = delta.graph();
    let without = if is_fused { Vec::new() } else { vec!["fuse-gated-delta".to_owned()] };
    passes::run(&mut graph, &backend.capabilities(), &without);
    let mut nodes = graph.blocks.iter().flat_map(|block| &block.nodes);
    let has_rule = nodes.any(|node| matches!(&node.op, Op::Prim(Prim::GatedDelta(_))));
    assert_eq!(has_rule, is_fused, "{graph}");
    backend.compile(Arc::new(graph)).expect("the graph is sound")
}

/// The outputs of all calls, fused or not. The state is kept from call to call.
fn run(delta: &Delta, backend: &dyn Backend, calls: &[Call], is_fused: bool) -> Vec<f32> {
    let executable = compile(delta, backend, is_fused);
    let outputs = delta.outputs.len();
    let mut state = executable.state(0).expect("there is memory");
    let mut results = Vec::new();
    for call in calls {
        for (input, numbers) in call.operands.iter().enumerate() {
            write(&mut *state, &delta.metas[input], input, call.tokens, numbers);
        }
        step(&*executable, &mut *state).expect("the graph runs");
        for output in 0..outputs {
            let OutputValue::Tensor { dtype, bytes, .. } = state.read(output).expect("a result") else {
                panic!("a tensor")
            };
            results.extend(floats(dtype, &bytes));
        }
    }
    results
}

fn step(executable: &dyn Executable, state: &mut dyn State) -> ptero_backend::Result<()> {
    run_once(executable, state, &AtomicBool::new(false))
}

fn backends() -> Vec<Box<dyn Backend>> {
    let reference: Box<dyn Backend> = Box::new(Reference);
    [reference].into_iter().chain(Isa::available().into_iter().map(|isa| Box::new(Cpu::with(2, isa)) as _)).collect()
}

fn some_sizes(numbers: &mut Numbers) -> Sizes {
    let groups = numbers.pick(&[1, 2, 3]);
    Sizes {
        batches: numbers.pick(&[1, 1, 2]),
        tokens: -1,
        groups,
        heads: groups * numbers.pick(&[1, 2, 4]),
        depth: numbers.pick(&[1, 3, 16, 33, 64]),
        width: numbers.pick(&[1, 4, 7, 16, 33]),
    }
}

/// The largest error, relative to the larger of one and the expected number.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max)
}

#[test]
fn a_rule_gives_the_same_as_one_step_and_as_a_loop() {
    let mut numbers = Numbers::new(7);
    for round in 0..24 {
        let sizes = some_sizes(&mut numbers);
        let fixed = Sizes { tokens: numbers.pick(&[1, 2, 5]), ..sizes };
        // A variable number of tokens, a fixed one, a state that the loop itself writes, and one that is an output.
        let delta = match round % 4 {
            0 => Delta::new(DType::F32, DType::F32, sizes),
            1 => Delta::new(DType::F32, DType::F32, fixed),
            2 => in_the_buffer(sizes),
            _ => {
                let mut delta = Delta::new(DType::F32, DType::F32, fixed);
                delta.after = vec![copy(CARRY, FREE + 2), copy(CARRY, STATE)];
                delta.outputs.push(FREE + 2);
                delta
            }
        };
        let varies = delta.metas[0].shape[1].value == -1;
        let chunks = [17, 1, 1, 3].map(|tokens| if varies { tokens } else { fixed.tokens });
        let calls: Vec<Call> = chunks.into_iter().map(|tokens| Call::new(&mut numbers, sizes, tokens)).collect();
        let wanted = run(&delta, &Reference, &calls, false);
        for backend in backends() {
            for is_fused in [true, false] {
                let far = distance(&run(&delta, &*backend, &calls, is_fused), &wanted);
                assert!(far < 3e-6, "{far} for {sizes:?} on {}", backend.name());
            }
        }
    }
}

#[test]
fn of_short_floats_one_step_comes_nearer_to_the_exact_rule_than_the_loop() {
    let mut numbers = Numbers::new(11);
    for (dtype, state) in
        [(DType::Bf16, DType::Bf16), (DType::F16, DType::F16), (DType::Bf16, DType::F32), (DType::F16, DType::F32)]
    {
        let sizes = Sizes { batches: 1, tokens: -1, groups: 2, heads: 4, depth: 64, width: 16 };
        let mut calls: Vec<Call> = [9, 1, 1, 4].map(|tokens| Call::new(&mut numbers, sizes, tokens)).into();
        for operand in calls.iter_mut().flat_map(|call| &mut call.operands) {
            *operand = floats(dtype, &bytes(dtype, operand));
        }
        let exact = run(&Delta::new(DType::F32, DType::F32, sizes), &Reference, &calls, false);
        let delta = Delta::new(dtype, state, sizes);
        for backend in backends() {
            let [fused, looped] = [true, false].map(|is_fused| run(&delta, &*backend, &calls, is_fused));
            let error = |found: &[f32]| found.iter().zip(&exact).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            assert!(error(&fused) <= error(&looped) + 1e-9, "{} for {}", error(&fused), error(&looped));
            // The tolerance of upstream's own test of both forms.
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 0.05 * b.abs() + 0.15;
            assert!(fused.iter().zip(&looped).all(is_near), "{dtype:?} with a state of {state:?}");
        }
    }
}

#[test]
fn an_operand_with_too_few_tokens_fails_before_the_state_changes() {
    let sizes = Sizes { batches: 1, tokens: -1, groups: 2, heads: 2, depth: 16, width: 16 };
    let delta = Delta::new(DType::F32, DType::F32, sizes);
    let calls = [Call::new(&mut Numbers::new(3), sizes, 9)];
    for backend in backends() {
        let executable = compile(&delta, &*backend, true);
        let mut state = executable.state(0).expect("there is memory");
        for short in 1..5 {
            for (input, numbers) in calls[0].operands.iter().enumerate() {
                let missing = if input == short { numbers.len() / 9 } else { 0 };
                let tokens = if input == short { 8 } else { 9 };
                write(&mut *state, &delta.metas[input], input, tokens, &numbers[missing..]);
            }
            step(&*executable, &mut *state).expect_err("a token is missing");
        }
        for (input, numbers) in calls[0].operands.iter().enumerate() {
            write(&mut *state, &delta.metas[input], input, 9, numbers);
        }
        step(&*executable, &mut *state).expect("the graph runs");
        let OutputValue::Tensor { bytes, .. } = state.read(0).expect("a result") else { panic!("a tensor") };
        assert_eq!(floats(DType::F32, &bytes), run(&delta, &*backend, &calls, true), "as if nothing had been before");
    }
}
