use super::*;
use crate::simd::Isa;
use half::{bf16, f16};
use ptero_sampling::{mass as reference, threefry};

/// Numbers from -1 to 1, and then some.
fn numbers(count: usize) -> Vec<f32> {
    (0_u32..).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 8) as f32 / 8_388_608.0 - 1.0).take(count).collect()
}

#[test]
fn maxima_are_those_of_blocks_and_pass_over_what_is_no_number() {
    for isa in Isa::available() {
        for length in [1, 31, 128, 129, 300] {
            let mut x = numbers(length);
            x.iter_mut().step_by(3).for_each(|x| *x = f32::NAN);
            let mut found = vec![f32::NAN; length.div_ceil(BLOCK)];
            maxima(isa, &x, &mut found);
            let expected = x.chunks(BLOCK).map(|block| block.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            assert_eq!(found, expected.collect::<Vec<_>>(), "{length}");
            let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
            let brains: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
            let largest_of = |block: &[f32]| block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let widened: [Vec<f32>; 2] =
                [halves.iter().map(|x| x.to_f32()).collect(), brains.iter().map(|x| x.to_f32()).collect()];
            maxima(isa, &halves, &mut found);
            assert_eq!(found, widened[0].chunks(BLOCK).map(largest_of).collect::<Vec<_>>());
            maxima(isa, &brains, &mut found);
            assert_eq!(found, widened[1].chunks(BLOCK).map(largest_of).collect::<Vec<_>>());
            assert_eq!(largest(isa, &x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            assert_eq!(count(isa, &x, 0.25), x.iter().filter(|x| **x >= 0.25).count());
        }
    }
}

#[test]
fn a_mask_excludes_the_elements_whose_bits_are_zero() {
    let mask = [0x1234_5678, 0, -1, i32::MIN, 5, -1, 0x0f0f_0f0f, 1, 0, 0, 0, 0, -2, 7];
    let is_allowed = |at: usize| mask[at / MASK_BITS] >> (at % MASK_BITS) & 1 == 1;
    for isa in Isa::available() {
        for length in [1, 32, 33, 128, 200, 256, 385, 448] {
            let mut x = numbers(length);
            x.iter_mut().step_by(7).for_each(|x| *x = f32::NAN);
            let expected: Vec<f32> =
                x.iter().enumerate().map(|(at, x)| if is_allowed(at) { *x } else { f32::NEG_INFINITY }).collect();
            let mut found = vec![f32::NAN; length.div_ceil(BLOCK)];
            allowed_maxima(isa, &x, &mask[..length.div_ceil(MASK_BITS)], &mut found);
            let maxima = expected.chunks(BLOCK).map(|block| block.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            assert_eq!(found, maxima.collect::<Vec<_>>(), "{length}");
            for first in [0, 1, 31, 32, 100].into_iter().filter(|first| *first < length) {
                let mut part = x[first..].to_vec();
                exclude(isa, &mask, first, &mut part);
                let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
                assert!(part.iter().zip(&expected[first..]).all(is_same), "{length} {first}");
            }
        }
    }
}

#[test]
fn masses_are_the_contracts() {
    let step = if cfg!(miri) { 0.37 } else { 0.001_7 };
    let mut scaled: Vec<f32> = (0..).map(|at| 3.0 - step * at as f32).take_while(|scaled| *scaled > -26.0).collect();
    scaled.extend([f32::NEG_INFINITY, -25.0, -25.000_002, -1e30, 2.999_999_8]);
    for isa in Isa::available() {
        let (mut powers, mut bins) = (vec![0.0; scaled.len()], vec![0; scaled.len()]);
        place(isa, &scaled, 3.0, &mut powers, &mut bins);
        let expected: Vec<u64> = scaled.iter().map(|scaled| reference::mass(*scaled, 3.0)).collect();
        assert_eq!(powers.into_iter().map(mass_of).collect::<Vec<_>>(), expected);
        assert_eq!(total(isa, &scaled, 3.0), expected.iter().sum::<u64>());
        for temperature in [0.5, 1.0, 1.3] {
            let how = Weighting { temperature, low: -10.0, near: -10.0, largest: 3.0 / temperature };
            let expected = scaled.iter().filter(|x| **x >= -10.0);
            let expected = expected.map(|x| reference::mass(*x / temperature, 3.0 / temperature)).sum::<u64>();
            assert_eq!(weigh(isa, &scaled, &how), expected);
        }
        let mut places: Vec<(f32, u32)> = scaled.iter().copied().zip(bins).collect();
        places.sort_by(|a, b| b.0.total_cmp(&a.0));
        assert!(places.is_sorted_by_key(|(_, bin)| *bin));
        assert!(places.iter().all(|(scaled, bin)| reference::mass(*scaled, 3.0) == 0 || (*bin as usize) < BINS));
        let infinite = [f32::INFINITY, 1.0, f32::NAN, f32::INFINITY];
        assert_eq!(total(isa, &infinite, f32::INFINITY), 2 * reference::ONE);
    }
}

#[test]
fn no_power_has_a_mass_that_is_out_of_range() {
    for power in [f32::NEG_INFINITY, -1e30, -1.0, -0.0, 0.0, 1.0, 1.5, 1e30, f32::INFINITY, f32::NAN] {
        assert!(mass_of(power) <= reference::ONE, "{power}");
    }
    // Of what is above the largest, against the contract.
    for isa in Isa::available() {
        for above in [0.5, 20.0, 88.0, 1e4, 1e30, f32::MAX] {
            assert!(total(isa, &[above; 9], 0.0) <= 9 * reference::ONE, "{above}");
        }
    }
}

#[test]
fn words_are_the_contracts_wherever_they_lie() {
    let key = [0x1234_5678, 0x9ABC_DEF0];
    for isa in Isa::available() {
        for count in [1, 2, 7, 64, 101] {
            for start in [0, 1, count / 2] {
                let indices: Vec<u32> = (0..count - start).collect();
                let mut words = vec![0; indices.len()];
                let most = words_at(isa, key, count, start, &indices, &mut words);
                let expected = (start..count).map(|at| threefry::word(key, count as usize, at as usize));
                assert_eq!(words, expected.collect::<Vec<_>>(), "{count} {start}");
                assert_eq!(most, words.iter().copied().max().unwrap_or(0));
            }
        }
        let (mut low, mut high) = ([0; 33], [0; 33]);
        let most = word_pairs(isa, key, [5, u32::MAX - 3], &mut low, &mut high);
        for ((low, high), at) in low.into_iter().zip(high).zip(0_u32..) {
            assert_eq!([low, high], threefry::threefry2x32(key, [5 + at, (u32::MAX - 3).wrapping_add(at)]));
        }
        assert_eq!(Some(most), low.into_iter().max().zip(high.into_iter().max()).map(|(low, high)| [low, high]));
    }
}
