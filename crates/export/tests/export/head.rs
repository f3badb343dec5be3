//! The head: its nodes are upstream's, and it draws as the contract says.

use crate::draw::{Given, Session, With, backends, f32s, tokens};
use ptero_export::{GraphBuilder, Logits, SamplerSlots, sampled_output, sampling_head};
use ptero_pte::{Bytes, DType, Limits, Node, Program, ShapeDim, Verified};
use ptero_sampling::inputs::{Head, SAMPLER_INPUTS};
use std::collections::BTreeMap;

/// A program of ExecuTorch's own suite that is nothing but the head.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    dtype: DType,
    rows: i32,
    vocabulary: i32,
    /// Parameters that are inputs there; the others are constants.
    inputs: &'static [&'static str],
}

#[rustfmt::skip]
pub(crate) const CASES: [Case; 9] = [
    Case { name: "sample_greedy", dtype: DType::F32, rows: 1, vocabulary: 1024, inputs: &["temperature", "seed"] },
    Case { name: "sample_greedy_batch", dtype: DType::F32, rows: 4, vocabulary: 1024, inputs: &["temperature", "seed"] },
    Case { name: "sample_greedy_bf16", dtype: DType::Bf16, rows: 1, vocabulary: 1024, inputs: &["temperature", "seed"] },
    Case { name: "sample_greedy_eps", dtype: DType::F32, rows: 1, vocabulary: 1024, inputs: &["temperature", "seed"] },
    Case { name: "sample_greedy_neg", dtype: DType::F32, rows: 1, vocabulary: 1024, inputs: &["temperature", "seed"] },
    Case { name: "sample_seeded", dtype: DType::F32, rows: 1, vocabulary: 256, inputs: &["temperature", "seed"] },
    Case { name: "sample_top_k", dtype: DType::F32, rows: 1, vocabulary: 256, inputs: &["temperature", "top_k", "seed"] },
    Case { name: "sample_top_p", dtype: DType::F32, rows: 1, vocabulary: 256, inputs: &["temperature", "top_p", "seed"] },
    Case { name: "sample_unseeded", dtype: DType::F32, rows: 1, vocabulary: 256, inputs: &["temperature"] },
];

/// The nodes of each of those programs, as ExecuTorch's suite counted them; without a seed there is one `ItemInt` less.
const COUNTS: [(&str, usize); 21] = [
    ("Add", 1),
    ("Argmax", 2),
    ("AsType", 2),
    ("Cumsum", 1),
    ("Divide", 2),
    ("ExpandDims", 1),
    ("Greater", 2),
    ("If", 1),
    ("ItemInt", 3),
    ("Less", 2),
    ("Log", 2),
    ("Min", 1),
    ("Minimum", 2),
    ("Neg", 6),
    ("RandomBits", 1),
    ("Softmax", 1),
    ("Sort", 2),
    ("Subtract", 1),
    ("SubtractInt", 1),
    ("Take", 1),
    ("Where", 3),
];

impl Case {
    /// The same program by our builder.
    pub(crate) fn program(&self) -> Verified {
        let mut b = GraphBuilder::new("ours");
        let batch = ShapeDim::fixed(self.rows);
        let logits = b.input("logits", self.dtype, [batch.clone(), ShapeDim::fixed(self.vocabulary)]);
        let [temperature, top_k, top_p, seed, ..] = SAMPLER_INPUTS.map(|input| {
            if self.inputs.contains(&input.name) {
                Some(b.input(input.name, input.dtype, []))
            } else if input.head == Head::Unseeded {
                Some(b.scalar(input.neutral))
            } else {
                None
            }
        });
        let token = b.output("token", DType::I64, [batch.clone()]);
        let slots =
            SamplerSlots { temperature: temperature.unwrap(), top_k: top_k.unwrap(), top_p: top_p.unwrap(), seed };
        sampling_head(&mut b, &Logits { tensor: logits, batch, vocabulary: self.vocabulary }, &slots, token);
        finished(b)
    }
}

/// The head alone, on logits that the caller gives.
fn head_program(dtype: DType, rows: ShapeDim, vocabulary: i32, head: Head) -> Verified {
    let mut b = GraphBuilder::new("ours");
    let tensor = b.input("logits", dtype, [rows.clone(), ShapeDim::fixed(vocabulary)]);
    sampled_output(&mut b, &Logits { tensor, batch: rows, vocabulary }, head, None).unwrap();
    finished(b)
}

pub(crate) fn finished(b: GraphBuilder) -> Verified {
    let mut program = Program::default();
    b.finish().add_to(&mut program, "forward");
    let mut bytes = Vec::new();
    program.write(&mut bytes).unwrap();
    let again = Program::read(&Bytes::from(bytes), &Limits::DEFAULT).unwrap();
    assert_eq!(again, program, "reads back as it was");
    Verified::new(again, &Limits::DEFAULT).unwrap()
}

#[test]
fn s0_8_the_head_has_exactly_the_nodes_that_upstream_emits() {
    for case in &CASES {
        let program = case.program();
        let (_, graph) = program.methods[0].mlx_delegates().next().unwrap();
        let mut counts = BTreeMap::<&str, usize>::new();
        graph.nodes().for_each(|node| *counts.entry(node.name()).or_default() += 1);
        let mut wanted = BTreeMap::from(COUNTS);
        if !case.inputs.contains(&"seed") {
            wanted.insert("ItemInt", 2);
        }
        assert_eq!(counts, wanted, "{}", case.name);
    }
}

#[test]
fn s0_2_without_a_seed_the_random_bits_have_none() {
    let seeds = |head| {
        let program = head_program(DType::F32, ShapeDim::fixed(1), 8, head);
        let (_, graph) = program.methods[0].mlx_delegates().next().unwrap();
        let bits =
            graph.nodes().find_map(|node| if let Node::RandomBits(bits) = node { Some(bits.seed) } else { None });
        (bits.unwrap().is_some(), program.methods[0].inputs.len())
    };
    assert_eq!(seeds(Head::Plain), (true, 5));
    assert_eq!(seeds(Head::Unseeded), (false, 4));
}

/// Some logits without a tie.
fn logits(rows: usize, vocabulary: usize) -> Vec<f32> {
    (0..rows * vocabulary).map(|index| ((index * 7919 + 13) % 1009) as f32 / 128.0).collect()
}

fn best(logits: &[f32], vocabulary: usize) -> Vec<i64> {
    let best = |row: &[f32]| (0..).zip(row).reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap().0;
    logits.chunks(vocabulary).map(best).collect()
}

fn drawn(session: &mut Session<'_>, logits: &Given, with: With) -> Vec<i64> {
    let given: Vec<Given> = [logits.clone()].into_iter().chain(with.given()).collect();
    let outputs = session.call(&given);
    assert_eq!(outputs[0].1, [logits.1[0]], "one token for each row (S0.1)");
    tokens(&outputs[0])
}

#[test]
fn s0_5_at_temperature_zero_each_row_gives_its_most_likely_token() {
    for (rows, vocabulary) in [(1, 97), (3, 64)] {
        let values = logits(rows, vocabulary);
        let given = f32s(&[rows as u64, vocabulary as u64], &values);
        let fixed = ShapeDim::fixed(i32::try_from(rows).unwrap());
        let program = head_program(DType::F32, fixed, i32::try_from(vocabulary).unwrap(), Head::Plain);
        for backend in backends() {
            let mut session = Session::new(&program, backend.as_ref());
            let greedy = With { temperature: 0.0, ..With::seed(5) };
            assert_eq!(drawn(&mut session, &given, greedy), best(&values, vocabulary), "{}", backend.name());
        }
    }
}

#[test]
fn s0_8_one_seed_draws_one_token_and_many_seeds_many_on_every_device_the_same() {
    let (rows, vocabulary) = (2, 50);
    let given = f32s(&[2, 50], &logits(rows, vocabulary));
    let program = head_program(DType::F32, ShapeDim::fixed(2), 50, Head::Plain);
    let draws = backends().map(|backend| {
        let mut session = Session::new(&program, backend.as_ref());
        (0..40).map(|seed| drawn(&mut session, &given, With::seed(seed))).collect::<Vec<_>>()
    });
    assert_eq!(draws[0], draws[1]);
    let mut session = Session::new(&program, backends()[1].as_ref());
    let again: Vec<_> = (0..40).map(|seed| drawn(&mut session, &given, With::seed(seed))).collect();
    assert_eq!(again, draws[0]);
    for row in 0..rows {
        let mut different: Vec<i64> = draws[0].iter().map(|tokens| tokens[row]).collect();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 5 && different.iter().all(|token| (0..50).contains(token)), "{different:?}");
    }
}

#[test]
fn without_a_seed_every_call_draws_anew() {
    let given = f32s(&[1, 50], &[0.0; 50]);
    let program = head_program(DType::F32, ShapeDim::fixed(1), 50, Head::Unseeded);
    for backend in backends() {
        let mut session = Session::new(&program, backend.as_ref());
        let with = With { seed: None, ..With::seed(0) };
        let draws: Vec<_> = (0..20).map(|_| drawn(&mut session, &given, with)).collect();
        assert!(draws.iter().any(|draw| draw != &draws[0]), "{draws:?}");
    }
}

#[test]
fn s0_6_top_k_and_top_p_are_read_at_run_time() {
    let values = logits(1, 64);
    let given = f32s(&[1, 64], &values);
    let program = head_program(DType::F32, ShapeDim::fixed(1), 64, Head::Plain);
    for backend in backends() {
        let mut session = Session::new(&program, backend.as_ref());
        for seed in 0..20 {
            let greedy = best(&values, 64);
            assert_eq!(drawn(&mut session, &given, With { top_k: 1, ..With::seed(seed) }), greedy);
            assert_eq!(drawn(&mut session, &given, With { top_p: 1e-6, ..With::seed(seed) }), greedy);
            let all = drawn(&mut session, &given, With::seed(seed));
            assert_eq!(drawn(&mut session, &given, With { top_k: 64, ..With::seed(seed) }), all);
            let three = drawn(&mut session, &given, With { top_k: 3, temperature: 50.0, ..With::seed(seed) })[0];
            let above = values.iter().filter(|value| **value > values[usize::try_from(three).unwrap()]).count();
            assert!(above < 3, "{three} is the {above}th");
        }
    }
}

#[test]
fn s0_4_half_precision_logits_draw_as_the_same_values_in_f32() {
    // Multiples of 1/8 below 8 are exact in all three types; the large vocabulary makes noise near its clamp.
    let values: Vec<f32> =
        (0..50_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 26) as f32 / 8.0).collect();
    let shape = [1, 50_000];
    let wide = head_program(DType::F32, ShapeDim::fixed(1), 50_000, Head::Plain);
    for dtype in [DType::Bf16, DType::F16] {
        let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let narrow = (dtype, shape.to_vec(), ptero_backend::cast(&raw, DType::F32, dtype).unwrap());
        let program = head_program(dtype, ShapeDim::fixed(1), 50_000, Head::Plain);
        let cpu = &backends()[1];
        let (mut one, mut other) = (Session::new(&wide, cpu.as_ref()), Session::new(&program, cpu.as_ref()));
        for seed in 0..8 {
            let wanted = drawn(&mut one, &f32s(&shape, &values), With::seed(seed));
            assert_eq!(drawn(&mut other, &narrow, With::seed(seed)), wanted, "{} seed {seed}", dtype.name());
        }
    }
}

#[test]
fn a_number_of_rows_that_varies_is_asked_for_at_run_time() {
    let program = head_program(DType::F32, ShapeDim::between(1, 4), 32, Head::Plain);
    let fixed = head_program(DType::F32, ShapeDim::fixed(3), 32, Head::Plain);
    let given = f32s(&[3, 32], &logits(3, 32));
    for backend in backends() {
        let mut one = Session::new(&program, backend.as_ref());
        let mut other = Session::new(&fixed, backend.as_ref());
        for with in [With::seed(1), With { temperature: 0.0, ..With::seed(1) }] {
            assert_eq!(drawn(&mut one, &given, with), drawn(&mut other, &given, with));
        }
    }
}
