//! Logarithm and exponential in f32, the same to the bit on every device.
//!
//! Both are a fixed sequence of IEEE additions, multiplications and integer operations, rounded to nearest, with no operation fused
//! into another. Whoever computes the same sequence (a vector unit, a GPU) gets the same bits, and the kernels do. The
//! polynomials are our own minimax fits; `tests/math.rs` measures the error over every input (of `exp`, numbers so near 0 that the
//! result is 1 are taken one in a thousand).

/// The largest distance of [`ln`] and [`exp`] from the true value, in units of the last place of the result.
pub const ULPS: f64 = 1.0;

/// The high part of ln 2: few enough bits that its products with exponents are exact.
pub const LN_2_HIGH: f32 = f32::from_bits(0x3f31_7200);
/// The rest of ln 2.
pub const LN_2_LOW: f32 = 1.428_606_8e-6;

/// `(ln(1 + f) - f + f²/2) / f³` over the mantissas between √½ and √2, lowest power first.
pub const LN: [f32; 9] = [
    0.333_333_13,
    -0.250_000_1,
    0.200_021_2,
    -0.166_679_96,
    0.142_195_52,
    -0.124_055_885,
    0.118_881_62,
    -0.116_756_52,
    0.067_466_42,
];

/// `(exp(r) - 1 - r) / r²` for `|r|` up to half of ln 2, lowest power first.
pub const EXP: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_71, 0.001_381_461_3];

/// Adding this leaves no bits behind the point: the sum is rounded to a whole number.
pub const WHOLE: f32 = 12_582_912.0;

/// The bits of √½.
pub const SQRT_HALF: i32 = 0x3f35_04f3;

/// The natural logarithm, within [`ULPS`]. Of zero minus infinity; of negative numbers and not-a-number, not-a-number.
#[allow(clippy::cast_precision_loss, reason = "exponents are small")]
pub fn ln(x: f32) -> f32 {
    if x == 0.0 {
        return f32::NEG_INFINITY;
    }
    if x.is_nan() || x < 0.0 {
        return f32::NAN;
    }
    if x == f32::INFINITY {
        return x;
    }
    // Subnormal numbers have no exponent of their own.
    let (normal, lift) = if x < f32::MIN_POSITIVE { (x * 8_388_608.0, 23) } else { (x, 0) };
    let bits = normal.to_bits().cast_signed();
    let exponent = (bits - SQRT_HALF) >> 23;
    let mantissa = f32::from_bits((bits - (exponent << 23)).cast_unsigned());
    let power = (exponent - lift) as f32;
    let f = mantissa - 1.0;
    let square = f * f;
    let tail = square * f * polynomial(&LN, f);
    power * LN_2_HIGH + (f - (0.5 * square - (tail + power * LN_2_LOW)))
}

/// The exponential, within [`ULPS`] where the result is a normal number and within one step of a subnormal one.
#[allow(clippy::cast_possible_truncation, reason = "a small whole number")]
pub fn exp(x: f32) -> f32 {
    if x.is_nan() || x > 89.0 {
        return if x.is_nan() { x } else { f32::INFINITY };
    }
    if x < -104.0 {
        return 0.0;
    }
    let power = (x * std::f32::consts::LOG2_E + WHOLE) - WHOLE;
    let r = (x - power * LN_2_HIGH) - power * LN_2_LOW;
    let mantissa = 1.0 + (r + r * r * polynomial(&EXP, r));
    // In two steps, because 2^power alone may not be a number when the product is.
    let (power, half) = (power as i32, power as i32 / 2);
    mantissa * power_of_two(half) * power_of_two(power - half)
}

/// Horner's rule.
fn polynomial(coefficients: &[f32], x: f32) -> f32 {
    coefficients.iter().rev().copied().reduce(|sum, coefficient| sum * x + coefficient).unwrap_or(0.0)
}

fn power_of_two(power: i32) -> f32 {
    f32::from_bits(((power + 127) << 23).cast_unsigned())
}
