//! The older blocks of GGUF: 32 weights with one scale, and some with an offset. A row is a whole number of blocks.

use super::{Affine, float};

/// A kind of block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GgufLegacyType {
    /// Four bits around zero.
    Q4_0,
    /// Four bits and an offset.
    Q4_1,
    /// Five bits around zero.
    Q5_0,
    /// Five bits and an offset.
    Q5_1,
    /// Signed bytes.
    Q8_0,
}

/// Weights of a block.
const BLOCK: usize = 32;

impl GgufLegacyType {
    /// Every kind.
    pub const ALL: &[Self] = &[Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1, Self::Q8_0];

    /// Weights of a block.
    pub fn block_len(self) -> usize {
        BLOCK
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q8_0 => 2 + 32,
        }
    }

    /// Decodes whole blocks; what does not make a whole block on either side is left alone.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        for (block, weights) in bytes.chunks_exact(self.block_bytes()).zip(out.as_chunks_mut::<BLOCK>().0) {
            let Block { scale, origin, codes } = self.read(block);
            for (weight, code) in weights.iter_mut().zip(codes) {
                *weight = match origin {
                    Origin::Zero(zero) => scale * (f32::from(code) - zero),
                    Origin::Offset(offset) => scale * f32::from(code) + offset,
                };
            }
        }
    }

    /// The affine format whose groups are these blocks.
    pub fn affine(self) -> Affine {
        match self {
            Self::Q4_0 | Self::Q4_1 => Affine::BLOCKS_OF_4,
            Self::Q5_0 | Self::Q5_1 => Affine::BLOCKS_OF_5,
            Self::Q8_0 => Affine::BLOCKS_OF_8,
        }
    }

    /// Turns whole blocks into groups of `affine()` that decode to the same weights, without a loss; what does not make a
    /// whole block in any of the slices is left alone. Scales are numbers of type f16, and so are biases, unless a block
    /// around zero has a scale so large that they are infinite there.
    pub fn to_affine(self, bytes: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        let blocks = bytes.chunks_exact(self.block_bytes());
        let groups = codes.chunks_exact_mut(self.affine().code_bytes(BLOCK));
        for ((block, to), (to_scale, to_bias)) in blocks.zip(groups).zip(scales.iter_mut().zip(biases)) {
            let Block { scale, origin, codes } = self.read(block);
            *to_scale = scale;
            *to_bias = match origin {
                Origin::Zero(zero) => -zero * scale,
                Origin::Offset(offset) => offset,
            };
            self.affine().pack(&codes, to);
        }
    }

    fn read(self, block: &[u8]) -> Block {
        let (scale, rest) = block.split_at_checked(2).unwrap_or_default();
        let (offset, after_offset) = rest.split_at_checked(2).unwrap_or_default();
        let (origin, rest) = match self {
            Self::Q4_0 => (Origin::Zero(8.0), rest),
            Self::Q5_0 => (Origin::Zero(16.0), rest),
            Self::Q8_0 => (Origin::Zero(128.0), rest),
            Self::Q4_1 | Self::Q5_1 => (Origin::Offset(float(offset)), after_offset),
        };
        let codes = match self {
            Self::Q4_0 | Self::Q4_1 => codes(&[], rest),
            Self::Q5_0 | Self::Q5_1 => {
                let (fifth, low) = rest.split_at_checked(4).unwrap_or_default();
                codes(fifth, low)
            }
            // Signed bytes, counted from the lowest.
            Self::Q8_0 => rest.first_chunk::<BLOCK>().map_or([0; BLOCK], |bytes| bytes.map(|byte| byte ^ 0x80)),
        };
        Block { scale: float(scale), origin, codes }
    }
}

/// A block as it is stored.
struct Block {
    scale: f32,
    origin: Origin,
    codes: [u8; BLOCK],
}

/// Where a block's scale starts.
enum Origin {
    /// At this code, whose weight is zero.
    Zero(f32),
    /// At code zero, whose weight is this.
    Offset(f32),
}

/// The low nibbles of sixteen bytes are the first half of the codes, the high nibbles the second; the fifth bits, if any,
/// lie in the order of the weights.
fn codes(fifth: &[u8], low: &[u8]) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    let nibbles = low.iter().map(|byte| byte & 15).chain(low.iter().map(|byte| byte >> 4));
    for (at, (code, nibble)) in codes.iter_mut().zip(nibbles).enumerate() {
        let high = fifth.get(at / 8).map_or(0, |bits| bits >> (at % 8) & 1);
        *code = nibble | high << 4;
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    /// A block with scale 0.5 (and offset -3), with the rest from a simple rule.
    fn block(kind: GgufLegacyType) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..kind.block_bytes()).map(|at| u8::try_from(at * 37 % 251).unwrap()).collect();
        bytes.splice(0..2, f16::from_f32(0.5).to_le_bytes()).for_each(drop);
        if matches!(kind, GgufLegacyType::Q4_1 | GgufLegacyType::Q5_1) {
            bytes.splice(2..4, f16::from_f32(-3.0).to_le_bytes()).for_each(drop);
        }
        bytes
    }

    /// From `gguf.quants.dequantize` of the Python package on the same blocks.
    #[test]
    fn blocks_decode_as_the_package_gguf_decodes_them() {
        let goldens: [(GgufLegacyType, [f32; 32]); 5] = [
            (
                GgufLegacyType::Q4_0,
                [
                    1.0, 3.5, -2.0, 0.5, 3.0, 0.0, 2.5, -3.0, -0.5, 2.0, -3.5, -1.0, -4.0, -1.5, 1.0, 3.5, -2.0, -1.0,
                    0.5, 1.5, 2.5, -4.0, -3.0, -1.5, -0.5, 0.5, 2.0, 3.0, -3.5, -2.5, -1.5, -0.5,
                ],
            ),
            (
                GgufLegacyType::Q4_1,
                [
                    -1.0, 1.5, 4.0, 1.0, 3.5, -2.0, 0.5, 3.0, -2.5, 0.0, -3.0, -0.5, 2.0, 4.5, -1.0, 1.5, 1.5, 2.5,
                    3.5, -3.0, -2.0, -0.5, 0.5, 1.5, 3.0, 4.0, -2.5, -1.5, -0.5, 0.5, 2.0, 3.0,
                ],
            ),
            (
                GgufLegacyType::Q5_0,
                [
                    -1.0, 4.0, -1.5, 1.0, -4.5, -2.0, 0.5, -5.0, 0.0, 2.5, 5.0, 7.5, -6.0, 4.5, 7.0, -4.0, -1.5, -8.0,
                    1.0, -5.5, 3.5, -3.5, -2.0, 7.0, 0.5, -6.5, -5.5, 3.5, 5.0, 6.0, -1.0, 0.5,
                ],
            ),
            (
                GgufLegacyType::Q5_1,
                [
                    3.5, -2.0, 8.5, 3.0, 5.5, 0.0, -3.0, 7.5, 10.0, 4.5, -1.0, 9.5, 12.0, 9.0, 3.5, 6.0, -2.0, 7.5,
                    8.5, 9.5, 11.0, 4.0, 5.5, 6.5, -0.5, 0.5, 2.0, 11.0, 4.0, -2.5, -1.5, 0.0,
                ],
            ),
            (
                GgufLegacyType::Q8_0,
                [
                    37.0, 55.5, -54.0, -35.5, -17.0, 4.0, 22.5, 41.0, 59.5, -50.0, -31.5, -13.0, 8.0, 26.5, 45.0, 63.5,
                    -46.0, -27.5, -9.0, 12.0, 30.5, 49.0, -60.5, -42.0, -23.5, -5.0, 16.0, 34.5, 53.0, -56.5, -38.0,
                    -19.5,
                ],
            ),
        ];
        for (kind, wanted) in goldens {
            let mut out = [0.0; 32];
            kind.decode(&block(kind), &mut out);
            assert_eq!(out, wanted, "{kind:?}");
        }
    }

    #[test]
    fn parts_of_blocks_are_left_alone() {
        let mut out = vec![7.0; 31];
        GgufLegacyType::Q8_0.decode(&[0; 34], &mut out);
        GgufLegacyType::Q8_0.decode(&[0; 33], &mut out);
        assert!(out.iter().all(|weight| *weight == 7.0));
    }
}
