use super::*;
use ptero_plan::prim::{Fused, QuantFormat, QuantMode, Quantized};
use ptero_tensor::GgufType;

#[test]
fn rows_times_columns() {
    let mut b = Builder::new();
    let left = b.constant(DType::F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let right = b.constant(DType::F32, &[3, 2], &[1.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
    let found = b.result(DType::F32, &[2, 2], |out| Prim::MatMul {
        out,
        a: left,
        b: right,
        lhs: None,
        rhs: None,
        epilogue: None,
    });
    assert_eq!(found, [7.0, 11.0, 16.0, 23.0]);
}

#[test]
fn operands_may_be_transposed_or_broadcast_by_strides_and_empty() {
    let mut b = Builder::new();
    let data = b.constant(DType::F16, &[4], &[1.0, 2.0, 3.0, 4.0]);
    let stack = b.strided(data, &[2, 2, 2], &[0, 1, 2], 0);
    let found = b.result(DType::F16, &[2, 2, 2], |out| Prim::MatMul {
        out,
        a: stack,
        b: stack,
        lhs: None,
        rhs: None,
        epilogue: None,
    });
    // [[1, 3], [2, 4]] squared, twice.
    assert_eq!(found, [7.0, 15.0, 10.0, 22.0].repeat(2));

    let mut b = Builder::new();
    let (left, right) = (b.constant(DType::F32, &[2, 0], &[]), b.constant(DType::F32, &[0, 3], &[]));
    let found = b.result(DType::F32, &[2, 3], |out| Prim::MatMul {
        out,
        a: left,
        b: right,
        lhs: None,
        rhs: None,
        epilogue: None,
    });
    assert_eq!(found, [0.0; 6]);
}

#[test]
fn products_are_summed_in_f32_and_rounded_once() {
    let mut b = Builder::new();
    let left = b.constant(DType::Bf16, &[1, 3], &[256.0, 1.0, 1.0]);
    let right = b.constant(DType::Bf16, &[3, 1], &[1.0; 3]);
    let found = b.result(DType::Bf16, &[1, 1], |out| Prim::MatMul {
        out,
        a: left,
        b: right,
        lhs: None,
        rhs: None,
        epilogue: None,
    });
    assert_eq!(found, [258.0]);
}

#[test]
fn a_choice_says_which_matrix_of_a_stack() {
    let choose = |rhs: &[f64]| {
        let mut b = Builder::new();
        let left = b.constant(DType::F32, &[2, 1, 1], &[10.0, 100.0]);
        let right = b.constant(DType::F32, &[3, 1, 1], &[1.0, 2.0, 3.0]);
        let lhs = Some(b.constant(DType::I32, &[3], &[0.0, 1.0, 0.0]));
        let rhs = Some(b.constant(DType::U32, &[3], rhs));
        let out = b.value(DType::F32, &[3, 1, 1]);
        b.device(Prim::MatMul { out, a: left, b: right, lhs, rhs, epilogue: None });
        (b, out)
    };
    let (b, out) = choose(&[2.0, 0.0, 1.0]);
    assert_eq!(b.read(out), [30.0, 100.0, 20.0]);
    assert_eq!(choose(&[2.0, 0.0, 3.0]).0.run_error(), "instruction 3.0 (matmul): index 3 is outside an axis of 3");
}

/// Packs codes bit by bit: code `i` occupies bits `i * bits` and up of the row, bit `n` of which is bit `n % 32` of word
/// `n / 32`.
fn pack(codes: &[u32], bits: usize) -> Vec<f64> {
    let mut words = vec![0_u32; codes.len() * bits / 32];
    for (index, code) in codes.iter().enumerate() {
        for bit in 0..bits {
            let at = index * bits + bit;
            words[at / 32] |= (code >> bit & 1) << (at % 32);
        }
    }
    words.into_iter().map(f64::from).collect()
}

/// Numbers without a pattern that a wrong order could reproduce.
fn codes(count: u32, bits: usize) -> Vec<u32> {
    (0..count).map(|index| (index * index * 7 + index * 3 + 1) % (1 << bits)).collect()
}

fn quantized(
    b: &mut Builder,
    codes: &[u32],
    rows: i64,
    format: QuantFormat,
    scales: (DType, &[f64]),
    biases: Option<&[f64]>,
) -> Quantized<Value> {
    let QuantFormat::Words { bits, group, .. } = format else { panic!("{format:?} is not in words") };
    let columns = i64::try_from(codes.len()).unwrap() / rows;
    let words = columns * i64::from(bits) / 32;
    let groups = [rows, columns / i64::from(group)];
    let packed: Vec<f64> =
        codes.chunks(usize::try_from(columns).unwrap()).flat_map(|row| pack(row, bits.into())).collect();
    Quantized {
        codes: b.constant(DType::U32, &[rows, words], &packed),
        scales: Some(b.constant(scales.0, &groups, scales.1)),
        biases: biases.map(|biases| b.constant(scales.0, &groups, biases)),
        format,
    }
}

#[test]
fn affine_codes_of_every_width_are_unpacked() {
    for bits in [2, 3, 4, 5, 6, 8] {
        let codes = codes(128, bits.into());
        let (scales, biases) = ([1.0, 0.5, -2.0, 4.0], [0.0, -3.0, 1.5, 100.0]);
        let format = QuantFormat::Words { mode: QuantMode::Affine, bits, group: 32 };
        let mut b = Builder::new();
        let w = quantized(&mut b, &codes, 2, format, (DType::Bf16, &scales), Some(&biases));
        let expected: Vec<f64> = codes
            .iter()
            .enumerate()
            .map(|(index, &code)| scales[index / 32] * f64::from(code) + biases[index / 32])
            .collect();
        assert_eq!(b.result(DType::F32, &[2, 64], |out| Prim::Dequantize { out, w }), expected, "{bits} bits");
    }
}

#[test]
fn the_first_codes_of_a_known_word_are_its_lowest_bits() {
    let known: [(u8, &[f64]); 3] =
        [(4, &[8.0, 7.0, 6.0, 5.0]), (8, &[120.0, 86.0, 52.0, 18.0]), (2, &[0.0, 2.0, 3.0, 1.0])];
    for (bits, expected) in known {
        let mut b = Builder::new();
        let words = usize::from(bits);
        let w = Quantized {
            codes: b.constant(DType::U32, &[1, i64::from(bits)], &vec![f64::from(0x1234_5678); words]),
            scales: Some(b.constant(DType::F16, &[1, 1], &[1.0])),
            biases: None,
            format: QuantFormat::Words { mode: QuantMode::Affine, bits, group: 32 },
        };
        assert!(b.result(DType::F32, &[1, 32], |out| Prim::Dequantize { out, w }).starts_with(expected), "{bits} bits");
    }
}

#[test]
fn affine_weights_have_a_bias_for_each_group_or_none_at_all() {
    let codes = codes(64, 4);
    let format = QuantFormat::Words { mode: QuantMode::Affine, bits: 4, group: 32 };
    let run = |biases: Option<&[f64]>| {
        let mut b = Builder::new();
        let mut w = quantized(&mut b, &codes, 1, format, (DType::F32, &[2.0, 0.5]), None);
        w.biases = biases.map(|biases| b.constant(DType::F32, &[1, biases.len().try_into().unwrap()], biases));
        let out = b.value(DType::F32, &[1, 64]);
        b.device(Prim::Dequantize { out, w });
        b.output(out);
        let mut state = b.start();
        state.run().map(|()| numbers(&*state, 0)).map_err(|error| error.to_string())
    };
    assert_eq!(run(None), run(Some(&[0.0, 0.0])));
    let error = run(Some(&[0.0])).unwrap_err();
    assert!(error.ends_with("a bias belongs to each group of affine weights, and to no others"), "{error}");
}

#[test]
fn small_floats_are_scaled_by_small_floats() {
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let e2m1 = |code: &u32| magnitudes[(*code & 7) as usize] * if code & 8 == 0 { 1.0 } else { -1.0 };
    let fours = codes(32, 4);
    // e8m0: 126 is a half, 129 is four.
    let mut b = Builder::new();
    let format = QuantFormat::Words { mode: QuantMode::Mxfp4, bits: 4, group: 32 };
    let w = quantized(&mut b, &[&fours[..], &fours].concat(), 2, format, (DType::U8, &[126.0, 129.0]), None);
    let expected: Vec<f64> =
        fours.iter().map(|code| e2m1(code) * 0.5).chain(fours.iter().map(|code| e2m1(code) * 4.0)).collect();
    assert_eq!(b.result(DType::F32, &[2, 32], |out| Prim::Dequantize { out, w }), expected);
    // e4m3: 0x38 is one, 0x44 is three.
    let mut b = Builder::new();
    let format = QuantFormat::Words { mode: QuantMode::Nvfp4, bits: 4, group: 16 };
    let w = quantized(&mut b, &fours, 1, format, (DType::U8, &[f64::from(0x38), f64::from(0x44)]), None);
    let expected: Vec<f64> = fours.iter().enumerate().map(|(at, code)| e2m1(code) * [1.0, 3.0][at / 16]).collect();
    assert_eq!(b.result(DType::F32, &[1, 32], |out| Prim::Dequantize { out, w }), expected);
    // e4m3 codes: one, three, minus one, the smallest.
    let mut b = Builder::new();
    let format = QuantFormat::Words { mode: QuantMode::Mxfp8, bits: 8, group: 32 };
    let w = quantized(&mut b, &[0x38, 0x44, 0xB8, 0x01].repeat(8), 1, format, (DType::U8, &[128.0]), None);
    let found = b.result(DType::Bf16, &[1, 32], |out| Prim::Dequantize { out, w });
    assert_eq!(found, [2.0, 6.0, -2.0, 1.0 / 256.0].repeat(8));
}

#[test]
fn quantized_products_agree_with_the_weights_written_out() {
    let format = QuantFormat::Words { mode: QuantMode::Affine, bits: 6, group: 32 };
    let codes = codes(64, 6);
    let weight = |row: usize, column: usize| 0.25 * f64::from(codes[row * 32 + column]) - 1.0;
    let x: Vec<f64> = (0..32).map(|index| f64::from(index % 5) - 2.0).collect();
    let mut b = Builder::new();
    let w = quantized(&mut b, &codes, 2, format, (DType::F32, &[0.25, 0.25]), Some(&[-1.0, -1.0]));
    let operand = b.constant(DType::F32, &[1, 32], &x);
    let found = b.result(DType::F32, &[1, 2], |out| Prim::QuantMatMul {
        out,
        x: operand,
        w,
        transpose: true,
        lhs: None,
        rhs: None,
        epilogue: None,
    });
    let expected: Vec<f64> = (0..2).map(|row| (0..32).map(|column| x[column] * weight(row, column)).sum()).collect();
    assert!(are_close(&found, &expected), "{found:?} for {expected:?}");

    let mut b = Builder::new();
    let w = quantized(&mut b, &codes, 2, format, (DType::F32, &[0.25, 0.25]), Some(&[-1.0, -1.0]));
    let operand = b.constant(DType::F32, &[1, 2], &[2.0, -3.0]);
    let found = b.result(DType::F32, &[1, 32], |out| Prim::QuantMatMul {
        out,
        x: operand,
        w,
        transpose: false,
        lhs: None,
        rhs: None,
        epilogue: None,
    });
    let expected: Vec<f64> = (0..32).map(|column| 2.0 * weight(0, column) - 3.0 * weight(1, column)).collect();
    assert_eq!(found, expected);
}

#[test]
fn experts_are_chosen_from_a_stack_of_quantized_matrices() {
    let mut b = Builder::new();
    let format = QuantFormat::Words { mode: QuantMode::Affine, bits: 4, group: 32 };
    // Three experts of one row: all ones, all twos, all threes.
    let codes: Vec<u32> = [1, 2, 3].iter().flat_map(|&code| [code; 32]).collect();
    let flat = quantized(&mut b, &codes, 3, format, (DType::F32, &[1.0; 3]), Some(&[0.0, 0.0, 0.5]));
    let mut stacked = |value: Value, last: i64| b.strided(value, &[3, 1, last], &[last, last, 1], 0);
    let [scales, biases] = [flat.scales, flat.biases].map(|value| value.map(|value| stacked(value, 1)));
    let w = Quantized { codes: stacked(flat.codes, 4), scales, biases, format };
    let x = b.constant(DType::F32, &[2, 1, 32], &[[1.0; 32], [10.0; 32]].concat());
    let (lhs, rhs) = (b.constant(DType::I64, &[2], &[1.0, 0.0]), b.constant(DType::U32, &[2], &[2.0, 1.0]));
    let found = b.result(DType::F32, &[2, 1, 1], |out| Prim::QuantMatMul {
        out,
        x,
        w,
        transpose: true,
        lhs: Some(lhs),
        rhs: Some(rhs),
        epilogue: None,
    });
    assert!(are_close(&found, &[1120.0, 64.0]), "{found:?}");
}

fn are_close(found: &[f64], expected: &[f64]) -> bool {
    found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs())
}

/// The bits are those of a computation in exact fractions, rounded where docs/ARITHMETIC.md says so.
#[test]
fn products_in_whole_numbers_have_the_bits_of_the_definition() {
    let known = [
        (320_i32, 32_u16, true, DType::Bf16, 0x4158_461F),
        (320, 32, true, DType::F32, 0x4158_4400),
        (576, 64, true, DType::Bf16, 0x4144_ECC7),
        (384, 128, false, DType::Bf16, 0x40B6_902E),
        (384, 128, true, DType::F32, 0x40DA_7001),
        (96, 32, true, DType::F16, 0x40AE_D847_u32),
    ];
    for (columns, group, has_biases, dtype, bits) in known {
        let x: Vec<f64> = (0..columns).map(|at| f64::from((at * 37 % 101 - 50) * (1 + at / 32 % 5)) / 16.0).collect();
        let codes: Vec<u32> = (0..columns).map(|at| ((at * 7 + at / 16) % 16).cast_unsigned()).collect();
        let groups = 0..columns / i32::from(group);
        let scales: Vec<f64> = groups.clone().map(|group| f64::from(1 + group % 7) / 64.0).collect();
        let biases: Vec<f64> = groups.map(|group| -f64::from(3 + group % 5) / 16.0).collect();
        let mut b = Builder::new();
        let format = QuantFormat::Words { mode: QuantMode::Affine, bits: 4, group };
        let biases = has_biases.then_some(biases.as_slice());
        let w = quantized(&mut b, &codes, 1, format, (DType::F32, &scales), biases);
        let x = b.constant(dtype, &[1, i64::from(columns)], &x);
        let product = |out| Prim::QuantMatMul { out, x, w, transpose: true, lhs: None, rhs: None, epilogue: None };
        let found = b.result(DType::F32, &[1, 1], product);
        assert_eq!(found, [f64::from(f32::from_bits(bits))], "{columns} columns in groups of {group}, {dtype}");
    }
}

#[test]
fn a_product_is_rounded_to_its_own_type_before_the_function() {
    let load = |index, dtype| Step { op: Scalar::Load(index), args: [0; 3], dtype };
    let cast = |from, dtype| Step { op: Scalar::Cast, args: [from, 0, 0], dtype };
    let add = Step { op: Scalar::Binary(Binary::Add), args: [1, 2, 0], dtype: DType::F32 };
    // The product is 257, which bf16 does not have: 256, or 257 in f32; then -256.
    for (dtype, expected) in [(DType::Bf16, 0.0), (DType::F32, 1.0)] {
        let mut b = Builder::new();
        let left = b.constant(DType::Bf16, &[1, 2], &[256.0, 1.0]);
        let right = b.constant(DType::Bf16, &[2, 1], &[1.0; 2]);
        let other = b.constant(DType::F32, &[1, 1], &[-256.0]);
        let steps = vec![load(0, dtype), cast(0, DType::F32), load(1, DType::F32), add.clone()];
        let epilogue = Some(Box::new(Fused { dtype, ins: vec![other], expr: Expr { steps } }));
        let found = b.result(DType::F32, &[1, 1], |out| Prim::MatMul {
            out,
            a: left,
            b: right,
            lhs: None,
            rhs: None,
            epilogue,
        });
        assert_eq!(found, [expected], "{dtype}");
    }
}

/// A Q4_K block: all scales 2, all minima 3 (halved), all codes 1 in even groups of 32 and 5 in odd ones.
fn q4k_block(factor: f32) -> Vec<f64> {
    let factors = [half::f16::from_f32(factor), half::f16::from_f32(0.5)].map(half::f16::to_le_bytes).concat();
    let scales = [[2_u8; 4], [3; 4], [0x32; 4]].concat();
    [factors, scales, vec![0x51; 128]].concat().into_iter().map(f64::from).collect()
}

#[test]
fn blocks_of_gguf_bring_their_own_scales() {
    let mut b = Builder::new();
    let rows = [q4k_block(1.0), q4k_block(2.0)].concat();
    let codes = b.constant(DType::U8, &[2, 144], &rows);
    let format = QuantFormat::Gguf(GgufType::Q4K);
    let w = Quantized { codes, scales: None, biases: None, format };
    let written_out = b.value(DType::F32, &[2, 256]);
    b.device(Prim::Dequantize { out: written_out, w: w.clone() });
    let x = b.constant(DType::F32, &[1, 256], &[1.0; 256]);
    let product = b.value(DType::F32, &[1, 2]);
    b.device(Prim::QuantMatMul { out: product, x, w, transpose: true, lhs: None, rhs: None, epilogue: None });
    b.output(written_out);
    b.output(product);
    let mut state = b.start();
    state.run().unwrap();
    let row = |even: f64, odd: f64| [[even; 32], [odd; 32]].concat().repeat(4);
    assert_eq!(numbers(&*state, 0), [row(0.5, 8.5), row(2.5, 18.5)].concat());
    assert_eq!(numbers(&*state, 1), [1152.0, 2688.0]);
}

#[test]
fn packings_that_make_no_sense_are_refused_at_compile() {
    let refused = |dtype, format, has_scales: bool| {
        let mut b = Builder::new();
        let (codes, out) = (b.constant(dtype, &[1, 4], &[0.0; 4]), b.value(DType::F32, &[1, 32]));
        let scales = has_scales.then(|| b.constant(DType::F32, &[1, 1], &[1.0]));
        b.device(Prim::Dequantize { out, w: Quantized { codes, scales, biases: None, format } });
        b.compile_error()
    };
    let words = |bits, group| QuantFormat::Words { mode: QuantMode::Affine, bits, group };
    let unsound = "codes have 1 to 8 bits, groups elements, and words scales";
    for (format, has_scales) in [(words(0, 32), true), (words(9, 32), true), (words(4, 0), true), (words(4, 32), false)]
    {
        assert!(refused(DType::U32, format, has_scales).ends_with(unsound));
    }
    assert!(refused(DType::I32, words(4, 32), true).ends_with("element type i32 where u32 is wanted"));
    assert!(
        refused(DType::U32, QuantFormat::Gguf(GgufType::Q6K), false).ends_with("element type u32 where u8 is wanted")
    );
}
