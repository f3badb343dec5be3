//! Sampling heads, fused and step by step, on every device: the same tokens.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a test fails by panicking, and its numbers are small"
)]

#[allow(dead_code, unused_imports, reason = "other tests use the rest of it")]
#[path = "../../plan/tests/common/head.rs"]
mod head;
#[path = "../../plan/tests/common/program.rs"]
mod program;

use head::{Head, SEED, meta, top_k_of};
use ptero_backend::{Backend, Executable, InputValue, OutputValue, State, cast, run_once};
use ptero_cpu::Cpu;
use ptero_plan::graph::{Graph, Input, Op};
use ptero_plan::passes;
use ptero_plan::prim::Prim;
use ptero_pte::{DType, Node, SplitMix64};
use ptero_reference::Reference;
use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::{Keys, sample};
use ptero_sampling::settings::Settings;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a call brings.
#[derive(Clone, Debug)]
struct Call {
    logits: Vec<f32>,
    settings: Settings,
    seed: i64,
}

/// A way to run a program.
struct Way {
    name: String,
    executable: Box<dyn Executable>,
    state: Box<dyn State>,
}

/// A program, the four ways to run it, and its sizes.
struct Program {
    rows: usize,
    vocabulary: usize,
    dtype: DType,
    seed: DType,
    ways: Vec<Way>,
}

impl Program {
    fn new(head: &Head, (rows, vocabulary): (usize, usize)) -> Self {
        let (dtype, seed) = (head.metas[head::LOGITS as usize].scalar_type, head.metas[SEED as usize].scalar_type);
        let devices: [&dyn Backend; 2] = [&Reference, &Cpu::default()];
        let mut ways = Vec::new();
        for device in devices {
            for (name, without) in [("fused", vec![]), ("step by step", vec!["fuse-sampler".to_owned()])] {
                let mut graph = head.graph();
                passes::run(&mut graph, &device.capabilities(), &without);
                assert_eq!(has_sample(&graph), without.is_empty(), "{graph}");
                let executable = device.compile(Arc::new(graph)).unwrap();
                let state = executable.state(3).unwrap();
                ways.push(Way { name: format!("{} on {}", name, device.name()), executable, state });
            }
        }
        Self { rows, vocabulary, dtype, seed, ways }
    }

    /// The tokens of each way to run it.
    fn tokens(&mut self, call: &Call) -> Vec<(String, Vec<i64>)> {
        let floats: Vec<u8> = call.logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        let logits = cast(&floats, DType::F32, self.dtype).unwrap();
        let seed = cast(&call.seed.to_le_bytes(), DType::I64, self.seed).unwrap();
        let Settings { temperature, top_k, top_p, .. } = call.settings;
        let inputs: [(DType, &[u64], &[u8]); 5] = [
            (self.dtype, &[self.rows as u64, self.vocabulary as u64], &logits),
            (DType::F32, &[], &temperature.to_le_bytes()),
            (DType::I64, &[], &top_k.to_le_bytes()),
            (DType::F32, &[], &top_p.to_le_bytes()),
            (self.seed, &[], &seed),
        ];
        let run = |Way { name, executable, state }: &mut Way| {
            for (input, (dtype, shape, bytes)) in inputs.into_iter().enumerate() {
                state.write(input, InputValue::Tensor { dtype, shape, bytes }).unwrap();
            }
            run_once(executable.as_ref(), state.as_mut(), &AtomicBool::new(false)).unwrap();
            let OutputValue::Tensor { dtype, bytes, .. } = state.read(0).unwrap() else { panic!("a tensor") };
            let tokens = cast(&bytes, dtype, DType::I64).unwrap();
            (name.clone(), tokens.as_chunks().0.iter().map(|raw| i64::from_le_bytes(*raw)).collect())
        };
        self.ways.iter_mut().map(run).collect()
    }

    /// The logits as the program gets them.
    fn rounded(&self, logits: &[f32]) -> Vec<f32> {
        let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        let there = cast(&bytes, DType::F32, self.dtype).unwrap();
        let back = cast(&there, self.dtype, DType::F32).unwrap();
        back.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
    }
}

fn has_sample(graph: &Graph) -> bool {
    assert!(graph.inputs.iter().all(|input| matches!(input, Input::Tensor(_))));
    let mut nodes = graph.blocks.iter().flat_map(|block| &block.nodes);
    nodes.any(|node| matches!(&node.op, Op::Prim(Prim::Sample(_))))
}

fn float(rng: &mut SplitMix64, low: f32, high: f32) -> f32 {
    low + (high - low) * (rng.below(1 << 24) as f32 / (1 << 24) as f32)
}

fn draw_call(rng: &mut SplitMix64, count: usize) -> Call {
    let spread = *rng.pick(&[0.5, 3.0, 8.0, 20.0]);
    let is_tied = rng.below(4) == 0;
    let has_infinities = rng.below(4) == 0;
    let logit = |rng: &mut SplitMix64| match float(rng, -spread, spread) {
        _ if has_infinities && rng.below(5) == 0 => f32::NEG_INFINITY,
        logit if is_tied => logit.round(),
        logit => logit,
    };
    let temperature = match rng.below(6) {
        0 => *rng.pick(&[0.0, -1.0, f32::NAN, -0.0]),
        1 => *rng.pick(&[0.01, 100.0, 1e-4]),
        _ => float(rng, 0.1, 2.0),
    };
    let top_k = match rng.below(3) {
        0 => *rng.pick(&[0, 1, 2, 1 << 40, i64::MAX, i32::MAX.into()]),
        _ => rng.below(count as u64).cast_signed() + 1,
    };
    let top_p = if rng.below(3) == 0 { *rng.pick(&[1.0, 0.0, 2.0, 0.5]) } else { float(rng, 0.0, 1.0) };
    let seed = *rng.pick(&[0, -1, 1 << 31, 1 << 32, 1 << 40, rng.clone().next_u64().cast_signed(), 7]);
    rng.next_u64();
    Call {
        logits: (0..count).map(|_| logit(rng)).collect(),
        settings: Settings { temperature, top_k, top_p, ..Settings::PLAIN },
        seed,
    }
}

/// Whether the mass before some token of a row is so close to `top_p` that rounding decides.
fn is_at_the_border(row: &[f32], settings: &Settings) -> bool {
    let mut scaled: Vec<f32> = row.iter().map(|logit| logit / settings.temperature).collect();
    scaled.sort_by(|a, b| b.partial_cmp(a).unwrap());
    let least = scaled[settings.kept_of(row.len()) - 1];
    scaled.retain(|scaled| *scaled >= least);
    let masses: Vec<f64> = scaled.iter().map(|x| (f64::from(*x) - f64::from(scaled[0])).exp()).collect();
    let whole: f64 = masses.iter().sum();
    let before = masses.iter().scan(0.0, |sum, mass| Some(std::mem::replace(sum, *sum + mass) / whole));
    before.into_iter().any(|before| (before - f64::from(settings.top_p)).abs() < 1e-5)
}

/// A head with some of the filters, in some types, and what is known about it.
struct Drawn {
    head: Head,
    rows: usize,
    vocabulary: usize,
    /// `None`: that of the call.
    top_k: Option<i64>,
    has_top_p: bool,
}

fn draw_head(rng: &mut SplitMix64, is_long: bool) -> Drawn {
    let rows = *rng.pick(&[1, 1, 1, 2, 3, 5]);
    let vocabulary = if is_long { 3001 } else { *rng.pick(&[1, 2, 5, 16, 33, 100, 257]) };
    let dtype = *rng.pick(&[DType::F32, DType::F32, DType::F16, DType::Bf16]);
    let mut head = Head::new(dtype, rows, vocabulary);
    head.metas[SEED as usize] = meta(*rng.pick(&[DType::I64, DType::I64, DType::I32, DType::U32]), &[]);
    let fixed_k = rng.below(vocabulary as u64).cast_signed() + 1;
    let (top_k, nodes) = match rng.below(4) {
        0 => (Some(i64::MAX), Vec::new()),
        1 => (Some(fixed_k), top_k_of(fixed_k)),
        _ => (None, head.top_k),
    };
    head.top_k = nodes;
    let has_top_p = rng.below(3) > 0;
    if !has_top_p {
        head.top_p.clear();
    }
    if rng.below(4) == 0 {
        without_seed(&mut head);
    }
    Drawn { head, rows: rows as usize, vocabulary: vocabulary as usize, top_k, has_top_p }
}

fn without_seed(head: &mut Head) {
    head.noise.remove(0);
    for node in &mut head.noise {
        if let Node::RandomBits(bits) = node {
            bits.seed = None;
        }
    }
}

#[test]
fn heads_give_the_same_tokens_fused_and_step_by_step() {
    // More with `PTERO_SUITE_CASES`.
    let heads = std::env::var("PTERO_SUITE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(80);
    let mut rng = SplitMix64::new(41);
    let (mut compared, mut at_the_border, mut differed) = (0, 0, 0);
    for number in 0..heads {
        let Drawn { head, rows, vocabulary, top_k, has_top_p } = draw_head(&mut rng, number % 10 == 9);
        let mut program = Program::new(&head, (rows, vocabulary));
        for _ in 0..12 {
            let call = draw_call(&mut rng, rows * vocabulary);
            let tokens = program.tokens(&call);
            assert_eq!(tokens[0].1, tokens[2].1, "one contract for all devices");
            let settings = Settings { top_k: top_k.unwrap_or(call.settings.top_k), ..call.settings };
            for (row, logits) in program.rounded(&call.logits).chunks_exact(vocabulary).enumerate() {
                let is_close = has_top_p && !settings.is_greedy() && is_at_the_border(logits, &settings);
                let differs = tokens.iter().any(|(_, each)| each[row] != tokens[0].1[row]);
                assert!(!differs || is_close, "row {row} of {rows}, vocabulary {vocabulary}, {settings:?}: {tokens:?}");
                compared += 1;
                at_the_border += usize::from(is_close);
                differed += usize::from(differs);
            }
        }
    }
    let counts = format!("{compared} rows, {at_the_border} at the border of a nucleus, {differed} different");
    println!("{counts}");
    assert!(compared - at_the_border > 16 * heads && 400 * differed < compared, "{counts}");
}

#[test]
fn seeds_are_the_low_32_bits_sign_extended_fused_or_not() {
    for dtype in [DType::I64, DType::I32, DType::U32] {
        let mut head = Head::new(DType::F32, 2, 33);
        head.metas[SEED as usize] = meta(dtype, &[]);
        let mut program = Program::new(&head, (2, 33));
        let mut rng = SplitMix64::new(9);
        let logits: Vec<f32> = (0..66).map(|_| float(&mut rng, -1.0, 1.0)).collect();
        let mut draw = |seed: i64| {
            let call = Call { logits: logits.clone(), settings: Settings::PLAIN, seed };
            let wanted = sample(&logits, 33, &[Settings::PLAIN], Keys::Shared(seed_key(seed)));
            let wanted: Vec<i64> = wanted.into_iter().map(i64::from).collect();
            for (name, tokens) in program.tokens(&call) {
                assert_eq!(tokens, wanted, "seed {seed}, {name}");
            }
            wanted
        };
        let equal = [0, 1 << 32, 1 << 40, i64::MIN].map(&mut draw);
        assert!(equal.iter().all(|tokens| *tokens == equal[0]));
        assert_eq!(draw(-1), draw(u32::MAX.into()));
        assert_eq!(draw(1 << 31), draw(-(1 << 31)));
        assert_ne!(draw(1), draw(2));
    }
}

#[test]
fn a_state_without_a_seed_takes_a_key_for_each_draw_and_none_for_the_largest() {
    let mut head = Head::new(DType::F32, 1, 257);
    without_seed(&mut head);
    let mut program = Program::new(&head, (1, 257));
    let logits = vec![0.5; 257];
    let mut seen = std::collections::BTreeSet::new();
    for turn in 0..12 {
        let settings = if turn % 3 == 1 { Settings::GREEDY } else { Settings::PLAIN };
        let tokens = program.tokens(&Call { logits: logits.clone(), settings, seed: 0 });
        assert!(tokens.iter().all(|(_, each)| *each == tokens[0].1), "turn {turn}: {tokens:?}");
        seen.insert(tokens[0].1[0]);
    }
    assert!(seen.len() > 6, "{seen:?}");
}

#[test]
fn what_has_no_meaning_is_settled_where_heads_are_fused() {
    let mut program = Program::new(&Head::new(DType::F32, 1, 4), (1, 4));
    let mut tokens = |logits: [f32; 4], settings: Settings| {
        let tokens = program.tokens(&Call { logits: logits.to_vec(), settings, seed: 5 });
        let [fused, separate, fused_cpu, separate_cpu] = [0, 1, 2, 3].map(|way: usize| tokens[way].1[0]);
        assert_eq!([fused, separate], [fused_cpu, separate_cpu], "{tokens:?}");
        (fused, separate)
    };
    let nan = f32::NAN;
    // NaN never wins in the sampler; in an argmax of its own it does.
    assert_eq!(tokens([1.0, nan, 3.0, 2.0], Settings::GREEDY), (2, 1));
    assert_eq!(tokens([-90.0, nan, 90.0, -90.0], Settings::PLAIN), (2, 1));
    assert_eq!(tokens([nan; 4], Settings::PLAIN), (0, 0));
    // A mass that is not above 0 leaves the largest; step by step, less than 0 leaves nothing, and NaN all.
    let below = Settings { top_p: -1.0, ..Settings::PLAIN };
    assert_eq!(tokens([1.0, 2.0, 30.0, 4.0], below), (2, 0));
    let flat = [1.0, 1.0, 1.0, 1.0 + f32::EPSILON];
    assert_eq!(tokens(flat, Settings { top_p: nan, ..Settings::PLAIN }).0, 3);
    // A negative k counts as the whole vocabulary; step by step it counts from the end.
    let all = tokens([1.0; 4], Settings::PLAIN).0;
    assert_eq!(tokens([1.0; 4], Settings { top_k: -3, ..Settings::PLAIN }), (all, all));
}
