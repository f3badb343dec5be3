//! Type promotion by MLX's table, which is JAX's. Zero-dimensional tensors promote like all others.

use ptero_tensor::DType;

/// Bytes of an integer type, and `true` if it is signed; a bool has 0 bytes.
fn integer(dtype: DType) -> (u64, bool) {
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    (if dtype == DType::Bool { 0 } else { dtype.bytes() }, signed)
}

/// The type that two types are promoted to.
pub(crate) fn promote(a: DType, b: DType) -> DType {
    match (a.is_float(), b.is_float()) {
        _ if a == b => a,
        (true, true) => DType::F32,
        (true, false) => a,
        (false, true) => b,
        (false, false) => promote_integers(a, b),
    }
}

fn promote_integers(a: DType, b: DType) -> DType {
    let ((a_bytes, a_signed), (b_bytes, b_signed)) = (integer(a), integer(b));
    if a_bytes == 0 || b_bytes == 0 || a_signed == b_signed {
        return if a_bytes >= b_bytes { a } else { b };
    }
    let (unsigned, signed) = if a_signed { (b_bytes, a) } else { (a_bytes, b) };
    // A signed type that holds all values of the unsigned one.
    match unsigned {
        _ if integer(signed).0 > unsigned => signed,
        1 => DType::I16,
        2 => DType::I32,
        4 => DType::I64,
        _ => DType::F32,
    }
}

/// The float that functions of floats compute in.
pub(crate) fn to_float(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}

/// The type of sums and products of this type.
pub(crate) fn to_sum(dtype: DType) -> DType {
    match dtype {
        DType::Bool | DType::I8 | DType::I16 => DType::I32,
        DType::U8 | DType::U16 => DType::U32,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;

    #[test]
    fn types_meet_as_in_mlx() {
        for (a, b, both) in [
            (F16, Bf16, F32),
            (F16, F32, F32),
            (I64, F16, F16),
            (Bool, U8, U8),
            (U8, I8, I16),
            (U32, I8, I64),
            (U32, I32, I64),
            (U32, I64, I64),
            (U8, U32, U32),
            (I32, I64, I64),
            (U64, I32, F32),
        ] {
            assert_eq!(promote(a, b), both, "{a} {b}");
            assert_eq!(promote(b, a), both, "{b} {a}");
        }
    }
}
