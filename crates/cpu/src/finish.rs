//! How finished sums of a product are stored: rounded, or passed through an elementwise function first.
#![allow(clippy::indexing_slicing, reason = "sums cover their stripe, and stripes lie inside the rows of the products")]

use crate::element::{self, Number};
use crate::map::{CHUNK, Chunk, Function, Register, Registers};
use crate::memory::Sources;
use crate::pool::{Stripe, number};
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
        &self.floats[start..start + width]
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
#[derive(Debug)]
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
}

/// The epilogue of some products of a result, one below the other.
pub(crate) struct FusedProducts<'s, 'a> {
    /// By lane.
    fusions: &'s [Fusion<'a>],
    products: &'s [i64],
    /// Products of a lane.
    count: usize,
    /// Rows of a product.
    height: usize,
}

impl<'s, 'a> FusedProducts<'s, 'a> {
    /// Products given by their numbers, `count` in each lane, of `height` rows each. There is at least one lane.
    pub(crate) fn new(fusions: &'s [Fusion<'a>], products: &'s [i64], [count, height]: [usize; 2]) -> Self {
        Self { fusions, products, count: count.max(1), height: height.max(1) }
    }

    /// The lane of a row of these products, and the row of its result.
    fn row(&self, row: usize) -> (usize, usize) {
        let product = number(&self.products[row / self.height]);
        (product / self.count, product % self.count * self.height + row % self.height)
    }

    /// The number of rows from `row` on, at most `most`, that are of one lane, and that lane.
    fn rows_of_lane(&self, row: usize, most: usize) -> (usize, usize) {
        let lane = self.row(row).0;
        if self.fusions.len() == 1 {
            return (most, lane);
        }
        ((row..row + most).take_while(|row| self.row(*row).0 == lane).count(), lane)
    }
}

impl Finish for FusedProducts<'_, '_> {
    fn begin(&self, isa: Isa, registers: &mut Registers) {
        if let [fusion, ..] = self.fusions {
            fusion.function.start(isa, fusion.values, registers);
        }
    }

    fn store<T: Float>(&self, isa: Isa, sums: Sums<'_>, stripe: &mut Stripe<'_, T>, registers: &mut Registers) {
        let (width, start) = (stripe.width(), stripe.start());
        // Narrow stripes take several rows at a time, so that a whole chunk shares the cost of interpreting.
        let at_once = (CHUNK / width.max(1)).max(1);
        let mut row = 0;
        while row < stripe.rows() {
            let (count, lane) = self.rows_of_lane(sums.first_row + row, at_once.min(stripe.rows() - row));
            let rows = row..row + count;
            row = rows.end;
            let fusion = &self.fusions[lane];
            if self.fusions.len() > 1 {
                // Integers of the host differ from lane to lane.
                fusion.function.start(isa, fusion.values, registers);
            }
            for column in (0..width).step_by(CHUNK) {
                let columns = column..(column + CHUNK).min(width);
                let length = rows.len() * columns.len();
                let (rows, columns) = (rows.clone(), columns.clone());
                let chunk = EpilogueChunk { isa, of: self, fusion, start, sums, rows, columns };
                fusion.function.run(isa, fusion.values, length, &chunk, registers);
                // The pass that makes epilogues does not fuse integers.
                let Register::Float(register) = fusion.function.result else { continue };
                let results = registers.float(register, length).chunks_exact(chunk.columns.len());
                for (row, results) in chunk.rows.clone().zip(results) {
                    convert::narrow(isa, results, &mut stripe.row(row)[chunk.columns.clone()]);
                }
            }
        }
    }
}

/// Some columns of some rows of a stripe.
struct EpilogueChunk<'s, 'a> {
    isa: Isa,
    of: &'s FusedProducts<'s, 'a>,
    fusion: &'s Fusion<'a>,
    /// The first column of the stripe.
    start: usize,
    sums: Sums<'s>,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Chunk for EpilogueChunk<'_, '_> {
    /// Input 0 is the product, rounded to its type; operands follow.
    fn load<N: Number>(&self, input: usize, to: &mut [N]) {
        let fusion = self.fusion;
        let Some(operand) = input.checked_sub(1) else {
            let bytes = bytemuck::cast_slice(self.sums.floats);
            for (row, to) in self.rows.clone().zip(to.chunks_exact_mut(self.columns.len())) {
                let start = row * self.sums.stride + self.columns.start;
                element::read(self.isa, DType::F32, bytes, start, 1, to);
            }
            return N::fit(self.isa, fusion.dtype, to);
        };
        // `check_graph` checks loads.
        let (tensor, is_contiguous) = &fusion.operands[operand];
        let view = &tensor.view;
        let stride = view.stride(view.shape.len().wrapping_sub(1));
        for (row, to) in self.rows.clone().zip(to.chunks_exact_mut(self.columns.len())) {
            let (_, row) = self.of.row(self.sums.first_row + row);
            let first = row * fusion.columns + self.start + self.columns.start;
            let offset = if *is_contiguous { view.offset + first } else { view.offset_of(first) };
            tensor.read(offset, stride, to);
        }
    }

    fn coordinates(&self, _: usize, _: &mut [i64]) {}
}
