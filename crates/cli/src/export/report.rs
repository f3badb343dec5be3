//! What an export says when it is done.

use super::check::Checked;
use crate::inspect::size;
use anyhow::Result;
use ptero_export::{Export, Recipe, Storage};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What was made.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    file: PathBuf,
    bytes: u64,
    family: &'static str,
    layers: Option<i64>,
    vocabulary: Option<i64>,
    dtype: &'static str,
    quantize: &'static str,
    embed: &'static str,
    group_size: usize,
    max_context: u32,
    max_prefill: u32,
    samples: bool,
    seconds: f64,
}

impl Report {
    pub(super) fn new(export: &Export, recipe: &Recipe, file: &Path, bytes: u64, took: Duration) -> Self {
        // Our own metadata: it is there, and an integer.
        let number = |name| export.program().int_metadata(name).ok().flatten();
        Self {
            file: file.to_owned(),
            bytes,
            family: export.family.name,
            layers: number("get_n_layers"),
            vocabulary: number("get_vocab_size"),
            dtype: recipe.dtype.dtype().name(),
            quantize: name_of(recipe.linear),
            embed: name_of(recipe.embedding),
            group_size: recipe.group,
            max_context: export.max_context,
            max_prefill: export.max_prefill,
            samples: recipe.sample,
            seconds: took.as_secs_f64(),
        }
    }

    /// Says it to people on stderr, to machines on stdout.
    pub(super) fn print(&self, checked: Option<&Checked>, is_json: bool, is_quiet: bool) -> Result<()> {
        if is_json {
            #[derive(Serialize)]
            struct All<'a> {
                #[serde(flatten)]
                report: &'a Report,
                check: Option<&'a Checked>,
            }
            anstream::println!("{}", serde_json::to_string_pretty(&All { report: self, check: checked })?);
            return Ok(());
        }
        if !is_quiet {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate to look at")]
            let rate = (self.bytes as f64 / self.seconds.max(1e-9)) as u64;
            anstream::eprintln!(
                "{}  {}, {} layers, {} tokens, {}{}\n  weights {}, embeddings {}, activations {}\n  context {}, prefill {} \
                 tokens a call\n  {:.1} s, {}/s",
                self.file.display(),
                self.family,
                self.layers.unwrap_or(0),
                self.vocabulary.unwrap_or(0),
                size(self.bytes),
                if self.samples { ", draws its own tokens" } else { "" },
                self.form(self.quantize),
                self.form(self.embed),
                self.dtype,
                self.max_context,
                self.max_prefill,
                self.seconds,
                size(rate),
            );
        }
        checked.map_or(Ok(()), Checked::print)
    }

    fn form(&self, name: &str) -> String {
        match name {
            "int4" | "int8" => format!("{name} in groups of {}", self.group_size),
            "keep" => "as they were".to_owned(),
            _ => self.dtype.to_owned(),
        }
    }
}

fn name_of(storage: Storage) -> &'static str {
    match storage {
        Storage::Plain => "none",
        Storage::Int4 => "int4",
        Storage::Int8 => "int8",
        Storage::Kept => "keep",
    }
}
