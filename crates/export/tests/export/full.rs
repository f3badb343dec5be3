//! The full head: its nodes, and that it draws as the contract says, fused and step by step, after any history.

use crate::draw::{Given, Session, f32s, i32s, i64s, tokens};
use crate::head::finished;
use crate::tiny::floats;
use ptero_backend::Backend;
use ptero_export::{GraphBuilder, HeadError, Logits, TextInputs, sampled_output};
use ptero_pte::{DType, ShapeDim, Verified};
use ptero_reference::Reference;
use ptero_sampling::adjust::{Adjustments, MOST_BIASES};
use ptero_sampling::inputs::{Head, SAMPLER_INPUTS, SAMPLER_OUTPUTS};
use ptero_sampling::log_probabilities::{LogProbabilities, RowLogProbabilities};
use ptero_sampling::noise::{Stream, seed_key};
use ptero_sampling::reference::sample_row;
use ptero_sampling::settings::{Penalties, Settings};
use std::collections::BTreeMap;

const CONTEXT: usize = 48;

/// The head alone: the caller gives tokens, positions and logits.
pub(crate) fn head_program(dtype: DType, batch: i32, vocabulary: i32) -> Result<Verified, HeadError> {
    let mut b = GraphBuilder::new("ours");
    let length = ShapeDim::between(1, 16);
    let tokens = b.input("tokens", DType::I64, [ShapeDim::fixed(1), length.clone()]);
    let positions = b.input("input_pos", DType::I64, [length]);
    let batch = ShapeDim::fixed(batch);
    let tensor = b.input("logits", dtype, [batch.clone(), ShapeDim::fixed(vocabulary)]);
    let text = TextInputs { tokens, positions, context: i32::try_from(CONTEXT).unwrap() };
    sampled_output(&mut b, &Logits { tensor, batch, vocabulary }, Head::Full, Some(text))?;
    Ok(finished(b))
}

/// Numbers that look random.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    pub(crate) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.below(1 << 20) as f32 / (1 << 20) as f32)
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// What a step of a text is drawn with.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) settings: Settings,
    pub(crate) seed: i64,
    pub(crate) penalties: Penalties,
    pub(crate) prompt_end: usize,
    pub(crate) biases: Vec<(i32, f32)>,
    pub(crate) mask: Vec<i32>,
    pub(crate) which: LogProbabilities,
}

impl Step {
    /// Changes nothing, and takes the likeliest token.
    pub(crate) fn neutral(vocabulary: usize) -> Self {
        Self {
            settings: Settings::GREEDY,
            seed: 0,
            penalties: Penalties::NONE,
            prompt_end: 0,
            biases: Vec::new(),
            mask: vec![-1; vocabulary.div_ceil(32)],
            which: LogProbabilities::None,
        }
    }

    pub(crate) fn random(rng: &mut Rng, vocabulary: usize) -> Self {
        // One in eight is outside the vocabulary, which changes nothing.
        let token = |rng: &mut Rng| match rng.below(8) {
            0 => rng.pick(&[-1, i32::MIN, i32::MAX, i32::try_from(vocabulary).unwrap()]),
            _ => i32::try_from(rng.below(vocabulary)).unwrap(),
        };
        let biases = (0..rng.pick(&[0, 0, 1, 9])).map(|_| (token(rng), rng.between(-5.0, 5.0))).collect();
        let words = vocabulary.div_ceil(32);
        let mut mask: Vec<i32> = (0..words).map(|_| rng.pick(&[-1, -1, 0x5a5a_5a5a, i32::MIN, 0])).collect();
        // Where no token is left, the contract has minus infinity, and separate operations have NaN.
        mask[0] |= 4;
        Self {
            settings: Settings {
                temperature: rng.pick(&[0.0, 0.5, 1.0, 1.0, 3.0]),
                top_k: rng.pick(&[i64::MAX, i64::MAX, 1, 7, 40]),
                top_p: rng.pick(&[1.0, 1.0, 0.9, 0.3]),
                min_p: rng.pick(&[0.0, 0.0, 0.02, 0.3, 1.0]),
                exact_tail: rng.pick(&[false, true]),
            },
            seed: i64::try_from(rng.below(1 << 30)).unwrap() - (1 << 29),
            penalties: Penalties {
                repetition: rng.pick(&[1.0, 1.3, 0.8]),
                presence: rng.pick(&[0.0, 0.0, 1.5, -0.5]),
                frequency: rng.pick(&[0.0, 0.0, 0.4, -0.3]),
            },
            prompt_end: rng.below(CONTEXT),
            biases,
            mask: if rng.below(2) == 0 { vec![-1; words] } else { mask },
            which: rng.pick(&[LogProbabilities::None, LogProbabilities::Model, LogProbabilities::Processed]),
        }
    }

    /// As inputs of a program, in the order of the table.
    pub(crate) fn given(&self) -> Vec<Given> {
        let (float, int) = (|x: f32| f32s(&[], &[x]), |x: i64| i64s(&[], &[x]));
        let (mut bias_tokens, mut bias_values) = ([0; MOST_BIASES], [0.0; MOST_BIASES]);
        for (at, (token, value)) in self.biases.iter().enumerate() {
            (bias_tokens[at], bias_values[at]) = (*token, *value);
        }
        let Settings { temperature, top_k, top_p, min_p, exact_tail } = self.settings;
        let Penalties { repetition, presence, frequency } = self.penalties;
        let given = vec![
            float(temperature),
            int(top_k),
            float(top_p),
            int(self.seed),
            float(min_p),
            float(repetition),
            float(presence),
            float(frequency),
            int(i64::try_from(self.prompt_end).unwrap()),
            i32s(&[MOST_BIASES as u64], &bias_tokens),
            f32s(&[MOST_BIASES as u64], &bias_values),
            i32s(&[self.mask.len() as u64], &self.mask),
            int(self.which.code()),
            int(exact_tail.into()),
        ];
        assert_eq!(given.len(), SAMPLER_INPUTS.len());
        given
    }

    /// What the contract says.
    pub(crate) fn wanted(&self, logits: &[f32], history: &[i32]) -> (usize, RowLogProbabilities) {
        let Self { penalties, prompt_end, biases, mask, .. } = self;
        let (penalties, prompt_end) = (*penalties, *prompt_end);
        let mut adjusted = logits.to_vec();
        Adjustments { penalties, history, prompt_end, biases, mask }.apply(&mut adjusted);
        let stream = Stream::of_row(seed_key(self.seed), logits.len());
        let token = sample_row(&adjusted, &self.settings, &stream);
        let shares = match self.which {
            LogProbabilities::None => RowLogProbabilities::NONE,
            LogProbabilities::Model => RowLogProbabilities::of_model(logits, token),
            LogProbabilities::Processed => RowLogProbabilities::of_processed(&adjusted, &self.settings, token),
        };
        (token, shares)
    }
}

/// What a program with the full head returned: the token, and log-probabilities.
#[track_caller]
pub(crate) fn outputs(given: &[Given]) -> (usize, RowLogProbabilities) {
    for (given, output) in given[1..].iter().zip(SAMPLER_OUTPUTS) {
        let size = output.size.map(|size| size as u64);
        assert_eq!(
            (given.0, given.1.clone()),
            (output.dtype, [1].into_iter().chain(size).collect()),
            "{}",
            output.name
        );
    }
    let token = tokens(&given[0]);
    assert_eq!(token.len(), 1);
    let likeliest = tokens(&given[2]).into_iter().map(|token| u32::try_from(token).unwrap());
    let likeliest: Vec<(u32, f32)> = likeliest.zip(floats(&given[3].2)).collect();
    let shares = RowLogProbabilities { token: floats(&given[1].2)[0], likeliest: likeliest.try_into().unwrap() };
    (usize::try_from(token[0]).unwrap(), shares)
}

#[track_caller]
pub(crate) fn assert_close(got: &RowLogProbabilities, wanted: &RowLogProbabilities, what: &str) {
    // With separate operations, the rounding of sums may cut what is least likely.
    let is_cut = |a: f32, b: f32| a == f32::NEG_INFINITY && b < -14.0;
    let is_close = |a: f32, b: f32| a == b || (a - b).abs() < 1e-4 || is_cut(a, b);
    assert!(is_close(got.token, wanted.token), "{what}: {} is not {}", got.token, wanted.token);
    for (got, wanted) in got.likeliest.iter().zip(&wanted.likeliest) {
        assert!(is_close(got.1, wanted.1) && (got.0 == wanted.0 || got.1 < -14.0), "{what}: {got:?} is not {wanted:?}");
    }
}

fn random_logits(rng: &mut Rng, vocabulary: usize) -> Vec<f32> {
    // Steps of 1/8 make ties.
    (0..vocabulary).map(|_| (rng.between(-8.0, 8.0) * 8.0).round() / 8.0).collect()
}

/// Draws several steps of a text, with and without fusing, and compares each with the contract.
fn compare(rng: &mut Rng, dtype: DType, vocabulary: usize, backend: &dyn Backend) {
    let program = head_program(dtype, 1, i32::try_from(vocabulary).unwrap()).unwrap();
    let mut fused = Session::new(&program, backend);
    let mut apart = Session::without(&program, backend, &["fuse-sampler".to_owned()]);
    let mut history: Vec<i32> = Vec::new();
    for turn in 0..12 {
        // Sometimes back to an earlier position; what was there afterwards does not count.
        if rng.below(4) == 0 {
            history.truncate(rng.below(history.len() + 1));
        }
        let start = history.len();
        let new = rng.pick(&[1, 1, 1, 5]).min(CONTEXT - start);
        history.extend((0..new).map(|_| i32::try_from(rng.below(vocabulary.min(9))).unwrap()));
        let new: Vec<i64> = history[start..].iter().map(|token| i64::from(*token)).collect();
        let positions: Vec<i64> = (start..history.len()).map(|at| i64::try_from(at).unwrap()).collect();
        let (logits, step) = (random_logits(rng, vocabulary), Step::random(rng, vocabulary));
        let raw: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
        let raw = ptero_backend::cast(&raw, DType::F32, dtype).unwrap();
        let count = new.len() as u64;
        let own = [i64s(&[1, count], &new), i64s(&[count], &positions), (dtype, vec![1, vocabulary as u64], raw)];
        let given: Vec<Given> = own.into_iter().chain(step.given()).collect();
        let wanted = step.wanted(&logits, &history);
        let what = format!("turn {turn} after {start}: {step:?}");
        assert_eq!(outputs(&fused.call(&given)), wanted, "fused, {what}");
        let (token, shares) = outputs(&apart.call(&given));
        assert_eq!(token, wanted.0, "step by step, {what}");
        assert_close(&shares, &wanted.1, &what);
    }
}

#[test]
fn full_heads_draw_as_the_contract_says_fused_and_step_by_step() {
    let mut rng = Rng(17);
    for round in 0..24 {
        let (dtype, vocabulary) = (rng.pick(&[DType::F32, DType::F32, DType::Bf16]), rng.pick(&[20, 32, 50, 97, 256]));
        println!("round {round}: {} {vocabulary}", dtype.name());
        compare(&mut rng, dtype, vocabulary, &Reference);
    }
}

#[test]
fn logits_that_the_full_head_cannot_take_are_refused() {
    assert_eq!(head_program(DType::F32, 2, 50).unwrap_err(), HeadError::SeveralRows { batch: 2 });
    assert_eq!(head_program(DType::F32, 1, 19).unwrap_err(), HeadError::SmallVocabulary { vocabulary: 19 });
    let mut b = GraphBuilder::new("ours");
    let tensor = b.input("logits", DType::F32, [1, 50].map(ShapeDim::fixed));
    let logits = Logits { tensor, batch: ShapeDim::fixed(1), vocabulary: 50 };
    assert_eq!(sampled_output(&mut b, &logits, Head::Full, None).unwrap_err(), HeadError::NoText);
}

/// The nodes of the full head.
#[rustfmt::skip]
const COUNTS: [(&str, usize); 43] = [
    ("ARange", 1), ("Add", 3), ("Argmax", 2), ("Argsort", 1), ("AsType", 8), ("BitwiseAnd", 1), ("Cumsum", 1),
    ("Divide", 3), ("Exp", 1), ("ExpandDims", 3), ("Full", 6), ("Greater", 7), ("GreaterEqual", 4), ("IdCopy", 3),
    ("If", 4), ("IndexCopy", 1), ("ItemInt", 7), ("Less", 7), ("LessEqual", 1), ("Log", 3), ("Log1p", 1),
    ("LogSumExp", 1), ("LogicalAnd", 4), ("Max", 1), ("Maximum", 1), ("Min", 1), ("Minimum", 4), ("Multiply", 4),
    ("Neg", 10), ("NotEqual", 1), ("RandomBits", 2), ("Reshape", 2), ("ScatterAdd", 3), ("Slice", 4), ("Softmax", 1),
    ("Sort", 2), ("Squeeze", 1), ("Subtract", 5), ("SubtractInt", 2), ("SymSize", 1), ("Take", 2), ("TakeAlongAxis", 2),
    ("Where", 14),
];

#[test]
fn the_full_head_has_exactly_these_nodes() {
    let program = head_program(DType::F32, 1, 50).unwrap();
    let (_, graph) = program.methods[0].mlx_delegates().next().unwrap();
    let mut counts = BTreeMap::<&str, usize>::new();
    graph.nodes().for_each(|node| *counts.entry(node.name()).or_default() += 1);
    assert_eq!(counts, BTreeMap::from(COUNTS));
}
