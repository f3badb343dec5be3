//! `ptero export --check`: what quantization costs, by running the program beside the same graph in f32.

mod compare;

pub(super) use compare::Checked;

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

/// Arguments about checking what was exported.
#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// Run the program, with its head on every position, beside the same graph in f32 and say how far apart they are; needs
    /// room for both beside the output meanwhile
    #[arg(long)]
    check: bool,

    /// Say it of every layer too
    #[arg(long, requires = "check")]
    check_layers: bool,

    /// Token ids to check with, as a JSON list or separated by spaces; with real text, perplexity means something
    /// [default: 256 random ids]
    #[arg(long, value_name = "FILE", requires = "check")]
    check_tokens: Option<PathBuf>,

    /// Tokens that see each other: longer texts are checked piece by piece
    #[arg(long, value_name = "N", default_value = "512", requires = "check")]
    check_window: usize,

    #[command(flatten)]
    device: DeviceArgs,
}

/// Tokens that are given at a time, at most: the logits of all of them are in memory.
const CHUNK: u32 = 64;

impl CheckArgs {
    /// Tokens to check with, if that was asked for. Called before anything is written, since much is done before they
    /// are needed.
    pub(super) fn tokens(&self, export: &Export) -> Result<Option<Vec<TokenId>>> {
        if !self.check {
            return Ok(None);
        }
        let window = self.window(export);
        ensure!(window > 1, "a window of {window} token predicts nothing\nhint: --check-window needs at least 2");
        let vocabulary = export.program().int_metadata("get_vocab_size")?;
        self.given_or_random(vocabulary.context("the program does not say its vocabulary")?).map(Some)
    }

    fn window(&self, export: &Export) -> usize {
        self.check_window.min(usize::try_from(export.max_context).unwrap_or(usize::MAX))
    }

    /// Compares what two programs make of the tokens.
    pub(super) fn run(
        &self,
        tokens: &[TokenId],
        checkpoint: &Checkpoint,
        recipe: &Recipe,
        export: &Export,
        beside: &Path,
        is_quiet: bool,
    ) -> Result<Checked> {
        let chunk = export.max_prefill.min(CHUNK);
        let checked = Recipe {
            sample: false,
            every_position: true,
            tap_layers: self.check_layers,
            embed_files: false,
            max_prefill: Some(chunk),
            ..recipe.clone()
        };
        let exact =
            Recipe { dtype: ScaleType::F32, linear: Storage::Plain, embedding: Storage::Plain, ..checked.clone() };
        let [checked, exact] = [("checked", checked), ("exact", exact)]
            .map(|(name, recipe)| Built::new(checkpoint, &recipe, beside, name, &self.device, is_quiet));
        let (checked, exact) = (checked?, exact?);
        let (mut checked, mut exact) = (checked.program.method("forward")?, exact.program.method("forward")?);
        let mut comparison = Comparison::new(tokens.len(), self.check_tokens.is_some());
        let chunk = usize::try_from(chunk)?;
        for piece in tokens.chunks(self.window(export)).filter(|piece| piece.len() > 1) {
            for (start, tokens) in (0..).step_by(chunk).zip(piece.chunks(chunk)) {
                let [checked, exact] = [&mut checked, &mut exact].map(|method| feed(method, tokens, start));
                comparison.add(&checked?, &exact?, piece.get(start + 1..).unwrap_or(&[]));
            }
        }
        Ok(comparison.finish())
    }

    fn given_or_random(&self, vocabulary: i64) -> Result<Vec<TokenId>> {
        let Some(path) = &self.check_tokens else {
            let (mut rng, vocabulary) = (SplitMix64::new(0), u64::try_from(vocabulary)?);
            let ids = std::iter::repeat_with(|| TokenId::try_from(rng.below(vocabulary)));
            return Ok(ids.take(256).collect::<Result<_, _>>()?);
        };
        let in_file = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(in_file)?;
        let tokens: Vec<i64> = if text.trim_start().starts_with('[') {
            serde_json::from_str(&text).with_context(in_file)?
        } else {
            let id = |word: &str| word.parse().with_context(|| format!("{}: `{word}` is no token id", path.display()));
            text.split_whitespace().map(id).collect::<Result<_>>()?
        };
        if let Some(token) = tokens.iter().find(|token| !(0..vocabulary).contains(token)) {
            bail!("{}: token {token} is not one of the model's {vocabulary}", path.display());
        }
        ensure!(tokens.len() > 1, "{}: {} tokens are too few to check with", path.display(), tokens.len());
        Ok(tokens.into_iter().map(TokenId::try_from).collect::<Result<_, _>>()?)
    }
}

/// A program that gives logits everywhere, in a file that is gone when this is.
struct Built {
    program: Program,
    path: PathBuf,
}

impl Built {
    fn new(
        checkpoint: &Checkpoint,
        recipe: &Recipe,
        beside: &Path,
        name: &str,
        device: &DeviceArgs,
        is_quiet: bool,
    ) -> Result<Self> {
        let export = export(checkpoint, recipe)?;
        let mut file = std::ffi::OsString::from(".");
        file.push(beside.file_name().unwrap_or_default());
        // Always the same, so that what a killed run left is replaced by the next.
        file.push(format!(".{name}.pte"));
        let path = beside.with_file_name(file);
        write_program(&export, &path, &[], &terminal(is_quiet))?;
        let opened = device.options().open_program(&path);
        // The map outlives the name; where a file in use cannot be removed, dropping does it.
        let _ = std::fs::remove_file(&path);
        let program = opened.context("what was exported is not sound, which is a mistake of the exporter")?;
        Ok(Self { program, path })
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The logits of a chunk that starts at a position, and what its layers gave.
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
