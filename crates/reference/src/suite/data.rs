//! Random elements, and their bytes.

use super::rng::Rng;
use ptero_backend::cast;
use ptero_tensor::DType;

/// The variants of an enum, by name.
macro_rules! variants {
    ($type:ident: $($name:ident)*) => { [$( $type::$name ),*] };
}
pub(super) use variants;

/// The floats.
pub(super) const FLOATS: [DType; 3] = variants!(DType: F32 F16 Bf16);
/// The integers.
pub(super) const INTEGERS: [DType; 7] = variants!(DType: I32 I64 U32 U8 I8 I16 U16);
/// The types that are computed with.
pub(super) const ALL: [DType; 11] = variants!(DType: F32 F16 Bf16 I32 I64 U32 U8 I8 I16 U16 Bool);

pub(super) fn is_float(dtype: DType) -> bool {
    FLOATS.contains(&dtype)
}

/// An element before it is rounded or wrapped to its type.
#[derive(Clone, Copy, Debug)]
pub(super) enum Datum {
    /// For floats.
    Float(f32),
    /// For integers and bools.
    Int(i64),
}

/// Makes the elements of an operand in one call, in row-major order, given the number of the call and their count.
pub(super) type Content = Box<dyn Fn(&mut Rng, usize, usize) -> Vec<Datum>>;

/// The same rule for every element.
pub(super) fn each(rule: impl Fn(&mut Rng) -> Datum + 'static) -> Content {
    Box::new(move |rng, _, count| (0..count).map(|_| rule(rng)).collect())
}

/// Floats between two numbers.
pub(super) fn between(low: f32, high: f32) -> Content {
    each(move |rng| Datum::Float(rng.float(low, high)))
}

/// Numbers of that type without infinities and NaNs, and of moderate size.
pub(super) fn moderate(dtype: DType) -> Content {
    each(move |rng| if is_float(dtype) { float(rng) } else { small_int(rng, dtype) })
}

/// Numbers of that type; a third of the tensors have infinities, NaNs, huge and tiny numbers (floats) or the ends of
/// their range (integers).
pub(super) fn any(dtype: DType) -> Content {
    Box::new(move |rng, _, count| {
        let is_special = rng.one_in(3);
        let element = |rng: &mut Rng| match (is_float(dtype), is_special && rng.one_in(12)) {
            (true, false) => float(rng),
            (true, true) => special(rng),
            (false, false) => small_int(rng, dtype),
            (false, true) => Datum::Int(rng.next() as i64 >> rng.below(64)),
        };
        (0..count).map(|_| element(rng)).collect()
    })
}

/// Numbers whose products are zero or nearly so: their sums show the sign of a zero.
pub(super) fn vanishing() -> Content {
    Box::new(|rng, _, count| {
        let sign = rng.pick(&[1.0, -1.0]);
        (0..count).map(|_| Datum::Float(sign * rng.pick(&[1e-23, 2e-22, 1e-24, 3e-30]))).collect()
    })
}

/// Few different numbers, so that there are ties, and NaNs in some tensors.
pub(super) fn tied(dtype: DType) -> Content {
    Box::new(move |rng, _, count| {
        let has_nans = rng.one_in(3);
        let element = |rng: &mut Rng| match rng.within(-3, 3) {
            3 if has_nans && rng.one_in(3) => Datum::Float(f32::NAN),
            whole if is_float(dtype) => Datum::Float(whole as f32 * 0.5 * if whole == 0 { -1.0 } else { 1.0 }),
            whole => Datum::Int(whole),
        };
        (0..count).map(|_| element(rng)).collect()
    })
}

fn float(rng: &mut Rng) -> Datum {
    Datum::Float(match rng.below(16) {
        0 => 0.0,
        1 => -0.0,
        2 => rng.within(-4, 4) as f32,
        3..5 => rng.float(-8.0, 8.0),
        5 => rng.float(-1e-3, 1e-3),
        _ => rng.float(-2.0, 2.0),
    })
}

/// An infinity, a NaN, a huge or a tiny number.
pub(super) fn special(rng: &mut Rng) -> Datum {
    let infinity = f32::INFINITY;
    Datum::Float(rng.pick(&[infinity, -infinity, f32::NAN, -f32::NAN, 3e38, -1e30, 65504.0, 1e-30, -6e-8]))
}

fn small_int(rng: &mut Rng, dtype: DType) -> Datum {
    Datum::Int(if dtype == DType::Bool { rng.within(0, 1) } else { rng.within(-9, 20) })
}

/// An element between those of a view: one that shows if it is added to a sum.
pub(super) fn filler(rng: &mut Rng, dtype: DType) -> Datum {
    match (is_float(dtype), rng.one_in(2)) {
        (true, true) => Datum::Float(f32::NAN),
        (true, false) => Datum::Float(rng.float(-100.0, 100.0)),
        (false, _) => small_int(rng, dtype),
    }
}

/// The bytes of elements of a type.
pub(super) fn encode(dtype: DType, values: &[Datum]) -> Vec<u8> {
    let from = if is_float(dtype) { DType::F32 } else { DType::I64 };
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| match (is_float(dtype), *value) {
            (true, Datum::Float(value)) => value.to_le_bytes().to_vec(),
            (true, Datum::Int(value)) => (value as f32).to_le_bytes().to_vec(),
            (false, Datum::Float(value)) => (value as i64).to_le_bytes().to_vec(),
            (false, Datum::Int(value)) => value.to_le_bytes().to_vec(),
        })
        .collect();
    cast(&bytes, from, dtype).expect("cases have types that are computed with")
}

/// The elements as numbers. Integers beyond 53 bits are rounded.
pub(super) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let to = if is_float(dtype) { DType::F32 } else { DType::I64 };
    let bytes = cast(bytes, dtype, to).expect("cases have types that are computed with");
    if is_float(dtype) {
        bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw).into()).collect()
    } else {
        bytes.as_chunks().0.iter().map(|raw| i64::from_le_bytes(*raw) as f64).collect()
    }
}
