//! Cases of matrix products.

use super::data::{Datum, FLOATS, any, moderate, vanishing};
use super::draft::Draft;
use super::epilogue;
use super::probe::{Dense, Seen};
use super::views::{Size, fixed, product};
use ptero_plan::graph::Value;
use ptero_plan::prim::{Choice, Prim};
use ptero_tensor::DType;

/// Outer axes of a product and of the stacks that it takes its matrices from.
pub(super) struct Stacks {
    pub(super) outer: Vec<Size>,
    left: Option<Vec<Size>>,
    right: Option<Vec<Size>>,
}

impl Stacks {
    /// At most `most` matrices.
    pub(super) fn new(draft: &mut Draft, most: i64) -> Self {
        let choices: Vec<i64> = [0, 1, 2, 3, 4].into_iter().filter(|&size| size <= most).collect();
        let rank = draft.rng.pick(&[0, 0, 1, 1, 2]);
        let mut outer: Vec<Size> = (0..rank).map(|_| draft.size(&choices[1..])).collect();
        if outer.iter().map(Size::largest).product::<i64>() > most {
            outer.truncate(1);
        }
        if draft.rng.one_in(40) && rank > 0 {
            outer[0] = Size::fixed(0);
        }
        let mut stack = || {
            let rank = 1 + draft.rng.below(2);
            let sizes: Vec<i64> = (0..rank).map(|_| draft.rng.within(1, 3)).collect();
            draft.rng.one_in(3).then(|| fixed(&sizes))
        };
        let (left, right) = (stack(), stack());
        Self { outer, left, right }
    }

    /// The outer axes of the left operand.
    pub(super) fn left(&self) -> &[Size] {
        self.left.as_ref().unwrap_or(&self.outer)
    }

    /// The outer axes of the right operand.
    pub(super) fn right(&self) -> &[Size] {
        self.right.as_ref().unwrap_or(&self.outer)
    }

    /// Which matrices are taken.
    pub(super) fn choices(&self, draft: &mut Draft) -> (Choice<Value>, Choice<Value>) {
        let mut choose = |stack: &Option<Vec<Size>>| {
            let count = product(stack.as_ref()?).largest();
            let dtype = draft.rng.pick(&[DType::U32, DType::I32, DType::I64]);
            let index = super::data::each(move |rng| Datum::Int(rng.within(0, count - 1)));
            Some(draft.filled(dtype, &self.outer, &index))
        };
        (choose(&self.left), choose(&self.right))
    }
}

/// Two axes after others.
pub(super) fn matrix(outer: &[Size], rows: &Size, columns: &Size) -> Vec<Size> {
    outer.iter().chain([rows, columns]).cloned().collect()
}

pub(super) fn case(draft: &mut Draft) {
    let [rows, inner, columns] = sizes(draft);
    let work = rows.largest() * inner.largest() * columns.largest();
    let stacks = Stacks::new(draft, (200_000 / work.max(1)).clamp(1, 6));
    let dtype = draft.rng.pick(&FLOATS);
    let operand = |draft: &mut Draft, dtype: DType, shape: &[Size]| -> Value {
        let content = match draft.rng.one_in(8) {
            true => vanishing(),
            false if draft.rng.one_in(3) => any(dtype),
            false => moderate(dtype),
        };
        draft.operand(dtype, shape, &content)
    };
    let a = operand(draft, dtype, &matrix(stacks.left(), &rows, &inner));
    let b = operand(draft, dtype, &matrix(stacks.right(), &inner, &columns));
    let (lhs, rhs) = stacks.choices(draft);
    let (out, epilogue) = epilogue::end(draft, dtype, &matrix(&stacks.outer, &rows, &columns));
    draft.test(Prim::MatMul { out, a, b, lhs, rhs, epilogue });
}

/// Rows, inner size and columns: each may be large, but few cases are so in all.
fn sizes(draft: &mut Draft) -> [Size; 3] {
    let most = if draft.rng.one_in(24) { 1_300_000 } else { 60_000 };
    let mut room = most;
    let mut size = |draft: &mut Draft, choices: &[i64]| {
        let choices: Vec<i64> = choices.iter().copied().filter(|&size| size <= room).collect();
        let size = draft.size(&choices);
        room /= size.largest().max(1);
        size
    };
    let none = if draft.rng.one_in(30) { &[0][..] } else { &[] };
    let rows = size(draft, &[&[1, 1, 2, 3, 7, 17, 70], none].concat());
    // Any inner size at times, since sums are cut by it.
    let any = draft.rng.within(1, 700);
    let inner = size(draft, &[&[1, 3, 16, 33, 64, 100, 128, 255, 513, 600, 1100, any, any, any, any], none].concat());
    let columns = size(draft, &[&[1, 2, 5, 16, 17, 64, 127, 300], none].concat());
    [rows, inner, columns]
}

pub(super) fn slack(prim: &Prim<Value>, seen: &Seen<'_>) -> Vec<Vec<f64>> {
    let Prim::MatMul { out, lhs, rhs, .. } = prim else { return Vec::new() };
    let mut choices = seen.operands.iter().skip(2);
    let lhs = lhs.as_ref().and_then(|_| choices.next());
    let rhs = rhs.as_ref().and_then(|_| choices.next());
    let count = seen.shape(*out).iter().rev().skip(2).product();
    let slack = magnitudes(&seen.operands[0], &seen.operands[1], (lhs, rhs), count);
    vec![epilogue::slack(prim, seen, slack)]
}

/// For each element of the product, the sum of the magnitudes of the products that are its terms.
pub(super) fn magnitudes(a: &Dense, b: &Dense, choices: (Option<&Dense>, Option<&Dense>), count: usize) -> Vec<f64> {
    let (&[rows, inner], &[_, columns]) =
        (a.shape.last_chunk().expect("a has matrices"), b.shape.last_chunk().expect("b has matrices"));
    let chosen = |choice: Option<&Dense>, at: usize| choice.map_or(at, |choice| choice.data[at] as usize);
    let mut sums = Vec::with_capacity(count * rows * columns);
    for at in 0..count {
        let (left, right) = (chosen(choices.0, at) * rows * inner, chosen(choices.1, at) * inner * columns);
        for row in 0..rows {
            let mut line = vec![0.0; columns];
            for k in 0..inner {
                let factor = a.size(left + row * inner + k);
                let start = right + k * columns;
                line.iter_mut().enumerate().for_each(|(column, sum)| *sum += factor * b.size(start + column));
            }
            sums.extend(line);
        }
    }
    sums
}
