//! Rows that a product computes itself, before it multiplies them: by a norm or an elementwise function.

use crate::kernels::elements::map::function_text;
use crate::kernels::flag;
use crate::kernels::rows::{MOST_OPERANDS, Stacked, contiguous_if_any, is_plain, stacked};
use crate::step::{Step, tag};
use ptero_plan::expr::{Expr, Scalar};
use ptero_plan::prim::{Normalize, Prim, ViewId};

/// What the row is computed from.
pub(crate) struct Prologue {
    /// The value of `PROLOGUE`.
    pub(crate) kind: &'static str,
    pub(crate) operands: [Stacked; MOST_OPERANDS],
    /// The row, and the weight and bias of its norm.
    pub(crate) row: [Option<ViewId>; 3],
    pub(crate) eps: f32,
    pub(crate) is_layer: bool,
    /// The function, `prologue::function`.
    pub(crate) text: String,
}

impl Prologue {
    /// `None` if the kernel cannot compute the row.
    pub(crate) fn of(step: &Step<'_>, x: ViewId, before: Option<&Prim>) -> Option<Self> {
        let mut operands = [Stacked::default(); MOST_OPERANDS];
        let (kind, row) = ("PLAIN_ROW", [Some(x), None, None]);
        Some(match before {
            None => {
                operands[0] = stacked(step, x, 2)?;
                Self { kind, operands, row, eps: 0.0, is_layer: false, text: String::new() }
            }
            Some(Prim::Norm { x, weight, bias, eps, kind, .. }) => {
                operands[0] = stacked(step, *x, 2)?;
                (operands[1], operands[2]) = (contiguous_if_any(step, *weight, 1)?, contiguous_if_any(step, *bias, 1)?);
                let (row, is_layer) = ([Some(*x), *weight, *bias], *kind == Normalize::Layer);
                Self { kind: "NORM_ROW", operands, row, eps: *eps, is_layer, text: String::new() }
            }
            Some(Prim::Map { out, ins, expr }) if is_plain(expr) && ins.len() <= MOST_OPERANDS => {
                let are_rows = step.shape(*out) == step.shape(x);
                for (to, view) in operands.iter_mut().zip(ins) {
                    *to = if are_rows { stacked(step, *view, 2)? } else { as_row(step, *view)? };
                }
                let text = loaded_text(expr, ins.len());
                Self { kind: "MAP_ROW", operands, row, eps: 0.0, is_layer: false, text }
            }
            Some(_) => return None,
        })
    }

    /// The macros that describe it, for `normed.cuh`.
    pub(crate) fn defines(&self, step: &Step<'_>) -> [(&'static str, &'static str); 6] {
        let tag = |view: Option<ViewId>| view.map_or("F32", |view| step.tag(view));
        let [x, weight, bias] = self.row;
        [
            ("PROLOGUE", self.kind),
            ("X", tag(x)),
            ("WEIGHT", tag(weight)),
            ("BIAS_ROW", tag(bias)),
            ("HAS_WEIGHT", flag(weight.is_some())),
            ("HAS_BIAS_ROW", flag(bias.is_some())),
        ]
    }
}

/// A function that a kernel computes of operands which it has loaded before: `prologue::loaded`, `prologue::function`.
fn loaded_text(expr: &Expr, inputs: usize) -> String {
    let mut words = vec!["0".to_owned(); inputs.max(1)];
    for step in &expr.steps {
        if let Scalar::Load(input) = step.op
            && let Some(word) = words.get_mut(usize::from(input))
        {
            *word = format!("word_of(point.element<{}>({input}))", tag(step.dtype));
        }
    }
    format!(
        "namespace prologue {{\ntypedef LoadedPoint<{}> Point;\n__device__ __forceinline__ Point loaded(const ProloguePoint &point) {{\n    \
         return {{{{{}}}}};\n}}\n{}}}\n",
        words.len(),
        words.join(", "),
        function_text(expr)
    )
}

/// All elements of a view as one row; `None` if they are not at regular distances.
fn as_row(step: &Step<'_>, view: ViewId) -> Option<Stacked> {
    let Stacked { address, matrix: column, .. } = stacked(step, view, 0)?;
    Some(Stacked { address, matrix: 0, row: 0, column })
}
