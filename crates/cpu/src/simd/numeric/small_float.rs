//! Floats of 8 and 4 bits, without branches, so that loops over them vectorise.

/// `2^(code - 127)`: only an exponent. 255 is infinity.
#[inline(always)]
pub(crate) fn from_e8m0(code: u8) -> f32 {
    // The smallest lies below the normal numbers.
    f32::from_bits(if code == 0 { 1 << 22 } else { u32::from(code) << 23 })
}

/// Sign, 4 bits of exponent, 3 of mantissa; finite but for one NaN of each sign. Only the lower eight bits count.
#[inline(always)]
pub(crate) fn from_e4m3(code: u32) -> f32 {
    let small = ((code & 7).cast_signed() as f32 / 512.0).to_bits();
    let normal = ((code & 0x7F) << 20) + ((127 - 7) << 23);
    let finite = if code & 0x78 == 0 { small } else { normal };
    f32::from_bits((code & 0x80) << 24 | if code & 0x7F == 0x7F { f32::NAN.to_bits() } else { finite })
}

/// Sign, 2 bits of exponent, 1 of mantissa. Only the lower four bits count.
#[inline(always)]
pub(crate) fn from_e2m1(code: u32) -> f32 {
    let normal = ((code & 7) << 22) + ((127 - 1) << 23);
    let small = (code & 1) * 0.5_f32.to_bits();
    f32::from_bits((code & 8) << 28 | if code & 6 == 0 { small } else { normal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bits_are_what_the_format_says() {
        let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0_f32];
        for (code, magnitude) in (0..).zip(magnitudes) {
            assert_eq!(from_e2m1(code).to_bits(), magnitude.to_bits());
            assert_eq!(from_e2m1(code + 8).to_bits(), (-magnitude).to_bits());
        }
    }

    /// A power of two by its bits; that of 128 is infinity.
    fn power(exponent: i32) -> f32 {
        f32::from_bits((exponent + 127).cast_unsigned() << 23)
    }

    #[test]
    fn eight_bits_are_what_the_format_says() {
        for code in 0..=255_u8 {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
            let magnitude = if exponent == 0 { mantissa / 64.0 } else { (1.0 + mantissa) * power(exponent - 7) };
            let expected = if code < 128 { magnitude } else { -magnitude };
            assert!(
                from_e4m3(code.into()).to_bits() == expected.to_bits()
                    || code & 127 == 127 && from_e4m3(code.into()).is_nan()
            );
            let expected = if code == 0 { power(-126) / 2.0 } else { power(i32::from(code) - 127) };
            assert_eq!(from_e8m0(code), expected);
        }
    }
}
