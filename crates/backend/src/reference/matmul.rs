//! Products of matrices, plain and quantized.

use super::memory::Memory;
use super::number::Number;
use super::quant::{Weights, weights};
use super::tensor::Tensor;
use crate::error::Fault;
use ptero_plan::prim::{Choice, Quantized, View};

pub(super) fn matmul(
    memory: &mut Memory,
    out: &View,
    a: &View,
    b: &View,
    (lhs, rhs): (&Choice, &Choice),
) -> Result<(), Fault> {
    let b: Vec<Tensor<'_>> = memory.tensor(b)?.inner(2).collect();
    // The columns of `b`: the rows of its transpose.
    let columns = |matrix: &Tensor<'_>| Ok(matrix.with_last(&[0])?.rows());
    let numbers = products(memory, out, a, &b, (lhs, rhs), columns)?;
    memory.store(out, numbers)
}

pub(super) fn quant_matmul(
    memory: &mut Memory,
    out: &View,
    x: &View,
    w: &Quantized,
    transpose: bool,
    (lhs, rhs): (&Choice, &Choice),
) -> Result<(), Fault> {
    let matrices = weights(memory, w)?;
    let columns = |matrix: &Weights<'_>| {
        let rows = matrix.rows()?;
        Ok(if transpose { rows } else { transposed(&rows) })
    };
    let numbers = products(memory, out, x, &matrices, (lhs, rhs), columns)?;
    memory.store(out, numbers)
}

pub(super) fn dequantize(memory: &mut Memory, out: &View, w: &Quantized) -> Result<(), Fault> {
    let mut numbers = Vec::new();
    for matrix in weights(memory, w)? {
        numbers.extend(matrix.rows()?.into_iter().flatten().map(Number::Float));
    }
    memory.store(out, numbers)
}

/// For each matrix of `out`, the product of its left matrix and its right one, of which `columns` gives the columns.
fn products<M>(
    memory: &Memory,
    out: &View,
    a: &View,
    b: &[M],
    (lhs, rhs): (&Choice, &Choice),
    columns: impl Fn(&M) -> Result<Vec<Vec<f32>>, Fault>,
) -> Result<Vec<Number>, Fault> {
    let a: Vec<Tensor<'_>> = memory.tensor(a)?.inner(2).collect();
    let shape = super::tensor::evaluate_shape(out, &memory.values)?;
    let count = shape.iter().rev().skip(2).product();
    // Of nothing, no matrix is looked at, however many there are.
    if shape.contains(&0) {
        return Ok(Vec::new());
    }
    let (lefts, rights) = (chosen(memory, lhs, count, a.len())?, chosen(memory, rhs, count, b.len())?);
    let mut numbers = Vec::new();
    let absent = Fault::Contract("there is a matrix for each matrix of the product");
    for (left, right) in lefts.into_iter().zip(rights) {
        let (Some(left), Some(right)) = (a.get(left), b.get(right)) else { return Err(absent) };
        let columns = columns(right)?;
        for row in left.rows() {
            if columns.iter().any(|column| column.len() != row.len()) {
                return Err(Fault::Contract("rows and columns of a product are equally long"));
            }
            numbers.extend(columns.iter().map(|column| Number::Float(dot(&row, column))));
        }
    }
    Ok(numbers)
}

/// Which matrix of a stack each matrix of the product uses: its own, unless chosen.
fn chosen(memory: &Memory, choice: &Choice, count: usize, stack: usize) -> Result<Vec<usize>, Fault> {
    let Some(view) = choice else { return Ok((0..count).collect()) };
    let within = |index: i64| usize::try_from(index).ok().filter(|&index| index < stack);
    let checked = |number: Number| within(number.int()).ok_or(Fault::IndexOutside { index: number.int(), size: stack });
    memory.tensor(view)?.numbers().map(checked).collect()
}

pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

fn transposed(rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let mut columns = vec![Vec::with_capacity(rows.len()); rows.first().map_or(0, Vec::len)];
    for row in rows {
        columns.iter_mut().zip(row).for_each(|(column, &value)| column.push(value));
    }
    columns
}
