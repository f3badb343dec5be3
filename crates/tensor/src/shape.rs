//! Counting elements and bytes without overflow.

use crate::DType;

/// The highest rank that any ptero tensor has; ExecuTorch's own limit.
pub const MAX_RANK: usize = 16;

/// The product of the sizes, or `None` when it does not fit 64 bits.
///
/// A zero anywhere makes the count zero, even beside sizes whose product would overflow.
pub fn element_count(sizes: &[u64]) -> Option<u64> {
    if sizes.contains(&0) {
        return Some(0);
    }
    sizes.iter().try_fold(1_u64, |count, &size| count.checked_mul(size))
}

/// The bytes of a contiguous tensor, or `None` when they do not fit 64 bits.
pub fn byte_count(sizes: &[u64], dtype: DType) -> Option<u64> {
    element_count(sizes)?.checked_mul(dtype.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_counts_do_not_wrap() {
        assert_eq!(element_count(&[]), Some(1));
        assert_eq!(element_count(&[3, 5]), Some(15));
        assert_eq!(element_count(&[1 << 32, 1 << 32]), None);
        assert_eq!(element_count(&[1 << 32, 1 << 32, 0]), Some(0));
        assert_eq!(byte_count(&[1 << 62], DType::I64), None);
        assert_eq!(byte_count(&[2, 3], DType::Bf16), Some(12));
    }
}
