//! What the machine can do at most, to measure kernels against.
#![allow(unsafe_code, reason = "calls into versions for one instruction set")]

use super::{Isa, Level};

/// Registers of sums: enough to hide the latency of a multiply-add, few enough to fit.
const CHAINS: usize = 12;

/// Does multiply-adds on registers alone; gives how many floating-point operations that were.
pub fn multiply_adds(isa: Isa, rounds: usize) -> usize {
    let lanes = match isa.level() {
        Level::Baseline => plain(rounds),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only on a machine that has these instructions.
        Level::Avx2 => unsafe { x86::avx2(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: likewise.
        Level::Avx512 => unsafe { x86::avx512(rounds) },
    };
    2 * CHAINS * lanes * rounds
}

fn plain(rounds: usize) -> usize {
    let mut sums = [1.0_f32; 4 * CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = *sum * 0.5 + 0.5;
        }
    }
    std::hint::black_box(sums);
    4
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::CHAINS;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2(rounds: usize) -> usize {
        let (mut sums, half) = ([_mm256_set1_ps(1.0); CHAINS], std::hint::black_box(_mm256_set1_ps(0.5)));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, half, half);
            }
        }
        std::hint::black_box(sums);
        8
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn avx512(rounds: usize) -> usize {
        let (mut sums, half) = ([_mm512_set1_ps(1.0); CHAINS], std::hint::black_box(_mm512_set1_ps(0.5)));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, half, half);
            }
        }
        std::hint::black_box(sums);
        16
    }
}

kernel! {
    /// Reads every byte.
    pub fn read(words: &[u64]) -> u64 {
        let mut total = 0;
        for word in words {
            total ^= word;
        }
        total
    }
}
