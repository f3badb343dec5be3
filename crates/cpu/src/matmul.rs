//! Products of stacks of matrices, plain and quantized, with optional indices that pair left and right matrices.
//!
//! Products that share the right matrix, such as those of all tokens routed to one expert, run as one product of all their rows:
//! the matrix is read once. Many small products run concurrently, each on one thread.

mod right;

use crate::element::{Element, with_float};
use crate::finish::{Fusion, Rounded};
use crate::gemm::{Left, PASS_ROWS, Product, Size};
use crate::lines::each_line;
use crate::map::Function;
use crate::memory::Sources;
use crate::pool::Workers;
use crate::run::Context;
use crate::simd::Isa;
use crate::simd::numeric::element::Float;
use crate::view::{Target, Tensor};
use ptero_backend::Fault;
use ptero_plan::prim::{Choice, Epilogue, Quantized, ViewId};
pub(crate) use right::{Stack, map_parts};
use right::{quantized_matrix, weights};
use std::ops::Range;

/// Up to `1 << PASS_BITS` products are grouped by their right matrix at once.
const PASS_BITS: u32 = 14;
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

/// Computes each matrix of the output as the product of its left matrix and its right one.
pub(crate) fn matmul(
    context: &mut Context<'_>,
    a: &ViewId,
    (lhs, rhs): (&Choice, &Choice),
    (epilogue, function): (&Epilogue, Option<&Function>),
    right: impl for<'s> Fn(&Sources<'s>) -> Result<Stack<'s>, Fault>,
) -> Result<(), Fault> {
    let mut staging = std::mem::take(&mut context.resources.staging);
    let (target, sources, mut workers) = context.open()?;
    let (a, right) = (sources.tensor(a)?, right(&sources)?);
    let (lefts, rights) = (sources.optional(lhs.as_ref())?, sources.optional(rhs.as_ref())?);
    let rank = target.view.shape.len();
    let [m, n] = [2, 1].map(|from_end| target.view.size(rank.wrapping_sub(from_end)));
    let k = a.view.size(a.view.shape.len().wrapping_sub(1));
    let fusion = Fusion::new(&sources, epilogue, function, n)?;
    let products = Products { size: Size { m, k, n }, a, lefts, right, rights, fusion };
    // An empty result has no products.
    let count = if target.view.count() == 0 { 0 } else { target.view.outer_count(2) };
    products.check(count)?;
    let mut output = Output { target, staging: &mut staging };
    for first in (0..count).step_by(1 << PASS_BITS) {
        products.pass(&mut workers, first..(first + (1 << PASS_BITS)).min(count), &mut output)?;
    }
    drop(products);
    context.resources.staging = staging;
    Ok(())
}

/// Where results go.
struct Output<'a> {
    target: Target<'a>,
    /// Memory for results that are not contiguous in the target.
    staging: &'a mut Vec<f32>,
}

/// Products of one size.
struct Products<'a> {
    size: Size,
    a: Tensor<'a>,
    /// Indices of left matrices; without them, a product uses the matrix of its own index.
    lefts: Option<Tensor<'a>>,
    right: Stack<'a>,
    /// Same as `lefts`, for right matrices.
    rights: Option<Tensor<'a>>,
    fusion: Option<Fusion<'a>>,
}

impl Products<'_> {
    /// Checks all indices and sizes before the first product is written.
    fn check(&self, count: usize) -> Result<(), Fault> {
        for number in 0..count {
            matrix_of(&self.a, chosen(&self.lefts, number))?;
            self.right.check(chosen(&self.rights, number))?;
        }
        if count == 0 {
            return Ok(());
        }
        let rows = self.a.view.size(self.a.view.shape.len().wrapping_sub(2));
        if rows != self.size.m {
            return Err(Fault::Contract("a product has as many rows as its left matrix"));
        }
        self.right.matrix(chosen(&self.rights, 0))?.check(self.size)
    }

    /// Computes at most `1 << PASS_BITS` products.
    fn pass(&self, workers: &mut Workers<'_>, numbers: Range<usize>, out: &mut Output<'_>) -> Result<(), Fault> {
        let is_one = self.right.is_one();
        if !is_one && self.rights.is_none() {
            return self.apart(workers, numbers, out);
        }
        workers.prepared(|shared, workers| {
            let [order] = shared.ints([numbers.len()]);
            for ((number, at), entry) in numbers.clone().zip(0..).zip(order.iter_mut()) {
                *entry = if is_one { at } else { chosen(&self.rights, number) << PASS_BITS | at };
            }
            order.sort_unstable();
            let is_same = |one: &i64, other: &i64| one >> PASS_BITS == other >> PASS_BITS;
            if !order.windows(2).any(|pair| matches!(pair, [one, other] if is_same(one, other))) {
                return self.apart(workers, numbers, out);
            }
            let rows_at_once = PASS_ROWS.checked_div(self.size.m).unwrap_or(1).max(1);
            for group in order.chunk_by_mut(is_same) {
                let first = numbers.start.cast_signed() as i64;
                group.iter_mut().for_each(|entry| *entry = first + (*entry & ((1 << PASS_BITS) - 1)));
                for part in group.chunks(rows_at_once) {
                    self.together(workers, part, out)?;
                }
            }
            Ok(())
        })
    }

    /// Computes products that all have different right matrices.
    fn apart(&self, workers: &mut Workers<'_>, numbers: Range<usize>, out: &mut Output<'_>) -> Result<(), Fault> {
        let (count, threads) = (numbers.len(), workers.pool.threads());
        let work = self.size.m * self.size.n * self.size.k;
        // One thread per product, unless products are large and threads would idle.
        let is_even = count >= 4 * threads || count.is_multiple_of(threads);
        if count > 1 && out.target.view.is_contiguous() && (work < SMALL || is_even) {
            with_float!(out.target.dtype, T => {
                self.concurrently::<T>(workers, numbers, &mut out.target);
                return Ok(());
            }, else {});
        }
        for number in numbers {
            self.together(workers, &[number.cast_signed() as i64], out)?;
        }
        Ok(())
    }

    /// Computes each product on one thread.
    fn concurrently<T: Element + Float>(&self, workers: &mut Workers<'_>, numbers: Range<usize>, out: &mut Target<'_>) {
        let Size { m, k, n } = self.size;
        let (pool, per_task) = (workers.pool, GRAIN.div_ceil((m * k * n).max(1)));
        let out = out.slice::<T>(numbers.start * m * n..numbers.end * m * n);
        workers.chunks(out, per_task * m * n, |task, out, scratch| {
            let first = numbers.start + task * per_task;
            for (number, out) in (first..).zip(out.chunks_exact_mut((m * n).max(1))) {
                // The pool is busy with this step, so the product stays on the thread of the task.
                let mut workers = Workers { pool, scratch };
                let start = self.left_start(number);
                // `check` has checked that the right matrix exists.
                let _ = self.product(&mut workers, &[number.cast_signed() as i64], &[start], out);
            }
        });
    }

    /// Computes products that share the right matrix, given by ascending numbers, as one product of all their rows.
    fn together(&self, workers: &mut Workers<'_>, numbers: &[i64], out: &mut Output<'_>) -> Result<(), Fault> {
        let (Some(first), Some(last)) = (numbers.first().map(number), numbers.last().map(number)) else {
            return Ok(());
        };
        let is_run = out.target.view.is_contiguous() && last - first + 1 == numbers.len();
        let share = self.size.m * self.size.n;
        workers.prepared(|shared, workers| {
            let [starts] = shared.ints([numbers.len()]);
            starts.iter_mut().zip(numbers).for_each(|(start, at)| *start = self.left_start(number(at)));
            if is_run {
                with_float!(out.target.dtype, T => {
                    let out = out.target.slice::<T>(first * share..(last + 1) * share);
                    return self.product(workers, numbers, starts, out);
                }, else {});
            }
            // Results that are not contiguous, or not floats, are copied.
            out.staging.resize(out.staging.len().max(numbers.len() * share), 0.0);
            let results = out.staging.split_at_mut(numbers.len() * share).0;
            self.product::<f32>(workers, numbers, starts, results)?;
            let n = self.size.n;
            for (at, results) in numbers.iter().zip(results.chunks_exact(share.max(1))) {
                let window = out.target.view.inner(2, number(at));
                each_line(workers, out.target.with(window), (1, n), |row, out: &mut [f32], _| {
                    out.copy_from_slice(results.get(row * n..(row + 1) * n).unwrap_or_default());
                });
            }
            Ok(())
        })
    }

    /// Multiplies the left matrices at these offsets with the right matrix that they share.
    fn product<T: Float>(
        &self,
        workers: &mut Workers<'_>,
        numbers: &[i64],
        starts: &[i64],
        out: &mut [T],
    ) -> Result<(), Fault> {
        let right = self.right.matrix(chosen(&self.rights, numbers.first().map_or(0, number)))?;
        let (isa, height) = (self.a.isa, self.size.m);
        let left = &Lefts { tensor: &self.a, starts, height: height.max(1) };
        let size = Size { m: starts.len() * height, ..self.size };
        match &self.fusion {
            None => Product { isa, size, left, out, finish: &Rounded }.times_matrix(workers, &right),
            Some(fusion) => {
                let finish = &fusion.of(numbers, height);
                Product { isa, size, left, out, finish }.times_matrix(workers, &right)
            }
        }
    }

    /// The offset of the left matrix of a product.
    fn left_start(&self, number: usize) -> i64 {
        matrix_of(&self.a, chosen(&self.lefts, number)).map_or(0, |matrix| matrix.view.offset.cast_signed() as i64)
    }
}

/// Converts a number that was stored in 64 bits.
fn number(kept: &i64) -> usize {
    usize::try_from(*kept).unwrap_or(usize::MAX)
}

/// Left matrices of equal size, one below the other.
struct Lefts<'a> {
    tensor: &'a Tensor<'a>,
    /// The offsets of their first elements.
    starts: &'a [i64],
    height: usize,
}

impl Left for Lefts<'_> {
    fn row(&self, _: Isa, m: usize, k: Range<usize>, to: &mut [f32]) {
        let (window, rank) = (&self.tensor.view, self.tensor.view.shape.len());
        let [row, column] = [2, 1].map(|from_end| window.stride(rank.wrapping_sub(from_end)));
        let start = self.starts.get(m / self.height).map_or(0, number);
        let step = (m % self.height).cast_signed() * row + k.start.cast_signed() * column;
        self.tensor.read(start.wrapping_add_signed(step), column, to);
    }

    fn is_single(&self) -> bool {
        self.tensor.is_single()
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
