//! Stores that bypass the caches, for results that are larger than these: they neither read the memory that they overwrite nor evict
//! other data.
#![allow(unsafe_code, reason = "instructions that all machines of the architecture have")]

/// From this many bytes on, results bypass the caches.
pub(crate) const LARGE: usize = 8 << 20;

/// Copies past the caches. Call [`finish`] before other threads read the copy.
pub(crate) fn copy(from: &[f32], to: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
        let ahead = to.as_ptr().align_offset(16).min(to.len()).min(from.len());
        let (from_head, from) = from.split_at(ahead);
        let (to_head, to) = to.split_at_mut(ahead);
        to_head.copy_from_slice(from_head);
        let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<4>(), to.as_chunks_mut::<4>());
        for (from, to) in from.iter().zip(to) {
            // SAFETY: both are four floats, `to` starts at a multiple of 16 bytes, and every x86-64 has SSE.
            unsafe { _mm_stream_ps(to.as_mut_ptr(), _mm_loadu_ps(from.as_ptr())) };
        }
        to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to = *from);
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

/// Orders the copies before later stores, so that other threads see them.
pub(crate) fn finish() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_arrives_wherever_it_starts() {
        for (start, length) in [(0, 0), (0, 1), (1, 3), (1, 64), (3, 61), (2, 130)] {
            let from: Vec<f32> = (0..length).map(|at| at as f32).collect();
            let mut to = vec![-1.0; 200];
            copy(&from, &mut to[start..start + length]);
            finish();
            assert_eq!(to[start..start + length], from);
            assert!(to[..start].iter().chain(&to[start + length..]).all(|other| *other == -1.0));
        }
    }
}
