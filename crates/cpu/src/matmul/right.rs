//! Right matrices of products, plain and quantized, and stacks of them.

use super::matrix_of;
use crate::dense::Dense;
use crate::element::{Element, elements, size_of, with_float};
use crate::finish::Finish;
use crate::gemm::{Left, PackedColumns, Product, Right, Size};
use crate::memory::Sources;
use crate::pool::Workers;
use crate::quant::{QuantRows, Scales, Weights};
use crate::simd::Isa;
use crate::simd::numeric::element::Float;
use crate::window::Tensor;
use ptero_backend::Fault;
use ptero_plan::prim::{QuantFormat, QuantMode, Quantized};
use ptero_tensor::DType;
use std::borrow::Cow;

/// A stack of right matrices.
#[allow(clippy::large_enum_variant, reason = "a step has one; boxing it would allocate in every run")]
pub(crate) enum Stack<'a> {
    Dense(Tensor<'a>),
    /// With the flag set, rows of the weights are columns of the product.
    Quantized(QuantStack<'a>, bool),
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
            let outer = tensor.window.strides.len().saturating_sub(2);
            tensor.window.strides.iter().take(outer).all(|stride| *stride == 0)
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
            Stack::Quantized(stack, transpose) => RightMatrix::Quantized(stack.matrix(number)?, *transpose),
        })
    }
}

/// Stacks of codes, scales and biases.
pub(crate) struct QuantStack<'a> {
    format: QuantFormat,
    codes: Tensor<'a>,
    scales: Option<Tensor<'a>>,
    biases: Option<Tensor<'a>>,
}

impl<'a> QuantStack<'a> {
    pub(crate) fn new(sources: &Sources<'a>, w: &Quantized) -> Result<Self, Fault> {
        let (scales, biases) = (sources.optional(w.scales.as_ref())?, sources.optional(w.biases.as_ref())?);
        Ok(Self { format: w.format, codes: sources.tensor(&w.codes)?, scales, biases })
    }

    /// The matrix at an index.
    pub(super) fn matrix(&self, number: i64) -> Result<QuantMatrix<'a>, Fault> {
        let rows = |tensor: &Tensor<'a>| matrix_of(tensor, number).map(ContiguousRows::new);
        let optional = |tensor: &Option<Tensor<'a>>| tensor.as_ref().map(rows).transpose();
        let (scales, biases) = (optional(&self.scales)?, optional(&self.biases)?);
        Ok(QuantMatrix { format: self.format, codes: rows(&self.codes)?, scales, biases })
    }
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
            RightMatrix::Dense(right) => right.window.shape.as_slice() == [size.k, size.n],
            RightMatrix::Quantized(matrix, true) => matrix.weights()?.size() == [size.n, size.k],
            RightMatrix::Quantized(matrix, false) => matrix.weights()?.size() == [size.k, size.n],
        };
        fits.then_some(()).ok_or(Fault::Contract("rows and columns of a product are equally long"))
    }

    /// Computes a product with this matrix.
    pub(super) fn multiply<L: Left, T: Float, F: Finish>(
        &self,
        workers: &mut Workers<'_>,
        product: Product<'_, L, T, F>,
    ) -> Result<(), Fault> {
        match self {
            RightMatrix::Dense(right) => {
                let [row_stride, column_stride] = [0, 1].map(|axis| usize::try_from(right.window.stride(axis)));
                if let (Ok(row_stride), Ok(column_stride)) = (row_stride, column_stride) {
                    with_float!(right.dtype, E => {
                        let elements = elements::<E>(right.bytes).get(right.window.offset..).unwrap_or_default();
                        product.times_dense(workers, &Dense { elements, row_stride, column_stride });
                    }, else product.times(workers, right));
                } else {
                    product.times(workers, right);
                }
            }
            RightMatrix::Quantized(matrix, transpose) => {
                product.times_quantized(workers, &matrix.weights()?, *transpose);
            }
        }
        Ok(())
    }
}

/// A matrix of any element type and layout.
impl Right for Tensor<'_> {
    fn pack(&self, _: Isa, packed: &mut PackedColumns<'_>) {
        let window = &self.window;
        packed.by_columns(|k, column, to| {
            let step = k.start.cast_signed() * window.stride(0) + column.cast_signed() * window.stride(1);
            self.read(window.offset.wrapping_add_signed(step), window.stride(0), to);
        });
    }
}

/// One matrix of quantized weights.
pub(super) struct QuantMatrix<'a> {
    format: QuantFormat,
    codes: ContiguousRows<'a>,
    scales: Option<ContiguousRows<'a>>,
    biases: Option<ContiguousRows<'a>>,
}

impl QuantMatrix<'_> {
    pub(super) fn weights(&self) -> Result<Weights<'_>, Fault> {
        let columns = match self.format {
            QuantFormat::Words { group, .. } => {
                self.scales.as_ref().map_or(0, |scales| scales.columns) * usize::from(group)
            }
            QuantFormat::Gguf(kind) => self.codes.columns / kind.block_bytes() * kind.block_len(),
        };
        let [scales, biases] = [&self.scales, &self.biases].map(|rows| rows.as_ref()?.scales(self.format));
        let codes = QuantRows::new(&self.codes.bytes, self.codes.stride * size_of(self.codes.dtype));
        let weights = Weights::new(self.format, [self.codes.rows, columns], codes, scales, biases);
        weights.ok_or(Fault::Contract("quantized weights are as long as their format says"))
    }
}

/// A matrix whose rows are contiguous: in place, or copied if they are not.
struct ContiguousRows<'a> {
    dtype: DType,
    rows: usize,
    columns: usize,
    /// The distance between rows, in elements.
    stride: usize,
    bytes: Cow<'a, [u8]>,
}

impl<'a> ContiguousRows<'a> {
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

    fn elements<E: Element>(&self) -> QuantRows<'_, E> {
        QuantRows::new(elements(&self.bytes), self.stride)
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
