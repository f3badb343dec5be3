//! `ptero export --check`: compares the program with the same graph in f32.

mod compare;

pub(super) use compare::Checked;

use super::ExportArgs;
use crate::device::DeviceArgs;
use crate::progress::terminal;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use compare::Comparison;
use ptero::cache::write_program;
use ptero::{DType, Method, Program, Tensor, TokenId};
use ptero_backend::cast;
use ptero_checkpoint::Checkpoint;
use ptero_export::{Export, Recipe, ScaleType, Storage, export};
use ptero_tensor::SplitMix64;
use std::path::{Path, PathBuf};

/// Arguments of `--check`.
#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// Compare the logits of every position with those of the same graph in f32; needs disk space for two more programs
    #[arg(long)]
    check: bool,

    /// Compare the output of every layer too
    #[arg(long, requires = "check")]
    check_layers: bool,

    /// Read token ids to check with, as a JSON list or separated by spaces; for text, the perplexity is printed
    /// [default: 256 random ids]
    #[arg(long, value_name = "FILE", requires = "check")]
    check_tokens: Option<PathBuf>,

    /// Split longer texts into windows of N tokens
    #[arg(long, value_name = "N", default_value = "512", requires = "check")]
    check_window: usize,

    #[command(flatten)]
    device: DeviceArgs,
}

/// The most tokens per call: the logits of all of them are in memory.
const CHUNK: u32 = 64;

impl CheckArgs {
    /// Returns the tokens to check with, or `None` without `--check`. Called before the export, which takes long, so that
    /// errors are reported early.
    pub(super) fn tokens(&self, export: &Export) -> Result<Option<Vec<TokenId>>> {
        if !self.check {
            return Ok(None);
        }
        let window = self.window(export);
        ensure!(window > 1, "a window of {window} token predicts nothing\nhint: --check-window needs at least 2");
        let vocabulary = export.program().int_metadata("get_vocab_size")?;
        self.given_or_random(vocabulary.context("the program's metadata has no vocabulary size")?).map(Some)
    }

    fn window(&self, export: &Export) -> usize {
        self.check_window.min(usize::try_from(export.max_context).unwrap_or(usize::MAX))
    }

    /// Exports two programs and compares their logits.
    pub(super) fn run(
        &self,
        tokens: &[TokenId],
        from: &Checkpoint,
        export: &Export,
        args: &ExportArgs,
    ) -> Result<Checked> {
        let chunk = export.max_prefill.min(CHUNK);
        let checked = Recipe {
            sample: false,
            every_position: true,
            tap_layers: self.check_layers,
            embed_files: false,
            max_prefill: Some(chunk),
            ..args.recipe()?
        };
        let exact =
            Recipe { dtype: ScaleType::F32, linear: Storage::Plain, embedding: Storage::Plain, ..checked.clone() };
        let (_file, checked) = build(from, &checked, "checked", args)?;
        let (_file, exact) = build(from, &exact, "exact", args)?;
        let (mut checked, mut exact) = (checked.method("forward")?, exact.method("forward")?);
        let mut comparison = Comparison::default();
        let chunk = usize::try_from(chunk)?;
        for piece in tokens.chunks(self.window(export)).filter(|piece| piece.len() > 1) {
            for (start, tokens) in (0..).step_by(chunk).zip(piece.chunks(chunk)) {
                let [checked, exact] = [&mut checked, &mut exact].map(|method| feed(method, tokens, start));
                comparison.add(&checked?, &exact?, piece.get(start + 1..).unwrap_or(&[]));
            }
        }
        Ok(comparison.finish(tokens.len(), self.check_tokens.is_some()))
    }

    fn given_or_random(&self, vocabulary: i64) -> Result<Vec<TokenId>> {
        let Some(path) = &self.check_tokens else {
            let (mut rng, vocabulary) = (SplitMix64::new(0), u64::try_from(vocabulary)?);
            let ids = std::iter::repeat_with(|| TokenId::try_from(rng.below(vocabulary)));
            return Ok(ids.take(256).collect::<Result<_, _>>()?);
        };
        read_tokens(path, vocabulary).with_context(|| path.display().to_string())
    }
}

fn read_tokens(path: &Path, vocabulary: i64) -> Result<Vec<TokenId>> {
    let text = std::fs::read_to_string(path)?;
    let tokens: Vec<i64> = if text.trim_start().starts_with('[') {
        serde_json::from_str(&text)?
    } else {
        let id = |word: &str| word.parse().with_context(|| format!("`{word}` is not a token id"));
        text.split_whitespace().map(id).collect::<Result<_>>()?
    };
    if let Some(token) = tokens.iter().find(|token| !(0..vocabulary).contains(token)) {
        bail!("token {token} is not one of the model's {vocabulary}");
    }
    ensure!(tokens.len() > 1, "{} tokens are too few to check with", tokens.len());
    Ok(tokens.into_iter().map(TokenId::try_from).collect::<Result<_, _>>()?)
}

/// A file that is removed on drop.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Exports a program to a temporary file beside the output, which must be dropped after the program.
fn build(checkpoint: &Checkpoint, recipe: &Recipe, name: &str, args: &ExportArgs) -> Result<(TemporaryFile, Program)> {
    let export = export(checkpoint, recipe)?;
    let mut file = std::ffi::OsString::from(".");
    file.push(args.output.file_name().unwrap_or_default());
    // The name is fixed, so that the next run replaces a file that a killed run left.
    file.push(format!(".{name}.pte"));
    let file = TemporaryFile(args.output.with_file_name(file));
    write_program(&export, &file.0, &[], &terminal(args.quiet))?;
    let program = args.check.device.options().open_program(&file.0);
    // The mapping stays valid without the name. Where a file in use cannot be removed, `drop` removes it.
    let _ = std::fs::remove_file(&file.0);
    Ok((file, program.context("the exported program is not valid; this is a bug in ptero")?))
}

/// Returns the logits of a chunk that starts at position `start` and the outputs of its layers, each with its row length.
fn feed(method: &mut Method<'_>, tokens: &[TokenId], start: usize) -> Result<Vec<(usize, Vec<f32>)>> {
    let count = tokens.len() as u64;
    let positions: Vec<i64> = (0_i64..).skip(start).take(tokens.len()).collect();
    let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
    let tokens = Tensor::from_slice(&[1, count], &tokens)?;
    let outputs = method.run([tokens, Tensor::from_slice(&[count], &positions)?])?;
    let numbers = |output: Tensor| {
        let bytes = cast(output.bytes(), output.dtype(), DType::F32)?;
        let width = output.shape().last().and_then(|width| usize::try_from(*width).ok()).unwrap_or(1);
        Ok((width, bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()))
    };
    outputs.into_iter().map(numbers).collect()
}
