//! Products with quantized weights have the same bits on every instruction set that the machine has. The sizes are small, so that
//! this also runs on an emulator: `just arm`.

use half::bf16;
use ptero_cpu::dense::Dense;
use ptero_cpu::finish::Rounded;
use ptero_cpu::gemm::{Left, Product, Size};
use ptero_cpu::pool::{Matrices, Pool, Scratch, Workers};
use ptero_cpu::quant::{QuantRows, Scales, Weights};
use ptero_cpu::simd::Isa;
use ptero_plan::prim::{QuantFormat, QuantMode};
use ptero_tensor::SplitMix64;

/// Mode, bits, and group.
const FORMATS: &[(QuantMode, u8, u16)] = &[
    (QuantMode::Affine, 4, 32),
    (QuantMode::Affine, 4, 64),
    (QuantMode::Affine, 4, 128),
    (QuantMode::Affine, 8, 32),
    (QuantMode::Affine, 8, 64),
    (QuantMode::Affine, 2, 32),
    (QuantMode::Affine, 5, 32),
    (QuantMode::Mxfp4, 4, 32),
    (QuantMode::Nvfp4, 4, 16),
];
/// Columns of the weights: whole chunks, whole cells, and halves of these.
const COLUMNS: [usize; 7] = [96, 128, 160, 256, 384, 576, 640];
const WEIGHT_ROWS: [usize; 3] = [1, 5, 8];
const ROWS: [usize; 5] = [1, 2, 3, 5, 9];

fn bits(isa: Isa, left: &impl Left, weights: &Weights<'_>, m: usize) -> Vec<u32> {
    let (pool, mut scratch, [n, k]) = (Pool::new(1), Scratch::default(), weights.size());
    let mut results = vec![0.0_f32; m * n];
    {
        let mut out = Matrices::one(&mut results[..], n);
        let workers = &mut Workers { pool: &pool, scratch: &mut scratch };
        let product = Product { isa, size: Size { m, k, n }, left, out: out.all(), finish: &Rounded };
        product.times_quantized(workers, weights, true);
    }
    assert!(results.iter().all(|result| result.is_finite()));
    results.into_iter().map(f32::to_bits).collect()
}

/// Compares all instruction sets with the plainest one, for activations in bfloats and in single precision.
fn compare(weights: &Weights<'_>, m: usize, name: &str) {
    let k = weights.size()[1];
    let mut rng = SplitMix64::new(k as u64);
    let sizes = [1.0, 37.0, 0.01].into_iter().cycle().take(m * k);
    let single: Vec<f32> = sizes.map(|size| (rng.unit_f32() - 0.5) * size).collect();
    let short: Vec<bf16> = single.iter().map(|x| bf16::from_f32(*x)).collect();
    let single = Dense { elements: &single, row_stride: k, column_stride: 1 };
    let short = Dense { elements: &short, row_stride: k, column_stride: 1 };
    let all = |isa| [bits(isa, &single, weights, m), bits(isa, &short, weights, m)];
    let mut sets = Isa::available().into_iter();
    let expected = sets.next().map(all);
    for isa in sets {
        assert_eq!(Some(all(isa)), expected, "{name}, {m} rows, {isa:?}");
    }
}

#[test]
fn quantized_products_have_the_same_bits() {
    let mut rng = SplitMix64::new(1);
    for &(mode, bits, group) in FORMATS {
        for (k, n) in COLUMNS.into_iter().flat_map(|k| WEIGHT_ROWS.map(|n| (k, n))) {
            let (groups, row_bytes) = (k / usize::from(group), k * usize::from(bits) / 8);
            let codes: Vec<u8> =
                std::iter::repeat_with(|| rng.next_u64().to_le_bytes()[0]).take(n * row_bytes).collect();
            let floats: Vec<bf16> =
                (0..2 * n * groups).map(|at| bf16::from_f32(0.01 * (at % 7) as f32 - 0.03)).collect();
            let bytes: Vec<u8> = (0x30..0x3C).cycle().take(n * groups).collect();
            let (scales, biases) = floats.split_at(n * groups);
            let scales = match mode {
                QuantMode::Nvfp4 => Scales::E4m3(QuantRows::new(&bytes, groups)),
                QuantMode::Mxfp4 | QuantMode::Mxfp8 => Scales::E8m0(QuantRows::new(&bytes, groups)),
                QuantMode::Affine => Scales::Bf16(QuantRows::new(scales, groups)),
            };
            let biases = (mode == QuantMode::Affine).then_some(Scales::Bf16(QuantRows::new(biases, groups)));
            for biases in [biases, None] {
                let format = QuantFormat::Words { mode, bits, group };
                let codes = QuantRows::new(&codes, row_bytes);
                // Groups do not divide all columns.
                let Some(weights) = Weights::new(format, [n, k], codes, Some(scales), biases) else { continue };
                ROWS.into_iter().for_each(|m| compare(&weights, m, &format!("{format:?} [{n}, {k}]")));
            }
        }
    }
}
