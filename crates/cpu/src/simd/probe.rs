//! The peak speed of the machine, to measure kernels against.
#![allow(unsafe_code, reason = "calls into versions for one instruction set")]

use super::Isa;

/// Registers of sums: enough to hide the latency of a multiply-add, few enough to fit.
const CHAINS: usize = 12;

/// Does multiply-adds on registers alone; returns the number of floating-point operations.
pub fn multiply_adds(isa: Isa, rounds: usize) -> usize {
    2 * CHAINS * rounds * by_level!(isa, plain(rounds), x86::avx2(rounds), x86::avx512(rounds))
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
    use crate::simd::lanes::Register;
    use crate::simd::lanes::x86::{Avx2, Avx512};

    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    pub(super) fn avx2(rounds: usize) -> usize {
        chains(Avx2::new(), rounds)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2")]
    pub(super) fn avx512(rounds: usize) -> usize {
        chains(Avx512::new(), rounds)
    }

    #[inline(always)]
    fn chains<R: Register>(register: R, rounds: usize) -> usize {
        let (mut sums, half) = ([register.splat(1.0); CHAINS], std::hint::black_box(register.splat(0.5)));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = register.multiply_add(*sum, half, half);
            }
        }
        std::hint::black_box(sums);
        R::LANES
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
