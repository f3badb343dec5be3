use super::*;
use crate::noise::{exact_gumbel, gumbel};
use crate::threefry;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

/// What is kept of a row at temperature 1.
fn keeps(row: &[f32], top_k: i64, top_p: f32) -> Vec<usize> {
    kept(row, &Settings { top_k, top_p, ..Settings::PLAIN }).collect()
}

fn greedy(row: &[f32]) -> usize {
    draw(row, &Settings::GREEDY, |_| unreachable!("greedy draws nothing"))
}

#[test]
fn s0_5_temperature_zero_takes_the_first_of_the_largest() {
    assert_eq!(greedy(&[1.0, 3.0, 2.0, 3.0]), 1);
    assert_eq!(greedy(&[-0.0, 0.0]), 0);
    assert_eq!(greedy(&[-INF, -INF]), 0);
    assert_eq!(greedy(&[1.0, INF, INF]), 1);
}

#[test]
fn not_a_number_never_wins() {
    assert_eq!(greedy(&[NAN, 1.0, NAN, 2.0]), 3);
    assert_eq!(greedy(&[NAN, -INF]), 1);
    assert_eq!(greedy(&[NAN, NAN]), 0);
    for word in [0, 1, 1 << 31, u32::MAX] {
        assert_eq!(draw(&[NAN, 1.0, NAN], &Settings::PLAIN, |_| gumbel(word)), 1);
    }
    assert_eq!(keeps(&[NAN, 1.0, 2.0, NAN], 4, 1.0), [1, 2]);
}

#[test]
fn top_k_keeps_all_ties_at_its_boundary() {
    let row = [1.0, 5.0, 3.0, 3.0, 3.0, 4.0];
    assert_eq!(keeps(&row, 1, 1.0), [1]);
    assert_eq!(keeps(&row, 2, 1.0), [1, 5]);
    assert_eq!(keeps(&row, 3, 1.0), [1, 2, 3, 4, 5]);
    assert_eq!(keeps(&row, 6, 1.0), [0, 1, 2, 3, 4, 5]);
    assert_eq!(keeps(&row, i64::MAX, 1.0), [0, 1, 2, 3, 4, 5]);
    assert_eq!(keeps(&[0.0, -0.0, -1.0], 1, 1.0), [0, 1]);
}

#[test]
fn top_p_keeps_a_token_unless_the_mass_before_it_is_greater() {
    // Masses 4, 2, 1, 1 of 8 (powers of two are exact up to the last unit of mass).
    let two = std::f32::consts::LN_2;
    let row = [0.0, -two, -2.0 * two, -2.0 * two];
    assert_eq!(keeps(&row, 4, 0.4), [0]);
    assert_eq!(keeps(&row, 4, 0.51), [0, 1]);
    assert_eq!(keeps(&row, 4, 0.74), [0, 1]);
    assert_eq!(keeps(&row, 4, 0.76), [0, 1, 2, 3]);
    assert_eq!(keeps(&row, 4, 1e-6), [0]);
    // Before the second of two equals lies half of the mass, but equals stay together.
    assert_eq!(keeps(&[1.0, 1.0, -9.0], 3, 0.1), [0, 1]);
}

#[test]
fn top_p_is_a_share_of_what_top_k_kept() {
    let two = std::f32::consts::LN_2;
    let row = [0.0, -two, -2.0 * two, -2.0 * two];
    // Of all, the first has 1/2; of the first two, 2/3.
    assert_eq!(keeps(&row, 4, 0.6), [0, 1]);
    assert_eq!(keeps(&row, 2, 0.6), [0]);
}

#[test]
fn rows_without_a_finite_logit_still_give_a_token() {
    let token = |row: &[f32]| draw(row, &Settings { top_p: 0.9, ..Settings::PLAIN }, |_| gumbel(1 << 30));
    assert_eq!(token(&[-INF, -INF, -INF]), 0);
    assert_eq!(token(&[NAN, -INF, -INF]), 1);
    assert_eq!(token(&[NAN, NAN]), 0);
    assert_eq!(token(&[3.0, INF, NAN]), 1);
}

#[test]
fn one_key_draws_one_stream_over_all_rows_and_a_key_per_row_draws_each_alone() {
    let row: Vec<f32> = (0..50_u8).map(|at| f32::from(at) / 10.0).collect();
    let rows = [row.as_slice(); 5].concat();
    let (key, settings) = ([3, 4], [Settings::PLAIN]);
    let shared = sample(&rows, row.len(), &settings, Keys::Shared(key));
    let words = threefry::words(key, rows.len());
    for (at, token) in shared.iter().enumerate() {
        let noisy = |index: usize| row[index] + gumbel(words[at * row.len() + index]);
        assert!((0..row.len()).all(|index| noisy(index) <= noisy(*token as usize)));
    }
    let alone = sample(&row, row.len(), &settings, Keys::Shared(key));
    assert_eq!(sample(&rows, row.len(), &settings, Keys::PerRow(&[key; 5])), [alone[0]; 5]);
}

#[test]
fn with_an_exact_tail_each_token_has_a_block_of_a_stream_of_twice_as_many_words() {
    let row: Vec<f32> = (0..51_u8).map(|at| f32::from(at) / 10.0).collect();
    let rows = [row.as_slice(); 5].concat();
    let (key, settings) = ([3, 4], [Settings { exact_tail: true, ..Settings::PLAIN }]);
    let shared = sample(&rows, row.len(), &settings, Keys::Shared(key));
    let words = threefry::words(key, 2 * rows.len());
    let (high, low) = words.split_at(rows.len());
    for (at, token) in shared.iter().enumerate() {
        let words = |index: usize| [high[at * row.len() + index], low[at * row.len() + index]];
        let noisy = |index: usize| row[index] + exact_gumbel(words(index));
        assert!((0..row.len()).all(|index| noisy(index) <= noisy(*token as usize)));
    }
    let alone = sample(&row, row.len(), &settings, Keys::Shared(key));
    assert_eq!(sample(&rows, row.len(), &settings, Keys::PerRow(&[key; 5])), [alone[0]; 5]);
}

#[test]
fn settings_may_differ_from_row_to_row() {
    let rows = [1.0, 2.0, 1.0, 2.0];
    let cold = Settings { temperature: 1e-4, ..Settings::PLAIN };
    let only_first = Settings { top_k: 1, ..Settings::PLAIN };
    assert_eq!(sample(&rows, 2, &[cold, only_first], Keys::Shared([1, 2])), [1, 1]);
}

#[test]
fn s0_4_noise_of_16_bit_logits_is_not_poisoned_at_a_large_vocabulary() {
    // Were the uniform numbers rounded to bf16, many would be 1, their noise infinite, and the first of them would win
    // whatever its logit.
    let vocabulary = 262_144;
    let mut row = vec![-20.0_f32; vocabulary];
    row[vocabulary - 1] = 20.0;
    for seed in 0..20 {
        assert_eq!(sample(&row, vocabulary, &[Settings::PLAIN], Keys::Shared([0, seed])), [262_143]);
    }
    let poisoned = threefry::words([0, 0], vocabulary).iter().filter(|&&word| half_precision(word) >= 1.0).count();
    assert!(poisoned > 100, "the rounding would have struck {poisoned} times");
}

/// The uniform number of a word as bf16 would hold it.
fn half_precision(word: u32) -> f32 {
    let bits = crate::noise::uniform(word).to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[test]
fn min_p_keeps_what_is_likely_enough_beside_the_largest() {
    let keeps = |row: &[f32], min_p: f32| -> Vec<usize> { kept(row, &Settings { min_p, ..Settings::PLAIN }).collect() };
    let row = [1.0, 3.0, NAN, 2.0, 3.0, -INF];
    assert_eq!(keeps(&row, 1.0), [1, 4]);
    assert_eq!(keeps(&row, 0.36), [1, 3, 4], "exp(-1) is 0.3679");
    assert_eq!(keeps(&row, 0.37), [1, 4]);
    for all in [0.0, -0.5, NAN] {
        assert_eq!(keeps(&row, all), [0, 1, 3, 4, 5], "{all}");
    }
    assert_eq!(keeps(&row, 1.5), [1, 4], "above 1 counts as 1");
    assert_eq!(keeps(&[INF, 1.0, INF], 0.5), [0, 2]);
    assert_eq!(keeps(&[-INF, NAN, -INF], 0.5), [0, 2]);
}

#[test]
fn a_larger_logit_is_never_less_likely() {
    // Near every multiple of half of ln 2, where the exponential changes its reduction, and in steps between.
    let mut distances: Vec<u32> = (0..300_u16)
        .flat_map(|half| {
            let bits = (f32::from(half) * std::f32::consts::LN_2 / 2.0).to_bits();
            bits.saturating_sub(200)..bits + 200
        })
        .chain((0..104_f32.to_bits()).step_by(9973))
        .collect();
    distances.sort_unstable();
    let ratios = distances.iter().map(|bits| exp(-f32::from_bits(*bits)));
    assert!(ratios.is_sorted_by(|nearer, further| nearer >= further));
}
