//! The names of weights.

use ptero_plan::plan::{BufferKind, Plan};
use ptero_plan::prim::ViewId;
use ptero_pte::Program;
use std::collections::HashMap;

/// The most characters of a name: a hostile file may have long ones.
const SHOWN_NAME: usize = 96;

/// The names of a program's weights, by the address of their data.
pub(in crate::bench) struct WeightNames(HashMap<usize, String>);

impl WeightNames {
    pub(in crate::bench) fn new(program: &Program) -> Self {
        let mut data: Vec<_> = program.data_by_name().into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
        // Of several names of the same data, the first stays.
        data.sort_by(|(a, _), (b, _)| b.cmp(a));
        Self(data.into_iter().map(|(name, bytes)| (bytes.as_ptr().addr(), shown(name))).collect())
    }

    /// Returns the name of the weights that a view is of.
    pub(super) fn get(&self, plan: &Plan, view: ViewId) -> Option<String> {
        let BufferKind::Constant(bytes) = &plan.buffer(plan.view(view).buf).kind else { return None };
        self.0.get(&bytes.as_ptr().addr()).cloned()
    }
}

/// A name that fits a line and has no characters that a terminal obeys.
fn shown(name: &str) -> String {
    name.chars().map(|c| if c.is_control() || c == '|' { '?' } else { c }).take(SHOWN_NAME).collect()
}

/// What layers have in common: `model.layers.3.mlp.down_proj.weight` becomes `mlp.down_proj`. A name without a number stays.
pub(super) fn without_layer(name: &str) -> String {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let is_number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let mut parts: Vec<&str> = name.split('.').collect();
    if let Some(layer) = parts.iter().position(|part| is_number(part))
        && layer + 1 < parts.len()
    {
        parts.drain(..=layer);
    }
    parts.iter().map(|part| if is_number(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_share_a_name() {
        for (name, wanted) in [
            ("model.layers.3.mlp.down_proj.weight", "mlp.down_proj"),
            ("model.layers.17.mlp.experts.4.up_proj.weight", "mlp.experts.*.up_proj"),
            ("model.embed_tokens.weight", "model.embed_tokens"),
            ("blocks.0", "blocks.*"),
            ("_scalar_0", "_scalar_0"),
            ("", ""),
        ] {
            assert_eq!(without_layer(name), wanted);
        }
    }

    #[test]
    fn names_fit_a_line_and_a_table() {
        assert_eq!(shown("a|b\u{1b}[31m\n"), "a?b?[31m?");
        assert_eq!(shown(&"x".repeat(1000)).len(), SHOWN_NAME);
    }
}
