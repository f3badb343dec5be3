//! Quantized matrices of random codes, and a naive decoder.

use super::super::*;
use ptero_plan::prim::QuantMode::{Affine, Mxfp4, Mxfp8, Nvfp4};
use ptero_tensor::SplitMix64;

/// Scales or biases as they are stored.
pub(crate) enum Stored {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    Bytes(Vec<u8>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
}

pub(crate) struct Sample {
    pub(crate) format: QuantFormat,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    row_bytes: usize,
    codes: Vec<u8>,
    scales: Option<Stored>,
    biases: Option<Stored>,
}

/// Random bytes and floats.
pub(crate) struct Noise(SplitMix64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn byte(&mut self) -> u8 {
        (self.0.next_u64() >> 56) as u8
    }

    /// A float between -1 and 1.
    pub(crate) fn float(&mut self) -> f32 {
        f32::from(i16::from_le_bytes([self.byte(), self.byte()])) / 32768.0
    }
}

/// Bytes between rows, so that strides are tested.
const GAP: usize = 8;

impl Sample {
    pub(crate) fn new(format: QuantFormat, kind: Kind, [rows, columns]: [usize; 2]) -> Self {
        let mut noise = Noise::new((rows * 1000 + columns) as u64);
        let row_bytes = GAP
            + match format {
                QuantFormat::Words { bits, .. } => columns * usize::from(bits) / 8,
                QuantFormat::Gguf(kind) => columns / 256 * kind.block_bytes(),
            };
        let mut codes: Vec<u8> = (0..rows * row_bytes).map(|_| noise.byte()).collect();
        let mut floats = |count: usize, unit: f32| -> Stored {
            let floats = (0..count).map(|_| noise.float() * unit);
            match kind {
                Kind::F32 => Stored::F32(floats.collect()),
                Kind::F16 => Stored::F16(floats.map(f16::from_f32).collect()),
                Kind::Bf16 => Stored::Bf16(floats.map(bf16::from_f32).collect()),
            }
        };
        let (scales, biases) = match format {
            QuantFormat::Words { mode: Affine, group, .. } => {
                let groups = rows * columns / usize::from(group);
                (Some(floats(groups, 0.1)), Some(floats(groups, 1.0)))
            }
            QuantFormat::Words { mode, group, .. } => {
                let byte = |noise: &mut Noise| match mode {
                    Nvfp4 => noise.byte() & 0x7F,
                    Affine | Mxfp4 | Mxfp8 => 120 + noise.byte() % 10,
                };
                let bytes = (0..rows * columns / usize::from(group)).map(|_| byte(&mut noise).min(0x7E));
                (Some(Stored::Bytes(bytes.collect())), None)
            }
            QuantFormat::Gguf(kind) => {
                let scales_at: &[usize] = match kind {
                    GgufType::Q4K | GgufType::Q5K => &[0, 2],
                    GgufType::Q6K => &[208],
                };
                for row in codes.chunks_exact_mut(row_bytes) {
                    for block in row.chunks_exact_mut(kind.block_bytes()) {
                        for &at in scales_at {
                            block[at..at + 2].copy_from_slice(&f16::from_f32(noise.float() * 0.1).to_le_bytes());
                        }
                    }
                }
                (None, None)
            }
        };
        Self { format, rows, columns, row_bytes, codes, scales, biases }
    }

    /// The same rows, one right after the other.
    pub(crate) fn without_gaps(mut self) -> Self {
        self.codes =
            self.codes.chunks_exact(self.row_bytes).flat_map(|row| &row[..self.row_bytes - GAP]).copied().collect();
        self.row_bytes -= GAP;
        self
    }

    pub(crate) fn without_biases(mut self) -> Self {
        self.biases = None;
        self
    }

    fn groups(&self) -> usize {
        match self.format {
            QuantFormat::Words { group, .. } => self.columns / usize::from(group),
            QuantFormat::Gguf(_) => 0,
        }
    }

    fn view<'a>(&self, stored: &'a Stored) -> Scales<'a> {
        let stride = self.groups();
        match stored {
            Stored::F32(scales) => Scales::F32(QuantRows::new(scales, stride)),
            Stored::F16(scales) => Scales::F16(QuantRows::new(scales, stride)),
            Stored::Bf16(scales) => Scales::Bf16(QuantRows::new(scales, stride)),
            Stored::Bytes(scales) => match self.format {
                QuantFormat::Words { mode: Nvfp4, .. } => Scales::E4m3(QuantRows::new(scales, stride)),
                QuantFormat::Words { .. } | QuantFormat::Gguf(_) => Scales::E8m0(QuantRows::new(scales, stride)),
            },
        }
    }

    pub(crate) fn weights(&self) -> Weights<'_> {
        let view = |stored| self.view(stored);
        let (scales, biases) = (self.scales.as_ref().map(view), self.biases.as_ref().map(view));
        let codes = QuantRows::new(&self.codes, self.row_bytes);
        Weights::new(self.format, [self.rows, self.columns], codes, scales, biases).unwrap()
    }

    /// The scale or bias of a group, as a float.
    fn stored(&self, stored: &Option<Stored>, at: usize) -> f32 {
        match (stored, self.format) {
            (None, _) => 0.0,
            (Some(Stored::F32(scales)), _) => scales[at],
            (Some(Stored::F16(scales)), _) => scales[at].to_f32(),
            (Some(Stored::Bf16(scales)), _) => scales[at].to_f32(),
            (Some(Stored::Bytes(scales)), QuantFormat::Words { mode: Nvfp4, .. }) => e4m3(scales[at]),
            (Some(Stored::Bytes(scales)), _) => 2.0_f32.powi(i32::from(scales[at]) - 127),
        }
    }

    /// The weights of a row.
    pub(crate) fn row(&self, row: usize) -> Vec<f32> {
        let bytes = &self.codes[row * self.row_bytes..];
        match self.format {
            QuantFormat::Gguf(kind) => {
                let mut weights = vec![0.0; self.columns];
                kind.decode(&bytes[..self.columns / 256 * kind.block_bytes()], &mut weights);
                weights
            }
            QuantFormat::Words { mode, bits, group } => {
                let bit = |at: usize| bytes[at / 8] >> (at % 8) & 1;
                let code = |column: usize| {
                    (0..usize::from(bits)).map(|at| bit(column * usize::from(bits) + at) << at).sum::<u8>()
                };
                let weight = |column: usize| {
                    let at = row * self.groups() + column / usize::from(group);
                    let (scale, bias) = (self.stored(&self.scales, at), self.stored(&self.biases, at));
                    match mode {
                        Affine => scale * f32::from(code(column)) + bias,
                        Mxfp4 | Nvfp4 => scale * e2m1(code(column)),
                        Mxfp8 => scale * e4m3(code(column)),
                    }
                };
                (0..self.columns).map(weight).collect()
            }
        }
    }
}

fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    let magnitude = if exponent == 0 { mantissa / 64.0 } else { (1.0 + mantissa) * 2.0_f32.powi(exponent - 7) };
    if code & 127 == 127 { f32::NAN } else { magnitude * if code < 128 { 1.0 } else { -1.0 } }
}

fn e2m1(code: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code < 8 { magnitude } else { -magnitude }
}

/// All formats with a fast path, and some without.
pub(crate) fn formats() -> Vec<QuantFormat> {
    let words = |mode, bits, group| QuantFormat::Words { mode, bits, group };
    let mut formats: Vec<QuantFormat> = [1, 2, 3, 4, 5, 6, 7, 8]
        .into_iter()
        .flat_map(|bits| [32, 64, 128, 16, 48].map(|group| words(Affine, bits, group)))
        .collect();
    formats.extend([
        words(Mxfp4, 4, 32),
        words(Nvfp4, 4, 16),
        words(Mxfp8, 8, 32),
        words(Affine, 8, 4),
        words(Affine, 4, 20),
    ]);
    formats.extend([GgufType::Q4K, GgufType::Q5K, GgufType::Q6K].map(QuantFormat::Gguf));
    formats
}

/// Row lengths of whole groups, starting with a single group.
pub(crate) fn lengths(format: QuantFormat) -> [usize; 4] {
    let unit = match format {
        QuantFormat::Words { group, .. } => usize::from(group),
        QuantFormat::Gguf(_) => 256,
    };
    let least = |length: usize| length.next_multiple_of(unit);
    [unit, least(3 * unit), least(300), least(1100)]
}
