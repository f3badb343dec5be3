//! The peak speed of the machine, to measure kernels against.
#![allow(unsafe_code, reason = "calls into versions for one instruction set")]

use super::Isa;
#[cfg(target_arch = "x86_64")]
use super::lanes::Register;

/// Registers of sums: enough to hide the latency of a multiply-add, few enough to fit.
const CHAINS: usize = 12;

/// Does multiply-adds on registers alone; returns the number of floating-point operations.
pub fn multiply_adds(isa: Isa, rounds: usize) -> usize {
    2 * CHAINS * rounds * by_level!(isa, plain(rounds), avx2(rounds), avx512(rounds))
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

register_versions! { fn chains(rounds: usize) -> usize, [], [] }

#[inline(always)]
#[cfg(target_arch = "x86_64")]
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

kernel! {
    /// Reads every byte.
    pub fn read(words: &[u64]) -> u64 {
        words.iter().fold(0, |total, word| total ^ word)
    }
}
