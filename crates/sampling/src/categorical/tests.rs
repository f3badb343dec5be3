use super::*;

fn one(logits: &[f32], temperature: f32, random: f32) -> Result<Drawn, Refused> {
    softmax_sample(logits, logits.len().max(1), temperature, &[random]).map(|drawn| drawn[0])
}

#[test]
fn s3_1_eight_bytes_come_back() {
    assert_eq!(size_of::<Drawn>(), 8);
}

#[test]
fn s3_2_each_refusal_names_its_argument_and_value() {
    let message = |refused: Result<Drawn, Refused>| refused.unwrap_err().to_string();
    assert_eq!(message(one(&[], 1.0, 0.5)), "`logits` has no elements");
    for (temperature, text) in [(0.0, "0"), (-1.0, "-1"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        assert_eq!(message(one(&[1.0], temperature, 0.5)), format!("`temperature` is {text}; it must be above 0"));
    }
    for (random, text) in [(1.0, "1"), (-0.25, "-0.25"), (f32::NAN, "NaN")] {
        let expected = format!("`random` is {text}; it must be at least 0 and below 1");
        assert_eq!(message(one(&[1.0], 1.0, random)), expected);
    }
    let several = softmax_sample(&[1.0; 6], 3, 1.0, &[0.5; 3]).unwrap_err();
    assert_eq!(several.to_string(), "`random` has 3 elements for 2 rows");
    let ragged = softmax_sample(&[1.0; 7], 3, 1.0, &[0.5; 2]).unwrap_err();
    assert_eq!(ragged.to_string(), "`logits` has 7 elements, which are not rows of `vocabulary` 3");
    assert!(message(one(&[f32::NEG_INFINITY, f32::NAN], 1.0, 0.5)).starts_with("`logits` row 0 has no element above"));
}

#[test]
fn s3_3_the_draw_inverts_the_cumulative_distribution_in_order_of_index() {
    // Probabilities 1/4, 1/2, 1/4 at temperature 2.
    let logits = [0.0, 4.0_f32.ln(), 0.0];
    for (random, token) in [(0.0, 0), (0.249, 0), (0.251, 1), (0.749, 1), (0.751, 2), (0.999_999_94, 2)] {
        let drawn = one(&logits, 2.0, random).unwrap();
        assert_eq!(drawn.token, token, "{random}");
        let probability: f32 = if token == 1 { 0.5 } else { 0.25 };
        assert!((drawn.log_probability - probability.ln()).abs() < 1e-6, "{drawn:?}");
    }
}

#[test]
fn tokens_without_mass_are_never_drawn() {
    let logits = [f32::NEG_INFINITY, f32::NAN, 1.0, f32::NEG_INFINITY];
    for random in [0.0, 0.5, 0.999_999_94] {
        assert_eq!(one(&logits, 1.0, random).unwrap(), Drawn { token: 2, log_probability: 0.0 });
    }
    assert_eq!(one(&[3.0, f32::INFINITY], 1.0, 0.5).unwrap(), Drawn { token: 1, log_probability: 0.0 });
}

#[test]
fn log_probabilities_of_a_row_sum_to_one() {
    let logits: Vec<f32> = (0..1000_u16).map(|at| f32::from(at % 37) / 5.0 - 3.0).collect();
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total = logits.iter().map(|&logit| mass(logit, largest)).sum();
    let sum: f64 = logits.iter().map(|&logit| f64::from(log_probability(logit, largest, total)).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
}
