//! Measures products of matrices: few rows against the bandwidth of memory, many against the peak of the arithmetic.
//!
//! Calls rotate through copies of the weights that together are larger than the caches, so that they are read from memory.

mod harness;

use harness::{Figure, Machine, Options, measure};
use ptero_cpu::dense::Dense;
use ptero_cpu::finish::Rounded;
use ptero_cpu::gemm::{Product, Size};
use ptero_cpu::pool::{Matrices, Pool, Scratch, Workers};
use ptero_cpu::quant::{QuantRows, Scales, Weights};

use half::bf16;
use ptero_plan::prim::{QuantFormat, QuantMode};
use ptero_tensor::{GgufType, SplitMix64};
use std::hint::black_box;

/// Bytes of the copies of a matrix: several times the last-level cache.
const ROTATED: usize = 192 << 20;

const fn affine(bits: u8, group: u16) -> QuantFormat {
    QuantFormat::Words { mode: QuantMode::Affine, bits, group }
}

const MXFP4: QuantFormat = QuantFormat::Words { mode: QuantMode::Mxfp4, bits: 4, group: 32 };
const NVFP4: QuantFormat = QuantFormat::Words { mode: QuantMode::Nvfp4, bits: 4, group: 16 };
const MXFP8: QuantFormat = QuantFormat::Words { mode: QuantMode::Mxfp8, bits: 8, group: 32 };

/// Quantized cases, with bfloats on the left unless the name contains `f32`: name, format, and `[m, n, k]`.
const QUANTIZED: &[(&str, QuantFormat, [usize; 3])] = &[
    ("int4 g32", affine(4, 32), [1, 49152, 576]),
    ("int4 g32", affine(4, 32), [1, 3072, 576]),
    ("int4 g32", affine(4, 32), [1, 576, 1536]),
    ("int4 g32", affine(4, 32), [1, 8192, 2048]),
    ("f32, int4 g32", affine(4, 32), [1, 49152, 576]),
    ("f32, int4 g32", affine(4, 32), [1, 8192, 2048]),
    ("int4 g64", affine(4, 64), [1, 8192, 2048]),
    ("int4 g128", affine(4, 128), [1, 8192, 2048]),
    ("int2 g32", affine(2, 32), [1, 8192, 2048]),
    ("int3 g32", affine(3, 32), [1, 8192, 2048]),
    ("int5 g32", affine(5, 32), [1, 8192, 2048]),
    ("int6 g32", affine(6, 32), [1, 8192, 2048]),
    ("int8 g32", affine(8, 32), [1, 8192, 2048]),
    ("mxfp4", MXFP4, [1, 8192, 2048]),
    ("nvfp4", NVFP4, [1, 8192, 2048]),
    ("mxfp8", MXFP8, [1, 8192, 2048]),
    ("q4k", QuantFormat::Gguf(GgufType::Q4K), [1, 8192, 2048]),
    ("q5k", QuantFormat::Gguf(GgufType::Q5K), [1, 8192, 2048]),
    ("q6k", QuantFormat::Gguf(GgufType::Q6K), [1, 8192, 2048]),
    ("f32, q4k", QuantFormat::Gguf(GgufType::Q4K), [1, 8192, 2048]),
    ("f32, q5k", QuantFormat::Gguf(GgufType::Q5K), [1, 8192, 2048]),
    ("f32, q6k", QuantFormat::Gguf(GgufType::Q6K), [1, 8192, 2048]),
    ("cached int4 g32", affine(4, 32), [1, 8, 2048]),
    ("cached int2 g32", affine(2, 32), [1, 8, 2048]),
    ("cached int8 g32", affine(8, 32), [1, 8, 2048]),
    ("cached int4 g32", affine(4, 32), [1, 1536, 576]),
    ("cached int4 g32", affine(4, 32), [1, 128, 2048]),
    ("cached int4 g64", affine(4, 64), [1, 128, 2048]),
    ("cached int4 g32", affine(4, 32), [4, 128, 2048]),
    ("cached int4 g32", affine(4, 32), [8, 128, 2048]),
    ("cached int4 g32", affine(4, 32), [16, 128, 2048]),
    ("cached int4 g32", affine(4, 32), [2, 960, 576]),
    ("cached int4 g32", affine(4, 32), [4, 960, 576]),
    ("cached int4 g32", affine(4, 32), [8, 960, 576]),
    ("cached int4 g32", affine(4, 32), [16, 960, 576]),
    ("cached int8 g32", affine(8, 32), [8, 960, 576]),
    ("cached int4 g32", affine(4, 32), [1, 512, 2048]),
    ("cached int3 g32", affine(3, 32), [1, 512, 2048]),
    ("cached int8 g32", affine(8, 32), [1, 512, 2048]),
    ("cached nvfp4", NVFP4, [1, 512, 2048]),
    ("cached q4k", QuantFormat::Gguf(GgufType::Q4K), [1, 512, 2048]),
    ("cached q5k", QuantFormat::Gguf(GgufType::Q5K), [1, 512, 2048]),
    ("cached q6k", QuantFormat::Gguf(GgufType::Q6K), [1, 512, 2048]),
    ("int4 g32", affine(4, 32), [2, 8192, 2048]),
    ("int4 g32", affine(4, 32), [3, 8192, 2048]),
    ("int4 g32", affine(4, 32), [4, 8192, 2048]),
    ("int4 g32", affine(4, 32), [6, 8192, 2048]),
    ("int4 g32", affine(4, 32), [8, 8192, 2048]),
    ("int4 g32", affine(4, 32), [12, 8192, 2048]),
    ("int4 g32", affine(4, 32), [16, 8192, 2048]),
    ("int4 g32", affine(4, 32), [24, 8192, 2048]),
    ("int4 g32", affine(4, 32), [32, 8192, 2048]),
    ("int4 g32", affine(4, 32), [48, 8192, 2048]),
    ("int4 g32", affine(4, 32), [64, 8192, 2048]),
    ("int8 g32", affine(8, 32), [24, 8192, 2048]),
    ("int8 g32", affine(8, 32), [32, 8192, 2048]),
    ("int8 g32", affine(8, 32), [64, 8192, 2048]),
    ("q4k", QuantFormat::Gguf(GgufType::Q4K), [24, 8192, 2048]),
    ("q4k", QuantFormat::Gguf(GgufType::Q4K), [32, 8192, 2048]),
    ("q4k", QuantFormat::Gguf(GgufType::Q4K), [64, 8192, 2048]),
    ("int4 g32", affine(4, 32), [128, 2048, 2048]),
    ("int4 g32", affine(4, 32), [512, 2048, 2048]),
    ("int4 g32", affine(4, 32), [512, 576, 1536]),
    ("int4 g64", affine(4, 64), [512, 2048, 2048]),
    ("int8 g32", affine(8, 32), [512, 2048, 2048]),
    ("q4k", QuantFormat::Gguf(GgufType::Q4K), [512, 2048, 2048]),
    ("q5k", QuantFormat::Gguf(GgufType::Q5K), [512, 2048, 2048]),
    ("q6k", QuantFormat::Gguf(GgufType::Q6K), [512, 2048, 2048]),
];

/// Cases of bfloats, with the right matrix transposed: `[m, n, k]`.
const BF16: &[[usize; 3]] = &[[1, 8192, 2048], [4, 8192, 2048], [8, 8192, 2048], [512, 2048, 2048]];

/// A random matrix.
struct Matrix {
    codes: Vec<u8>,
    scales: Vec<bf16>,
    bytes: Vec<u8>,
}

impl Matrix {
    #[allow(clippy::indexing_slicing, reason = "blocks are longer than four bytes")]
    fn new(format: QuantFormat, [n, k]: [usize; 2], seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let (row_bytes, groups) = match format {
            QuantFormat::Words { bits, group, .. } => (k * usize::from(bits) / 8, k / usize::from(group)),
            QuantFormat::Gguf(kind) => (k / 256 * kind.block_bytes(), 0),
        };
        let mut codes: Vec<u8> = (0..n * row_bytes / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        if let QuantFormat::Gguf(kind) = format {
            // The high bytes of all half-precision factors of any kind: they become small.
            for block in codes.chunks_exact_mut(kind.block_bytes()) {
                for at in [1, 3, kind.block_bytes() - 1] {
                    block[at] = 0x20;
                }
            }
        }
        let scales = (0..2 * n * groups).map(|at| bf16::from_f32(0.01 + (at % 7) as f32 / 1000.0)).collect();
        Self { codes, scales, bytes: [60, 61, 62, 63, 64].into_iter().cycle().take(n * groups).collect() }
    }

    fn weights(&self, format: QuantFormat, [n, k]: [usize; 2]) -> Option<Weights<'_>> {
        let (scales, biases) = self.scales.split_at(self.scales.len() / 2);
        let stride = scales.len() / n;
        let (scales, biases) = match format {
            QuantFormat::Gguf(_) => (None, None),
            QuantFormat::Words { mode: QuantMode::Affine, .. } => {
                (Some(Scales::Bf16(QuantRows::new(scales, stride))), Some(Scales::Bf16(QuantRows::new(biases, stride))))
            }
            QuantFormat::Words { mode: QuantMode::Nvfp4, .. } => {
                (Some(Scales::E4m3(QuantRows::new(&self.bytes, stride))), None)
            }
            QuantFormat::Words { .. } => (Some(Scales::E8m0(QuantRows::new(&self.bytes, stride))), None),
        };
        Weights::new(format, [n, k], QuantRows::new(&self.codes, self.codes.len() / n), scales, biases)
    }

    fn len(&self, format: QuantFormat) -> usize {
        match format {
            QuantFormat::Words { mode: QuantMode::Affine, .. } => self.codes.len() + 2 * self.scales.len(),
            QuantFormat::Words { .. } => self.codes.len() + self.bytes.len(),
            QuantFormat::Gguf(_) => self.codes.len(),
        }
    }
}

fn activations(count: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919) % 1000) as f32 / 500.0 - 1.0).collect()
}

struct Bench<'a> {
    machine: Machine,
    workers: Workers<'a>,
    options: Options,
}

impl Bench<'_> {
    fn quantized(&mut self, name: &str, format: QuantFormat, [m, n, k]: [usize; 3]) {
        let name = format!("{name} [{m}, {k}] x [{k}, {n}]");
        if !self.options.wants(&name) {
            return;
        }
        let first = Matrix::new(format, [n, k], 1);
        let bytes = first.len(format);
        let is_cached = m > 16 || name.starts_with("cached");
        let count = if is_cached { 1 } else { ROTATED.div_ceil(bytes) };
        let matrices: Vec<Matrix> =
            std::iter::once(first).chain((2..).take(count - 1).map(|seed| Matrix::new(format, [n, k], seed))).collect();
        let mut turns = matrices.iter().filter_map(|matrix| matrix.weights(format, [n, k])).cycle();
        let (single, short) =
            (activations(m * k), activations(m * k).into_iter().map(bf16::from_f32).collect::<Vec<_>>());
        let single = Dense { elements: &single, row_stride: k, column_stride: 1 };
        let short = Dense { elements: &short, row_stride: k, column_stride: 1 };
        let mut out = vec![bf16::ZERO; m * n];
        let limits = self.machine.limits(&mut self.workers);
        let (isa, workers) = (self.machine.isa, &mut self.workers);
        let size = Size { m, k, n };
        let spread = measure(|| {
            let (mut out, finish) = (Matrices::one(black_box(&mut out[..]), n), &Rounded);
            let out = out.all();
            match turns.next() {
                Some(weights) if name.starts_with("f32") => {
                    Product { isa, size, left: &single, out, finish }.times_quantized(workers, &weights, true);
                }
                Some(weights) => {
                    Product { isa, size, left: &short, out, finish }.times_quantized(workers, &weights, true);
                }
                None => {}
            }
        });
        let figure =
            Figure { bench: "matmul", name: &name, spread, bytes: bytes as f64, operations: (2 * m * n * k) as f64 };
        figure.print(&self.machine, &limits, self.options.is_json);
    }

    fn bf16(&mut self, [m, n, k]: [usize; 3]) {
        let name = format!("bf16 [{m}, {k}] x [{k}, {n}]");
        if !self.options.wants(&name) {
            return;
        }
        let count = ROTATED.div_ceil(2 * n * k);
        let weights = vec![bf16::from_f32(0.01); count * n * k];
        let mut turns = weights.chunks_exact(n * k).cycle();
        let x = activations(m * k);
        let left = Dense { elements: &x, row_stride: k, column_stride: 1 };
        let mut out = vec![0.0_f32; m * n];
        let limits = self.machine.limits(&mut self.workers);
        let (isa, workers) = (self.machine.isa, &mut self.workers);
        let spread = measure(|| {
            let right = Dense { elements: turns.next().unwrap_or_default(), row_stride: 1, column_stride: k };
            let mut out = Matrices::one(black_box(&mut out[..]), n);
            Product { isa, size: Size { m, k, n }, left: &left, out: out.all(), finish: &Rounded }
                .times_dense(workers, &right);
        });
        let figure = Figure {
            bench: "matmul",
            name: &name,
            spread,
            bytes: (2 * n * k) as f64,
            operations: (2 * m * n * k) as f64,
        };
        figure.print(&self.machine, &limits, self.options.is_json);
    }
}

fn main() {
    let options = Options::read();
    let (pool, mut scratch) = (Pool::new(options.threads), Scratch::default());
    let machine = Machine::new(options.isa, options.threads);
    machine.print(&options);
    let mut bench = Bench { machine, workers: Workers { pool: &pool, scratch: &mut scratch }, options };
    for (name, format, sizes) in QUANTIZED {
        bench.quantized(name, *format, *sizes);
    }
    BF16.iter().for_each(|sizes| bench.bf16(*sizes));
}
