//! `ptero export --check`: compares the program, and with `--check-recipes` other recipes, with the same graph in f32.

mod compare;
mod recipes;

use super::ExportArgs;
use crate::device::DeviceArgs;
use crate::progress::{counted, terminal};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use compare::{Checked, Comparison};
use ptero::cache::write_program;
use ptero::{DType, Method, Program, Tensor, TokenId};
use ptero_backend::cast;
use ptero_checkpoint::Checkpoint;
use ptero_export::{Export, Recipe, ScaleType, Storage, export};
use ptero_tensor::SplitMix64;
use recipes::RecipeTable;
use std::fmt;
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

    /// Compare other recipes too, in a table: the error, the size and the decoding speed of int8, int4 and int4-mixed
    #[arg(long, requires = "check")]
    check_recipes: bool,

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

/// What `--check` found.
pub(super) struct Outcome {
    pub(super) checked: Checked,
    /// With `--check-recipes`.
    pub(super) recipes: Option<RecipeTable>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.checked)?;
        self.recipes.as_ref().map_or(Ok(()), |recipes| write!(f, "{recipes}"))
    }
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

    /// Compares the logits of the program with those of the same graph in f32, and other recipes if asked to.
    pub(super) fn run(
        &self,
        tokens: &[TokenId],
        from: &Checkpoint,
        export: &Export,
        args: &ExportArgs,
    ) -> Result<Outcome> {
        let chunk = export.max_prefill.min(CHUNK);
        let check = Check { args, from, tokens, window: self.window(export), chunk, chosen: &export.recipe };
        // Before the program in f32 that stays until the end, so that there is one other program at a time.
        let mut table = self.check_recipes.then(|| RecipeTable::begin(&check)).transpose()?;
        let (_file, exact) = build(from, &check.comparable(&exact(&export.recipe)), "exact", args)?;
        let mut exact = exact.method("forward")?;
        let checked = check.compare(&export.recipe, &mut exact)?;
        if let Some(table) = &mut table {
            table.fill(&check, &checked, &mut exact)?;
        }
        Ok(Outcome { checked, recipes: table })
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

/// Returns the recipe of the same graph in f32.
fn exact(recipe: &Recipe) -> Recipe {
    let [linear, embedding] = [Storage::Plain; 2];
    Recipe { dtype: ScaleType::F32, linear, sensitive: None, embedding, ..recipe.clone() }
}

/// What recipes are compared on.
struct Check<'a> {
    args: &'a ExportArgs,
    from: &'a Checkpoint,
    tokens: &'a [TokenId],
    /// Longer texts are split into windows of this many tokens.
    window: usize,
    /// Tokens per call.
    chunk: u32,
    /// The recipe of the program that was exported.
    chosen: &'a Recipe,
}

impl Check<'_> {
    /// Returns the recipe of a program whose logits can be compared at every position.
    fn comparable(&self, recipe: &Recipe) -> Recipe {
        Recipe {
            sample: None,
            every_position: true,
            tap_layers: self.args.check.check_layers,
            embed_files: false,
            max_prefill: Some(self.chunk),
            ..recipe.clone()
        }
    }

    /// Exports a program and compares its logits with those in f32.
    fn compare(&self, recipe: &Recipe, exact: &mut Method) -> Result<Checked> {
        let (_file, program) = build(self.from, &self.comparable(recipe), "checked", self.args)?;
        let mut checked = program.method("forward")?;
        let progress = counted(self.tokens.len() as u64, self.args.quiet);
        progress.set_message("comparing tokens");
        let (mut comparison, chunk) = (Comparison::default(), usize::try_from(self.chunk)?);
        for piece in self.tokens.chunks(self.window).filter(|piece| piece.len() > 1) {
            for (start, tokens) in (0..).step_by(chunk).zip(piece.chunks(chunk)) {
                let (checked, exact) = (feed(&mut checked, tokens, start)?, feed(exact, tokens, start)?);
                comparison.add(&checked, &exact, piece.get(start + 1..).unwrap_or(&[]));
                progress.inc(tokens.len() as u64);
            }
        }
        progress.finish_and_clear();
        Ok(comparison.finish(self.tokens.len(), self.args.check.check_tokens.is_some()))
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
fn feed(method: &mut Method, tokens: &[TokenId], start: usize) -> Result<Vec<(usize, Vec<f32>)>> {
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
