//! Products of matrices, plain and quantized: stacks of them, with a choice of which meets which.
//!
//! Products that have the right matrix in common, as those of the tokens that meet one expert, run as one product of all their
//! rows: the matrix is read once. Many small products run side by side, each on one thread.

mod right;

use crate::element::{Element, elements_mut};
use crate::finish::{Fusion, Rounded};
use crate::gemm::{Left, PASS_ROWS, Size};
use crate::lines::each_line;
use crate::map::Function;
use crate::memory::Sources;
use crate::pool::Workers;
use crate::run::Context;
use crate::simd::Isa;
use crate::simd::numeric::element::Float;
use crate::window::{Target, Tensor, Window};
use ptero_backend::Fault;
use ptero_plan::prim::{Choice, Epilogue, Quantized, ViewId};
use ptero_tensor::DType;
use right::{Codes, Stack};
use std::ops::Range;

/// So many matrices are looked at together.
const PASS_BITS: u32 = 14;
/// A product of fewer multiplications is not worth several threads.
const SMALL: usize = 1 << 18;
/// About so many multiplications are worth a task.
const GRAIN: usize = 1 << 16;

pub(crate) fn matmul(
    context: &mut Context<'_>,
    out: &ViewId,
    a: &ViewId,
    b: &ViewId,
    choices: (&Choice, &Choice),
    finish: (&Epilogue, Option<&Function>),
) -> Result<(), Fault> {
    products(context, out, a, choices, finish, |sources| Ok(Stack::Dense(sources.tensor(b)?)))
}

pub(crate) fn quant_matmul(
    context: &mut Context<'_>,
    out: &ViewId,
    x: &ViewId,
    w: &Quantized,
    transpose: bool,
    choices: (&Choice, &Choice),
    finish: (&Epilogue, Option<&Function>),
) -> Result<(), Fault> {
    products(context, out, x, choices, finish, |sources| Ok(Stack::Quantized(Codes::new(sources, w)?, transpose)))
}

pub(crate) fn dequantize(context: &mut Context<'_>, out: &ViewId, w: &Quantized) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, mut workers) = context.open(out)?;
    let axis = target.window.shape.len().saturating_sub(1);
    let [rows, columns] = [target.window.size(axis.wrapping_sub(1)), target.window.size(axis)];
    let stack = Codes::new(&sources, w)?;
    if target.window.count() == 0 {
        return Ok(());
    }
    for number in 0..target.window.outer_count(2) {
        if stack.matrix(number.cast_signed() as i64)?.weights()?.size() != [rows, columns] {
            return Err(Fault::Contract("weights have the size of the result"));
        }
    }
    each_line(&mut workers, isa, target, (axis, columns), |number, out: &mut [f32], _| {
        // All were seen to be there above.
        if let Ok(packed) = stack.matrix((number / rows).cast_signed() as i64)
            && let Ok(weights) = packed.weights()
        {
            weights.decode(isa, number % rows, 0, out);
        }
    });
    Ok(())
}

/// For each matrix of `out`, the product of its left matrix and its right one.
fn products(
    context: &mut Context<'_>,
    out: &ViewId,
    a: &ViewId,
    (lhs, rhs): (&Choice, &Choice),
    (epilogue, function): (&Epilogue, Option<&Function>),
    right: impl for<'s> Fn(&Sources<'s>) -> Result<Stack<'s>, Fault>,
) -> Result<(), Fault> {
    let isa = context.isa;
    let mut staging = std::mem::take(context.staging);
    let (mut target, sources, mut workers) = context.open(out)?;
    let (a, right) = (sources.tensor(a)?, right(&sources)?);
    let (lefts, rights) = (Chosen::new(&sources, lhs, isa)?, Chosen::new(&sources, rhs, isa)?);
    let rank = target.window.shape.len();
    let [m, n] = [2, 1].map(|behind| target.window.size(rank.wrapping_sub(behind)));
    let k = a.window.size(a.window.shape.len().wrapping_sub(1));
    let fusion = Fusion::new(&sources, epilogue, function, n)?;
    let products = Products { isa, size: Size { m, k, n }, a, lefts, right, rights, fusion };
    // An empty result has no products to visit.
    let count = if target.window.count() == 0 { 0 } else { target.window.outer_count(2) };
    products.check(count)?;
    for first in (0..count).step_by(1 << PASS_BITS) {
        let numbers = first..(first + (1 << PASS_BITS)).min(count);
        products.pass(&mut workers, numbers, &mut target, &mut staging)?;
    }
    drop(products);
    *context.staging = staging;
    Ok(())
}

/// Products of one size.
struct Products<'a> {
    isa: Isa,
    size: Size,
    a: Tensor<'a>,
    lefts: Chosen<'a>,
    right: Stack<'a>,
    rights: Chosen<'a>,
    fusion: Option<Fusion<'a>>,
}

impl Products<'_> {
    /// All choices exist before the first product is written.
    fn check(&self, count: usize) -> Result<(), Fault> {
        for number in 0..count {
            matrix_of(&self.a, self.lefts.get(number))?;
            self.right.check(self.rights.get(number))?;
        }
        if count == 0 {
            return Ok(());
        }
        let rows = self.a.window.size(self.a.window.shape.len().wrapping_sub(2));
        if rows != self.size.m {
            return Err(Fault::Contract("a product has as many rows as its left matrix"));
        }
        self.right.matrix(self.isa, self.rights.get(0))?.check(self.size)
    }

    /// Some of the products, at most `1 << PASS_BITS`.
    fn pass(
        &self,
        workers: &mut Workers<'_>,
        numbers: Range<usize>,
        target: &mut Target<'_>,
        staging: &mut Vec<f32>,
    ) -> Result<(), Fault> {
        let is_one = self.right.is_one();
        if !is_one && self.rights.0.is_none() {
            return self.apart(workers, numbers, target, staging);
        }
        workers.prepared(|shared, workers| {
            let [order] = shared.ints([numbers.len()]);
            for ((number, at), entry) in numbers.clone().zip(0..).zip(order.iter_mut()) {
                *entry = if is_one { at } else { self.rights.get(number) << PASS_BITS | at };
            }
            order.sort_unstable();
            let is_same = |one: &i64, other: &i64| one >> PASS_BITS == other >> PASS_BITS;
            if !order.windows(2).any(|pair| matches!(pair, [one, other] if is_same(one, other))) {
                return self.apart(workers, numbers, target, staging);
            }
            let rows_at_once = PASS_ROWS.checked_div(self.size.m).unwrap_or(1).max(1);
            for group in order.chunk_by_mut(is_same) {
                let first = numbers.start.cast_signed() as i64;
                group.iter_mut().for_each(|entry| *entry = first + (*entry & ((1 << PASS_BITS) - 1)));
                for part in group.chunks(rows_at_once) {
                    self.together(workers, part, target, staging)?;
                }
            }
            Ok(())
        })
    }

    /// Products each of which has a right matrix of its own.
    fn apart(
        &self,
        workers: &mut Workers<'_>,
        numbers: Range<usize>,
        target: &mut Target<'_>,
        staging: &mut Vec<f32>,
    ) -> Result<(), Fault> {
        let (count, threads) = (numbers.len(), workers.pool.threads());
        let work = self.size.m * self.size.n * self.size.k;
        // A thread to each, unless they are large and would leave threads idle.
        let is_even = count >= 4 * threads || count.is_multiple_of(threads);
        if count > 1 && target.window.is_contiguous() && (work < SMALL || is_even) {
            match target.dtype {
                DType::F32 => return self.side_by_side::<f32>(workers, numbers, target),
                DType::F16 => return self.side_by_side::<half::f16>(workers, numbers, target),
                DType::Bf16 => return self.side_by_side::<half::bf16>(workers, numbers, target),
                _ => {}
            }
        }
        for number in numbers {
            self.together(workers, &[number.cast_signed() as i64], target, staging)?;
        }
        Ok(())
    }

    /// Each product on one thread.
    fn side_by_side<T: Element + Float>(
        &self,
        workers: &mut Workers<'_>,
        numbers: Range<usize>,
        target: &mut Target<'_>,
    ) -> Result<(), Fault> {
        let Size { m, k, n } = self.size;
        let (pool, per_task) = (workers.pool, GRAIN.div_ceil((m * k * n).max(1)));
        let out = self.slice::<T>(target, numbers.clone());
        workers.chunks(out, per_task * m * n, |task, out, scratch| {
            let first = numbers.start + task * per_task;
            for (number, out) in (first..).zip(out.chunks_exact_mut((m * n).max(1))) {
                // The pool is busy with this very step: within a task, the product stays on its thread.
                let mut workers = Workers { pool, scratch };
                let start = self.left_start(number);
                // That it has a right matrix was seen by `check`.
                let _ = self.product(&mut workers, &[number.cast_signed() as i64], &[start], out);
            }
        });
        Ok(())
    }

    /// Products that have the right matrix in common, given by ascending numbers, as one product of all their rows.
    fn together(
        &self,
        workers: &mut Workers<'_>,
        numbers: &[i64],
        target: &mut Target<'_>,
        staging: &mut Vec<f32>,
    ) -> Result<(), Fault> {
        let (Some(first), Some(last)) = (numbers.first().map(number), numbers.last().map(number)) else {
            return Ok(());
        };
        let is_run = target.window.is_contiguous() && last - first + 1 == numbers.len();
        workers.prepared(|shared, workers| {
            let [starts] = shared.ints([numbers.len()]);
            starts.iter_mut().zip(numbers).for_each(|(start, at)| *start = self.left_start(number(at)));
            match target.dtype {
                DType::F32 if is_run => {
                    self.product::<f32>(workers, numbers, starts, self.slice(target, first..last + 1))
                }
                DType::F16 if is_run => {
                    self.product::<half::f16>(workers, numbers, starts, self.slice(target, first..last + 1))
                }
                DType::Bf16 if is_run => {
                    self.product::<half::bf16>(workers, numbers, starts, self.slice(target, first..last + 1))
                }
                _ => self.staged(workers, numbers, starts, target, staging),
            }
        })
    }

    /// Likewise, by way of memory of its own, since the results do not lie side by side.
    fn staged(
        &self,
        workers: &mut Workers<'_>,
        numbers: &[i64],
        starts: &[i64],
        target: &mut Target<'_>,
        staging: &mut Vec<f32>,
    ) -> Result<(), Fault> {
        let Size { m, n, .. } = self.size;
        staging.resize(staging.len().max(numbers.len() * m * n), 0.0);
        let results = staging.split_at_mut(numbers.len() * m * n).0;
        self.product::<f32>(workers, numbers, starts, results)?;
        for (at, results) in numbers.iter().zip(results.chunks_exact((m * n).max(1))) {
            let window = target.window.inner(2, number(at));
            let part = Target { dtype: target.dtype, window, bytes: &mut *target.bytes };
            each_line(workers, self.isa, part, (1, n), |row, out: &mut [f32], _| {
                out.copy_from_slice(results.get(row * n..(row + 1) * n).unwrap_or_default());
            });
        }
        Ok(())
    }

    /// Products that have the right matrix in common: the left matrices that start at these offsets times that matrix.
    fn product<T: Float>(
        &self,
        workers: &mut Workers<'_>,
        numbers: &[i64],
        starts: &[i64],
        out: &mut [T],
    ) -> Result<(), Fault> {
        let right = self.right.matrix(self.isa, self.rights.get(numbers.first().map_or(0, number)))?;
        let left = Lefts { tensor: &self.a, starts, height: self.size.m.max(1) };
        let size = Size { m: starts.len() * self.size.m, ..self.size };
        match &self.fusion {
            None => right.product(workers, self.isa, size, &left, out, &Rounded),
            Some(fusion) => right.product(workers, self.isa, size, &left, out, &fusion.of(numbers, self.size.m)),
        }
    }

    /// Where the left matrix of a product starts.
    fn left_start(&self, number: usize) -> i64 {
        matrix_of(&self.a, self.lefts.get(number)).map_or(0, |window| window.offset.cast_signed() as i64)
    }

    /// The elements of some products, which lie side by side.
    fn slice<'t, T: Element>(&self, target: &'t mut Target<'_>, numbers: Range<usize>) -> &'t mut [T] {
        let (start, share) = (target.window.offset, self.size.m * self.size.n);
        let range = start + numbers.start * share..start + numbers.end * share;
        elements_mut::<T>(target.bytes).get_mut(range).unwrap_or_default()
    }
}

/// A number that was kept in 64 bits.
fn number(kept: &i64) -> usize {
    usize::try_from(*kept).unwrap_or(usize::MAX)
}

/// Left matrices of equal size, one below the other.
struct Lefts<'a> {
    tensor: &'a Tensor<'a>,
    /// Their first elements.
    starts: &'a [i64],
    height: usize,
}

impl Left for Lefts<'_> {
    fn row(&self, isa: Isa, m: usize, k: Range<usize>, to: &mut [f32]) {
        let (window, rank) = (&self.tensor.window, self.tensor.window.shape.len());
        let [row, column] = [2, 1].map(|behind| window.stride(rank.wrapping_sub(behind)));
        let start = self.starts.get(m / self.height).map_or(0, number);
        let step = (m % self.height).cast_signed() * row + k.start.cast_signed() * column;
        self.tensor.read(isa, start.wrapping_add_signed(step), column, to);
    }

    fn is_single(&self) -> bool {
        !matches!(self.tensor.dtype, DType::F16 | DType::Bf16)
    }
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
