//! What an export prints when it is done.

use super::check::Outcome;
use crate::print::{counted, parameter_count, size};
use ptero::export::{Quantization, STORAGES};
use ptero_export::{Export, FormCount, ModelWeights, Recipe, Storage, bits_per_weight};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;

/// An export that is done.
pub(super) struct Report<'a> {
    pub(super) export: &'a Export,
    /// What the default size of groups depends on.
    pub(super) weights: ModelWeights,
    /// `true` if the size of groups was not chosen by default.
    pub(super) is_group_given: bool,
    pub(super) file: &'a Path,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

impl Report<'_> {
    pub(super) fn json(&self, checked: Option<&Outcome>) -> Value {
        let Self { export, file, bytes, seconds, .. } = self;
        let (recipe, forms) = (&export.recipe, export.forms());
        json!({
            "file": file,
            "bytes": bytes,
            "family": export.family.name,
            "layers": self.number("get_n_layers"),
            "vocabulary": self.number("get_vocab_size"),
            "parameters": self.weights.parameters,
            "dtype": recipe.dtype.dtype().name(),
            "quantize": Quantization::of(recipe).name(),
            "embed": name_of(recipe.embedding),
            "group_size": recipe.group,
            "group_size_reason": self.group_reason(),
            "weights": forms.iter().map(form_json).collect::<Vec<_>>(),
            "bits_per_weight": bits_per_weight(&forms),
            "max_context": export.max_context,
            "max_prefill": export.max_prefill,
            "samples": recipe.sample.is_some(),
            "seconds": seconds,
            "check": checked.map(|outcome| &outcome.checked),
            "recipes": checked.and_then(|outcome| outcome.recipes.as_ref()),
        })
    }

    /// Returns an integer of the metadata.
    fn number(&self, name: &str) -> Option<i64> {
        self.export.program().int_metadata(name).ok().flatten()
    }

    /// Says why groups have their size; `None` if there are no groups or only those of the checkpoint.
    fn group_reason(&self) -> Option<String> {
        let recipe = &self.export.recipe;
        let storages = [Some(recipe.linear), recipe.sensitive, Some(recipe.embedding)];
        if !storages.iter().flatten().any(|storage| matches!(storage, Storage::Int4 | Storage::Int8)) {
            return None;
        }
        if self.is_group_given {
            return Some("given by --group-size".to_owned());
        }
        if recipe.linear != Storage::Int4 {
            return Some("the default".to_owned());
        }
        let ModelWeights { parameters, are_in_groups } = self.weights;
        let is_large = parameters > Recipe::LARGE;
        if is_large && are_in_groups {
            return Some("the default of int4 for a checkpoint that is in such groups itself".to_owned());
        }
        let [limit, found] = [Recipe::LARGE, parameters].map(parameter_count);
        let side = if is_large { "above" } else { "up to" };
        Some(format!("the default of int4 {side} {limit} parameters; the model has {found}"))
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { export, file, bytes, seconds, .. } = self;
        let recipe = &export.recipe;
        let [layers, tokens] = ["get_n_layers", "get_vocab_size"].map(|name| self.number(name).unwrap_or(0));
        let (family, size_shown) = (export.family.name, size(*bytes));
        let samples = if recipe.sample.is_some() { ", samples its own tokens" } else { "" };
        writeln!(f, "{}  {family}, {layers} layers, {tokens} tokens, {size_shown}{samples}", file.display())?;
        let (weights, embeddings) = (weight_form(recipe), form(recipe, recipe.embedding));
        writeln!(f, "  weights {weights}, embeddings {embeddings}, activations {}", recipe.dtype.dtype().name())?;
        if let (Some(group), Some(reason)) = (recipe.group, self.group_reason()) {
            writeln!(f, "  groups of {group}: {reason}")?;
        }
        let forms = export.forms();
        let shown: Vec<String> = forms.iter().map(stored).collect();
        writeln!(f, "  stored {}; {:.2} bits per weight", shown.join(", "), bits_per_weight(&forms))?;
        writeln!(f, "  context {}, prefill {} tokens a call", export.max_context, export.max_prefill)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate to look at")]
        let rate = (*bytes as f64 / seconds.max(1e-9)) as u64;
        write!(f, "  {seconds:.1} s, {}/s", size(rate))
    }
}

fn stored(form: &FormCount) -> String {
    let FormCount { form, tensors, weights, .. } = form;
    format!("{} {form} ({} weights)", counted(*tensors, "tensor"), parameter_count(*weights))
}

fn form_json(form: &FormCount) -> Value {
    let bits = form.bits_per_weight();
    let FormCount { form, tensors, weights, bytes } = form;
    json!({ "form": form, "tensors": tensors, "weights": weights, "bytes": bytes, "bits_per_weight": bits })
}

/// Describes how linear layers are stored.
pub(super) fn weight_form(recipe: &Recipe) -> String {
    let all = form(recipe, recipe.linear);
    let Some(sensitive) = recipe.sensitive else { return all };
    format!("{all} with down_proj, v_proj, the first and the last layer in {}", name_of(sensitive))
}

/// Describes how weights of this storage are stored.
fn form(recipe: &Recipe, storage: Storage) -> String {
    match storage {
        Storage::Int4 | Storage::Int8 => {
            format!("{} in groups of {}", name_of(storage), recipe.group.unwrap_or(Recipe::GROUP))
        }
        Storage::AsInCheckpoint => "as in the checkpoint".to_owned(),
        Storage::Plain => recipe.dtype.dtype().name().to_owned(),
    }
}

pub(super) fn name_of(storage: Storage) -> &'static str {
    STORAGES.iter().find(|(_, found, _)| *found == storage).map_or("", |(name, ..)| name)
}
