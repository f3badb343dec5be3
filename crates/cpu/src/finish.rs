//! What becomes of a finished part of a row of a product: it is rounded, or goes through an elementwise function first.

use crate::element;
use crate::map::{CHUNK, Chunk, Function, Register, Registers};
use crate::memory::Sources;
use crate::pool::Stripe;
use crate::simd::Isa;
use crate::simd::numeric::convert;
use crate::simd::numeric::element::Float;
use crate::window::Tensor;
use ptero_backend::Fault;
use ptero_plan::prim::Epilogue;
use ptero_tensor::DType;
use smallvec::SmallVec;
use std::ops::Range;

/// What a task does with the sums that it has computed.
pub trait Finish: Sync {
    /// Readies the registers of a task.
    fn begin(&self, isa: Isa, registers: &mut Registers);

    /// Stores the sums of a stripe, whose first row is that row of the product.
    fn store<T: Float>(
        &self,
        isa: Isa,
        first_row: usize,
        sums: Sums<'_>,
        stripe: &mut Stripe<'_, T>,
        registers: &mut Registers,
    );
}

/// Sums of a stripe: rows start `stride` apart, and are as long as the stripe is wide.
#[derive(Clone, Copy, Debug)]
pub struct Sums<'a> {
    /// All of them.
    pub floats: &'a [f32],
    /// The distance between rows.
    pub stride: usize,
}

impl<'a> Sums<'a> {
    /// Some columns of a row.
    fn row(&self, row: usize, columns: Range<usize>) -> &'a [f32] {
        let start = row * self.stride;
        self.floats.get(start + columns.start..start + columns.end).unwrap_or_default()
    }
}

/// Sums are rounded once.
#[derive(Clone, Copy, Debug)]
pub struct Rounded;

impl Finish for Rounded {
    fn begin(&self, _: Isa, _: &mut Registers) {}

    fn store<T: Float>(&self, isa: Isa, _: usize, sums: Sums<'_>, stripe: &mut Stripe<'_, T>, _: &mut Registers) {
        for row in 0..stripe.rows() {
            convert::narrow(isa, sums.row(row, 0..stripe.width()), stripe.row(row));
        }
    }
}

/// Operands that an epilogue takes without allocating.
const OPERANDS: usize = 4;

/// An elementwise function of the product, rounded to its own type, and of other tensors.
pub(crate) struct Fusion<'a> {
    dtype: DType,
    /// Each with whether its elements follow each other.
    operands: SmallVec<[(Tensor<'a>, bool); OPERANDS]>,
    function: &'a Function,
    values: &'a [i64],
    /// Columns of the product.
    columns: usize,
}

impl<'a> Fusion<'a> {
    /// That of a step, if it has one.
    pub(crate) fn new(
        sources: &Sources<'a>,
        epilogue: &Epilogue,
        function: Option<&'a Function>,
        columns: usize,
    ) -> Result<Option<Self>, Fault> {
        let (Some(fused), Some(function)) = (epilogue, function) else { return Ok(None) };
        let operand = |view| {
            let tensor = sources.tensor(view)?;
            let is_contiguous = tensor.window.is_contiguous();
            Ok::<_, Fault>((tensor, is_contiguous))
        };
        let operands = fused.ins.iter().map(operand).collect::<Result<_, _>>()?;
        Ok(Some(Self { dtype: fused.dtype, operands, function, values: &sources.bound.values, columns }))
    }

    /// For these products of the result, each of `height` rows, one below the other.
    pub(crate) fn of<'s>(&'s self, products: &'s [i64], height: usize) -> FusionOf<'s, 'a> {
        FusionOf { fusion: self, products, height: height.max(1) }
    }
}

/// The epilogue of some products of a result.
pub(crate) struct FusionOf<'s, 'a> {
    fusion: &'s Fusion<'a>,
    products: &'s [i64],
    height: usize,
}

impl FusionOf<'_, '_> {
    /// The row of the result that a row of these products is.
    fn row(&self, row: usize) -> usize {
        let product = self.products.get(row / self.height).map_or(0, |product| usize::try_from(*product).unwrap_or(0));
        product * self.height + row % self.height
    }
}

impl Finish for FusionOf<'_, '_> {
    fn begin(&self, isa: Isa, registers: &mut Registers) {
        self.fusion.function.start(isa, self.fusion.values, registers);
    }

    fn store<T: Float>(
        &self,
        isa: Isa,
        first_row: usize,
        sums: Sums<'_>,
        stripe: &mut Stripe<'_, T>,
        registers: &mut Registers,
    ) {
        let (function, width, start) = (self.fusion.function, stripe.width(), stripe.start());
        // Narrow stripes take several rows at a time, so that the cost of interpreting is shared by a whole chunk.
        let at_once = (CHUNK / width.max(1)).max(1);
        for row in (0..stripe.rows()).step_by(at_once) {
            let rows = row..(row + at_once).min(stripe.rows());
            for column in (0..width).step_by(CHUNK) {
                let columns = column..(column + CHUNK).min(width);
                let part = Part { isa, of: self, first_row, start, sums, rows: rows.clone(), columns: columns.clone() };
                let length = rows.len() * columns.len();
                function.run(isa, self.fusion.values, length, &part, registers);
                // The pass that makes epilogues leaves integers alone.
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
struct Part<'s, 'a> {
    isa: Isa,
    of: &'s FusionOf<'s, 'a>,
    /// The stripe's first row, and its first column.
    first_row: usize,
    start: usize,
    sums: Sums<'s>,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Part<'_, '_> {
    fn load<N: element::Number>(&self, input: usize, to: &mut [N]) {
        let fusion = self.of.fusion;
        let Some((tensor, is_contiguous)) = input.checked_sub(1).and_then(|input| fusion.operands.get(input)) else {
            return;
        };
        let window = &tensor.window;
        let stride = window.stride(window.shape.len().wrapping_sub(1));
        for (row, to) in self.rows.clone().zip(to.chunks_exact_mut(self.columns.len())) {
            let first = self.of.row(self.first_row + row) * fusion.columns + self.start + self.columns.start;
            let offset = if *is_contiguous { window.offset + first } else { window.offset_of(first) };
            tensor.read(self.isa, offset, stride, to);
        }
    }
}

impl Chunk for Part<'_, '_> {
    fn load_floats(&self, input: usize, to: &mut [f32]) {
        if input > 0 {
            return self.load(input, to);
        }
        for (row, to) in self.rows.clone().zip(to.chunks_exact_mut(self.columns.len())) {
            to.copy_from_slice(self.sums.row(row, self.columns.clone()));
        }
        match self.of.fusion.dtype {
            DType::F16 => convert::round_f16(self.isa, to),
            DType::Bf16 => convert::round_bf16(self.isa, to),
            _ => {}
        }
    }

    fn load_ints(&self, input: usize, to: &mut [i64]) {
        self.load(input, to);
    }

    fn coordinates(&self, _: usize, _: &mut [i64]) {}
}
