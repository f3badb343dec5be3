//! Products of matrices, plain and quantized: stacks of them, with a choice of which meets which.

use crate::dense::{self, Dense};
use crate::element::{Element, elements, elements_mut, size_of};
use crate::gemm::{self, Left, Panels, Right, Size};
use crate::lines::each_line;
use crate::memory::Sources;
use crate::pool::Workers;
use crate::quant::{self, Rows, Scales, Weights};
use crate::run::Context;
use crate::simd::Isa;
use crate::simd::element::Element as Float;
use crate::window::{Target, Tensor, Window};
use ptero_backend::Fault;
use ptero_plan::prim::{Choice, QuantFormat, QuantMode, Quantized, View};
use ptero_tensor::DType;
use std::borrow::Cow;
use std::ops::Range;

pub(crate) fn matmul(
    context: &mut Context<'_>,
    out: &View,
    a: &View,
    b: &View,
    choices: (&Choice, &Choice),
) -> Result<(), Fault> {
    let isa = context.isa;
    products(context, out, a, choices, |sources, number| {
        let b = sources.tensor(b)?;
        let window = matrix_of(&b, number)?;
        Ok(Factor::Dense(Matrix { isa, tensor: Tensor { window, ..b } }))
    })
}

pub(crate) fn quant_matmul(
    context: &mut Context<'_>,
    out: &View,
    x: &View,
    w: &Quantized,
    transpose: bool,
    choices: (&Choice, &Choice),
) -> Result<(), Fault> {
    products(context, out, x, choices, |sources, number| {
        Ok(Factor::Quantized(Packed::new(sources, w, number)?, transpose))
    })
}

pub(crate) fn dequantize(context: &mut Context<'_>, out: &View, w: &Quantized) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, mut workers) = context.open(out)?;
    let axis = target.window.shape.len().saturating_sub(1);
    let size = [target.window.size(axis.wrapping_sub(1)), target.window.size(axis)];
    if target.window.count() == 0 {
        return Ok(());
    }
    for number in 0..target.window.outer_count(2) {
        if Packed::new(&sources, w, number.cast_signed() as i64)?.weights()?.size() != size {
            return Err(Fault::Contract("weights have the size of the result"));
        }
    }
    let [rows, columns] = size;
    each_line(&mut workers, isa, target, (axis, columns), |number, out: &mut [f32], _| {
        let packed = Packed::new(&sources, w, (number / rows).cast_signed() as i64);
        // All were seen to be there above.
        if let Ok(weights) = packed.as_ref().map_err(Fault::clone).and_then(Packed::weights) {
            weights.decode(isa, number % rows, 0, out);
        }
    });
    Ok(())
}

/// The right matrix of a product.
enum Factor<'a> {
    Dense(Matrix<'a>),
    /// Rows of the weights are columns of the product if the flag is set.
    Quantized(Packed<'a>, bool),
}

/// For each matrix of `out`, the product of its left matrix and its right one.
fn products(
    context: &mut Context<'_>,
    out: &View,
    a: &View,
    (lhs, rhs): (&Choice, &Choice),
    right: impl for<'s> Fn(&Sources<'s>, i64) -> Result<Factor<'s>, Fault>,
) -> Result<(), Fault> {
    let isa = context.isa;
    let mut staging = std::mem::take(context.staging);
    let (mut target, sources, mut workers) = context.open(out)?;
    let a = sources.tensor(a)?;
    let (lefts, rights) = (Chosen::new(&sources, lhs, isa)?, Chosen::new(&sources, rhs, isa)?);
    let rank = target.window.shape.len();
    let (m, n) = (target.window.size(rank.wrapping_sub(2)), target.window.size(rank.wrapping_sub(1)));
    if target.window.count() == 0 {
        *context.staging = staging;
        return Ok(());
    }
    // All choices exist before the first product is written.
    for number in 0..target.window.outer_count(2) {
        matrix_of(&a, lefts.get(number))?;
        right(&sources, rights.get(number))?;
    }
    for number in 0..target.window.outer_count(2) {
        let window = matrix_of(&a, lefts.get(number))?;
        let left = Matrix { isa, tensor: Tensor { window, ..a.clone() } };
        let right = right(&sources, rights.get(number))?;
        let window = target.window.inner(2, number);
        let range = window.offset..window.offset + m * n;
        let (dtype, is_direct) = (target.dtype, window.is_contiguous());
        match dtype {
            DType::F32 if is_direct => one::<f32>(&mut workers, isa, (m, n), &left, &right, slice(&mut target, range))?,
            DType::F16 if is_direct => {
                one::<half::f16>(&mut workers, isa, (m, n), &left, &right, slice(&mut target, range))?;
            }
            DType::Bf16 if is_direct => {
                one::<half::bf16>(&mut workers, isa, (m, n), &left, &right, slice(&mut target, range))?;
            }
            _ => {
                staging.resize(m * n, 0.0);
                one::<f32>(&mut workers, isa, (m, n), &left, &right, &mut staging)?;
                let part = Target { dtype, window, bytes: &mut *target.bytes };
                each_line(&mut workers, isa, part, (1, n), |row, out: &mut [f32], _| {
                    out.copy_from_slice(staging.get(row * n..(row + 1) * n).unwrap_or_default());
                });
            }
        }
    }
    *context.staging = staging;
    Ok(())
}

fn slice<'a, T: Element>(target: &'a mut Target<'_>, range: Range<usize>) -> &'a mut [T] {
    elements_mut::<T>(target.bytes).get_mut(range).unwrap_or_default()
}

/// One product.
fn one<T: Float>(
    workers: &mut Workers<'_>,
    isa: Isa,
    (m, n): (usize, usize),
    left: &Matrix<'_>,
    right: &Factor<'_>,
    out: &mut [T],
) -> Result<(), Fault> {
    let k = left.tensor.window.size(1);
    let size = Size { m, k, n };
    let columns_as_long_as_rows = Fault::Contract("rows and columns of a product are equally long");
    match right {
        Factor::Dense(right) => {
            if right.tensor.window.shape.as_slice() != [k, n] || left.tensor.window.size(0) != m {
                return Err(columns_as_long_as_rows);
            }
            match right.tensor.dtype {
                DType::F32 => right.times::<f32, T>(workers, size, left, out),
                DType::F16 => right.times::<half::f16, T>(workers, size, left, out),
                DType::Bf16 => right.times::<half::bf16, T>(workers, size, left, out),
                _ => gemm::product(workers, isa, size, left, right, out),
            }
        }
        Factor::Quantized(packed, transpose) => {
            let weights = packed.weights()?;
            let wanted = if *transpose { [n, k] } else { [k, n] };
            if weights.size() != wanted || left.tensor.window.size(0) != m {
                return Err(columns_as_long_as_rows);
            }
            quant::product(workers, isa, m, left, &weights, *transpose, out);
        }
    }
    Ok(())
}

/// The window of one matrix of a stack.
fn matrix_of(tensor: &Tensor<'_>, number: i64) -> Result<Window, Fault> {
    let stack = tensor.window.outer_count(2);
    let within = usize::try_from(number).ok().filter(|&number| number < stack);
    let number = within.ok_or(Fault::IndexOutside { index: number, size: stack })?;
    Ok(tensor.window.inner(2, number))
}

/// Which matrix of a stack each matrix of the product uses: its own, unless chosen.
struct Chosen<'a>(Option<Tensor<'a>>, Isa);

impl<'a> Chosen<'a> {
    fn new(sources: &Sources<'a>, choice: &Choice, isa: Isa) -> Result<Self, Fault> {
        Ok(Self(sources.optional(choice.as_ref())?, isa))
    }

    fn get(&self, number: usize) -> i64 {
        self.0.as_ref().map_or(number.cast_signed() as i64, |choice| choice.int(self.1, number))
    }
}

/// A matrix of any element type, anywhere.
struct Matrix<'a> {
    isa: Isa,
    tensor: Tensor<'a>,
}

impl Matrix<'_> {
    /// The left matrix times this one, read as it lies where that can be.
    fn times<E: Element + Float, T: Float>(
        &self,
        workers: &mut Workers<'_>,
        size: Size,
        left: &Matrix<'_>,
        out: &mut [T],
    ) {
        let window = &self.tensor.window;
        let strides = (usize::try_from(window.stride(0)), usize::try_from(window.stride(1)));
        let start = elements::<E>(self.tensor.bytes).get(window.offset..);
        match (strides, start) {
            ((Ok(row_stride), Ok(column_stride)), Some(elements)) => {
                dense::product(workers, self.isa, size, left, &Dense { elements, row_stride, column_stride }, out);
            }
            _ => gemm::product(workers, self.isa, size, left, self, out),
        }
    }

    fn line(&self, at: [usize; 2], axis: usize, to: &mut [f32]) {
        let window = &self.tensor.window;
        let step = at[0].cast_signed() * window.stride(0) + at[1].cast_signed() * window.stride(1);
        self.tensor.read(self.isa, window.offset.wrapping_add_signed(step), window.stride(axis), to);
    }
}

impl Left for Matrix<'_> {
    fn row(&self, _: Isa, m: usize, k: Range<usize>, to: &mut [f32]) {
        self.line([m, k.start], 1, to);
    }

    fn is_single(&self) -> bool {
        !matches!(self.tensor.dtype, DType::F16 | DType::Bf16)
    }
}

impl Right for Matrix<'_> {
    fn pack(&self, _: Isa, k: Range<usize>, n: Range<usize>, panels: &mut Panels<'_>, temporary: &mut [f32]) {
        let row = temporary.split_at_mut(n.len()).0;
        for (number, k) in k.enumerate() {
            self.line([k, n.start], 1, row);
            panels.row(number, row);
        }
    }
}

/// One matrix of quantized weights.
struct Packed<'a> {
    format: QuantFormat,
    codes: Part<'a>,
    scales: Option<Part<'a>>,
    biases: Option<Part<'a>>,
}

impl<'a> Packed<'a> {
    fn new(sources: &Sources<'a>, w: &Quantized, number: i64) -> Result<Self, Fault> {
        let part = |view: &View| {
            let tensor = sources.tensor(view)?;
            let window = matrix_of(&tensor, number)?;
            Ok(Part::new(Tensor { window, ..tensor }))
        };
        let optional = |view: Option<&View>| view.map(part).transpose();
        let (scales, biases) = (optional(w.scales.as_ref())?, optional(w.biases.as_ref())?);
        Ok(Self { format: w.format, codes: part(&w.codes)?, scales, biases })
    }

    fn weights(&self) -> Result<Weights<'_>, Fault> {
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
