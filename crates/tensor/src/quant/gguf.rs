//! The k-quants of GGUF: blocks of 256 weights with their own scales. A row is a whole number of blocks.

use super::{Affine, float};

/// A kind of block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GgufType {
    /// Four bits and a minimum: eight groups of 32, each with a 6-bit scale and a 6-bit minimum.
    Q4K,
    /// The same with five bits.
    Q5K,
    /// Six bits: sixteen groups of 16, each with an 8-bit scale.
    Q6K,
}

/// Weights of a block.
const BLOCK: usize = 256;
/// Groups of a block that have a scale and a minimum.
const GROUPS: usize = 8;

impl GgufType {
    /// Weights of a block.
    pub fn block_len(self) -> usize {
        BLOCK
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            GgufType::Q4K => 2 + 2 + 12 + 128,
            GgufType::Q5K => 2 + 2 + 12 + 32 + 128,
            GgufType::Q6K => 128 + 64 + 16 + 2,
        }
    }

    /// Decodes whole blocks; what does not make a whole block on either side is left alone.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        for (block, weights) in bytes.chunks_exact(self.block_bytes()).zip(out.as_chunks_mut::<BLOCK>().0) {
            match self {
                GgufType::Q4K | GgufType::Q5K => decode_with_minimum(self.groups(block), weights),
                GgufType::Q6K => decode_q6k(block, weights),
            }
        }
    }

    /// The affine format whose groups are the groups of these blocks. Those of six bits are too small for any.
    pub fn affine(self) -> Option<Affine> {
        match self {
            GgufType::Q4K => Some(Affine::BLOCKS_OF_4),
            GgufType::Q5K => Some(Affine::BLOCKS_OF_5),
            GgufType::Q6K => None,
        }
    }

    /// Turns whole blocks into groups of `affine()` that decode to the same weights, without a loss; what does not make a
    /// whole block in any of the slices is left alone, and so is everything where there is no such format. Scales and
    /// biases have up to 17 significant bits: f32 holds them, f16 and bf16 round them.
    pub fn to_affine(self, bytes: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        let Some(affine) = self.affine() else { return };
        let blocks = bytes.chunks_exact(self.block_bytes()).zip(codes.chunks_exact_mut(affine.code_bytes(BLOCK)));
        let of_groups = scales.as_chunks_mut::<GROUPS>().0.iter_mut().zip(biases.as_chunks_mut::<GROUPS>().0);
        for ((block, to), (scales, biases)) in blocks.zip(of_groups) {
            let to = to.chunks_exact_mut(affine.code_bytes(BLOCK / GROUPS));
            for ((group, to), (scale, bias)) in self.groups(block).zip(to).zip(scales.iter_mut().zip(biases)) {
                (*scale, *bias) = (group.scale, -group.minimum);
                affine.pack(&group.codes, to);
            }
        }
    }

    /// The groups of a block, as whole numbers.
    pub fn whole_groups(self, block: &[u8]) -> Vec<WholeGroup> {
        match self {
            GgufType::Q4K | GgufType::Q5K => {
                let whole = |Group { scale, minimum, codes }: Group| WholeGroup {
                    scale,
                    bias: Some(-minimum),
                    codes: codes.map(i32::from).to_vec(),
                };
                self.groups(block).map(whole).collect()
            }
            GgufType::Q6K => {
                let mut groups = vec![WholeGroup { scale: 0.0, bias: None, codes: Vec::new() }; 16];
                each_q6k(block, |at, scale, code| {
                    if let Some(group) = groups.get_mut(at / 16) {
                        group.scale = scale;
                        group.codes.push(code);
                    }
                });
                groups
            }
        }
    }

    /// The groups of a block that has minima. Four- and five-bit blocks differ in the fifth bits alone, of which the former
    /// have none.
    fn groups(self, block: &[u8]) -> impl Iterator<Item = Group> {
        let (factors, rest) = block.split_at_checked(4).unwrap_or_default();
        let (scales, rest) = rest.split_at_checked(12).unwrap_or_default();
        let fifth_bytes = if self == GgufType::Q5K { 32 } else { 0 };
        let (fifth, low) = rest.split_at_checked(fifth_bytes).unwrap_or_default();
        let (factor, minimum_factor) = (float(factors), float(factors.get(2..).unwrap_or_default()));
        (0..GROUPS).zip(low.chunks_exact(32).flat_map(|codes| [codes, codes])).map(move |(group, low)| {
            let (scale, minimum) = scales.first_chunk().map_or((0.0, 0.0), |scales| scale_and_minimum(scales, group));
            let mut codes = [0; BLOCK / GROUPS];
            for (at, (code, byte)) in codes.iter_mut().zip(low).enumerate() {
                let high = fifth.get(at).map_or(0, |bits| bits >> group & 1);
                *code = (if group % 2 == 0 { byte & 15 } else { byte >> 4 }) | high << 4;
            }
            Group { scale: factor * scale, minimum: minimum_factor * minimum, codes }
        })
    }
}

/// Weights that share a scale: each is `scale * code + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct WholeGroup {
    /// Of a block: its factor times the scale of the group.
    pub scale: f32,
    /// Of a block with minima: minus its second factor times the minimum of the group.
    pub bias: Option<f32>,
    /// The whole numbers.
    pub codes: Vec<i32>,
}

/// Part of a block that has a scale and a minimum of its own.
struct Group {
    scale: f32,
    minimum: f32,
    codes: [u8; BLOCK / GROUPS],
}

/// Scale and minimum of group `at`: 6 bits each, the first four groups in the low bits of two rows of four bytes, the others
/// split between the third row and the high bits of the first two.
#[allow(clippy::indexing_slicing, reason = "groups are below eight, and there are twelve bytes")]
fn scale_and_minimum(scales: &[u8; 12], at: usize) -> (f32, f32) {
    let (scale, minimum) = if at < 4 {
        (scales[at] & 63, scales[at + 4] & 63)
    } else {
        let last = scales[at + 4];
        ((last & 15) | (scales[at - 4] >> 6) << 4, (last >> 4) | (scales[at] >> 6) << 4)
    };
    (scale.into(), minimum.into())
}

fn decode_with_minimum(groups: impl Iterator<Item = Group>, weights: &mut [f32; BLOCK]) {
    for (group, weights) in groups.zip(weights.chunks_exact_mut(BLOCK / GROUPS)) {
        for (weight, code) in weights.iter_mut().zip(group.codes) {
            *weight = group.scale * f32::from(code) - group.minimum;
        }
    }
}

fn decode_q6k(block: &[u8], weights: &mut [f32; BLOCK]) {
    let mut weights = weights.iter_mut();
    each_q6k(block, |_, scale, code| {
        if let Some(weight) = weights.next() {
            *weight = scale * code as f32;
        }
    });
}

/// Calls for each weight of a block in order, with its number, its scale and its code, which counts from -32.
///
/// Each half of a block: 64 bytes of low nibbles and 32 of high bits make four runs of 32 weights.
fn each_q6k(block: &[u8], mut with: impl FnMut(usize, f32, i32)) {
    let (low, rest) = block.split_at_checked(128).unwrap_or_default();
    let (high, rest) = rest.split_at_checked(64).unwrap_or_default();
    let (scales, factor) = rest.split_at_checked(16).unwrap_or_default();
    let factor = float(factor);
    let halves = low.chunks_exact(64).zip(high.chunks_exact(32)).zip(scales.chunks_exact(8));
    for (half, ((low, high), scales)) in halves.enumerate() {
        for run in 0..4 {
            let nibbles = low.iter().skip(32 * (run % 2)).map(|byte| if run < 2 { byte & 15 } else { byte >> 4 });
            for (at, (nibble, high)) in nibbles.zip(high).enumerate() {
                let code = nibble | (high >> (2 * run) & 3) << 4;
                let scale = scales.get(2 * run + at / 16).map_or(0, |scale| scale.cast_signed());
                with(128 * half + 32 * run + at, factor * f32::from(scale), i32::from(code) - 32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    /// A block whose factor is 1 (and its minimum factor 0.5), with the rest from a simple rule.
    fn block(kind: GgufType) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..kind.block_bytes()).map(|at| u8::try_from(at * 37 % 251).unwrap()).collect();
        let (one, half) = (f16::ONE.to_le_bytes(), f16::from_f32(0.5).to_le_bytes());
        match kind {
            GgufType::Q4K | GgufType::Q5K => bytes.splice(0..4, one.into_iter().chain(half)).for_each(drop),
            GgufType::Q6K => bytes.splice(208..210, one).for_each(drop),
        }
        bytes
    }

    fn decoded(kind: GgufType) -> Vec<f32> {
        let mut out = vec![0.0; 256];
        kind.decode(&block(kind), &mut out);
        out
    }

    #[test]
    fn four_and_five_bits_follow_the_layout() {
        let bytes = block(GgufType::Q4K);
        // Weight 0: group 0, low nibble of the first code byte.
        let scale = f32::from(bytes[4] & 63);
        let minimum = 0.5 * f32::from(bytes[8] & 63);
        assert_eq!(decoded(GgufType::Q4K)[0], scale * f32::from(bytes[16] & 15) - minimum);
        // Weight 255: group 7, high nibble of the last byte; its scale is split.
        let scale = f32::from((bytes[15] & 15) | (bytes[7] >> 6) << 4);
        let minimum = 0.5 * f32::from((bytes[15] >> 4) | (bytes[11] >> 6) << 4);
        assert_eq!(decoded(GgufType::Q4K)[255], scale * f32::from(bytes[143] >> 4) - minimum);

        let bytes = block(GgufType::Q5K);
        let scale = f32::from(bytes[5] & 63);
        let minimum = 0.5 * f32::from(bytes[9] & 63);
        // Weight 40: group 1, high nibble of code byte 8, fifth bit 1 of byte 8.
        let code = (bytes[48 + 8] >> 4) | (bytes[16 + 8] >> 1 & 1) << 4;
        assert_eq!(decoded(GgufType::Q5K)[40], scale * f32::from(code) - minimum);
    }

    #[test]
    fn six_bits_follow_the_layout() {
        let bytes = block(GgufType::Q6K);
        // Weight 128 + 3 * 32 + 20: second half, run 3: high nibble of low byte 64 + 32 + 20, top two bits of high byte 32 + 20.
        let code = (bytes[64 + 32 + 20] >> 4) | (bytes[128 + 32 + 20] >> 6 & 3) << 4;
        let scale = f32::from(bytes[192 + 8 + 7].cast_signed());
        assert_eq!(decoded(GgufType::Q6K)[128 + 96 + 20], scale * (f32::from(code) - 32.0));
    }

    #[test]
    fn parts_of_blocks_are_left_alone() {
        let mut out = vec![7.0; 255];
        GgufType::Q4K.decode(&[0; 144], &mut out);
        GgufType::Q4K.decode(&[0; 143], &mut out);
        assert!(out.iter().all(|weight| *weight == 7.0));
    }
}
