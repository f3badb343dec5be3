//! What an export prints when it is done.

use super::STORAGES;
use super::check::Checked;
use crate::print::size;
use ptero_export::{Export, Recipe, Storage};
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;

/// An export that is done.
pub(super) struct Report<'a> {
    pub(super) export: &'a Export,
    pub(super) recipe: &'a Recipe,
    pub(super) file: &'a Path,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

impl Report<'_> {
    pub(super) fn json(&self, checked: Option<&Checked>) -> Value {
        let Self { export, recipe, file, bytes, seconds } = self;
        json!({
            "file": file,
            "bytes": bytes,
            "family": export.family.name,
            "layers": self.number("get_n_layers"),
            "vocabulary": self.number("get_vocab_size"),
            "dtype": recipe.dtype.dtype().name(),
            "quantize": name_of(recipe.linear),
            "embed": name_of(recipe.embedding),
            "group_size": recipe.group,
            "max_context": export.max_context,
            "max_prefill": export.max_prefill,
            "samples": recipe.sample,
            "seconds": seconds,
            "check": checked,
        })
    }

    /// Returns an integer of the metadata.
    fn number(&self, name: &str) -> Option<i64> {
        self.export.program().int_metadata(name).ok().flatten()
    }

    /// Describes how weights are stored.
    fn form(&self, storage: Storage) -> String {
        match storage {
            Storage::Int4 | Storage::Int8 => format!("{} in groups of {}", name_of(storage), self.recipe.group),
            Storage::Kept => "as in the checkpoint".to_owned(),
            Storage::Plain => self.recipe.dtype.dtype().name().to_owned(),
        }
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { export, recipe, file, bytes, seconds } = self;
        let [layers, tokens] = ["get_n_layers", "get_vocab_size"].map(|name| self.number(name).unwrap_or(0));
        let (family, size_shown) = (export.family.name, size(*bytes));
        let samples = if recipe.sample { ", draws its own tokens" } else { "" };
        writeln!(f, "{}  {family}, {layers} layers, {tokens} tokens, {size_shown}{samples}", file.display())?;
        let (weights, embeddings) = (self.form(recipe.linear), self.form(recipe.embedding));
        writeln!(f, "  weights {weights}, embeddings {embeddings}, activations {}", recipe.dtype.dtype().name())?;
        writeln!(f, "  context {}, prefill {} tokens a call", export.max_context, export.max_prefill)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate to look at")]
        let rate = (*bytes as f64 / seconds.max(1e-9)) as u64;
        write!(f, "  {seconds:.1} s, {}/s", size(rate))
    }
}

fn name_of(storage: Storage) -> &'static str {
    STORAGES.iter().find(|(_, found, _)| *found == storage).map_or("", |(name, ..)| name)
}
