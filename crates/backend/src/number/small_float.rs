//! Floats of 8 and 4 bits, as the Open Compute Project's microscaling formats have them.

/// `2^(code - 127)`: only an exponent. 255 overflows to infinity.
pub fn e8m0(code: u8) -> f32 {
    2.0_f32.powi(i32::from(code) - 127)
}

/// Sign, 4 bits of exponent, 3 of mantissa; finite but for one NaN of each sign.
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, mantissa) {
        (15, 7.0) => f32::NAN,
        (0, mantissa) => mantissa / 8.0 * 2.0_f32.powi(-6),
        (exponent, mantissa) => (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Sign, 2 bits of exponent, 1 of mantissa. Only the lower four bits count.
pub fn e2m1(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 1 & 3), f32::from(code & 1));
    let magnitude = match exponent {
        0 => mantissa / 2.0,
        exponent => (1.0 + mantissa / 2.0) * 2.0_f32.powi(exponent - 1),
    };
    if code & 8 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e2m1_has_eight_magnitudes() {
        let magnitudes: Vec<f32> = (0..8).map(e2m1).collect();
        assert_eq!(magnitudes, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert!((0..8).all(|code| e2m1(code + 8).to_bits() == (-e2m1(code)).to_bits()));
    }

    #[test]
    fn e4m3_reaches_from_its_smallest_to_448() {
        assert_eq!((e4m3(0), e4m3(1), e4m3(7), e4m3(8)), (0.0, 1.0 / 512.0, 7.0 / 512.0, 1.0 / 64.0));
        assert_eq!((e4m3(0x38), e4m3(0x3C), e4m3(0x7E), e4m3(0xFE)), (1.0, 1.5, 448.0, -448.0));
        assert!(e4m3(0x7F).is_nan() && e4m3(0xFF).is_nan());
        // Larger codes are larger numbers.
        assert!((0..0x7E).all(|code| e4m3(code) < e4m3(code + 1)));
    }

    #[test]
    fn e8m0_is_a_power_of_two() {
        assert_eq!((e8m0(127), e8m0(128), e8m0(126), e8m0(254)), (1.0, 2.0, 0.5, 2.0_f32.powi(127)));
        assert_eq!((e8m0(0), e8m0(255)), (f32::from_bits(0x0040_0000), f32::INFINITY));
    }
}
