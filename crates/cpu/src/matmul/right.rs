//! Right matrices of products, plain and quantized, and stacks of them.

use super::matrix_of;
use crate::dense::{self, Dense};
use crate::element::{Element, elements, size_of};
use crate::finish::Finish;
use crate::gemm::{self, Left, PackedColumns, Right, Size};
use crate::memory::Sources;
use crate::pool::Workers;
use crate::quant::{self, Rows, Scales, Weights};
use crate::simd::Isa;
use crate::simd::numeric::element::Float;
use crate::window::Tensor;
use ptero_backend::Fault;
use ptero_plan::prim::{QuantFormat, QuantMode, Quantized, ViewId};
use ptero_tensor::DType;
use std::borrow::Cow;
use std::ops::Range;

/// A stack of right matrices.
#[allow(clippy::large_enum_variant, reason = "a step has one; a box would be memory taken in every run")]
pub(super) enum Stack<'a> {
    Dense(Tensor<'a>),
    /// Rows of the weights are columns of the product if the flag is set.
    Quantized(Codes<'a>, bool),
}

impl<'a> Stack<'a> {
    /// Whether all matrices are the same one, seen many times.
    pub(super) fn is_one(&self) -> bool {
        let is_one = |tensor: &Tensor<'_>| {
            let outer = tensor.window.strides.len().saturating_sub(2);
            tensor.window.strides.iter().take(outer).all(|stride| *stride == 0)
        };
        match self {
            Stack::Dense(tensor) => is_one(tensor),
            Stack::Quantized(codes, _) => codes.tensors().all(is_one),
        }
    }

    /// Fails if there is no matrix of that number.
    pub(super) fn check(&self, number: i64) -> Result<(), Fault> {
        match self {
            Stack::Dense(tensor) => matrix_of(tensor, number).map(drop),
            Stack::Quantized(codes, _) => codes.tensors().try_for_each(|tensor| matrix_of(tensor, number).map(drop)),
        }
    }

    /// The matrix of that number.
    pub(super) fn matrix(&self, isa: Isa, number: i64) -> Result<Factor<'a>, Fault> {
        Ok(match self {
            Stack::Dense(tensor) => {
                Factor::Dense(Matrix { isa, tensor: Tensor { window: matrix_of(tensor, number)?, ..tensor.clone() } })
            }
            Stack::Quantized(codes, transpose) => Factor::Quantized(codes.matrix(number)?, *transpose),
        })
    }
}

/// Stacks of codes, and of what belongs to them.
pub(super) struct Codes<'a> {
    format: QuantFormat,
    codes: Tensor<'a>,
    scales: Option<Tensor<'a>>,
    biases: Option<Tensor<'a>>,
}

impl<'a> Codes<'a> {
    pub(super) fn new(sources: &Sources<'a>, w: &Quantized) -> Result<Self, Fault> {
        let optional = |view: Option<&ViewId>| sources.optional(view);
        let (scales, biases) = (optional(w.scales.as_ref())?, optional(w.biases.as_ref())?);
        Ok(Self { format: w.format, codes: sources.tensor(&w.codes)?, scales, biases })
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor<'a>> {
        self.scales.iter().chain(&self.biases).chain([&self.codes])
    }

    /// The matrix of that number.
    pub(super) fn matrix(&self, number: i64) -> Result<Packed<'a>, Fault> {
        let part = |tensor: &Tensor<'a>| -> Result<Part<'a>, Fault> {
            Ok(Part::new(Tensor { window: matrix_of(tensor, number)?, ..tensor.clone() }))
        };
        let optional = |tensor: &Option<Tensor<'a>>| tensor.as_ref().map(part).transpose();
        let (scales, biases) = (optional(&self.scales)?, optional(&self.biases)?);
        Ok(Packed { format: self.format, codes: part(&self.codes)?, scales, biases })
    }
}

/// The right matrix of a product.
pub(super) enum Factor<'a> {
    Dense(Matrix<'a>),
    /// Rows of the weights are columns of the product if the flag is set.
    Quantized(Packed<'a>, bool),
}

impl Factor<'_> {
    /// Fails unless it is as large as a product of that size wants.
    pub(super) fn check(&self, size: Size) -> Result<(), Fault> {
        let fits = match self {
            Factor::Dense(right) => right.tensor.window.shape.as_slice() == [size.k, size.n],
            Factor::Quantized(packed, true) => packed.weights()?.size() == [size.n, size.k],
            Factor::Quantized(packed, false) => packed.weights()?.size() == [size.k, size.n],
        };
        fits.then_some(()).ok_or(Fault::Contract("rows and columns of a product are equally long"))
    }

    /// Writes the product of the left matrix and this one, rounded once, in row-major order.
    pub(super) fn product<T: Float>(
        &self,
        workers: &mut Workers<'_>,
        isa: Isa,
        size: Size,
        left: &impl Left,
        out: &mut [T],
        finish: &impl Finish,
    ) -> Result<(), Fault> {
        match self {
            Factor::Dense(right) => match right.tensor.dtype {
                DType::F32 => right.times::<f32, T>(workers, size, left, out, finish),
                DType::F16 => right.times::<half::f16, T>(workers, size, left, out, finish),
                DType::Bf16 => right.times::<half::bf16, T>(workers, size, left, out, finish),
                _ => gemm::product(workers, isa, size, left, right, out, finish),
            },
            Factor::Quantized(packed, transpose) => {
                quant::product(workers, isa, size.m, left, (&packed.weights()?, *transpose), out, finish);
            }
        }
        Ok(())
    }
}

/// A matrix of any element type, anywhere.
pub(super) struct Matrix<'a> {
    isa: Isa,
    tensor: Tensor<'a>,
}

impl Matrix<'_> {
    /// The left matrix times this one, read as it lies where that can be.
    fn times<E: Element + Float, T: Float>(
        &self,
        workers: &mut Workers<'_>,
        size: Size,
        left: &impl Left,
        out: &mut [T],
        finish: &impl Finish,
    ) {
        let window = &self.tensor.window;
        let strides = (usize::try_from(window.stride(0)), usize::try_from(window.stride(1)));
        let start = elements::<E>(self.tensor.bytes).get(window.offset..);
        match (strides, start) {
            ((Ok(row_stride), Ok(column_stride)), Some(elements)) => {
                let right = Dense { elements, row_stride, column_stride };
                dense::product(workers, self.isa, size, left, &right, out, finish);
            }
            _ => gemm::product(workers, self.isa, size, left, self, out, finish),
        }
    }

    fn line(&self, at: [usize; 2], axis: usize, to: &mut [f32]) {
        let window = &self.tensor.window;
        let step = at[0].cast_signed() * window.stride(0) + at[1].cast_signed() * window.stride(1);
        self.tensor.read(self.isa, window.offset.wrapping_add_signed(step), window.stride(axis), to);
    }
}

impl Right for Matrix<'_> {
    fn pack(&self, _: Isa, k: Range<usize>, n: Range<usize>, packed: &mut PackedColumns<'_>, temporary: &mut [f32]) {
        let column = temporary.split_at_mut(k.len()).0;
        for n_at in n.clone() {
            self.line([k.start, n_at], 0, column);
            packed.columns(n_at - n.start, column);
        }
    }
}

/// One matrix of quantized weights.
pub(super) struct Packed<'a> {
    format: QuantFormat,
    codes: Part<'a>,
    scales: Option<Part<'a>>,
    biases: Option<Part<'a>>,
}

impl Packed<'_> {
    pub(super) fn weights(&self) -> Result<Weights<'_>, Fault> {
        let columns = match self.format {
            QuantFormat::Words { group, .. } => {
                self.scales.as_ref().map_or(0, |scales| scales.columns) * usize::from(group)
            }
            QuantFormat::Gguf(kind) => self.codes.columns / kind.block_bytes() * kind.block_len(),
        };
        let format = self.format;
        let [scales, biases] = [&self.scales, &self.biases].map(|part| part.as_ref()?.scales(format));
        let codes = Rows::new(&self.codes.bytes, self.codes.stride * size_of(self.codes.dtype));
        let size = [self.codes.rows, columns];
        let weights = Weights::new(self.format, size, codes, scales, biases);
        weights.ok_or(Fault::Contract("quantized weights are as long as their format says"))
    }
}

/// A matrix whose rows are contiguous: where it lies, or, if its rows are not, copied.
struct Part<'a> {
    dtype: DType,
    rows: usize,
    columns: usize,
    /// Between rows, in elements.
    stride: usize,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Part<'a> {
    fn new(tensor: Tensor<'a>) -> Self {
        let (window, dtype, size) = (&tensor.window, tensor.dtype, size_of(tensor.dtype));
        let [rows, columns] = [window.size(0), window.size(1)];
        let is_contiguous = columns <= 1 || window.stride(1) == 1;
        match usize::try_from(window.stride(0)) {
            Ok(stride) if is_contiguous => {
                let bytes = tensor.bytes.get(window.offset * size..).unwrap_or_default();
                Self { dtype, rows, columns, stride, bytes: Cow::Borrowed(bytes) }
            }
            _ => {
                let mut bytes = Vec::new();
                tensor.append_to(&mut bytes);
                Self { dtype, rows, columns, stride: columns, bytes: Cow::Owned(bytes) }
            }
        }
    }

    fn elements<E: Element>(&self) -> Rows<'_, E> {
        Rows::new(elements(&self.bytes), self.stride)
    }

    fn scales(&self, format: QuantFormat) -> Option<Scales<'_>> {
        match (self.dtype, format) {
            (DType::F32, _) => Some(Scales::F32(self.elements())),
            (DType::F16, _) => Some(Scales::F16(self.elements())),
            (DType::Bf16, _) => Some(Scales::Bf16(self.elements())),
            (DType::U8, QuantFormat::Words { mode: QuantMode::Nvfp4, .. }) => Some(Scales::E4m3(self.elements())),
            (DType::U8, _) => Some(Scales::E8m0(self.elements())),
            _ => None,
        }
    }
}
