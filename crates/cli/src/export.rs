//! `ptero export`: a checkpoint becomes a program.

mod check;
mod report;

use crate::progress::terminal;
use anyhow::{Context, Result, bail};
use check::CheckArgs;
use clap::{Args, ValueEnum};
use ptero::cache::write_program;
use ptero::{TokenId, hub};
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_export::{FAMILIES, Recipe, ScaleType, Storage, export};
use report::Report;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `ptero export`.
#[derive(Args, Debug)]
#[command(after_help = after_help())]
pub struct ExportArgs {
    /// A Hugging Face folder, a .safetensors or .gguf file, or the name of a repository: owner/name[@revision][:file.gguf]
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: String,

    /// The program to write (.pte)
    #[arg(short, long, value_name = "OUT.pte")]
    output: PathBuf,

    /// Make weights up, always the same for a seed: CHECKPOINT is then a config.json, or has one
    #[arg(long, value_name = "SEED")]
    random: Option<u64>,

    /// Leave the model its first layers
    #[arg(long, value_name = "N", requires = "random", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,

    /// Make the program draw its own tokens: it then takes temperature, top-k, top-p and a seed, and gives a token id
    #[arg(long)]
    sample: bool,

    /// How weights are stored
    #[arg(short, long, value_name = "FORM", default_value = "keep")]
    quantize: Form,

    /// How many weights share a scale and a bias
    #[arg(short, long, value_name = "G", default_value = "32", value_parser = ["32", "64", "128"])]
    group_size: String,

    /// How embeddings are stored, and the head where it is tied to them [default: as --quantize, but int8 for int4]
    #[arg(long, value_name = "FORM")]
    embed: Option<Form>,

    /// Type of activations, state and weights that are not quantized
    #[arg(long, value_name = "TYPE", default_value = "bf16")]
    dtype: Float,

    /// Positions that the state has room for [default: what the model was made for, at most 4096]
    #[arg(short = 'c', long, value_name = "N")]
    max_context: Option<u32>,

    /// Tokens that one call takes; longer prompts go in chunks [default: 512, at most the context]
    #[arg(long, value_name = "N")]
    max_prefill: Option<u32>,

    /// Leave tokenizer and chat template out of the program
    #[arg(long)]
    no_files: bool,

    /// Compute the head for every position: a program to compare with, not to use
    #[arg(long, hide = true, conflicts_with = "sample")]
    every_position: bool,

    #[command(flatten)]
    check: CheckArgs,

    /// Print what was done as JSON
    #[arg(long)]
    json: bool,

    /// Say nothing but errors
    #[arg(long)]
    quiet: bool,
}

/// How weights can be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Four bits each
    Int4,
    /// Eight bits each
    Int8,
    /// Not quantized
    None,
    /// As they are: GGUF's blocks stay blocks, or groups of the same codes; the rest is not quantized
    Keep,
}

/// Types of activations.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Float {
    Bf16,
    F16,
    F32,
}

fn after_help() -> String {
    let types = FAMILIES.iter().map(|family| format!("  {:12} {}\n", family.name, family.model_types.join(", ")));
    format!(
        "Families of models, and the model types that configurations give them:
{}
One program does prefill and decode: forward(tokens [1, S], input_pos [S]) gives the logits of the last
position, or with --sample one token id. Weights are read, encoded and written piece by piece; the file
appears only when it is complete.

Examples:
  ptero export ./SmolLM2-135M-Instruct -o smol.pte --sample --quantize int4
  ptero export HuggingFaceTB/SmolLM2-135M-Instruct -o smol.pte --sample -q int4     downloads it first
  ptero export model.Q4_K_M.gguf -o model.pte --sample                              keeps the blocks
  ptero export ./model -o model.pte -q int4 --check                                 says what int4 costs
  ptero export config.json -o shape.pte -q int4 --sample --random 1 --layers 4      a model's shape, to measure",
        types.collect::<String>()
    )
}

impl From<Form> for Storage {
    fn from(form: Form) -> Self {
        match form {
            Form::Int4 => Storage::Int4,
            Form::Int8 => Storage::Int8,
            Form::None => Storage::Plain,
            Form::Keep => Storage::Kept,
        }
    }
}

impl From<Float> for ScaleType {
    fn from(float: Float) -> Self {
        match float {
            Float::Bf16 => ScaleType::Bf16,
            Float::F16 => ScaleType::F16,
            Float::F32 => ScaleType::F32,
        }
    }
}

impl ExportArgs {
    fn recipe(&self) -> Result<Recipe> {
        let embed = self.embed.unwrap_or(if self.quantize == Form::Int4 { Form::Int8 } else { self.quantize });
        Ok(Recipe {
            dtype: self.dtype.into(),
            linear: self.quantize.into(),
            embedding: embed.into(),
            group: self.group_size.parse().context("--group-size")?,
            max_context: self.max_context,
            max_prefill: self.max_prefill,
            sample: self.sample,
            every_position: self.every_position,
            tap_layers: false,
            embed_files: !self.no_files,
        })
    }
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<()> {
    let started = Instant::now();
    let recipe = args.recipe()?;
    let path = hub::resolve(&args.checkpoint, &hub::Options::from_env(terminal(args.quiet)))?;
    let checkpoint = match args.random {
        Some(seed) => Checkpoint::random(&path, seed, args.layers, &Limits::default())?,
        None => Checkpoint::open(&path, &Limits::default()).map_err(|error| hint_of_random(error, &path))?,
    };
    let in_checkpoint = || path.display().to_string();
    let export = export(&checkpoint, &recipe).with_context(in_checkpoint)?;
    let tokens = args.check.tokens(&export)?;
    if args.output.is_dir() {
        bail!("could not write {}: it is a folder", args.output.display());
    }
    let bytes = write_program(&export, &args.output, &kept(&path), &terminal(args.quiet))?;
    let report = Report::new(&export, &recipe, &args.output, bytes, started.elapsed());
    let check = |tokens: Vec<TokenId>| args.check.run(&tokens, &checkpoint, &recipe, &export, &args.output, args.quiet);
    let checked = tokens.map(check).transpose().with_context(in_checkpoint)?;
    report.print(checked.as_ref(), args.json, args.quiet)
}

/// A configuration is what people have before they download a model.
fn hint_of_random(error: ptero_checkpoint::Error, path: &Path) -> anyhow::Error {
    let is_config = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let error = anyhow::Error::from(error);
    if is_config {
        return anyhow::anyhow!("{error:#}\nhint: a configuration has no weights; `--random SEED` makes some up");
    }
    error
}

/// What the program must not replace: the checkpoint, or of a folder everything but programs.
fn kept(checkpoint: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(checkpoint).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_program = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "pte");
    files.filter(|path| !is_program(path)).chain([checkpoint.to_owned()]).collect()
}
