//! The probability of very unlikely tokens, with an exact tail and without.
//!
//! A token of probability 2^-36 would take trillions of draws to count. So its words are drawn by strata, those whose 64 bits (or 32)
//! begin with `n` zeros, each of which has a known probability; beside it, a likely token is drawn as usual.
#![allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]

use ptero_sampling::noise::{Stream, exact_gumbel, gumbel};
use ptero_sampling::threefry::{self, threefry2x32};

/// Draws of a stratum.
const DRAWS: u32 = 100_000;

/// The share of draws in which an unlikely token wins against one of logit 0: `noise` is that of a number of `bits` bits, which
/// is the larger the smaller the number is.
fn share(logit: f32, bits: u32, noise: impl Fn(u64) -> f32, likely: impl Fn(u32) -> f32) -> f64 {
    let of_stratum = |zeros: u32| {
        let wins = (0..DRAWS).filter(|draw| {
            let [high, low] = threefry2x32([zeros, 77], [*draw, 1]);
            let number = (u64::from(high) << 32 | u64::from(low)) >> (64 - bits);
            // The first one after the zeros is set.
            let number = (number | 1 << (bits - 1)) >> zeros;
            logit + noise(number) > likely(*draw)
        });
        wins.count() as f64 / f64::from(DRAWS) * 2.0_f64.powi(-1 - i32::try_from(zeros).expect("few"))
    };
    (0..bits).map(of_stratum).sum()
}

/// The logit of a token that is `2^power` as likely as one of logit 0.
#[allow(clippy::cast_possible_truncation, reason = "logits are f32")]
fn logit(power: i32) -> f32 {
    (f64::from(power) * std::f64::consts::LN_2) as f32
}

#[test]
fn tokens_down_to_two_to_the_minus_52_have_their_probability() {
    let likely = Stream::of_row([5, 6], DRAWS as usize);
    for power in [-4, -20, -24, -28, -32, -36, -40, -44, -52] {
        let found = share(
            logit(power),
            64,
            |number| exact_gumbel(threefry::key(number)),
            |draw| likely.noise(draw as usize, true),
        );
        // The softmax of the two logits.
        let odds = f64::from(logit(power)).exp();
        let expected = odds / (1.0 + odds);
        println!("2^{power}: {:.4} of what it should be", found / expected);
        assert!((found / expected - 1.0).abs() < 0.02, "2^{power}: {found:e}, not {expected:e}");
    }
}

#[test]
fn without_an_exact_tail_such_tokens_are_drawn_too_rarely() {
    let likely = Stream::of_row([5, 6], DRAWS as usize);
    let found = |power| {
        let word = |number: u64| !u32::try_from(number).expect("32 bits");
        let share = share(logit(power), 32, |number| gumbel(word(number)), |draw| likely.noise(draw as usize, false));
        share / f64::from(logit(power)).exp()
    };
    let found = [-20, -24, -26, -28, -32].map(found);
    println!("2^-20, 2^-24, 2^-26, 2^-28, 2^-32: {found:.4?} of what they should be");
    assert!((0.9..1.1).contains(&found[0]), "{found:?}");
    assert!(found[2] < 0.5 && found[3] < 0.01 && found[4] == 0.0, "{found:?}");
}
