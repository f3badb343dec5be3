//! Products of matrices, plain and quantized.

use crate::map::fused;
use crate::memory::Memory;
use crate::quant::Weights;
use crate::tensor::Tensor;
use crate::whole;
use ptero_backend::Fault;
use ptero_backend::number::{Element, Number};
use ptero_plan::graph::Value;
use ptero_plan::prim::{Choice, Epilogue, Quantized};
use ptero_tensor::WholeGroup;

/// The number of partial sums of a dot product.
pub(crate) const STRANDS: usize = 16;

/// The matrices of their stacks that a product multiplies: left and right.
type Choices<'a> = (&'a Choice<Value>, &'a Choice<Value>);

pub(crate) fn matmul(
    memory: &mut Memory<'_>,
    out: Value,
    (a, b): (Value, Value),
    choices: Choices<'_>,
    epilogue: &Epilogue<Value>,
) -> Result<(), Fault> {
    let b = memory.tensor(b)?;
    let ([_, width], outer) = (b.last_sizes()?, outer(b));
    // The columns of `b`: the rows of its transpose.
    let columns = |index: usize| Ok(b.nth(2, index).ok_or(ABSENT)?.with_last(&[0])?.rows());
    let numbers = products(memory, out, a, (outer, width), choices, columns, float_product)?;
    finish(memory, out, numbers, epilogue)
}

pub(crate) fn quant_matmul(
    memory: &mut Memory<'_>,
    out: Value,
    (x, w, transpose): (Value, &Quantized<Value>, bool),
    choices: Choices<'_>,
    epilogue: &Epilogue<Value>,
) -> Result<(), Fault> {
    let weights = Weights::new(memory, w)?;
    let [rows, _] = weights.codes.last_sizes()?;
    let width = if transpose { rows } else { weights.row_length()? };
    let shape = (outer(&weights.codes), width);
    let numbers = match weights.whole_group().filter(|_| transpose) {
        Some(group) => {
            let is_single = !matches!(memory.tensor(x)?.element, Element::F16 | Element::Bf16);
            let columns = |index: usize| weights.nth(index).ok_or(ABSENT)?.whole_rows();
            products(memory, out, x, shape, choices, columns, |row, column: &Vec<WholeGroup>| {
                let sum = whole::product(row, column)?;
                if is_single { Some(sum + whole::product(&whole::rest(row, group), column)?) } else { Some(sum) }
            })?
        }
        None => {
            let columns = |index: usize| {
                let rows = weights.nth(index).ok_or(ABSENT)?.rows()?;
                Ok(if transpose { rows } else { transposed(&rows) })
            };
            products(memory, out, x, shape, choices, columns, float_product)?
        }
    };
    finish(memory, out, numbers, epilogue)
}

fn finish(memory: &mut Memory<'_>, out: Value, numbers: Vec<Number>, epilogue: &Epilogue<Value>) -> Result<(), Fault> {
    let shape = memory.shape(out)?;
    let numbers = fused(memory, &shape, numbers, epilogue)?;
    memory.store(out, numbers)
}

pub(crate) fn dequantize(memory: &mut Memory<'_>, out: Value, w: &Quantized<Value>) -> Result<(), Fault> {
    let weights = Weights::new(memory, w)?;
    let mut shape = weights.codes.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = weights.row_length()?;
    }
    memory.expect_shape(out, &shape)?;
    let mut numbers = Vec::new();
    for index in 0..outer(&weights.codes).iter().product() {
        let matrix = weights.nth(index).ok_or(ABSENT)?;
        numbers.extend(matrix.rows()?.into_iter().flatten().map(Number::Float));
    }
    memory.store(out, numbers)
}

const ABSENT: Fault = Fault::Contract("there is a matrix for each matrix of the product");

/// The sizes of all axes but the last two.
fn outer(tensor: &Tensor) -> Vec<usize> {
    tensor.shape().iter().rev().skip(2).rev().copied().collect()
}

/// For each matrix of `out`, which is not empty, the product of its left matrix and its right one. The right ones are given by
/// the outer axes of their stack, the number of columns of each, and `columns`, which returns the columns of the one at an index.
/// A row and a column of different lengths have no product.
fn products<Column>(
    memory: &Memory<'_>,
    out: Value,
    a: Value,
    (b_outer, width): (Vec<usize>, usize),
    (lhs, rhs): Choices<'_>,
    columns: impl Fn(usize) -> Result<Vec<Column>, Fault>,
    product: impl Fn(&[f32], &Column) -> Option<f32>,
) -> Result<Vec<Number>, Fault> {
    let a = memory.tensor(a)?;
    let ([rows, _], a_outer) = (a.last_sizes()?, outer(a));
    for (choice, own) in [(lhs, &a_outer), (rhs, &b_outer)] {
        let chosen = memory.optional(*choice)?.map(|choice| choice.shape().to_vec());
        let outer = chosen.as_ref().unwrap_or(own);
        memory.expect_shape(out, &[outer.as_slice(), &[rows, width]].concat())?;
    }
    let count = memory.shape(out)?.iter().rev().skip(2).product();
    let lefts = chosen(memory, *lhs, count, a_outer.iter().product())?;
    let rights = chosen(memory, *rhs, count, b_outer.iter().product())?;
    let mut numbers = Vec::new();
    for (left, right) in lefts.into_iter().zip(rights) {
        let columns = columns(right)?;
        for row in a.nth(2, left).ok_or(ABSENT)?.rows() {
            for column in &columns {
                let number = product(&row, column);
                numbers.push(Number::Float(
                    number.ok_or(Fault::Contract("rows and columns of a product are equally long"))?,
                ));
            }
        }
    }
    Ok(numbers)
}

/// The matrix of a stack that each matrix of the product uses: the one at its own index, unless chosen.
fn chosen(memory: &Memory<'_>, choice: Choice<Value>, count: usize, stack: usize) -> Result<Vec<usize>, Fault> {
    let Some(choice) = choice else { return Ok((0..count).collect()) };
    let within = |index: i64| usize::try_from(index).ok().filter(|&index| index < stack);
    let checked = |number: Number| within(number.int()).ok_or(Fault::IndexOutside { index: number.int(), size: stack });
    memory.tensor(choice)?.numbers().map(checked).collect()
}

#[allow(clippy::ptr_arg, reason = "a column of any kind is passed by reference")]
fn float_product(row: &[f32], column: &Vec<f32>) -> Option<f32> {
    (row.len() == column.len()).then(|| dot(row, column))
}

/// The product of two rows: fused, in 16 strands, which are combined halves with halves.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut strands = [0.0_f32; STRANDS];
    for (a, b) in a.chunks(STRANDS).zip(b.chunks(STRANDS)) {
        strands.iter_mut().zip(a.iter().zip(b)).for_each(|(strand, (a, b))| *strand = a.mul_add(*b, *strand));
    }
    combined(strands)
}

/// Strands combined, the upper half with the lower, until one is left.
pub(crate) fn combined(mut strands: [f32; STRANDS]) -> f32 {
    let mut width = STRANDS;
    while width > 1 {
        width /= 2;
        let (lower, upper) = strands.split_at_mut(width);
        lower.iter_mut().zip(upper).for_each(|(lower, upper)| *lower += *upper);
    }
    let [sum, ..] = strands;
    sum
}

fn transposed(rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let mut columns = vec![Vec::with_capacity(rows.len()); rows.first().map_or(0, Vec::len)];
    for row in rows {
        columns.iter_mut().zip(row).for_each(|(column, &value)| column.push(value));
    }
    columns
}
