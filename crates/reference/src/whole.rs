//! Products with weights whose codes are whole numbers: exact within a group, in cells of 64 columns and chunks of four cells.

use ptero_tensor::WholeGroup;

/// Columns of a cell.
const CELL: usize = 64;
/// Cells of a chunk.
const CHUNK: usize = 4;
/// The largest magnitude of an activation as a whole number: 127 · 257, so that it is two signed bytes.
const LARGEST: f32 = 32639.0;
/// 2^-96: groups of activations that are all smaller are zeros.
const SMALLEST: f32 = 1.262_177_4e-29;

/// Activations that share a step.
struct Activations {
    step: f32,
    integers: Vec<i32>,
}

impl Activations {
    fn new(x: &[f32]) -> Self {
        let largest = x.iter().fold(0.0, |largest, x| ptero_arithmetic::max(largest, x.abs()));
        if !largest.is_finite() || largest < SMALLEST {
            let step = if largest.is_finite() { 0.0 } else { f32::NAN };
            return Self { step, integers: vec![0; x.len()] };
        }
        let inverse = LARGEST / largest;
        #[allow(clippy::cast_possible_truncation, reason = "at most 32639")]
        let integers = x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect();
        Self { step: largest * (1.0 / LARGEST), integers }
    }
}

/// The product of a row of activations and a row of weights; `None` if their lengths differ. A cell has a whole number of groups.
pub(crate) fn product(x: &[f32], weights: &[WholeGroup]) -> Option<f32> {
    if weights.iter().map(|group| group.codes.len()).sum::<usize>() != x.len() {
        return None;
    }
    let (mut result, mut rest) = (0.0, x);
    let per_cell = CELL / weights.first().map_or(CELL, |group| group.codes.len());
    for chunk in weights.chunks(CHUNK * per_cell) {
        let cells = chunk.chunks(per_cell).map(|groups| {
            groups.iter().fold(0.0, |cell, group| {
                let (x, after) = rest.split_at(group.codes.len());
                rest = after;
                add(cell, group, &Activations::new(x))
            })
        });
        result += cells.reduce(|sum, cell| sum + cell).unwrap_or(0.0);
    }
    Some(result)
}

/// What rounding to whole numbers, in groups of `group`, takes away from a row of activations.
pub(crate) fn rest(x: &[f32], group: usize) -> Vec<f32> {
    let rest = |x: &[f32]| {
        let Activations { step, integers } = Activations::new(x);
        x.iter().zip(integers).map(|(x, integer)| (-step).mul_add(integer as f32, *x)).collect::<Vec<f32>>()
    };
    x.chunks(group).flat_map(rest).collect()
}

/// Adds the products of a group to a cell.
fn add(cell: f32, group: &WholeGroup, x: &Activations) -> f32 {
    let codes: i32 = group.codes.iter().zip(&x.integers).map(|(code, integer)| code * integer).sum();
    let cell = (group.scale * x.step).mul_add(codes as f32, cell);
    let Some(bias) = group.bias else { return cell };
    bias.mul_add(x.step * x.integers.iter().sum::<i32>() as f32, cell)
}
