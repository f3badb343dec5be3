//! Elements to `f32` and back: rounded to nearest even, without branches, so that loops over them vectorise.

use super::element::Float;
use half::{bf16, f16};

/// Widens a half.
#[inline(always)]
pub(crate) fn from_f16(half: f16) -> f32 {
    let bits = u32::from(half.to_bits());
    let sign = (bits & 0x8000) << 16;
    let shifted = (bits & 0x7FFF) << 13;
    let exponent = shifted & 0x0F80_0000;
    // The exponent counts from another zero; infinities and NaNs keep the largest exponent.
    let rebased = shifted + ((127 - 15) << 23);
    let normal = if exponent == 0x0F80_0000 { rebased + ((128 - 16) << 23) } else { rebased };
    // Numbers below the smallest normal one: add an implicit bit, and take it off as a float.
    let small = (f32::from_bits(rebased + (1 << 23)) - f32::from_bits(113 << 23)).to_bits();
    f32::from_bits(sign | if exponent == 0 { small } else { normal })
}

/// Rounds to half precision.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the result has 16 bits")]
pub(crate) fn to_f16(x: f32) -> f16 {
    let bits = x.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7FFF_FFFF;
    // Below the smallest normal number: let the addition of a large float do the rounding.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_add(((15_u32.wrapping_sub(127)) << 23).wrapping_add(0xFFF)).wrapping_add(odd) >> 13;
    let finite = if magnitude < 113 << 23 { small } else { normal };
    let special = if magnitude > 0x7F80_0000 { 0x7E00 } else { 0x7C00 };
    let result = if magnitude >= (127 + 16) << 23 { special } else { finite };
    f16::from_bits((sign | result) as u16)
}

/// Widens a bfloat.
#[inline(always)]
pub(crate) fn from_bf16(half: bf16) -> f32 {
    f32::from_bits(u32::from(half.to_bits()) << 16)
}

/// Rounds to bfloat.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "the result has 16 bits")]
pub(crate) fn to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if bits & 0x7FFF_FFFF > 0x7F80_0000 { quiet } else { rounded } as u16)
}

kernel! {
    /// Widens elements.
    pub(crate) fn widen[T: Float](from: &[T], to: &mut [f32]) {
        from.iter().zip(to).for_each(|(from, to)| *to = from.float());
    }

    /// Rounds to elements of a type.
    pub(crate) fn narrow[T: Float](from: &[f32], to: &mut [T]) {
        from.iter().zip(to).for_each(|(from, to)| *to = T::rounded(*from));
    }

    /// Rounds to half precision and back.
    pub(crate) fn round_f16(numbers: &mut [f32]) {
        numbers.iter_mut().for_each(|number| *number = from_f16(to_f16(*number)));
    }

    /// Rounds to bfloat and back.
    pub(crate) fn round_bf16(numbers: &mut [f32]) {
        numbers.iter_mut().for_each(|number| *number = from_bf16(to_bf16(*number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    #[test]
    fn all_halves_widen_as_the_crate_of_halves_widens_them() {
        for bits in (0..=u16::MAX).step_by(if cfg!(miri) { 251 } else { 1 }) {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(same(from_f16(half), half.to_f32()), "{bits:04x}");
            assert!(same(from_bf16(brain), brain.to_f32()), "{bits:04x}");
        }
    }

    #[test]
    fn floats_round_as_the_crate_of_halves_rounds_them() {
        // Every exponent and sign, with mantissas around the places where rounding turns.
        for high in (0..=0xFFFF_u32).step_by(if cfg!(miri) { 251 } else { 1 }) {
            for low in [0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let x = f32::from_bits(high << 16 | low);
                assert_eq!(to_f16(x).is_nan(), x.is_nan());
                assert_eq!(to_bf16(x).is_nan(), x.is_nan());
                if !x.is_nan() {
                    assert_eq!(to_f16(x), f16::from_f32(x), "{x:e}");
                    assert_eq!(to_bf16(x), bf16::from_f32(x), "{x:e}");
                }
            }
        }
    }

    #[test]
    fn all_instruction_sets_agree() {
        let numbers: Vec<f32> = (0..1000_u32).map(|n| f32::from_bits(n.wrapping_mul(0x9E37_79B9))).collect();
        for isa in Isa::available() {
            let (mut halves, mut brains) = (vec![f16::ZERO; 1000], vec![bf16::ZERO; 1000]);
            narrow(isa, &numbers, &mut halves);
            narrow(isa, &numbers, &mut brains);
            assert!(halves.iter().zip(&numbers).all(|(half, x)| half.to_bits() == to_f16(*x).to_bits()));
            assert!(brains.iter().zip(&numbers).all(|(half, x)| half.to_bits() == to_bf16(*x).to_bits()));
            let mut wide = vec![0.0; 1000];
            widen(isa, &halves, &mut wide);
            assert!(wide.iter().zip(&halves).all(|(wide, half)| wide.to_bits() == from_f16(*half).to_bits()));
        }
    }
}
