//! Probabilities as whole numbers.
//!
//! A token's mass is `exp(scaled - largest)` in units of 2^-40, cut to a whole number. Sums of whole numbers are the same in any
//! order, so any number of threads or blocks finds the same nucleus. A row's total fits 64 bits up to [`LONGEST_ROW`] tokens.

use ptero_arithmetic::exp;

/// The mass of the likeliest token.
pub const ONE: u64 = 1 << 40;

/// The longest row whose total surely fits.
pub const LONGEST_ROW: usize = 1 << 23;

/// The mass of a token. `scaled` is not above `largest`, and neither is NaN.
pub fn mass(scaled: f32, largest: f32) -> u64 {
    // Their difference is NaN if both are infinite.
    if scaled == largest {
        return ONE;
    }
    // Below 2^-40 nothing is left; where exponents are this small, shifting would go wrong too.
    let distance = scaled - largest;
    if distance < -28.0 {
        return 0;
    }
    let bits = exp(distance).to_bits();
    let (exponent, mantissa) = (bits >> 23, bits & 0x7f_ffff | 0x80_0000);
    // 2^40 * mantissa * 2^(exponent - 127 - 23); `exp` gives at most 1, whose exponent is 127.
    (u64::from(mantissa) << 17) >> (127 - exponent)
}

/// The largest mass that may lie before a token that `top_p` keeps: the whole part of `top_p * total`, exactly.
pub fn limit(top_p: f32, total: u64) -> u64 {
    if top_p >= 1.0 {
        return total;
    }
    if top_p.is_nan() || top_p <= 0.0 {
        return 0;
    }
    let bits = top_p.to_bits();
    // A number below 1 is mantissa * 2^-shift; subnormal ones have the exponent of the smallest normal ones.
    let exponent = (bits >> 23).max(1);
    let mantissa = if bits >> 23 == 0 { bits } else { bits & 0x7f_ffff | 0x80_0000 };
    let product = u128::from(mantissa) * u128::from(total);
    let whole = product.checked_shr(150 - exponent).unwrap_or(0);
    u64::try_from(whole).expect("less than the total, because top-p is less than 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masses_are_the_exponentials_cut_to_whole_units() {
        for distance in [0.0_f32, -1e-8, -0.5, -1.0, -3.25, -10.0, -27.0, -27.8, -28.0, -40.0, f32::NEG_INFINITY] {
            let expected = (f64::from(exp(distance)) * ONE as f64).floor();
            assert_eq!(mass(distance, 0.0) as f64, expected, "{distance}");
        }
    }

    #[test]
    fn infinite_logits_share_the_mass() {
        assert_eq!(mass(f32::INFINITY, f32::INFINITY), ONE);
        assert_eq!(mass(3.0, f32::INFINITY), 0);
        assert_eq!(mass(f32::NEG_INFINITY, f32::NEG_INFINITY), ONE);
    }

    #[test]
    fn limits_are_exact() {
        assert_eq!(limit(1.0, 12_345), 12_345);
        assert_eq!(limit(0.5, 12_345), 6172);
        assert_eq!(limit(0.25, u64::MAX), u64::MAX / 4);
        assert_eq!(limit(f32::from_bits(0x3f7f_ffff), 1 << 24), (1 << 24) - 1);
        assert_eq!(limit(1e-6, 1), 0);
        assert_eq!(limit(f32::from_bits(1), u64::MAX), 0);
        assert_eq!((limit(f32::NAN, 7), limit(-1.0, 7), limit(2.0, 7)), (0, 0, 7));
    }
}
