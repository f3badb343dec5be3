//! Exponential, logarithm, and what is made of them, in f32 and without branches, so that loops over them vectorise.
//!
//! The polynomials are our own minimax fits; `tests/single.rs` measures the errors.

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

/// `(tanh(x) - x) / x³` as a polynomial of `x²`, for `|x|` below [`TANH_SMALL`], lowest power first.
const TANH: [f32; 5] = [-0.333_332_8, 0.133_314_42, -0.053_739_716, 0.020_639_09, -0.005_704_988_7];

/// Below this, `1 - 2 / (e^2x + 1)` loses the first digits of the hyperbolic tangent.
const TANH_SMALL: f32 = 0.625;

/// Adding this rounds to an integer: the sum has no bits left for a fraction.
pub const WHOLE: f32 = 12_582_912.0;

/// The bits of √½.
pub const SQRT_HALF: i32 = 0x3f35_04f3;

/// The natural logarithm, within [`ULPS`]: minus infinity for zero, NaN for negative numbers and NaN.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    // Subnormal numbers have no exponent of their own.
    let is_small = x < f32::MIN_POSITIVE;
    let bits = if is_small { x * 8_388_608.0 } else { x }.to_bits().cast_signed();
    let exponent = bits.wrapping_sub(SQRT_HALF) >> 23;
    let mantissa = f32::from_bits(bits.wrapping_sub(exponent << 23).cast_unsigned());
    #[allow(clippy::cast_precision_loss, reason = "an exponent")]
    let power = (exponent - if is_small { 23 } else { 0 }) as f32;
    let f = mantissa - 1.0;
    let square = f * f;
    let tail = square * f * polynomial(&LN, f);
    let result = power * LN_2_HIGH + (f - (0.5 * square - (tail + power * LN_2_LOW)));
    if x > 0.0 && x < f32::INFINITY {
        result
    } else if x == 0.0 {
        f32::NEG_INFINITY
    } else if x > 0.0 {
        x
    } else {
        f32::NAN
    }
}

/// The exponential, within [`ULPS`] where the result is a normal number and within one step of a subnormal one.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Beyond these it is infinite or zero. NaN passes through everything below.
    let bounded = if x > 89.0 { 89.0 } else { x };
    let bounded = if bounded < -104.0 { -104.0 } else { bounded };
    let shifted = bounded * std::f32::consts::LOG2_E + WHOLE;
    let power = shifted - WHOLE;
    let r = (bounded - power * LN_2_HIGH) - power * LN_2_LOW;
    let mantissa = 1.0 + (r + r * r * polynomial(&EXP, r));
    // In two steps, because 2^power alone may not be a number when the product is.
    let power = shifted.to_bits().wrapping_sub(WHOLE.to_bits()).cast_signed();
    let half = power >> 1;
    mantissa * power_of_two(half) * power_of_two(power.wrapping_sub(half))
}

/// The logistic function, each half with the exponential that cannot overflow.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let power = exp(-x.abs());
    let numerator = if x >= 0.0 { 1.0 } else { power };
    numerator / (1.0 + power)
}

/// The hyperbolic tangent: near zero by its odd series, elsewhere by `1 - 2 / (e^2x + 1)`.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let magnitude = x.abs();
    let large = 1.0 - 2.0 / (exp(2.0 * magnitude) + 1.0);
    let square = x * x;
    let small = x + x * square * polynomial(&TANH, square);
    (if magnitude < TANH_SMALL { small } else { large }).copysign(x)
}

/// Horner's rule.
#[inline(always)]
fn polynomial<const N: usize>(coefficients: &[f32; N], x: f32) -> f32 {
    coefficients.iter().rev().copied().reduce(|sum, coefficient| sum * x + coefficient).unwrap_or(0.0)
}

/// `2^power` for powers from -126 to 127.
#[inline(always)]
fn power_of_two(power: i32) -> f32 {
    f32::from_bits(power.wrapping_add(127).cast_unsigned() << 23)
}
