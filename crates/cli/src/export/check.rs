//! `ptero export --check`: what quantization costs, by running the program beside the same graph in f32.

mod compare;

pub(super) use compare::Checked;

use crate::device::{self, DeviceArgs};
use crate::exec::Session;
use crate::exec::tensors::Tensor;
use crate::files;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use compare::Comparison;
use ptero_backend::{Backend, cast};
use ptero_checkpoint::Checkpoint;
use ptero_export::{Export, Recipe, ScaleType, Storage, export};
use ptero_pte::{DType, Limits, Verified};
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
    pub(super) fn tokens(&self, export: &Export) -> Result<Option<Vec<i64>>> {
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
        tokens: &[i64],
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
        let backend = device::open(&self.device)?;
        let [checked, exact] = [("checked", checked), ("exact", exact)]
            .map(|(name, recipe)| Built::new(checkpoint, &recipe, beside, name, is_quiet));
        let (checked, exact) = (checked?, exact?);
        let (mut checked, mut exact) = (checked.session(backend.as_ref())?, exact.session(backend.as_ref())?);
        let mut comparison = Comparison::new(tokens.len(), self.check_tokens.is_some());
        let chunk = usize::try_from(chunk)?;
        for piece in tokens.chunks(self.window(export)).filter(|piece| piece.len() > 1) {
            for (start, tokens) in (0..).step_by(chunk).zip(piece.chunks(chunk)) {
                let [checked, exact] = [&mut checked, &mut exact].map(|session| feed(session, tokens, start));
                comparison.add(&checked?, &exact?, piece.get(start + 1..).unwrap_or_default());
            }
        }
        Ok(comparison.finish())
    }

    fn given_or_random(&self, vocabulary: i64) -> Result<Vec<i64>> {
        let Some(path) = &self.check_tokens else {
            let mut state = 0x2545_f491_4f6c_dd1d_u64;
            return Ok(std::iter::repeat_with(|| next(&mut state, vocabulary)).take(256).collect());
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
        Ok(tokens)
    }
}

/// A few bits at random, always the same.
fn next(state: &mut u64, below: i64) -> i64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    i64::try_from(*state >> 1).unwrap_or(0).checked_rem(below).unwrap_or(0)
}

/// A program that gives logits everywhere, in a file that is gone when this is.
struct Built {
    program: Verified,
    path: PathBuf,
}

impl Built {
    fn new(checkpoint: &Checkpoint, recipe: &Recipe, beside: &Path, name: &str, is_quiet: bool) -> Result<Self> {
        let export = export(checkpoint, recipe)?;
        let mut file = std::ffi::OsString::from(".");
        file.push(beside.file_name().unwrap_or_default());
        // Always the same, so that what a killed run left is replaced by the next.
        file.push(format!(".{name}.pte"));
        let path = beside.with_file_name(file);
        super::write(&export, &path, &[], is_quiet)?;
        let opened = files::open(&path, &[]).and_then(|program| Ok(Verified::new(program, &Limits::DEFAULT)?));
        // The map outlives the name; where a file in use cannot be removed, dropping does it.
        let _ = std::fs::remove_file(&path);
        let program = opened.context("what was exported is not sound, which is a mistake of the exporter")?;
        Ok(Self { program, path })
    }

    fn session(&self, backend: &dyn Backend) -> Result<Session<'_>> {
        let method = self.program.method("forward").context("the program has no `forward`")?;
        Session::new(&self.program, method, None, &[], backend)
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The logits of a chunk that starts at a position, and what its layers gave.
fn feed(session: &mut Session<'_>, tokens: &[i64], start: usize) -> Result<Vec<(usize, Vec<f32>)>> {
    let count = tokens.len() as u64;
    let positions: Vec<i64> = (0_i64..).skip(start).take(tokens.len()).collect();
    let tensor = |shape: Vec<u64>, values: &[i64]| Tensor {
        dtype: DType::I64,
        shape,
        bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    let outputs = session.call(vec![tensor(vec![1, count], tokens), tensor(vec![count], &positions)])?;
    let numbers = |output: Tensor| {
        let bytes = cast(&output.bytes, output.dtype, DType::F32)?;
        let width = output.shape.last().and_then(|width| usize::try_from(*width).ok()).unwrap_or(1);
        Ok((width, bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()))
    };
    outputs.into_iter().map(numbers).collect()
}
