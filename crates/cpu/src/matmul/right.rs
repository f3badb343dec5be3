//! Right matrices of products, plain and quantized, and stacks of them.
#![allow(clippy::indexing_slicing, reason = "the first element of a matrix lies inside the bytes of its stack")]

use super::matrix_of;
use crate::dense::Dense;
use crate::element::{Element, elements, with_float};
use crate::finish::Finish;
use crate::gemm::{Left, PackedColumns, Product, Right, Size};
use crate::pool::Workers;
use crate::quant::{QuantRows, Scales, Weights};
use crate::simd::Isa;
use crate::simd::numeric::element::Float;
use crate::view::Tensor;
use ptero_backend::Fault;
use ptero_plan::prim::{QuantFormat, QuantMode, Quantized};
use ptero_tensor::DType;
use std::borrow::Cow;

/// A stack of right matrices.
#[allow(clippy::large_enum_variant, reason = "a step has one; boxing it would allocate in every run")]
pub(crate) enum Stack<'a> {
    Dense(Tensor<'a>),
    /// With the flag set, rows of the weights are columns of the product.
    Quantized(Quantized<Tensor<'a>>, bool),
}

impl<'a> Stack<'a> {
    fn tensors(&self) -> impl Iterator<Item = &Tensor<'a>> {
        let tensors = match self {
            Stack::Dense(tensor) => [Some(tensor), None, None],
            Stack::Quantized(stack, _) => [stack.scales.as_ref(), stack.biases.as_ref(), Some(&stack.codes)],
        };
        tensors.into_iter().flatten()
    }

    /// Returns `true` if all matrices are the same one, broadcast.
    pub(super) fn is_one(&self) -> bool {
        self.tensors().all(|tensor| {
            let outer = tensor.view.strides.len().saturating_sub(2);
            tensor.view.strides.iter().take(outer).all(|stride| *stride == 0)
        })
    }

    /// Fails if the index of a matrix is out of range.
    pub(super) fn check(&self, number: i64) -> Result<(), Fault> {
        self.tensors().try_for_each(|tensor| matrix_of(tensor, number).map(drop))
    }

    /// The matrix at an index.
    pub(super) fn matrix(&self, number: i64) -> Result<RightMatrix<'a>, Fault> {
        Ok(match self {
            Stack::Dense(tensor) => RightMatrix::Dense(matrix_of(tensor, number)?),
            Stack::Quantized(stack, transpose) => RightMatrix::Quantized(quantized_matrix(stack, number)?, *transpose),
        })
    }
}

/// Applies `each` to codes, scales and biases.
pub(crate) fn map_parts<T, U>(w: &Quantized<T>, each: impl Fn(&T) -> Result<U, Fault>) -> Result<Quantized<U>, Fault> {
    let optional = |part: &Option<T>| part.as_ref().map(&each).transpose();
    let (scales, biases) = (optional(&w.scales)?, optional(&w.biases)?);
    Ok(Quantized { codes: each(&w.codes)?, scales, biases, format: w.format })
}

/// A matrix of quantized weights.
type QuantMatrix<'a> = Quantized<ContiguousRows<'a>>;

/// The matrix at an index of a stack of quantized weights.
pub(super) fn quantized_matrix<'a>(stack: &Quantized<Tensor<'a>>, number: i64) -> Result<QuantMatrix<'a>, Fault> {
    map_parts(stack, |tensor| matrix_of(tensor, number).map(ContiguousRows::new))
}

/// The right matrix of a product.
pub(super) enum RightMatrix<'a> {
    Dense(Tensor<'a>),
    /// With the flag set, rows of the weights are columns of the product.
    Quantized(QuantMatrix<'a>, bool),
}

impl RightMatrix<'_> {
    /// Fails unless it has the size that the product needs.
    pub(super) fn check(&self, size: Size) -> Result<(), Fault> {
        let fits = match self {
            RightMatrix::Dense(right) => right.view.shape.as_slice() == [size.k, size.n],
            RightMatrix::Quantized(matrix, true) => weights(matrix)?.size() == [size.n, size.k],
            RightMatrix::Quantized(matrix, false) => weights(matrix)?.size() == [size.k, size.n],
        };
        fits.then_some(()).ok_or(Fault::Contract("rows and columns of a product are equally long"))
    }
}

impl<L: Left, T: Float, F: Finish> Product<'_, L, T, F> {
    /// Computes the product with a matrix of any kind.
    pub(super) fn times_matrix(self, workers: &mut Workers<'_>, right: &RightMatrix<'_>) -> Result<(), Fault> {
        match right {
            RightMatrix::Dense(right) => match [0, 1].map(|axis| usize::try_from(right.view.stride(axis))) {
                [Ok(row_stride), Ok(column_stride)] => with_float!(right.dtype, E => {
                    let elements = &elements::<E>(right.bytes)[right.view.offset..];
                    self.times_dense(workers, &Dense { elements, row_stride, column_stride });
                }, else self.times(workers, right)),
                _ => self.times(workers, right),
            },
            RightMatrix::Quantized(matrix, transpose) => self.times_quantized(workers, &weights(matrix)?, *transpose),
        }
        Ok(())
    }
}

/// A matrix of any element type and layout.
impl Right for Tensor<'_> {
    fn pack(&self, _: Isa, packed: &mut PackedColumns<'_>) {
        let view = &self.view;
        packed.by_columns(|k, column, to| {
            let step = k.start.cast_signed() * view.stride(0) + column.cast_signed() * view.stride(1);
            self.read(view.offset.wrapping_add_signed(step), view.stride(0), to);
        });
    }
}

/// A matrix of quantized weights, checked.
pub(super) fn weights<'a>(matrix: &'a QuantMatrix<'_>) -> Result<Weights<'a>, Fault> {
    const FIT: Fault = Fault::Contract("quantized weights are as long as their format says");
    let Quantized { codes, scales, biases, format } = matrix;
    let columns = match format {
        QuantFormat::Words { group, .. } => scales.as_ref().ok_or(FIT)?.columns * usize::from(*group),
        QuantFormat::Gguf(kind) => codes.columns / kind.block_bytes() * kind.block_len(),
    };
    let [scales, biases] = [scales, biases].map(|rows| rows.as_ref()?.scales(*format));
    let code_rows = QuantRows::new(&codes.bytes, codes.stride * codes.dtype.size());
    let weights = Weights::new(*format, [codes.rows, columns], code_rows, scales, biases);
    weights.ok_or(FIT)
}

/// A matrix whose rows are contiguous: in place, or copied if they are not.
pub(super) struct ContiguousRows<'a> {
    dtype: DType,
    rows: usize,
    columns: usize,
    /// The distance between rows, in elements.
    stride: usize,
    bytes: Cow<'a, [u8]>,
}

impl<'a> ContiguousRows<'a> {
    fn new(tensor: Tensor<'a>) -> Self {
        let (view, dtype, size) = (&tensor.view, tensor.dtype, tensor.dtype.size());
        let [rows, columns] = [view.size(0), view.size(1)];
        let is_contiguous = columns <= 1 || view.stride(1) == 1;
        match usize::try_from(view.stride(0)) {
            Ok(stride) if is_contiguous => {
                let bytes = &tensor.bytes[view.offset * size..];
                Self { dtype, rows, columns, stride, bytes: Cow::Borrowed(bytes) }
            }
            _ => {
                let mut bytes = Vec::new();
                tensor.append_to(&mut bytes);
                Self { dtype, rows, columns, stride: columns, bytes: Cow::Owned(bytes) }
            }
        }
    }

    /// `None` if its memory is not aligned for them, as copied bytes may be.
    fn elements<E: Element>(&self) -> Option<QuantRows<'_, E>> {
        Some(QuantRows::new(bytemuck::try_cast_slice(&self.bytes).ok()?, self.stride))
    }

    fn scales(&self, format: QuantFormat) -> Option<Scales<'_>> {
        match (self.dtype, format) {
            (DType::F32, _) => self.elements().map(Scales::F32),
            (DType::F16, _) => self.elements().map(Scales::F16),
            (DType::Bf16, _) => self.elements().map(Scales::Bf16),
            (DType::U8, QuantFormat::Words { mode: QuantMode::Nvfp4, .. }) => self.elements().map(Scales::E4m3),
            (DType::U8, _) => self.elements().map(Scales::E8m0),
            _ => None,
        }
    }
}
