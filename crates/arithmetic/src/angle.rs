//! Sine, cosine and tangent, exact for every angle that a float can hold.

use std::f64::consts::FRAC_PI_2;

/// The first 256 bits of 2 / π after the binary point.
const TWO_OVER_PI: [u64; 4] =
    [0xa2f9_836e_4e44_1529, 0xfc27_57d1_f534_ddc0, 0xdb62_9599_3c43_9041, 0xfe51_63ab_debb_c561];

/// Returns 128 bits of 2 / π, starting at bit `first`, as an integer whose highest bit is that one.
fn bits_of_two_over_pi(first: u32) -> u128 {
    let word = |index: u32| u128::from(TWO_OVER_PI.get(index as usize).copied().unwrap_or(0));
    let (index, shift) = (first / 64, first % 64);
    let high = word(index) << 64 | word(index + 1);
    // The next word gives what the shift leaves free.
    if shift == 0 { high } else { high << shift | word(index + 2) >> (64 - shift) }
}

/// An angle as quarter turns, of which there may be any number, and what is left: at most half a quarter, in radians.
/// The sign of the angle is left out.
#[allow(clippy::cast_precision_loss, reason = "the bits that count are kept")]
fn quarters(x: f32) -> (u8, f64) {
    let bits = x.to_bits() & 0x7fff_ffff;
    if x.abs() <= std::f32::consts::FRAC_PI_4 {
        return (0, f64::from(x.abs()));
    }
    // |x| = mantissa · 2^exponent.
    let (mantissa, exponent) = (u128::from(bits & 0x007f_ffff | 0x0080_0000), (bits >> 23).cast_signed() - 150);
    // In fixed point with two bits before the point: higher ones are whole turns, of which none counts. So of 2 / π, bits
    // whose weight is a whole turn are skipped.
    let factor = match u32::try_from(exponent - 2) {
        Ok(whole_turns) => bits_of_two_over_pi(whole_turns),
        Err(_) => bits_of_two_over_pi(0) >> (2 - exponent).cast_unsigned(),
    };
    let product = mantissa.wrapping_mul(factor);
    // Rounded to the nearest quarter; the rest has its sign.
    let quarter = product.wrapping_add(1 << 125) >> 126;
    let rest = product.wrapping_sub(quarter << 126).cast_signed();
    #[allow(clippy::cast_possible_truncation, reason = "two bits")]
    let quarter = quarter as u8;
    (quarter, rest as f64 * UNIT * FRAC_PI_2)
}

/// The weight of the last bit.
const UNIT: f64 = 1.0 / (1_u128 << 126) as f64;

/// Of an angle up to an eighth of a turn.
fn sine(x: f64) -> f64 {
    let square = x * x;
    let term = |sum: f64, n: u32| 1.0 - square / f64::from(2 * n * (2 * n + 1)) * sum;
    x * (1..=9).rev().fold(1.0, term)
}

/// Of an angle up to an eighth of a turn.
fn cosine(x: f64) -> f64 {
    let square = x * x;
    (1..=9).rev().fold(1.0, |sum, n: u32| 1.0 - square / f64::from(2 * n * (2 * n - 1)) * sum)
}

/// Returns the sine and cosine of the magnitude of an angle; NaN for infinities and NaN.
fn sine_and_cosine(x: f32) -> (f64, f64) {
    if !x.is_finite() {
        return (f64::NAN, f64::NAN);
    }
    let (quarter, rest) = quarters(x);
    let (sine, cosine) = (sine(rest), cosine(rest));
    match quarter % 4 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

/// Sine and cosine of an angle in radians.
#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
pub fn sin_cos(x: f32) -> (f32, f32) {
    let (sine, cosine) = sine_and_cosine(x);
    (if x.is_sign_negative() { -sine } else { sine } as f32, cosine as f32)
}

/// The sine of an angle in radians.
pub fn sin(x: f32) -> f32 {
    sin_cos(x).0
}

/// The cosine of an angle in radians.
pub fn cos(x: f32) -> f32 {
    sin_cos(x).1
}

/// The tangent of an angle in radians.
#[allow(clippy::cast_possible_truncation, reason = "the one rounding")]
pub fn tan(x: f32) -> f32 {
    let (sine, cosine) = sine_and_cosine(x);
    let tangent = (sine / cosine) as f32;
    if x.is_sign_negative() { -tangent } else { tangent }
}
