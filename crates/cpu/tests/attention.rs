//! Attention beyond the random cases: long contexts, and numbers that are not finite.
#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test")]
#![allow(clippy::cast_possible_wrap, reason = "sizes are small")]

use half::{bf16, f16};
use ptero_backend::{Backend, InputValue, OutputValue, run_once};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_plan::dim::Dim;
use ptero_plan::graph::{Block, Graph, Input, Node, Op, Output, Value};
use ptero_plan::prim::Prim;
use ptero_reference::Reference;
use ptero_tensor::{DType, SplitMix64};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One attention and its operands.
#[derive(Clone, Debug)]
struct Attention {
    heads: usize,
    groups: usize,
    tokens: usize,
    keys: usize,
    depth: usize,
    width: usize,
    /// The position of the first key.
    first: i64,
    causal: bool,
    window: Option<i64>,
    /// The types of queries, keys and values, and of the mask.
    dtypes: [DType; 2],
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// By query and key; as a bool, a number other than zero is true.
    mask: Option<Vec<f32>>,
}

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut rng = SplitMix64::new(seed.into());
    (0..count).map(|_| 2.0 * rng.unit_f32() - 1.0).collect()
}

fn bytes(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let bytes_of = |number: &f32| match dtype {
        DType::F32 => number.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(*number).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f32(*number).to_le_bytes().to_vec(),
        _ => vec![u8::from(*number != 0.0)],
    };
    numbers.iter().flat_map(bytes_of).collect()
}

fn dims(shape: [usize; 4]) -> Vec<Dim> {
    shape.iter().map(|&size| Dim::fixed(size as i64)).collect()
}

impl Attention {
    fn new([heads, groups, tokens, keys]: [usize; 4], [depth, width]: [usize; 2]) -> Self {
        Self {
            heads,
            groups,
            tokens,
            keys,
            depth,
            width,
            first: 0,
            causal: false,
            window: None,
            dtypes: [DType::F32; 2],
            q: numbers(heads * tokens * depth, 1).into_iter().map(|x| 2.0 * x).collect(),
            k: numbers(groups * keys * depth, 2),
            v: numbers(groups * keys * width, 3),
            mask: None,
        }
    }

    /// The same keys and values at other positions.
    fn from(self, first: i64) -> Self {
        Self { first, ..self }
    }

    fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    fn window(self, window: i64) -> Self {
        Self { window: Some(window), ..self }
    }

    fn stored_as(self, dtype: DType) -> Self {
        Self { dtypes: [dtype, self.dtypes[1]], ..self }
    }

    /// Sets the mask to the values of `seen` for a token and a key.
    fn masked(self, dtype: DType, seen: impl Fn(usize, usize) -> f32) -> Self {
        let (tokens, keys) = (self.tokens, self.keys);
        let rows = (0..self.heads).flat_map(|_| 0..tokens);
        let mask = rows.flat_map(|token| (0..keys).map(move |key| (token, key))).map(|(token, key)| seen(token, key));
        Self { mask: Some(mask.collect()), dtypes: [self.dtypes[0], dtype], ..self }
    }

    /// Sets all elements of a key and of its value to a number, in all groups.
    fn spoilt(mut self, key: usize, number: f32) -> Self {
        for group in 0..self.groups {
            let at = group * self.keys + key;
            self.k[at * self.depth..(at + 1) * self.depth].fill(number);
            self.v[at * self.width..(at + 1) * self.width].fill(number);
        }
        self
    }

    /// The operands: elements, shape and type.
    fn inputs(&self) -> Vec<(&[f32], [usize; 4], DType)> {
        let Self { heads, groups, tokens, keys, depth, width, dtypes: [dtype, mask_dtype], .. } = *self;
        let inputs = [
            (self.q.as_slice(), [1, heads, tokens, depth], dtype),
            (self.k.as_slice(), [1, groups, keys, depth], dtype),
            (self.v.as_slice(), [1, groups, keys, width], dtype),
        ];
        let mask = self.mask.iter().map(|mask| (mask.as_slice(), [1, heads, tokens, keys], mask_dtype));
        inputs.into_iter().chain(mask).collect()
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        let inputs = self.inputs();
        let values: Vec<Value> = inputs.iter().map(|(_, shape, dtype)| graph.value(*dtype, dims(*shape))).collect();
        let out = graph.value(DType::F32, dims([1, self.heads, self.tokens, self.width]));
        let &Self { causal, window, .. } = self;
        let first = Dim::fixed(self.first);
        let [q, k, v] = [0, 1, 2].map(|at: usize| values[at]);
        let mask = values.get(3).copied();
        let attention = Prim::Attention { out, q, k, v, mask, first, causal, window, scale: 0.25 };
        let nodes = vec![Node { op: Op::Prim(attention), origin: (0, 0) }];
        graph.blocks.push(Block { nodes, results: Vec::new() });
        graph.inputs = values.into_iter().map(Input::Tensor).collect();
        graph.outputs.push(Output::Tensor(out));
        graph
    }

    fn run(&self, backend: &dyn Backend) -> Vec<f32> {
        let executable = backend.compile(Arc::new(self.graph())).expect("the graph is sound");
        let mut state = executable.state(1).expect("memory");
        for (number, (numbers, shape, dtype)) in self.inputs().into_iter().enumerate() {
            let shape = shape.map(|size| size as u64);
            let value = InputValue::Tensor { dtype, shape: &shape, bytes: &bytes(dtype, numbers) };
            state.write(number, value).expect("the input fits");
        }
        run_once(executable.as_ref(), state.as_mut(), &AtomicBool::new(false)).expect("it runs");
        let OutputValue::Tensor { bytes, .. } = state.read(0).expect("it ran") else { panic!("not a tensor") };
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

/// Checks that every instruction set and any number of threads give the bits of the reference. All NaNs are equal.
fn check(case: &Attention) {
    let expected = case.run(&Reference);
    for isa in Isa::available() {
        let found = case.run(&Cpu::with(3, isa));
        assert_eq!(found.len(), expected.len());
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let is_same = found.is_nan() && expected.is_nan() || found.to_bits() == expected.to_bits();
            let what = [case.heads, case.groups, case.tokens, case.keys];
            assert!(is_same, "{what:?} on {}, element {at}: {found} for {expected}", isa.name());
        }
    }
    let bits = |threads: usize| -> Vec<u32> {
        case.run(&Cpu::with(threads, Isa::best())).into_iter().map(f32::to_bits).collect()
    };
    let one = bits(1);
    assert!(one == bits(2) && one == bits(5), "the number of threads changes the result");
}

#[test]
fn long_contexts_are_cut_into_ranges_and_joined() {
    for (tokens, keys) in [(1, 255), (1, 257), (1, 3001), (4, 1300), (6, 1300), (33, 2500), (130, 700)] {
        check(&Attention::new([6, 2, tokens, keys], [16, 24]).causal());
        check(&Attention::new([6, 2, tokens, keys], [16, 24]));
        check(&Attention::new([6, 2, tokens, keys], [16, 24]).causal().from(77));
    }
}

#[test]
fn the_first_key_may_have_any_position() {
    for first in [1, 15, 16, 63, 64, 65, 200, 255, 1000, -1, i64::MIN, i64::MAX] {
        for tokens in [1, 7, 30] {
            check(&Attention::new([4, 2, tokens, 530], [8, 13]).from(first));
            check(&Attention::new([4, 2, tokens, 530], [8, 13]).causal().window(300).from(first));
        }
    }
}

#[test]
fn every_type_of_keys_and_values_is_read_right() {
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for tokens in [1, 3, 50] {
            check(&Attention::new([3, 1, tokens, 300], [64, 80]).causal().stored_as(dtype));
        }
    }
}

#[test]
fn windows_reach_over_blocks_and_ranges() {
    for window in [1, 95, 96, 97, 600] {
        for tokens in [1, 4, 64, 200] {
            check(&Attention::new([3, 1, tokens, 900], [8, 13]).causal().window(window));
            check(&Attention::new([3, 1, tokens, 900], [8, 13]).causal().window(window).from(45));
        }
    }
}

#[test]
fn masks_of_many_tokens_are_applied_in_both_directions() {
    for tokens in [1, 5, 40] {
        let case = Attention::new([4, 2, tokens, 400], [8, 16]);
        let striped = |token: usize, key: usize| f32::from(u8::from(!(token + key).is_multiple_of(3)));
        check(&case.clone().masked(DType::Bool, striped));
        check(&case.clone().causal().masked(DType::Bool, striped));
        check(&case.masked(DType::F32, |token, key| if key % 5 == 4 { f32::NEG_INFINITY } else { token as f32 / 9.0 }));
    }
}

#[test]
fn more_tokens_than_keys_leave_some_with_nothing_to_see() {
    for tokens in [7, 40, 300] {
        let case = Attention::new([3, 1, tokens, 5], [8, 8]).causal();
        assert!(case.run(&Reference)[0].is_nan());
        check(&case);
    }
}

#[test]
fn what_is_not_finite_and_hidden_stays_hidden() {
    for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for tokens in [2, 4, 50, 200] {
            let case = Attention::new([3, 1, tokens, 500], [8, 20]);
            // Only the last token sees the key.
            let causal = case.clone().causal().spoilt(499, number);
            assert!(causal.run(&Reference)[0].is_finite());
            check(&causal);
            check(&causal.window(30));
            // Only the first tokens see the key.
            check(&case.clone().causal().window(50).spoilt(500 - tokens, number));
            let masked = case.masked(DType::Bool, |token, key| f32::from(u8::from(key != 131 || token == 1)));
            check(&masked.spoilt(131, number));
        }
    }
}

#[test]
fn one_token_with_a_hidden_key_that_is_not_finite() {
    let case = Attention::new([8, 2, 1, 1000], [16, 16]).masked(DType::Bool, |_, key| f32::from(u8::from(key < 700)));
    let spoilt = (700..1000).fold(case, |case, key| case.spoilt(key, f32::NAN));
    assert!(spoilt.run(&Reference).iter().all(|number| number.is_finite()));
    check(&spoilt);
    check(&spoilt.stored_as(DType::F16));
}

#[test]
fn what_is_not_finite_and_seen_is_seen() {
    for tokens in [1, 50] {
        let case = Attention::new([3, 1, tokens, 700], [8, 20]);
        // A value with weight zero is part of the sum.
        let mut masked = case.clone().masked(DType::F32, |_, key| if key < 100 { f32::NEG_INFINITY } else { 0.0 });
        masked.v[20 * 50] = f32::NAN;
        assert!(masked.run(&Reference)[0].is_nan());
        check(&masked);
        check(&case.clone().spoilt(3, f32::NAN));
        check(&case.spoilt(699, f32::INFINITY));
    }
}
