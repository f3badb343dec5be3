//! Cases of quantized weights.

use super::data::{Content, Datum, FLOATS, between, each, moderate};
use super::draft::Draft;
use super::epilogue;
use super::matmul::{Stacks, magnitudes, matrix};
use super::probe::{Dense, Extra, Seen};
use super::rng::Rng;
use super::views::{Size, dims, fixed};
use ptero_plan::graph::{Graph, Value, ViewOp};
use ptero_plan::prim::{Prim, QuantFormat, QuantMode, Quantized, Tolerance};
use ptero_tensor::{DType, GgufType};

fn format(rng: &mut Rng) -> QuantFormat {
    let words = |mode, bits, group| QuantFormat::Words { mode, bits, group };
    match rng.below(10) {
        0..5 => words(QuantMode::Affine, rng.pick(&[2, 3, 4, 4, 5, 6, 8]), rng.pick(&[32, 64, 128])),
        5 => words(QuantMode::Mxfp4, 4, 32),
        6 => words(QuantMode::Nvfp4, 4, 16),
        7 => words(QuantMode::Mxfp8, 8, 32),
        _ => QuantFormat::Gguf(rng.pick(&[GgufType::Q4K, GgufType::Q5K, GgufType::Q6K])),
    }
}

/// The number of columns is a multiple of this.
fn granule(format: QuantFormat) -> i64 {
    match format {
        // Rows are whole words whatever the bits.
        QuantFormat::Words { group, .. } => i64::from(group).max(32),
        QuantFormat::Gguf(kind) => kind.block_len() as i64,
    }
}

/// The size of the last axis of the codes.
fn code_width(format: QuantFormat, columns: i64) -> i64 {
    match format {
        QuantFormat::Words { bits, .. } => columns * i64::from(bits) / 32,
        QuantFormat::Gguf(kind) => columns / kind.block_len() as i64 * kind.block_bytes() as i64,
    }
}

/// What weights are like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// They come from anywhere.
    Any,
    /// Codes may be NaN where the format has it.
    MaybeNan,
    /// As in files.
    Constant,
}

/// Random weights.
fn weights(draft: &mut Draft, format: QuantFormat, outer: &[Size], sizes: [i64; 2], kind: Kind) -> Quantized<Value> {
    let [rows, columns] = sizes.map(Size::fixed);
    let codes = matrix(outer, &rows, &Size::fixed(code_width(format, columns.largest())));
    // Most weights are contiguous, as in files.
    let plain = if draft.rng.one_in(3) { 3 } else { 1 };
    let operand = |draft: &mut Draft, dtype: DType, shape: &[Size], content: &Content| {
        if kind == Kind::Constant && shape.iter().all(Size::is_fixed) {
            return draft.weight(dtype, shape, content);
        }
        draft.operand_with(dtype, shape, content, (outer.len(), plain))
    };
    let QuantFormat::Words { mode, group, .. } = format else {
        let QuantFormat::Gguf(kind) = format else { unreachable!("a format is words or blocks") };
        let blocks: Content = Box::new(move |rng, _, count| blocks(rng, kind, count));
        let codes = operand(draft, DType::U8, &codes, &blocks);
        return Quantized { codes, scales: None, biases: None, format };
    };
    let word_mask = if mode == QuantMode::Mxfp8 && kind != Kind::MaybeNan { 0xBFBF_BFBF } else { u32::MAX };
    let words = each(move |rng| Datum::Int(i64::from(rng.next() as u32 & word_mask)));
    let codes = operand(draft, DType::U32, &codes, &words);
    let groups = matrix(outer, &rows, &Size::fixed(columns.largest() / i64::from(group)));
    let dtype = if mode == QuantMode::Affine { draft.rng.pick(&FLOATS) } else { DType::U8 };
    let content = match mode {
        QuantMode::Affine => between(-0.2, 0.2),
        QuantMode::Mxfp4 | QuantMode::Mxfp8 => bytes(118, 134),
        QuantMode::Nvfp4 => bytes(0x10, 0x58),
    };
    let scales = Some(operand(draft, dtype, &groups, &content));
    let biases = (mode == QuantMode::Affine).then(|| operand(draft, dtype, &groups, &between(-1.0, 1.0)));
    Quantized { codes, scales, biases, format }
}

fn bytes(low: i64, high: i64) -> Content {
    each(move |rng| Datum::Int(rng.within(low, high)))
}

/// Blocks of random bits, but for the factors, which are half floats below one.
fn blocks(rng: &mut Rng, kind: GgufType, count: usize) -> Vec<Datum> {
    let factors = match kind {
        GgufType::Q4K | GgufType::Q5K => 0..4,
        GgufType::Q6K => 208..210,
    };
    let byte = |rng: &mut Rng, at: usize| match factors.contains(&at) {
        true if at % 2 == 1 => rng.within(0x18, 0x2B),
        _ => rng.within(0, 255),
    };
    (0..count).map(|at| Datum::Int(byte(rng, at % kind.block_bytes()))).collect()
}

pub(super) fn matmul_case(draft: &mut Draft) {
    if draft.rng.one_in(6) {
        return chosen_case(draft);
    }
    product(draft, false, |draft, dtype, shape| (draft.operand(dtype, shape, &moderate(dtype)), Vec::new()));
}

/// A product of an operand, and the primitives that make it. With `decodes`, most have one row, and rows of weights, as in decoding.
pub(super) fn product(
    draft: &mut Draft,
    decodes: bool,
    operand: impl FnOnce(&mut Draft, DType, &[Size]) -> (Value, Vec<Prim<Value>>),
) {
    let format = format(&mut draft.rng);
    let granule = granule(format);
    let transpose = decodes || draft.rng.below(3) > 0;
    // Multiples of the granule up to about 600.
    let packed = granule * draft.rng.pick(&[1, 1, 2, 3, 4]).min(600 / granule).max(1);
    let loose = draft.rng.pick(&[1, 2, 7, 16, 33, 64, 130, 300]);
    let loose = if packed * loose > 20_000 && !draft.rng.one_in(8) { 7 } else { loose };
    let sizes = [loose, packed];
    let (inner, columns) = if transpose { (packed, loose) } else { (loose, packed) };
    let choices: &[i64] = if packed * loose > 20_000 { &[1, 2, 5] } else { &[1, 1, 2, 3, 5, 40, 70] };
    let rows = if decodes && !draft.rng.one_in(4) { Size::fixed(1) } else { draft.size(choices) };
    let work = rows.largest() * packed * loose;
    let stacks = Stacks::new(draft, (150_000 / work).clamp(1, 4));
    let dtype = draft.rng.pick(&FLOATS);
    let (x, before) = operand(draft, dtype, &matrix(stacks.left(), &rows, &Size::fixed(inner)));
    let kind = if decodes && !draft.rng.one_in(4) { Kind::Constant } else { Kind::Any };
    let w = weights(draft, format, stacks.right(), sizes, kind);
    let (lhs, rhs) = stacks.choices(draft);
    let to = if draft.rng.one_in(4) { draft.rng.pick(&FLOATS) } else { dtype };
    let (out, epilogue) = epilogue::end(draft, to, &matrix(&stacks.outer, &rows, &Size::fixed(columns)));
    before.into_iter().for_each(|prim| draft.test(prim));
    draft.test(Prim::QuantMatMul { out, x, w, transpose, lhs, rhs, epilogue });
}

/// A product of `x`, `[1, rows, length]`, with weights of any kind.
pub(super) fn product_of(draft: &mut Draft, (dtype, x): (DType, Value), [rows, length, columns]: [i64; 3]) {
    let (out, epilogue) = epilogue::end(draft, dtype, &fixed(&[1, rows, columns]));
    let is_file = !draft.rng.one_in(4);
    if draft.rng.one_in(2) {
        let kind = if is_file { Kind::Constant } else { Kind::Any };
        let format = QuantFormat::Words { mode: QuantMode::Affine, bits: draft.rng.pick(&[4, 8]), group: 64 };
        let w = weights(draft, format, &fixed(&[1]), [columns, length], kind);
        draft.test(Prim::QuantMatMul { out, x, w, transpose: true, lhs: None, rhs: None, epilogue });
        return;
    }
    let (shape, content) = (fixed(&[1, columns, length]), moderate(dtype));
    let b = if is_file { draft.weight(dtype, &shape, &content) } else { draft.operand(dtype, &shape, &content) };
    let b = draft.view(b, dims(&fixed(&[1, length, columns])), ViewOp::Permute(vec![0, 2, 1]));
    draft.test(Prim::MatMul { out, a: x, b, lhs: None, rhs: None, epilogue });
}

/// Products of single rows that choose their weights, as in mixtures of experts: several for each row, and many with the same weights.
fn chosen_case(draft: &mut Draft) {
    let format = format(&mut draft.rng);
    let granule = granule(format);
    let packed = granule * draft.rng.pick(&[1, 2, 3]).min(600 / granule).max(1);
    let loose = draft.rng.pick(&[7, 33, 64, 70]);
    let [one, inner] = [1, packed].map(Size::fixed);
    let outer = [draft.size(&[1, 9, 20, 40]), Size::fixed(draft.rng.pick(&[1, 2, 4]))];
    let matrices = draft.rng.within(1, 6);
    let dtype = draft.rng.pick(&FLOATS);
    let shape = matrix(&outer, &one, &inner);
    let x = if draft.rng.one_in(3) {
        draft.operand(dtype, &shape, &moderate(dtype))
    } else {
        let row = draft.operand(dtype, &matrix(&[outer[0].clone(), one.clone()], &one, &inner), &moderate(dtype));
        draft.view(row, dims(&shape), ViewOp::Broadcast)
    };
    let w = weights(draft, format, &fixed(&[matrices]), [loose, packed], Kind::Any);
    let index = draft.rng.pick(&[DType::U32, DType::I32, DType::I64]);
    let rhs = draft.filled(index, &outer, &bytes(0, matrices - 1));
    let to = if draft.rng.one_in(4) { draft.rng.pick(&FLOATS) } else { dtype };
    let (out, epilogue) = epilogue::end(draft, to, &matrix(&outer, &one, &Size::fixed(loose)));
    draft.test(Prim::QuantMatMul { out, x, w, transpose: true, lhs: None, rhs: Some(rhs), epilogue });
}

pub(super) fn dequantize_case(draft: &mut Draft) {
    let format = format(&mut draft.rng);
    let columns = granule(format) * draft.rng.within(1, 3);
    let rows = draft.rng.pick(&[0, 1, 2, 3, 5, 9]);
    let outer: Vec<i64> = (0..draft.rng.below(3)).map(|_| draft.rng.within(1, 2)).collect();
    let w = weights(draft, format, &fixed(&outer), [rows, columns], Kind::MaybeNan);
    let dtype = draft.rng.pick(&FLOATS);
    let out = draft.target(dtype, &matrix(&fixed(&outer), &Size::fixed(rows), &Size::fixed(columns)));
    draft.test(Prim::Dequantize { out, w });
}

/// The weights themselves.
pub(super) fn extras(graph: &Graph, w: &Quantized<Value>) -> Vec<Extra> {
    let (w, mut shape) = (w.clone(), graph.ty(w.codes).shape.clone());
    let width = shape.pop().and_then(|width| width.as_fixed()).expect("codes have fixed sizes");
    let columns = match w.format {
        QuantFormat::Words { bits, .. } => width * 32 / i64::from(bits),
        QuantFormat::Gguf(kind) => width / kind.block_bytes() as i64 * kind.block_len() as i64,
    };
    shape.push(columns.into());
    vec![(DType::F32, shape, Box::new(move |out| Prim::Dequantize { out, w: w.clone() }))]
}

/// Kernels may make integers of 16 bits of this many neighbours of a row of short floats: each is then off by up to half a unit,
/// which is the largest of them over 127 * 256.
const NEIGHBOURS: usize = 16;
/// Half a unit, and a little for what rounds it, as a part of the largest neighbour.
const HALF_UNIT: f64 = 1.01 * 0.5 / (127.0 * 256.0);

/// As of a plain product, and:
///
/// A weight that is a sum, of a multiple of its code and of a bias or minimum, counts with the largest of its group beside it:
/// kernels may sum codes, and add what belongs to the bias at the end. Other weights are a multiple of a number of few bits,
/// which integers can sum without a rounding: nothing is added for them, and a product of zeros is zero whatever the scale.
///
/// Short floats along which weights lie may be off by [`HALF_UNIT`], times all the weight.
pub(super) fn matmul_slack(prim: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let Prim::QuantMatMul { out, x, w, transpose, lhs, rhs, .. } = prim else { return Vec::new() };
    let group_of_sums = match w.format {
        QuantFormat::Words { mode: QuantMode::Affine, group, .. } => Some(usize::from(group)),
        QuantFormat::Gguf(GgufType::Q4K | GgufType::Q5K) => Some(32),
        QuantFormat::Words { mode: QuantMode::Mxfp4 | QuantMode::Nvfp4 | QuantMode::Mxfp8, .. }
        | QuantFormat::Gguf(GgufType::Q6K) => None,
    };
    let along = |weights: &Dense| if *transpose { transposed(weights) } else { weights.clone() };
    let plain = along(&seen.extras[0]);
    let weights = group_of_sums.map_or_else(|| plain.clone(), |group| along(&with_largest(&seen.extras[0], group)));
    let mut choices = seen.operands.iter().skip(2 + w.scales.iter().chain(&w.biases).count());
    let lhs = lhs.as_ref().and_then(|_| choices.next());
    let rhs = rhs.as_ref().and_then(|_| choices.next());
    let count = seen.shape(*out).iter().rev().skip(2).product();
    let mut slack = magnitudes(&seen.operands[0], &weights, (lhs, rhs), count);
    if *transpose && seen.dtype(*x) != DType::F32 {
        let Tolerance::Relative(part) = prim.tolerance() else { unreachable!("products have a relative tolerance") };
        let off = HALF_UNIT / f64::from(part);
        let rounding = magnitudes(&largest_neighbours(&seen.operands[0]), &plain, (lhs, rhs), count);
        slack.iter_mut().zip(rounding).for_each(|(slack, rounding)| *slack += off * rounding);
    }
    vec![epilogue::slack(prim, seen, slack)]
}

fn largest(numbers: &[f64]) -> f64 {
    numbers.iter().fold(0.0, |largest: f64, number| largest.max(number.abs()))
}

/// The magnitude of each weight and the largest of its group.
fn with_largest(weights: &Dense, group: usize) -> Dense {
    let mut weights = weights.clone();
    for group in weights.data.chunks_mut(group) {
        let largest = largest(group);
        group.iter_mut().for_each(|weight| *weight = weight.abs() + largest);
    }
    weights
}

/// Replaces each element by the largest of its neighbours; rows are whole units.
fn largest_neighbours(x: &Dense) -> Dense {
    let mut x = x.clone();
    x.data.chunks_mut(NEIGHBOURS).for_each(|unit| unit.fill(largest(unit)));
    x
}

fn transposed(stack: &Dense) -> Dense {
    let rank = stack.shape.len();
    let data = stack.groups(&[rank - 1, rank - 2]).into_iter().flatten().map(|place| stack.data[place]).collect();
    let mut shape = stack.shape.clone();
    shape.swap(rank - 1, rank - 2);
    Dense { shape, data }
}
