//! Products of stacks of matrices, plain and quantized, with optional indices that pair left and right matrices.
//!
//! Products that share the right matrix, such as those of all lanes of a run, or of all tokens routed to one expert, run as one
//! product of all their rows: the matrix is read once. Many small products run concurrently, each on one thread.
#![allow(
    clippy::indexing_slicing,
    reason = "products are counted by lane, groups are ranges of those that were ordered"
)]

mod right;

use crate::element::with_float;
use crate::finish::{FusedProducts, Fusion, Rounded};
use crate::gemm::{Left, Product, Size};
use crate::lines::each_line;
use crate::map::Function;
use crate::memory::Sources;
use crate::pool::{MOST, Matrices, OutRows, SliceMemory, Workers, number};
use crate::run::{Context, OpenStep};
use crate::simd::Isa;
use crate::simd::numeric::element::Float;
use crate::view::{Target, Tensor};
use ptero_backend::{Fault, emptied};
use ptero_plan::prim::{Choice, Epilogue, Quantized, ViewId};
pub(crate) use right::{Stack, map_parts};
use right::{quantized_matrix, weights};
use std::ops::Range;

/// Bits of the place of a product among those that are grouped by their right matrix at once.
const MOST_BITS: u32 = MOST.ilog2();
/// A product of fewer multiplications runs on one thread.
const SMALL: usize = 1 << 18;
/// A task has about this many multiplications.
const GRAIN: usize = 1 << 16;

pub(crate) fn dequantize(context: &mut Context<'_>, w: &Quantized) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, mut workers) = context.open()?;
    let axis = target.view.shape.len().saturating_sub(1);
    let [rows, columns] = [target.view.size(axis.wrapping_sub(1)), target.view.size(axis)];
    let stack = map_parts(w, |view| sources.tensor(view))?;
    if target.view.count() == 0 {
        return Ok(());
    }
    for number in 0..target.view.outer_count(2) {
        if weights(&quantized_matrix(&stack, number.cast_signed() as i64)?)?.size() != [rows, columns] {
            return Err(Fault::Contract("weights have the size of the result"));
        }
    }
    each_line(&mut workers, target, (axis, columns), |number, out: &mut [f32], _| {
        // The loop above has checked that all matrices exist.
        if let Ok(matrix) = quantized_matrix(&stack, (number / rows).cast_signed() as i64)
            && let Ok(weights) = weights(&matrix)
        {
            weights.decode(isa, number % rows, 0, out);
        }
    });
    Ok(())
}

/// The memory of the lists of lanes, which stays between steps.
#[derive(Debug, Default)]
pub(crate) struct LaneLists {
    operands: Vec<LaneOperands<'static>>,
    fusions: Vec<Fusion<'static>>,
    targets: Vec<Target<'static>>,
    slices: SliceMemory,
}

/// Computes each matrix of the output as the product of its left matrix and its right one, for some lanes that share the right
/// matrices. With more than one lane, operands of all have the same sizes, and outputs are contiguous and of floats.
pub(crate) fn matmul<'a>(
    contexts: impl Iterator<Item = Context<'a>>,
    lists: &mut LaneLists,
    a: &ViewId,
    (lhs, rhs): (&Choice, &Choice),
    (epilogue, function): (&Epilogue, Option<&'a Function>),
    right: impl Fn(&Sources<'a>) -> Result<Stack<'a>, Fault>,
) -> Result<(), Fault> {
    let mut memory = std::mem::take(lists);
    let mut operands: Vec<LaneOperands<'a>> = emptied(memory.operands);
    let (mut fusions, mut targets) = (emptied(memory.fusions), emptied(memory.targets));
    let mut first = None;
    for context in contexts {
        let OpenStep { target, sources, pool, scratch, staging } = context.into_open()?;
        let (a, lefts, rights) = (sources.tensor(a)?, sources.optional(lhs.as_ref())?, sources.optional(rhs.as_ref())?);
        let columns = target.view.size(target.view.shape.len().wrapping_sub(1));
        fusions.extend(Fusion::new(&sources, epilogue, function, columns)?);
        operands.push(LaneOperands { a, lefts, rights });
        targets.push(target);
        if first.is_none() {
            first = Some((right(&sources)?, Workers { pool, scratch }, staging));
        }
    }
    let (Some((right, mut workers, staging)), Some(target), Some(operand)) = (first, targets.first(), operands.first())
    else {
        return Ok(());
    };
    let rank = target.view.shape.len();
    let [m, n] = [2, 1].map(|from_end| target.view.size(rank.wrapping_sub(from_end)));
    let k = operand.a.view.size(operand.a.view.shape.len().wrapping_sub(1));
    // An empty result has no products.
    let count = if target.view.count() == 0 { 0 } else { target.view.outer_count(2) };
    let products = Products { size: Size { m, k, n }, count, lanes: operands, right, fusions };
    products.check()?;
    products.write(&mut workers, &mut targets, &mut memory.slices, staging)?;
    let Products { lanes, fusions, .. } = products;
    let (operands, fusions, targets) = (emptied(lanes), emptied(fusions), emptied(targets));
    *lists = LaneLists { operands, fusions, targets, slices: memory.slices };
    Ok(())
}

/// The operands of one lane.
#[derive(Debug)]
struct LaneOperands<'a> {
    a: Tensor<'a>,
    /// Indices of left matrices; without them, a product uses the matrix of its own index.
    lefts: Option<Tensor<'a>>,
    /// Same as `lefts`, for right matrices.
    rights: Option<Tensor<'a>>,
}

/// Products of one size. Those of the first lane have the numbers from 0 on, then come those of the second, and so on.
struct Products<'a> {
    size: Size,
    /// The number of products of a lane.
    count: usize,
    lanes: Vec<LaneOperands<'a>>,
    right: Stack<'a>,
    /// By lane, if there is an epilogue.
    fusions: Vec<Fusion<'a>>,
}

impl<'a> Products<'a> {
    /// Checks all indices and sizes before the first product is written.
    fn check(&self) -> Result<(), Fault> {
        if self.count == 0 {
            return Ok(());
        }
        for lane in &self.lanes {
            for number in 0..self.count {
                matrix_of(&lane.a, chosen(&lane.lefts, number))?;
                self.right.check(chosen(&lane.rights, number))?;
            }
            if lane.a.view.size(lane.a.view.shape.len().wrapping_sub(2)) != self.size.m {
                return Err(Fault::Contract("a product has as many rows as its left matrix"));
            }
        }
        let first = self.lanes.first().map_or(0, |lane| chosen(&lane.rights, 0));
        self.right.matrix(first)?.check(self.size)
    }

    /// Computes all products and stores them.
    fn write(
        &self,
        workers: &mut Workers<'_>,
        targets: &mut [Target<'_>],
        memory: &mut SliceMemory,
        staging: &mut Vec<f32>,
    ) -> Result<(), Fault> {
        let (share, columns) = (self.size.m * self.size.n, self.size.n);
        let Some(dtype) = targets.first().map(|target| target.dtype) else { return Ok(()) };
        if targets.iter().all(|target| target.view.is_contiguous()) {
            with_float!(dtype, T => {
                let slices = targets.iter_mut().map(|target| target.slice::<T>(0..self.count * share));
                let mut out = Matrices::within(memory, slices, [self.size.m, columns]);
                let done = self.passes(workers, &mut out);
                out.leave(memory);
                return done;
            }, else {});
        }
        // Results that are not contiguous, or not floats, are copied.
        let [target] = targets else { return Err(Fault::Contract("several lanes write contiguous floats")) };
        staging.resize(staging.len().max(self.count * share), 0.0);
        let results = staging.split_at_mut(self.count * share).0;
        self.passes(workers, &mut Matrices::new([&mut *results].into_iter(), [self.size.m, columns]))?;
        let (view, axis) = (target.view.clone(), target.view.shape.len().saturating_sub(1));
        each_line(workers, target.with(view), (axis, columns), |row, out: &mut [f32], _| {
            out.copy_from_slice(&results[row * columns..(row + 1) * columns]);
        });
        Ok(())
    }

    /// Computes all products, at most `MOST` at once.
    fn passes<T: Float>(&self, workers: &mut Workers<'_>, out: &mut Matrices<'_, T>) -> Result<(), Fault> {
        let count = self.count * self.lanes.len();
        for first in (0..count).step_by(MOST) {
            self.pass(workers, first..count.min(first + MOST), out)?;
        }
        Ok(())
    }

    /// Computes some products: those that share the right matrix form a group, which is one product of all their rows.
    fn pass<T: Float>(
        &self,
        workers: &mut Workers<'_>,
        numbers: Range<usize>,
        out: &mut Matrices<'_, T>,
    ) -> Result<(), Fault> {
        workers.prepared(|shared, workers| {
            let [order, starts, ends] = shared.ints([numbers.len(), numbers.len(), numbers.len()]);
            let (groups, largest) = self.group(numbers, order, ends);
            let (order, ends) = (&*order, ends.split_at(groups).0);
            starts.iter_mut().zip(order).for_each(|(start, product)| *start = self.left_start(number(product)));
            let (starts, threads) = (&*starts, workers.pool.threads());
            let work = (self.size.m * self.size.n * self.size.k).max(1);
            // One thread per group, unless groups are large and threads would idle.
            let is_even =
                (groups >= 4 * threads || groups.is_multiple_of(threads)) && largest * threads <= 2 * order.len();
            if groups > 1 && (work < SMALL || is_even) {
                out.groups(workers, (order, ends), GRAIN.div_ceil(work), |workers, range, out| {
                    // `check` has checked that the right matrix exists.
                    let _ = self.product(workers, &order[range.clone()], &starts[range], out);
                });
                return Ok(());
            }
            let mut start = 0;
            for end in ends.iter().map(number) {
                let numbers = &order[start..end];
                self.product(workers, numbers, &starts[start..end], out.some(numbers))?;
                start = end;
            }
            Ok(())
        })
    }

    /// Orders products by their right matrix, and writes where the groups end that share one; returns the number of groups and the
    /// size of the largest.
    fn group(&self, numbers: Range<usize>, order: &mut [i64], ends: &mut [i64]) -> (usize, usize) {
        let (first, is_one) = (numbers.start, self.right.is_one());
        for (at, entry) in order.iter_mut().enumerate() {
            *entry = if is_one { 0 } else { self.right_of(first + at) << MOST_BITS } | at.cast_signed() as i64;
        }
        order.sort_unstable();
        let (mut end, mut groups, mut largest) = (0, 0, 0);
        for (group, slot) in order.chunk_by_mut(|one, other| one >> MOST_BITS == other >> MOST_BITS).zip(ends) {
            end += group.len();
            largest = largest.max(group.len());
            *slot = end.cast_signed() as i64;
            groups += 1;
            for entry in group {
                *entry = first.cast_signed() as i64 + (*entry & (MOST.cast_signed() as i64 - 1));
            }
        }
        (groups, largest)
    }

    /// Multiplies the left matrices at these offsets with the right matrix that they share.
    fn product<T: Float>(
        &self,
        workers: &mut Workers<'_>,
        numbers: &[i64],
        starts: &[i64],
        out: OutRows<'_, T>,
    ) -> Result<(), Fault> {
        let right = self.right.matrix(self.right_of(number(&numbers[0])))?;
        let (isa, height) = (self.lanes[0].a.isa, self.size.m);
        let left = &Lefts { products: self, numbers, starts, height: height.max(1) };
        let size = Size { m: starts.len() * height, ..self.size };
        if self.fusions.is_empty() {
            return Product { isa, size, left, out, finish: &Rounded }.times_matrix(workers, &right);
        }
        let finish = &FusedProducts::new(&self.fusions, numbers, [self.count, height]);
        Product { isa, size, left, out, finish }.times_matrix(workers, &right)
    }

    /// The lane of a product, and its number there.
    fn lane(&self, number: usize) -> (&LaneOperands<'a>, usize) {
        (&self.lanes[number / self.count], number % self.count)
    }

    /// The index of the right matrix of a product.
    fn right_of(&self, number: usize) -> i64 {
        let (lane, number) = self.lane(number);
        chosen(&lane.rights, number)
    }

    /// The offset of the left matrix of a product.
    fn left_start(&self, number: usize) -> i64 {
        let (lane, number) = self.lane(number);
        // `check` has checked that the matrix exists.
        matrix_of(&lane.a, chosen(&lane.lefts, number)).map_or(0, |matrix| matrix.view.offset.cast_signed() as i64)
    }
}

/// Left matrices of equal size, one below the other.
struct Lefts<'s, 'a> {
    products: &'s Products<'a>,
    numbers: &'s [i64],
    /// The offsets of their first elements.
    starts: &'s [i64],
    height: usize,
}

impl Left for Lefts<'_, '_> {
    fn row(&self, _: Isa, m: usize, k: Range<usize>, to: &mut [f32]) {
        let index = m / self.height;
        let (lane, _) = self.products.lane(number(&self.numbers[index]));
        let (view, rank) = (&lane.a.view, lane.a.view.shape.len());
        let [row, column] = [2, 1].map(|from_end| view.stride(rank.wrapping_sub(from_end)));
        let step = (m % self.height).cast_signed() * row + k.start.cast_signed() * column;
        lane.a.read(number(&self.starts[index]).wrapping_add_signed(step), column, to);
    }

    fn is_single(&self) -> bool {
        self.products.lanes.iter().any(|lane| lane.a.is_single())
    }
}

/// One matrix of a stack.
fn matrix_of<'a>(stack: &Tensor<'a>, number: i64) -> Result<Tensor<'a>, Fault> {
    let count = stack.view.outer_count(2);
    let within = usize::try_from(number).ok().filter(|&number| number < count);
    let number = within.ok_or(Fault::IndexOutside { index: number, size: count })?;
    Ok(Tensor { view: stack.view.inner(2, number), ..*stack })
}

/// The index of the matrix that a product uses: its own number, unless there are indices.
fn chosen(indices: &Option<Tensor<'_>>, number: usize) -> i64 {
    indices.as_ref().map_or(number.cast_signed() as i64, |indices| indices.number(number))
}
