//! Cases of sampling.

use super::data::{Datum, FLOATS, any, between, each, tied};
use super::draft::Draft;
use super::rng::Rng;
use super::views::Size;
use ptero_plan::graph::Value;
use ptero_plan::prim::{Adjust, LogProbabilities, Prim, Sample};
use ptero_tensor::DType;

const ROWS: [i64; 7] = [1, 1, 1, 2, 3, 4, 5];
const SHORT: [i64; 14] = [1, 2, 3, 5, 8, 16, 17, 33, 64, 100, 128, 255, 257, 300];
const LONG: [i64; 4] = [1000, 1025, 2049, 5000];

/// Up to two steps, so that keys follow each other within a call too. A step without rows takes a key like any other.
pub(super) fn case(draft: &mut Draft) {
    if draft.rng.one_in(10) {
        step(draft, Size::fixed(0), false);
        let rows = draft.size(&ROWS);
        return step(draft, rows, false);
    }
    for _ in 0..draft.rng.pick(&[1, 1, 2]) {
        let (rows, is_seeded) = (draft.size_or_zero(&ROWS), !draft.rng.one_in(3));
        step(draft, rows, is_seeded);
    }
}

fn step(draft: &mut Draft, rows: Size, is_seeded: bool) {
    let is_long = draft.rng.one_in(10);
    let vocabulary = draft.size(if is_long { &LONG } else { &SHORT });
    let dtype = draft.rng.pick(&FLOATS);
    let logits = logits(draft, dtype, &[rows.clone(), vocabulary.clone()]);
    let temperature = parameter(draft, DType::F32, &rows, temperature);
    let kind = draft.rng.pick(&[DType::I64, DType::I32]);
    let top_k = parameter(draft, kind, &rows, top_k);
    let top_p = parameter(draft, DType::F32, &rows, top_p);
    let min_p = parameter(draft, DType::F32, &rows, min_p);
    let kind = draft.rng.pick(&[DType::I64, DType::I64, DType::I32, DType::U32]);
    let seed = if is_seeded { Some(parameter(draft, kind, &rows, seed)) } else { None };
    let exact_tail = if draft.rng.one_in(2) { Some(parameter(draft, DType::I64, &rows, exact_tail)) } else { None };
    let is_one = rows.is_fixed() && rows.largest() == 1;
    let adjust = if is_one && draft.rng.one_in(2) { Some(adjust(draft, &vocabulary)) } else { None };
    let which = if draft.rng.one_in(2) { Some(parameter(draft, DType::I64, &Size::fixed(1), which)) } else { None };
    let kind = draft.rng.pick(&[DType::U32, DType::I64]);
    let out = draft.target(kind, std::slice::from_ref(&rows));
    let log_probabilities = which.map(|which| LogProbabilities {
        which,
        token: draft.target(DType::F32, std::slice::from_ref(&rows)),
        likeliest: draft.target(DType::I64, &[rows.clone(), Size::fixed(20)]),
        of_likeliest: draft.target(DType::F32, &[rows.clone(), Size::fixed(20)]),
    });
    let sample = Sample { out, logits, temperature, top_k, top_p, min_p, seed, exact_tail, adjust, log_probabilities };
    draft.test(Prim::Sample(Box::new(sample)));
}

/// Penalties, biases and a mask, any of which may change nothing.
fn adjust(draft: &mut Draft, vocabulary: &Size) -> Adjust<Value> {
    let one = |draft: &mut Draft, dtype, rule| parameter(draft, dtype, &Size::fixed(1), rule);
    let length = draft.size(&[1, 2, 7, 64, 300]);
    let biases = draft.size(&[1, 3, 40]);
    // Words that are missing exclude nothing, and more change nothing.
    let words = Size::fixed((vocabulary.largest() + 31) / 32 + draft.rng.pick(&[0, 0, 0, 1]));
    let mask = draft.rng.pick(&[all_bits as fn(&mut Rng) -> Datum, all_bits, some_bits, few_bits]);
    Adjust {
        history: draft.operand(DType::I32, &[length], &each(token)),
        last: one(draft, DType::I64, last),
        prompt_end: one(draft, DType::I64, last),
        repetition: one(draft, DType::F32, repetition),
        presence: one(draft, DType::F32, penalty),
        frequency: one(draft, DType::F32, penalty),
        bias_tokens: draft.operand(DType::I32, std::slice::from_ref(&biases), &each(token)),
        bias_values: draft.operand(DType::F32, &[biases], &each(bias)),
        mask: draft.operand(DType::I32, &[words], &each(mask)),
    }
}

fn token(rng: &mut Rng) -> Datum {
    Datum::Int(match rng.below(8) {
        0 => rng.pick(&[-1, i32::MIN.into(), i32::MAX.into(), 5000]),
        1..4 => rng.within(0, 4),
        _ => rng.within(0, 300),
    })
}

fn last(rng: &mut Rng) -> Datum {
    Datum::Int(match rng.below(4) {
        0 => rng.pick(&[-1, i64::MIN, i64::MAX, 0]),
        _ => rng.within(0, 310),
    })
}

fn repetition(rng: &mut Rng) -> Datum {
    Datum::Float(if rng.one_in(3) { 1.0 } else { rng.float(0.5, 2.0) })
}

fn penalty(rng: &mut Rng) -> Datum {
    Datum::Float(if rng.one_in(3) { 0.0 } else { rng.float(-2.0, 2.0) })
}

fn bias(rng: &mut Rng) -> Datum {
    Datum::Float(if rng.one_in(2) { 0.0 } else { rng.float(-100.0, 100.0) })
}

fn all_bits(_: &mut Rng) -> Datum {
    Datum::Int(-1)
}

fn some_bits(rng: &mut Rng) -> Datum {
    Datum::Int(i64::from(rng.next() as i32))
}

fn few_bits(rng: &mut Rng) -> Datum {
    Datum::Int(if rng.one_in(3) { 1 << rng.below(31) } else { 0 })
}

fn which(rng: &mut Rng) -> Datum {
    Datum::Int(rng.pick(&[0, 1, 1, 2, 2, -1, 3]))
}

fn exact_tail(rng: &mut Rng) -> Datum {
    Datum::Int(rng.pick(&[0, 0, 1, 1, -1, i64::MIN, i64::MAX]))
}

fn min_p(rng: &mut Rng) -> Datum {
    Datum::Float(match rng.below(6) {
        0 => rng.pick(&[-0.5, 1.0, 1.5, f32::NAN, f32::INFINITY, 1e-9]),
        1 => rng.float(0.0, 1.0),
        2 => rng.float(0.0, 0.1),
        _ => 0.0,
    })
}

fn logits(draft: &mut Draft, dtype: DType, shape: &[Size]) -> Value {
    let content = match draft.rng.below(8) {
        0 => tied(dtype),
        1 | 2 => any(dtype),
        3 => each(nothing_wins),
        4 => each(peaked),
        _ => between(-8.0, 8.0),
    };
    draft.operand(dtype, shape, &content)
}

fn nothing_wins(rng: &mut Rng) -> Datum {
    Datum::Float(rng.pick(&[f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NAN]))
}

fn peaked(rng: &mut Rng) -> Datum {
    Datum::Float(if rng.one_in(8) { rng.float(6.0, 7.0) } else { rng.float(-20.0, 0.0) })
}

/// One for all rows, or one for each.
fn parameter(draft: &mut Draft, dtype: DType, rows: &Size, rule: fn(&mut Rng) -> Datum) -> Value {
    let shape = match draft.rng.below(4) {
        0 => vec![],
        1 => vec![Size::fixed(1)],
        _ => vec![rows.clone()],
    };
    draft.operand(dtype, &shape, &each(rule))
}

fn temperature(rng: &mut Rng) -> Datum {
    Datum::Float(match rng.below(12) {
        0 => rng.pick(&[0.0, -0.0, -1.0, f32::NAN]),
        1 => rng.pick(&[1e-40, 1e-3, 1e30, f32::INFINITY]),
        2..6 => 1.0,
        _ => rng.float(0.05, 2.5),
    })
}

fn top_k(rng: &mut Rng) -> Datum {
    Datum::Int(match rng.below(4) {
        0 => rng.pick(&[0, -1, -70, i64::MIN, i64::MAX, 1 << 40, i32::MAX.into()]),
        1 => rng.within(1, 5),
        2 => rng.within(1, 300),
        _ => rng.pick(&SHORT),
    })
}

fn top_p(rng: &mut Rng) -> Datum {
    Datum::Float(match rng.below(4) {
        0 => rng.pick(&[0.0, -0.5, 1e-6, 1.0, 1.5, f32::NAN, f32::INFINITY, 0.99999994]),
        1 => 1.0,
        _ => rng.float(0.0, 1.0),
    })
}

fn seed(rng: &mut Rng) -> Datum {
    Datum::Int(match rng.below(4) {
        0 => rng.pick(&[0, -1, 1 << 31, 1 << 32, 1 << 40, i64::MIN]),
        1 => rng.within(0, 100),
        _ => rng.next() as i64,
    })
}
