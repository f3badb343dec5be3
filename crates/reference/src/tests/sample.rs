use super::*;
use ptero_plan::prim::Sample;
use ptero_sampling::noise::seed_key;
use ptero_sampling::reference::{Keys, sample};
use ptero_sampling::settings::Settings;
use ptero_sampling::threefry::KeySequence;

/// Twelve logits in rows of four.
const LOGITS: [f64; 12] = [0.5, 2.0, 2.0, -1.0, NAN, -INF, 3.0, 0.0, 1.0, 1.5, 0.25, 1.25];

struct Parameters<'a> {
    temperature: &'a [f64],
    top_k: &'a [f64],
    top_p: &'a [f64],
    seed: Option<&'a [f64]>,
}

const PLAIN: Parameters<'static> = Parameters { temperature: &[1.0], top_k: &[4.0], top_p: &[1.0], seed: Some(&[7.0]) };

/// Adds the sampler; parameters of one element have no axis. The tokens.
fn sampler(b: &mut Builder, logits: Value, parameters: &Parameters<'_>) -> Value {
    let mut parameter = |dtype, values: &[f64]| match values {
        [one] => b.constant(dtype, &[], &[*one]),
        each => b.constant(dtype, &[i64::try_from(each.len()).unwrap()], each),
    };
    let (temperature, top_k) = (parameter(DType::F32, parameters.temperature), parameter(DType::I64, parameters.top_k));
    let top_p = parameter(DType::F32, parameters.top_p);
    let min_p = parameter(DType::F32, &[0.0]);
    let seed = parameters.seed.map(|seed| parameter(DType::I64, seed));
    let rows = b.graph.ty(logits).shape[..1].to_vec();
    let out = b.graph.value(DType::U32, rows);
    let (adjust, log_probabilities) = (None, None);
    let sample =
        Sample { out, logits, temperature, top_k, top_p, min_p, seed, exact_tail: None, adjust, log_probabilities };
    b.device(Prim::Sample(Box::new(sample)));
    out
}

fn tokens(parameters: &Parameters<'_>) -> Vec<f64> {
    let mut b = Builder::new();
    let logits = b.constant(DType::F32, &[3, 4], &LOGITS);
    let out = sampler(&mut b, logits, parameters);
    b.read(out)
}

#[allow(clippy::cast_possible_truncation, reason = "test values are small")]
fn expected(settings: &[Settings], keys: Keys<'_>) -> Vec<f64> {
    sample(&LOGITS.map(|logit| logit as f32), 4, settings, keys).into_iter().map(f64::from).collect()
}

#[test]
fn a_temperature_that_is_not_above_0_takes_the_first_largest_that_is_a_number() {
    for temperature in [0.0, -1.0, NAN] {
        assert_eq!(tokens(&Parameters { temperature: &[temperature], ..PLAIN }), [1.0, 2.0, 1.0]);
    }
}

#[test]
fn one_seed_draws_for_the_whole_and_a_seed_per_row_for_each_alone() {
    let settings = [Settings::PLAIN];
    for seed in [7.0, 0.0, -1.0, 2.0_f64.powi(31), 2.0_f64.powi(40)] {
        #[allow(clippy::cast_possible_truncation, reason = "whole numbers")]
        let key = seed_key(seed as i64);
        assert_eq!(tokens(&Parameters { seed: Some(&[seed]), ..PLAIN }), expected(&settings, Keys::Shared(key)));
        let keys = [seed_key(1), key, seed_key(3)];
        let found = tokens(&Parameters { seed: Some(&[1.0, seed, 3.0]), ..PLAIN });
        assert_eq!(found, expected(&settings, Keys::PerRow(&keys)));
    }
}

#[test]
fn parameters_are_for_all_rows_or_for_each() {
    let rows = [(0.0, 4, 1.0), (2.0, 1, 1.0), (2.0, 4, 0.1)];
    let settings = rows.map(|(temperature, top_k, top_p)| Settings { temperature, top_k, top_p, ..Settings::PLAIN });
    let each = Parameters {
        temperature: &[0.0, 2.0, 2.0],
        top_k: &[4.0, 1.0, 4.0],
        top_p: &[1.0, 1.0, 0.10000000149011612],
        ..PLAIN
    };
    assert_eq!(tokens(&each), expected(&settings, Keys::Shared(seed_key(7))));
    assert_eq!(tokens(&each), [1.0, 2.0, 1.0], "greedy, the largest one, the likeliest one");
}

#[test]
fn without_a_seed_a_key_is_taken_when_something_is_drawn() {
    let mut b = Builder::new();
    let logits = b.constant(DType::F32, &[3, 4], &LOGITS);
    let greedy = Parameters { temperature: &[0.0, -1.0, NAN], seed: None, ..PLAIN };
    let mixed = Parameters { temperature: &[0.0, 1.0, 0.0], seed: None, ..PLAIN };
    let outs = [&greedy, &mixed, &PLAIN, &greedy, &Parameters { seed: None, ..PLAIN }]
        .map(|parameters| sampler(&mut b, logits, parameters));
    outs.into_iter().for_each(|out| b.output(out));
    let mut state = b.seeded(5);
    state.run().unwrap();
    let mut keys = KeySequence::new(5);
    let row = Settings::PLAIN;
    let first = [Settings::GREEDY, row, Settings::GREEDY];
    assert_eq!(numbers(&*state, 1), expected(&first, Keys::Shared(keys.next_key())));
    assert_eq!(numbers(&*state, 4), expected(&[row], Keys::Shared(keys.next_key())));
}

#[test]
fn the_longest_row_is_the_longest_whose_mass_can_be_summed() {
    assert_eq!(usize::try_from(ptero_plan::prim::MOST_TOKENS).unwrap(), ptero_sampling::mass::LONGEST_ROW);
}

#[test]
fn what_is_no_sampler_is_refused() {
    let refused = |change: &dyn Fn(&mut Builder)| {
        let mut b = Builder::new();
        let logits = b.constant(DType::F32, &[3, 4], &LOGITS);
        sampler(&mut b, logits, &PLAIN);
        change(&mut b);
        b.compile_error()
    };
    let wrong_type = refused(&|b| {
        let Some(Op::Prim(Prim::Sample(sampler))) = b.graph.blocks[0].nodes.last_mut().map(|node| &mut node.op) else {
            panic!("a sampler")
        };
        std::mem::swap(&mut sampler.temperature, &mut sampler.top_k);
    });
    assert!(wrong_type.ends_with("the tensors of a sampler have the types it takes"), "{wrong_type}");
    let flat = refused(&|b| {
        let logits = b.constant(DType::F32, &[12], &LOGITS);
        sampler(b, logits, &PLAIN);
    });
    assert!(flat.ends_with("logits are rows"), "{flat}");
    let mut b = Builder::new();
    let logits = b.constant(DType::F32, &[3, 4], &LOGITS);
    sampler(&mut b, logits, &Parameters { top_p: &[1.0, 1.0], ..PLAIN });
    assert!(b.run_error().ends_with("a parameter of a sampler is one element or one per row"));
    for size in [0, (1 << 23) + 1] {
        let mut b = Builder::new();
        let logits = b.constant(DType::F32, &[3, 4], &LOGITS);
        let logits = b.strided(logits, &[3, size], &[4, 0], 0);
        sampler(&mut b, logits, &PLAIN);
        assert!(b.run_error().ends_with("a row of logits has an element, and not over 2^23"));
    }
}
