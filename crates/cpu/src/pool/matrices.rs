//! Matrices that the tasks of a step write, each some columns of some of them.
#![allow(unsafe_code, reason = "disjoint parts of a slice go to different threads")]

use super::{Scratch, SharedSlice, Workers};
use ptero_backend::emptied;
use smallvec::SmallVec;
use std::ops::Range;

/// Slices that are held without memory of their own.
const SLICES: usize = 16;

/// The memory of a list of more slices than [`SLICES`], which stays between steps.
#[derive(Debug, Default)]
pub(crate) struct SliceMemory(Vec<SharedSlice<'static, f32>>);

/// The numbers of matrices that are chosen at once lie within this distance.
pub(crate) const MOST: usize = 1 << 14;

/// Row-major matrices of equal size, one after another in slices of equal length, such as one slice for each lane of a run.
#[derive(Debug)]
pub struct Matrices<'a, T> {
    slices: SmallVec<[SharedSlice<'a, T>; SLICES]>,
    size: MatrixSize,
}

#[derive(Clone, Copy, Debug)]
struct MatrixSize {
    rows: usize,
    columns: usize,
    /// Matrices of a slice.
    per_slice: usize,
}

impl<'a, T> Matrices<'a, T> {
    /// Matrices of `[rows, columns]` elements. What is left of a slice after whole matrices is not used.
    pub fn new(slices: impl Iterator<Item = &'a mut [T]>, size: [usize; 2]) -> Self {
        Self::within(&mut SliceMemory::default(), slices, size)
    }

    /// Same as [`Matrices::new`], for one step after another; [`Matrices::leave`] returns the memory.
    pub(crate) fn within(
        memory: &mut SliceMemory,
        given: impl Iterator<Item = &'a mut [T]>,
        [rows, columns]: [usize; 2],
    ) -> Self {
        let kept = emptied(std::mem::take(&mut memory.0));
        let mut slices: SmallVec<[SharedSlice<'a, T>; SLICES]> = SmallVec::from_vec(kept);
        slices.extend(given.map(SharedSlice::new));
        let shortest = slices.iter().map(|slice| slice.length).min().unwrap_or(0);
        let per_slice = shortest.checked_div(rows * columns).unwrap_or(0);
        Self { slices, size: MatrixSize { rows, columns, per_slice } }
    }

    /// One matrix whose rows have that many columns.
    pub fn one(slice: &'a mut [T], columns: usize) -> Self {
        let rows = slice.len().checked_div(columns).unwrap_or(0);
        Self::new([slice].into_iter(), [rows, columns])
    }

    /// Leaves the memory of the list of slices for the next step.
    pub(crate) fn leave(self, memory: &mut SliceMemory) {
        if self.slices.spilled() {
            memory.0 = emptied(self.slices.into_vec());
        }
    }

    /// The number of matrices.
    pub fn count(&self) -> usize {
        self.size.per_slice * self.slices.len()
    }

    /// The rows of all matrices.
    pub fn all(&mut self) -> OutRows<'_, T> {
        let count = self.count() * self.size.rows;
        OutRows { slices: &self.slices, size: self.size, numbers: None, start: 0, count }
    }

    /// Runs `work` once for each group of matrices, `per_task` groups one after another in a task. `numbers` has no number twice;
    /// group `g` is `numbers[ends[g - 1]..ends[g]]`. `work` gets that range and the rows of these matrices.
    pub(crate) fn groups(
        &mut self,
        workers: &mut Workers<'_>,
        (numbers, ends): (&[i64], &[i64]),
        per_task: usize,
        work: impl Fn(&mut Workers<'_>, Range<usize>, OutRows<'_, T>) + Sync,
    ) where
        T: Send,
    {
        self.check(numbers);
        assert!(ends.is_sorted(), "groups follow each other");
        let (matrices, pool, per_task) = (&*self, workers.pool, per_task.max(1));
        let end = |group: usize| ends.get(group).map_or(numbers.len(), |end| number(end).min(numbers.len()));
        let start = |group: usize| group.checked_sub(1).map_or(0, end);
        workers.each(ends.len().div_ceil(per_task), |task, scratch| {
            // The pool is busy with this step, so a group stays on the thread of its task.
            let mut workers = Workers { pool, scratch };
            for group in task * per_task..ends.len().min((task + 1) * per_task) {
                let range = start(group)..end(group);
                let numbers = numbers.get(range.clone()).unwrap_or_default();
                work(&mut workers, range, matrices.of(numbers));
            }
        });
    }

    /// The rows of some matrices, no number twice.
    pub(crate) fn some<'s>(&'s mut self, numbers: &'s [i64]) -> OutRows<'s, T> {
        self.check(numbers);
        self.of(numbers)
    }

    /// The rows of matrices whose numbers were checked.
    fn of<'s>(&'s self, numbers: &'s [i64]) -> OutRows<'s, T> {
        let count = numbers.len() * self.size.rows;
        OutRows { slices: &self.slices, size: self.size, numbers: Some(numbers), start: 0, count }
    }

    /// Checks that there are matrices of these numbers, and no number twice.
    fn check(&self, numbers: &[i64]) {
        if numbers.is_sorted_by(|one, other| one < other) {
            let ends = [numbers.first(), numbers.last()].into_iter().flatten();
            return assert!(ends.map(number).all(|end| end < self.count()), "a matrix of each number");
        }
        let first = numbers.iter().min().map_or(0, number);
        let mut seen = [0_u64; MOST / 64];
        for number in numbers.iter().map(number) {
            assert!(number < self.count(), "a matrix of each number");
            let (word, bit) = (seen.get_mut((number - first) / 64), 1 << ((number - first) % 64));
            let is_new = word.is_some_and(|word| std::mem::replace(word, *word | bit) & bit == 0);
            assert!(is_new, "no number twice, and no two further apart than the most");
        }
    }
}

/// Converts a number that was stored in 64 bits.
pub(crate) fn number(stored: &i64) -> usize {
    usize::try_from(*stored).unwrap_or(usize::MAX)
}

/// Rows of some matrices, one below the other, which one product writes.
#[derive(Debug)]
pub struct OutRows<'a, T> {
    slices: &'a [SharedSlice<'a, T>],
    size: MatrixSize,
    /// Numbers of matrices; without them, all.
    numbers: Option<&'a [i64]>,
    /// The first row.
    start: usize,
    count: usize,
}

impl<T: Send> OutRows<'_, T> {
    /// The number of rows.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The length of a row.
    pub fn columns(&self) -> usize {
        self.size.columns
    }

    /// Up to `count` rows, starting with row `first`.
    pub(crate) fn part(&mut self, first: usize, count: usize) -> OutRows<'_, T> {
        let first = first.min(self.count);
        OutRows { start: self.start + first, count: count.min(self.count - first), ..*self }
    }

    /// Cuts the rows into stripes of `width` columns, the last of which may be narrower, and runs a task for each.
    pub fn stripes(
        &mut self,
        workers: &mut Workers<'_>,
        width: usize,
        work: impl Fn(&mut Stripe<'_, T>, &mut Scratch) + Sync,
    ) {
        self.blocks(workers, 0..self.columns(), [self.count, width], work);
    }

    /// Cuts some columns of the rows into blocks of `height` rows and `width` columns, the last of which may be smaller, and runs a
    /// task for each.
    pub(crate) fn blocks(
        &mut self,
        workers: &mut Workers<'_>,
        columns: Range<usize>,
        [height, width]: [usize; 2],
        work: impl Fn(&mut Stripe<'_, T>, &mut Scratch) + Sync,
    ) {
        assert!(columns.end <= self.columns(), "columns of the rows");
        let (rows, height, width) = (&*self, height.max(1), width.max(1));
        let across = columns.len().div_ceil(width);
        workers.each(rows.count.div_ceil(height) * across, |task, scratch| {
            let (first_row, start) = (task / across * height, columns.start + task % across * width);
            let (height, width) = (height.min(rows.count - first_row), width.min(columns.end - start));
            work(&mut Stripe { rows, first_row, height, start, width }, scratch);
        });
    }
}

/// Some columns of rows, or of some of them, which only one task accesses.
pub struct Stripe<'a, T> {
    rows: &'a OutRows<'a, T>,
    first_row: usize,
    height: usize,
    start: usize,
    width: usize,
}

impl<T> Stripe<'_, T> {
    /// The first row.
    pub fn first_row(&self) -> usize {
        self.first_row
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.height
    }

    /// The first column.
    pub fn start(&self) -> usize {
        self.start
    }

    /// The number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The stripe's columns of a row, counted from its first.
    #[allow(clippy::indexing_slicing, reason = "a row below the count, of numbers that were checked")]
    pub fn row(&mut self, row: usize) -> &mut [T] {
        let OutRows { slices, size: MatrixSize { rows: height, columns, per_slice }, numbers, start, count } =
            *self.rows;
        assert!(row < self.height && self.first_row + row < count, "one of the rows");
        let row = start + self.first_row + row;
        let matrix = numbers.map_or(row / height, |numbers| number(&numbers[row / height]));
        let (slice, matrix) = (&slices[matrix / per_slice], matrix % per_slice);
        let start = (matrix * height + row % height) * columns + self.start;
        // SAFETY: `OutRows` that exist at the same time have no matrix in common (`Matrices` is borrowed mutably, `check` saw no
        // number twice, and groups do not overlap), their stripes no column or no row, and a stripe lies between column 0 and the row's length; within
        // this task the part is borrowed mutably from the only stripe.
        unsafe { slice.part(start..start + self.width) }
    }
}
