use super::*;
use crate::{GgufLegacyType, GgufType};
use proptest::prelude::*;

/// What an encoder hands out.
#[derive(Clone, Debug)]
struct Encoded {
    codes: Vec<u8>,
    scales: Vec<f32>,
    biases: Vec<f32>,
    outcome: Result<(), Unrepresentable>,
}

fn encoded(format: Affine, float: ScaleType, values: &[f32]) -> Encoded {
    let mut codes = vec![0; format.code_bytes(values.len())];
    let [mut scales, mut biases] = [(); 2].map(|()| vec![0.0; format.groups(values.len())]);
    let outcome = format.encode(values, float, &mut codes, &mut scales, &mut biases);
    Encoded { codes, scales, biases, outcome }
}

fn decoded(format: Affine, from: &Encoded) -> Vec<f32> {
    let mut values = vec![0.0; from.scales.len() * format.group()];
    format.decode(&from.codes, &from.scales, &from.biases, &mut values);
    values
}

fn there_and_back(format: Affine, float: ScaleType, values: &[f32]) -> Vec<f32> {
    decoded(format, &encoded(format, float, values))
}

/// The codes of a stream of bits, one bit at a time.
fn naive_codes(bytes: &[u8], bits: usize) -> Vec<u8> {
    let bit = |at: usize| bytes[at / 8] >> (at % 8) & 1;
    (0..bytes.len() * 8 / bits).map(|code| (0..bits).map(|at| bit(code * bits + at) << at).sum()).collect()
}

/// The squared error of the grid from the lowest weight to the highest.
fn naive_error(values: &[f32], top: u8) -> f64 {
    let (low, high) = values.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
    let step = (f64::from(high) - f64::from(low)) / f64::from(top);
    let off = |x: f32| f64::from(x) - (f64::from(low) + step * ((f64::from(x) - f64::from(low)) / step).round());
    if step > 0.0 { values.iter().map(|x| off(*x).powi(2)).sum() } else { 0.0 }
}

fn error(values: &[f32], other: &[f32]) -> f64 {
    values.iter().zip(other).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum()
}

fn formats() -> impl Strategy<Value = Affine> {
    (prop::sample::select(Affine::BITS), prop::sample::select(Affine::GROUPS))
        .prop_map(|(bits, group)| Affine::new(bits, group).unwrap())
}

fn floats() -> impl Strategy<Value = ScaleType> {
    prop::sample::select(ScaleType::ALL)
}

/// Groups of ordinary weights, of several sizes and not always around zero.
fn weights(format: Affine) -> impl Strategy<Value = Vec<f32>> {
    let groups = (0_usize..20, -6..3_i32, prop::sample::select(&[0.0_f32, 0.3, -5.0][..]));
    groups.prop_flat_map(move |(groups, power, middle)| {
        let weight = (-1.0_f32..1.0, -1.0_f32..1.0).prop_map(move |(a, b)| (a * b + middle) * 10_f32.powi(power));
        prop::collection::vec(weight, groups * format.group())
    })
}

fn any_weights(format: Affine) -> impl Strategy<Value = Vec<f32>> {
    let special = prop::sample::select(
        &[0.0, -0.0, 1.0, f32::MIN_POSITIVE, 1e-45, -1e-45, f32::MAX, f32::MIN, 65504.0, 7e4, 1e-7][..],
    );
    let weight = prop_oneof![4 => special, 1 => any::<u32>().prop_map(f32::from_bits)];
    (1_usize..10).prop_flat_map(move |groups| prop::collection::vec(weight.clone(), groups * format.group()))
}

#[test]
fn only_formats_that_mlx_has_can_be_made() {
    for bits in 0..=u8::MAX {
        for group in 0..300 {
            let exists = [2, 3, 4, 5, 6, 8].contains(&bits) && [32, 64, 128].contains(&group);
            assert_eq!(Affine::new(bits, group).is_some(), exists);
        }
    }
    let format = Affine::new(3, 64).unwrap();
    assert_eq!((format.groups(192), format.code_bytes(192)), (3, 72));
    assert!(format.divides(192) && !format.divides(96));
    assert_eq!(DType::ALL.iter().filter_map(|dtype| ScaleType::new(*dtype)).count(), 3);
}

/// `mx.dequantize` of MLX 0.32.4 turns these bytes, with scale 1 and bias 0, into 0, 1, 2, 3, …
#[test]
fn codes_lie_lowest_bits_first() {
    let values: Vec<f32> = (0_u8..32).map(f32::from).collect();
    let Encoded { codes, scales, biases, .. } = encoded(Affine::new(5, 32).unwrap(), ScaleType::F16, &values);
    assert_eq!((&scales[..], &biases[..]), (&[1.0][..], &[0.0][..]));
    assert_eq!(codes[..5], [32, 136, 65, 138, 57]);
}

proptest! {
    #[test]
    fn codes_are_a_stream_of_bits(format in formats(), mut bytes in prop::collection::vec(any::<u8>(), 128)) {
        bytes.truncate(format.code_bytes(format.group()));
        let mut values = vec![0.0; format.group()];
        format.decode(&bytes, &[1.0], &[0.0], &mut values);
        let codes = naive_codes(&bytes, format.bits().into());
        prop_assert_eq!(&values, &codes.iter().map(|code| f32::from(*code)).collect::<Vec<_>>());
        let mut again = vec![0; bytes.len()];
        format.pack(&codes, &mut again);
        prop_assert_eq!(again, bytes);
    }

    #[test]
    fn every_code_is_that_of_the_nearest_level(
        (format, float, values) in (formats(), floats()).prop_flat_map(|(a, b)| (Just(a), Just(b), weights(a)))
    ) {
        let found = encoded(format, float, &values);
        prop_assert_eq!(found.outcome, Ok(()));
        let back = decoded(format, &found);
        for (at, (value, back)) in values.iter().zip(back).enumerate() {
            let (scale, bias) = (found.scales[at / format.group()], found.biases[at / format.group()]);
            prop_assert_eq!((scale, bias), (float.round(scale), float.round(bias)));
            let off = |level: f32| (f64::from(*value) - f64::from(level)).abs();
            let nearest = (0..=format.top()).map(|code| off(scale * f32::from(code) + bias)).fold(f64::MAX, f64::min);
            // Single precision decides between levels that are nearly as near.
            let slack = 1e-4 * f64::from(scale.abs()) + 1e-6 * f64::from(value.abs() + bias.abs());
            prop_assert!(off(back) <= nearest + slack, "{} instead of {}", off(back), nearest);
        }
    }

    #[test]
    fn no_group_is_worse_than_on_the_grid_from_lowest_to_highest(
        (format, values) in formats().prop_flat_map(|format| (Just(format), weights(format)))
    ) {
        let back = there_and_back(format, ScaleType::F32, &values);
        for (values, back) in values.chunks(format.group()).zip(back.chunks(format.group())) {
            let largest = values.iter().fold(0.0, |largest: f64, x| largest.max(f64::from(x.abs())));
            let slack = (largest * 1e-6).powi(2) * values.len() as f64;
            prop_assert!(error(values, back) <= 1.01 * naive_error(values, format.top()) + slack);
        }
    }

    #[test]
    fn groups_are_encoded_alike_alone_and_in_company(
        (format, float, values) in (formats(), floats()).prop_flat_map(|(a, b)| (Just(a), Just(b), any_weights(a)))
    ) {
        let all = encoded(format, float, &values);
        let mut first_bad = None;
        for (at, group) in values.chunks(format.group()).enumerate() {
            let one = encoded(format, float, group);
            first_bad = first_bad.or(one.outcome.err().map(|_| Unrepresentable { group: at }));
            let bytes = at * one.codes.len()..(at + 1) * one.codes.len();
            prop_assert_eq!(&one.codes[..], &all.codes[bytes]);
            prop_assert_eq!(one.scales[0].to_bits(), all.scales[at].to_bits());
            prop_assert_eq!(one.biases[0].to_bits(), all.biases[at].to_bits());
        }
        prop_assert_eq!(all.outcome.err(), first_bad);
    }

    #[test]
    fn whatever_is_encoded_decodes_to_finite_numbers_or_is_refused(
        (format, float, values) in (formats(), floats()).prop_flat_map(|(a, b)| (Just(a), Just(b), any_weights(a)))
    ) {
        let found = encoded(format, float, &values);
        for (values, (scale, bias)) in values.chunks(format.group()).zip(found.scales.iter().zip(&found.biases)) {
            prop_assert_eq!(scale.is_nan(), bias.is_nan());
            if values.iter().any(|x| !x.is_finite()) {
                prop_assert!(scale.is_nan());
            }
            if !scale.is_nan() {
                prop_assert!(scale.is_finite() && bias.is_finite());
                prop_assert_eq!((*scale, *bias), (float.round(*scale), float.round(*bias)));
            }
        }
        prop_assert_eq!(found.outcome.is_err(), found.scales.iter().any(|scale| scale.is_nan()));
    }

    /// The lowest and the highest level are in use, as in every block that is made from its lowest and highest weight.
    #[test]
    fn weights_on_a_grid_come_back(
        format in formats(),
        float in floats(),
        (scale, bias) in (0.001_f32..1.0, -1.0_f32..1.0),
        codes in prop::collection::vec(any::<u8>(), 128),
    ) {
        let (scale, bias) = (float.round(scale), float.round(bias));
        let mut values: Vec<f32> = codes.iter().map(|code| scale * f32::from(code % format.top()) + bias).collect();
        values.chunks_mut(format.group()).for_each(|group| {
            (group[3], group[17]) = (bias, scale * f32::from(format.top()) + bias);
        });
        for (value, back) in values.iter().zip(there_and_back(format, float, &values)) {
            let slack = if float == ScaleType::F32 { 1e-6 * (bias.abs() + scale * f32::from(format.top())) } else { 0.0 };
            prop_assert!((value - back).abs() <= slack, "{} came back as {}", value, back);
        }
    }

    /// As GGUF's own encoder makes them: with an extreme at the lowest code, or at 127 on either side.
    #[test]
    fn blocks_around_zero_come_back(
        kind in prop::sample::select(&[GgufLegacyType::Q4_0, GgufLegacyType::Q5_0, GgufLegacyType::Q8_0][..]),
        scale in -0.1_f32..0.1,
        float in prop::sample::select(&[ScaleType::F32, ScaleType::F16][..]),
        codes in prop::collection::vec(-126_i8..=126, 32),
    ) {
        prop_assume!(scale.abs() > 1e-3);
        let (scale, extreme) = (f16::from_f32(scale).to_f32(), if kind == GgufLegacyType::Q8_0 { 127 } else { 0 });
        let zero = match kind {
            GgufLegacyType::Q4_0 => 8,
            GgufLegacyType::Q5_0 => 16,
            _ => 127,
        };
        let mut values: Vec<f32> = codes.iter().map(|code| scale * f32::from(code % zero)).collect();
        values[9] = scale * f32::from(if extreme == 0 { -zero } else { extreme });
        let back = there_and_back(kind.affine(), float, &values);
        for (value, back) in values.iter().zip(back) {
            let slack = if float == ScaleType::F32 { 1e-6 * values[9].abs() } else { 0.0 };
            prop_assert!((value - back).abs() <= slack, "{} came back as {}", value, back);
        }
    }

    #[test]
    fn older_blocks_of_gguf_become_affine_without_a_loss(
        kind in prop::sample::select(GgufLegacyType::ALL),
        mut bytes in prop::collection::vec(any::<u8>(), 3 * 34),
    ) {
        bytes.truncate(3 * kind.block_bytes());
        // Scales and offsets are finite.
        bytes.chunks_exact_mut(kind.block_bytes()).for_each(|block| (block[1], block[3]) = (block[1] & 0xbf, block[3] & 0xbf));
        let mut wanted = vec![0.0; 96];
        kind.decode(&bytes, &mut wanted);
        let format = kind.affine();
        let (mut codes, mut scales, mut biases) = (vec![0; format.code_bytes(96)], vec![0.0; 3], vec![0.0; 3]);
        kind.to_affine(&bytes, &mut codes, &mut scales, &mut biases);
        let mut found = vec![0.0; 96];
        format.decode(&codes, &scales, &biases, &mut found);
        prop_assert_eq!(found, wanted);
        prop_assert!(scales.iter().all(|scale| *scale == ScaleType::F16.round(*scale)));
    }

    #[test]
    fn newer_blocks_of_gguf_become_affine_without_a_loss(
        kind in prop::sample::select(&[GgufType::Q4K, GgufType::Q5K][..]),
        mut bytes in prop::collection::vec(any::<u8>(), 2 * 176),
    ) {
        bytes.truncate(2 * kind.block_bytes());
        bytes.chunks_exact_mut(kind.block_bytes()).for_each(|block| (block[1], block[3]) = (block[1] & 0xbf, block[3] & 0xbf));
        let mut wanted = vec![0.0; 512];
        kind.decode(&bytes, &mut wanted);
        let format = kind.affine().unwrap();
        let (mut codes, mut scales, mut biases) = (vec![0; format.code_bytes(512)], vec![0.0; 16], vec![0.0; 16]);
        kind.to_affine(&bytes, &mut codes, &mut scales, &mut biases);
        let mut found = vec![0.0; 512];
        format.decode(&codes, &scales, &biases, &mut found);
        prop_assert_eq!(found, wanted);
    }
}

#[test]
fn blocks_of_six_bits_have_no_affine_format() {
    assert_eq!(GgufType::Q6K.affine(), None);
    let mut scales = [7.0; 16];
    GgufType::Q6K.to_affine(&[0; 210], &mut [0; 256], &mut scales, &mut [0.0; 16]);
    assert_eq!(scales, [7.0; 16]);
}

#[test]
fn equal_weights_come_back() {
    for (float, value) in
        [(ScaleType::Bf16, 0.0), (ScaleType::F32, 0.1), (ScaleType::F16, -65504.0), (ScaleType::F32, 1e-37)]
    {
        let values = [value; 64];
        assert_eq!(there_and_back(Affine::new(4, 64).unwrap(), float, &values), values);
    }
}

#[test]
fn tiny_and_huge_ranges_keep_their_ends() {
    let format = Affine::new(8, 32).unwrap();
    let of = |size: f32| -> Vec<f32> { (0_u8..32).map(|at| (f32::from(at) / 31.0 - 0.5) * size).collect() };
    for size in [1e-30, 1e-36, 1e38, 3e38] {
        let values = of(size);
        let back = there_and_back(format, ScaleType::F32, &values);
        assert!(values.iter().zip(&back).all(|(x, y)| (x - y).abs() <= size / 400.0), "{size}: {values:?} {back:?}");
    }
    // Too fine a grid for single precision, or for half: one level, in the middle of nothing.
    for (float, size) in [(ScaleType::F32, 1e-40), (ScaleType::F16, 1e-9)] {
        assert!(there_and_back(format, float, &of(size)).iter().all(|x| x.abs() <= size), "{size}");
    }
}

#[test]
fn weights_that_are_not_finite_or_too_large_spoil_their_group_alone() {
    let format = Affine::new(4, 32).unwrap();
    let too_large = (ScaleType::F16, 7e4);
    let two_ends = (ScaleType::F32, f32::MAX);
    for (float, bad) in [(ScaleType::F32, f32::NAN), (ScaleType::Bf16, f32::INFINITY), too_large, two_ends] {
        let mut values: Vec<f32> = (0_u8..96).map(|at| f32::from(at % 32) / 4.0).collect();
        (values[40], values[41]) = (bad, -bad);
        let found = encoded(format, float, &values);
        if bad != too_large.1 {
            assert_eq!(found.outcome, Err(Unrepresentable { group: 1 }), "{bad}");
            let message = "group 1 has weights that are not finite, or too large for the type of its scale";
            assert_eq!(found.outcome.unwrap_err().to_string(), message);
        }
        let back = decoded(format, &found);
        assert!(
            back[..32].iter().chain(&back[64..]).zip(values[..32].iter().cycle()).all(|(x, y)| (x - y).abs() < 0.3)
        );
        assert!(bad == too_large.1 || back[32..64].iter().all(|x| x.is_nan()), "{bad}");
    }
}

#[test]
fn parts_of_groups_are_left_alone() {
    let format = Affine::new(4, 32).unwrap();
    let (mut codes, mut scales, mut biases) = ([7; 31], [7.0; 3], [7.0; 3]);
    assert_eq!(format.encode(&[0.5; 70], ScaleType::F32, &mut codes, &mut scales, &mut biases), Ok(()));
    assert_eq!((scales, biases), ([0.0, 7.0, 7.0], [0.5, 7.0, 7.0]));
    assert!(codes[16..].iter().all(|byte| *byte == 7));
    let mut values = [7.0; 40];
    format.decode(&codes, &scales, &biases, &mut values);
    assert_eq!((values[31], values[32]), (0.5, 7.0));
}
