//! Few rows of activations times quantized weights in integers, where the machine has instructions for that.
#![allow(unsafe_code, reason = "calls into versions for one instruction set")]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, unused_variables, reason = "other architectures have no such instructions here yet")
)]

use super::Isa;
use super::activation::{Layout, Order, Sums};
use crate::quant::{Packing, Weights};
use ptero_tensor::GgufType;
use std::ops::Range;

/// Numbers of four bits are doubled and moved up by so much, to be whole and not below zero.
const E2M1_OFFSET: i32 = 12;
/// The code of zero in blocks of six bits.
const Q6K_OFFSET: i32 = 32;
/// The most rows of activations at once.
pub(crate) const MOST: usize = 4;

/// The instructions; having one is the proof that the machine has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integers(Kind);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Avx2,
    Vnni,
}

/// Rows of activations as `activation::quantize` writes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activations<'a> {
    pub(crate) layout: Layout,
    pub(crate) floats: &'a [f32],
}

impl Integers {
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of(isa: Isa) -> Option<Self> {
        match isa.level() {
            super::Level::Baseline => None,
            // All machines with VNNI but the first permute bytes, too.
            super::Level::Avx512 if is_x86_feature_detected!("avx512vbmi") => Some(Self(Kind::Vnni)),
            super::Level::Avx2 | super::Level::Avx512 => Some(Self(Kind::Avx2)),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn of(_: Isa) -> Option<Self> {
        None
    }

    /// How a row of activations must lie for these weights; nothing if these are not taken.
    pub(crate) fn layout(self, weights: &Weights<'_>) -> Option<Layout> {
        let (vectors, group) = match weights.packing {
            Packing::Affine { bits, group, scales, biases: Some(biases) } if scales.is_like(&biases) => match bits {
                2 => (4, group),
                4 => (2, group),
                3 | 5 | 6 | 8 => (1, group),
                _ => return None,
            },
            Packing::E2m1 { group, .. } => (2, group),
            Packing::Gguf(GgufType::Q4K | GgufType::Q5K) => (1, 32),
            Packing::Gguf(GgufType::Q6K) => (1, 16),
            Packing::Affine { .. } | Packing::E4m3 { .. } => return None,
        };
        let order = match self.0 {
            Kind::Avx2 if vectors == 1 => Order::Twos,
            Kind::Avx2 => Order::Fours,
            Kind::Vnni => Order::Bytes { vectors },
        };
        let sums = match weights.packing {
            Packing::E2m1 { .. } => Sums::Offset(E2M1_OFFSET),
            Packing::Gguf(GgufType::Q6K) => Sums::Offset(Q6K_OFFSET),
            Packing::Affine { .. } | Packing::E4m3 { .. } | Packing::Gguf(GgufType::Q4K | GgufType::Q5K) => {
                Sums::Floats
            }
        };
        matches!(group, 16 | 32 | 64 | 128).then_some(Layout { order, sums, rows: 1 })
    }

    /// Writes the products of some rows of the weights with each row of activations, of which there are at most [`MOST`]; those
    /// of the next row of activations `stride` further on.
    pub(crate) fn products(
        self,
        weights: &Weights<'_>,
        rows: Range<usize>,
        x: &Activations<'_>,
        sums: &mut [f32],
        stride: usize,
    ) {
        #[cfg(target_arch = "x86_64")]
        match self.0 {
            // SAFETY: this kind exists only on machines that have the instructions.
            Kind::Avx2 => unsafe {
                use super::avx2::products;
                match x.layout.rows {
                    1 => products::<1>(weights, rows, x, sums, stride),
                    2 => products::<2>(weights, rows, x, sums, stride),
                    3 => products::<3>(weights, rows, x, sums, stride),
                    _ => products::<MOST>(weights, rows, x, sums, stride),
                }
            },
            // SAFETY: this kind exists only on machines that have the instructions.
            Kind::Vnni => unsafe {
                use super::vnni::products;
                match x.layout.rows {
                    1 => products::<1>(weights, rows, x, sums, stride),
                    2 => products::<2>(weights, rows, x, sums, stride),
                    3 => products::<3>(weights, rows, x, sums, stride),
                    _ => products::<MOST>(weights, rows, x, sums, stride),
                }
            },
        }
    }
}
