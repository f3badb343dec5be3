//! `softmax_sample`: the draw inverts the cumulative distribution, and the log-probability is that of the token.

use ptero_sampling::categorical::{Drawn, softmax_sample};
use ptero_sampling::settings::Settings;
use ptero_sampling::threefry;

use crate::statistics::{chi_square, kolmogorov_smirnov};
use crate::targets::{VOCABULARY, probabilities, shapes};

/// One draw per random number from the same row: the row, the temperature, the random numbers.
type Inverse<'a> = &'a dyn Fn(&[f32], f32, &[f32]) -> Vec<Drawn>;

/// What may be wrong with a draw.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    /// On an even grid of random numbers a token has more than a step too many or too few.
    Grid { token: usize, count: u64, expected: f64 },
    /// A larger random number gave a lower token.
    Order(usize),
    /// The counts of random draws are not those of the distribution.
    Counts(f64),
    /// The log-probability is that of something else.
    LogProbability { token: u32, ours: f32, expected: f64 },
}

const STEPS: u32 = 1 << 16;

/// A row, drawn with an even grid of random numbers.
fn check_grid(draw: Inverse<'_>, row: &[f32], temperature: f32) -> Result<(), Wrong> {
    let expected = probabilities(row, &Settings { temperature, ..Settings::PLAIN });
    let grid: Vec<f32> = (0..STEPS).map(|at| (at as f32 + 0.5) / STEPS as f32).collect();
    let drawn = draw(row, temperature, &grid);
    let mut counts = vec![0_u64; row.len()];
    for (at, pair) in drawn.windows(2).enumerate() {
        if pair[0].token > pair[1].token {
            return Err(Wrong::Order(at));
        }
    }
    for &Drawn { token, log_probability } in &drawn {
        counts[token as usize] += 1;
        let expected = expected[token as usize].ln();
        if (f64::from(log_probability) - expected).abs() > 4e-7 * expected.abs().max(1.0) {
            return Err(Wrong::LogProbability { token, ours: log_probability, expected });
        }
    }
    for (token, (&count, p)) in counts.iter().zip(&expected).enumerate() {
        let expected = p * f64::from(STEPS);
        if (count as f64 - expected).abs() > 1.5 {
            return Err(Wrong::Grid { token, count, expected });
        }
    }
    Ok(())
}

/// The p-values of groups of random draws.
fn check_random(draw: Inverse<'_>, row: &[f32], groups: u64, draws: usize) -> Result<Vec<f64>, Wrong> {
    let expected = probabilities(row, &Settings::PLAIN);
    let p_value = |group| {
        let words = threefry::words(threefry::key(group), draws);
        let random: Vec<f32> = words.iter().map(|word| (word >> 8) as f32 / 16_777_216.0).collect();
        let mut counts = vec![0; row.len()];
        for drawn in draw(row, 1.0, &random) {
            counts[drawn.token as usize] += 1;
        }
        let p = chi_square(&counts, &expected);
        if p < 1e-6 { Err(Wrong::Counts(p)) } else { Ok(p) }
    };
    (0..groups).map(p_value).collect()
}

fn reference(row: &[f32], temperature: f32, random: &[f32]) -> Vec<Drawn> {
    let some = random.chunks(4096);
    some.flat_map(|random| softmax_sample(&row.repeat(random.len()), row.len(), temperature, random).unwrap()).collect()
}

#[test]
fn s3_3_an_even_grid_gives_each_token_its_share_in_order_and_its_log_probability() {
    for shape in shapes() {
        for temperature in [1.0, 0.5, 2.0] {
            let result = check_grid(&reference, &shape.logits, temperature);
            assert_eq!(result, Ok(()), "{} at temperature {temperature}", shape.name);
        }
    }
}

#[test]
fn s3_3_a_million_random_numbers_follow_softmax() {
    let mut p_values = Vec::new();
    for shape in shapes() {
        p_values.extend(check_random(&reference, &shape.logits, 20, 10_000).unwrap());
    }
    let uniformity = kolmogorov_smirnov(&p_values);
    println!("softmax_sample: {} p-values, uniform {uniformity:.3}", p_values.len());
    assert!(uniformity > 1e-3, "{uniformity}");
}

#[test]
fn s3_3_the_checks_find_wrong_draws() {
    let row = &shapes().pop().unwrap().logits;
    let with = |change: &dyn Fn(Drawn) -> Drawn, row: &[f32], temperature: f32, random: &[f32]| {
        reference(row, temperature, random).into_iter().map(change).collect::<Vec<_>>()
    };
    // In descending order of probability instead of in order of index.
    let mut order: Vec<usize> = (0..VOCABULARY).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    let sorted = |row: &[f32], temperature: f32, random: &[f32]| {
        let descending: Vec<f32> = order.iter().map(|&token| row[token]).collect();
        let token = |drawn: Drawn| Drawn { token: u32::try_from(order[drawn.token as usize]).unwrap(), ..drawn };
        with(&token, &descending, temperature, random)
    };
    assert!(matches!(check_grid(&sorted, row, 1.0), Err(Wrong::Order(_))));
    // The token after the one that was hit.
    let next = |row: &[f32], temperature: f32, random: &[f32]| {
        with(&|drawn| Drawn { token: (drawn.token + 1).min(63), ..drawn }, row, temperature, random)
    };
    assert!(check_grid(&next, row, 1.0).is_err() && check_random(&next, row, 2, 10_000).is_err());
    // The log-probability at temperature 1 whatever the temperature.
    let unscaled = |row: &[f32], temperature: f32, random: &[f32]| {
        let at_one = probabilities(row, &Settings::PLAIN);
        #[allow(clippy::cast_possible_truncation, reason = "log-probabilities are f32")]
        let log = |drawn: Drawn| Drawn { log_probability: at_one[drawn.token as usize].ln() as f32, ..drawn };
        with(&log, row, temperature, random)
    };
    assert!(matches!(check_grid(&unscaled, row, 2.0), Err(Wrong::LogProbability { .. })));
    assert_eq!(check_grid(&unscaled, row, 1.0), Ok(()));
    // Random numbers of eight bits.
    let coarse = |row: &[f32], temperature: f32, random: &[f32]| {
        let coarse: Vec<f32> = random.iter().map(|random| (random * 256.0).floor() / 256.0).collect();
        reference(row, temperature, &coarse)
    };
    assert!(matches!(check_grid(&coarse, row, 1.0), Err(Wrong::Grid { .. })));
    assert!(matches!(check_random(&coarse, row, 2, 10_000), Err(Wrong::Counts(_))));
}
