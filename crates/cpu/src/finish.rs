//! How finished sums of a product are stored: rounded, or passed through an elementwise function first.

use crate::element::{self, Number};
use crate::map::{CHUNK, Chunk, Function, Register, Registers};
use crate::memory::Sources;
use crate::pool::Stripe;
use crate::simd::Isa;
use crate::simd::numeric::convert;
use crate::simd::numeric::element::Float;
use crate::view::Tensor;
use ptero_backend::Fault;
use ptero_plan::prim::Epilogue;
use ptero_tensor::DType;
use smallvec::SmallVec;
use std::ops::Range;

/// Stores the sums that a task has computed.
pub trait Finish: Sync {
    /// Prepares the registers of a task.
    fn begin(&self, isa: Isa, registers: &mut Registers);

    /// Stores the sums of a stripe.
    fn store<T: Float>(&self, isa: Isa, sums: Sums<'_>, stripe: &mut Stripe<'_, T>, registers: &mut Registers);
}

/// Sums of a stripe: rows start `stride` apart, and are as long as the stripe is wide.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'a> {
    /// The sums.
    pub floats: &'a [f32],
    /// The distance between rows.
    pub stride: usize,
    /// The row of the product that the first row is.
    pub first_row: usize,
}

impl<'a> Sums<'a> {
    fn row(&self, row: usize, width: usize) -> &'a [f32] {
        let start = row * self.stride;
        self.floats.get(start..start + width).unwrap_or_default()
    }
}

/// Rounds each sum once.
#[derive(Clone, Copy, Debug)]
pub struct Rounded;

impl Finish for Rounded {
    fn begin(&self, _: Isa, _: &mut Registers) {}

    fn store<T: Float>(&self, isa: Isa, sums: Sums<'_>, stripe: &mut Stripe<'_, T>, _: &mut Registers) {
        for row in 0..stripe.rows() {
            convert::narrow(isa, sums.row(row, stripe.width()), stripe.row(row));
        }
    }
}

/// Operands that an epilogue holds without allocating.
const OPERANDS: usize = 4;

/// An elementwise function of the product, rounded to its own type, and of other tensors.
pub(crate) struct Fusion<'a> {
    dtype: DType,
    /// Each with a flag: its elements are contiguous.
    operands: SmallVec<[(Tensor<'a>, bool); OPERANDS]>,
    function: &'a Function,
    values: &'a [i64],
    /// Columns of the product.
    columns: usize,
}

impl<'a> Fusion<'a> {
    /// The epilogue of a step, if it has one.
    pub(crate) fn new(
        sources: &Sources<'a>,
        epilogue: &Epilogue,
        function: Option<&'a Function>,
        columns: usize,
    ) -> Result<Option<Self>, Fault> {
        let (Some(fused), Some(function)) = (epilogue, function) else { return Ok(None) };
        let operand = |view| {
            let tensor = sources.tensor(view)?;
            let is_contiguous = tensor.view.is_contiguous();
            Ok::<_, Fault>((tensor, is_contiguous))
        };
        let operands = fused.ins.iter().map(operand).collect::<Result<_, _>>()?;
        Ok(Some(Self { dtype: fused.dtype, operands, function, values: &sources.bound.values, columns }))
    }

    /// The epilogue of some products of the result, each of `height` rows, one below the other.
    pub(crate) fn of<'s>(&'s self, products: &'s [i64], height: usize) -> FusedProducts<'s, 'a> {
        FusedProducts { fusion: self, products, height: height.max(1) }
    }
}

/// The epilogue of some products of a result.
pub(crate) struct FusedProducts<'s, 'a> {
    fusion: &'s Fusion<'a>,
    products: &'s [i64],
    height: usize,
}

impl FusedProducts<'_, '_> {
    /// Converts a row of these products to a row of the result.
    fn row(&self, row: usize) -> usize {
        let product = self.products.get(row / self.height).map_or(0, |product| usize::try_from(*product).unwrap_or(0));
        product * self.height + row % self.height
    }
}

impl Finish for FusedProducts<'_, '_> {
    fn begin(&self, isa: Isa, registers: &mut Registers) {
        self.fusion.function.start(isa, self.fusion.values, registers);
    }

    fn store<T: Float>(&self, isa: Isa, sums: Sums<'_>, stripe: &mut Stripe<'_, T>, registers: &mut Registers) {
        let (function, width, start) = (self.fusion.function, stripe.width(), stripe.start());
        // Narrow stripes take several rows at a time, so that a whole chunk shares the cost of interpreting.
        let at_once = (CHUNK / width.max(1)).max(1);
        for row in (0..stripe.rows()).step_by(at_once) {
            let rows = row..(row + at_once).min(stripe.rows());
            for column in (0..width).step_by(CHUNK) {
                let columns = column..(column + CHUNK).min(width);
                let length = rows.len() * columns.len();
                let chunk = EpilogueChunk { isa, of: self, start, sums, rows: rows.clone(), columns: columns.clone() };
                function.run(isa, self.fusion.values, length, &chunk, registers);
                // The pass that makes epilogues does not fuse integers.
                let Register::Float(register) = function.result else { continue };
                let results = registers.float(register, length).chunks_exact(columns.len());
                for (row, results) in rows.clone().zip(results) {
                    convert::narrow(isa, results, stripe.row(row).get_mut(columns.clone()).unwrap_or_default());
                }
            }
        }
    }
}

/// Some columns of some rows of a stripe.
struct EpilogueChunk<'s, 'a> {
    isa: Isa,
    of: &'s FusedProducts<'s, 'a>,
    /// The first column of the stripe.
    start: usize,
    sums: Sums<'s>,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Chunk for EpilogueChunk<'_, '_> {
    /// Input 0 is the product, rounded to its type; operands follow.
    fn load<N: Number>(&self, input: usize, to: &mut [N]) {
        let fusion = self.of.fusion;
        let Some(operand) = input.checked_sub(1) else {
            let bytes = bytemuck::cast_slice(self.sums.floats);
            for (row, to) in self.rows.clone().zip(to.chunks_exact_mut(self.columns.len())) {
                let start = row * self.sums.stride + self.columns.start;
                element::read(self.isa, DType::F32, bytes, start, 1, to);
            }
            return N::fit(self.isa, fusion.dtype, to);
        };
        let Some((tensor, is_contiguous)) = fusion.operands.get(operand) else { return };
        let window = &tensor.view;
        let stride = window.stride(window.shape.len().wrapping_sub(1));
        for (row, to) in self.rows.clone().zip(to.chunks_exact_mut(self.columns.len())) {
            let row = self.of.row(self.sums.first_row + row);
            let first = row * fusion.columns + self.start + self.columns.start;
            let offset = if *is_contiguous { window.offset + first } else { window.offset_of(first) };
            tensor.read(offset, stride, to);
        }
    }

    fn coordinates(&self, _: usize, _: &mut [i64]) {}
}
