//! `ptero export`: makes a program from a checkpoint.

mod check;
mod report;

use crate::print;
use crate::progress::terminal;
use anyhow::{Context, Result, bail};
use check::{CheckArgs, Outcome};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use ptero::cache::write_program;
use ptero::export::{FLOATS, HEADS, Names, QUANTIZATIONS, Quantization, STORAGES, kept};
use ptero::{TokenId, hub};
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_export::{FAMILIES, Recipe, ScaleType, Storage, export, model_weights};
use ptero_sampling::inputs::Head;
use report::Report;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Arguments of `ptero export`.
#[derive(Args, Debug)]
#[command(after_help = after_help())]
pub struct ExportArgs {
    /// A Hugging Face folder, a .safetensors or .gguf file, or a repository: owner/name[@revision][:file.gguf]
    checkpoint: String,

    /// Program to write (.pte)
    #[arg(short, long, value_name = "OUT.pte")]
    output: PathBuf,

    /// Use random weights, the same for the same seed; CHECKPOINT is a config.json or contains one
    #[arg(long, value_name = "SEED")]
    random: Option<u64>,

    /// Keep only the first N layers
    #[arg(long, value_name = "N", requires = "random", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,

    /// Add a sampling head: the program takes temperature, top-k, top-p and a seed, and returns token ids; with `=full` it
    /// also takes min-p, penalties, logit biases, a token mask and an exact tail, and returns log-probabilities
    #[arg(long, value_name = "HEAD", num_args = 0..=1, require_equals = true, default_missing_value = "plain")]
    #[arg(value_parser = named(HEADS))]
    sample: Option<Head>,

    /// Storage of weights
    #[arg(short, long, value_name = "FORM", default_value = "keep", value_parser = named(QUANTIZATIONS))]
    quantize: Quantization,

    /// Number of weights that share a scale and a bias [default: 32; for int4 and int4-mixed of a model with more than
    /// 1B parameters 64, unless the checkpoint is in groups of 32 itself]
    #[arg(short, long, value_name = "G", value_parser = group_size_parser())]
    group_size: Option<usize>,

    /// Storage of embeddings and of an output layer tied to them [default: as --quantize, but int8 for int4 and int4-mixed]
    #[arg(long, value_name = "FORM", value_parser = named(STORAGES))]
    embed: Option<Storage>,

    /// Type of activations, state and weights that are not quantized
    #[arg(long, value_name = "TYPE", default_value = "bf16", value_parser = named(FLOATS))]
    dtype: ScaleType,

    /// Context length [default: that of the model, at most 4096]
    #[arg(short = 'c', long, value_name = "N")]
    max_context: Option<u32>,

    /// Maximum number of tokens per call; longer prompts are split [default: 512, at most the context]
    #[arg(long, value_name = "N")]
    max_prefill: Option<u32>,

    /// Leave tokenizer and chat template out of the program
    #[arg(long)]
    no_files: bool,

    /// Return the logits of every position, for comparisons
    #[arg(long, hide = true, conflicts_with = "sample")]
    every_position: bool,

    #[command(flatten)]
    check: CheckArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print only errors
    #[arg(long)]
    quiet: bool,
}

/// Parses one of the names.
fn named<T: Copy + Send + Sync + 'static>(names: Names<T>) -> impl TypedValueParser<Value = T> {
    let values = names.iter().map(|(name, _, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(values).try_map(|text| ptero::export::named(names, &text).ok_or("not a value"))
}

/// Parses the size of groups.
fn group_size_parser() -> impl TypedValueParser<Value = usize> {
    PossibleValuesParser::new(["32", "64", "128"]).try_map(|text| text.parse())
}

fn after_help() -> String {
    let types = FAMILIES.iter().map(|family| format!("  {:12} {}\n", family.name, family.model_types.join(", ")));
    format!(
        "Supported families and their model types:
{}
One program does prefill and decode: forward(tokens [1, S], input_pos [S]) returns the logits of the last
position, or with --sample one token id. Checkpoints may be larger than memory.

Examples:
  ptero export ./SmolLM2-135M-Instruct -o smol.pte --sample --quantize int4
  ptero export HuggingFaceTB/SmolLM2-135M-Instruct -o smol.pte --sample -q int4     download it first
  ptero export model.Q4_K_M.gguf -o model.pte --sample                              keep the blocks
  ptero export ./model -o model.pte -q int4 --check                                 measure the error of int4
  ptero export ./model -o model.pte -q int4 --check --check-recipes                 compare int8, int4 and int4-mixed
  ptero export config.json -o shape.pte -q int4 --sample --random 1 --layers 4      random weights, to measure speed",
        types.collect::<String>()
    )
}

impl ExportArgs {
    fn recipe(&self) -> Recipe {
        self.recipe_with(self.quantize, self.group_size)
    }

    /// Returns the recipe with another storage of weights.
    fn recipe_with(&self, quantize: Quantization, group: Option<usize>) -> Recipe {
        Recipe {
            dtype: self.dtype,
            linear: quantize.linear,
            sensitive: quantize.sensitive,
            embedding: self.embed.unwrap_or(quantize.embedding()),
            group,
            max_context: self.max_context,
            max_prefill: self.max_prefill,
            sample: self.sample,
            every_position: self.every_position,
            tap_layers: false,
            embed_files: !self.no_files,
        }
    }
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<()> {
    let started = Instant::now();
    let recipe = args.recipe();
    let path = hub::resolve(&args.checkpoint, &hub::Options::from_env(terminal(args.quiet)))?;
    let checkpoint = match args.random {
        Some(seed) => Checkpoint::random(&path, seed, args.layers, &Limits::default())?,
        None => Checkpoint::open(&path, &Limits::default()).map_err(|error| hint_of_random(error, &path))?,
    };
    let in_checkpoint = || path.display().to_string();
    let export = export(&checkpoint, &recipe).with_context(in_checkpoint)?;
    let weights = model_weights(&checkpoint).with_context(in_checkpoint)?;
    let tokens = args.check.tokens(&export)?;
    if args.output.is_dir() {
        bail!("could not write {}: it is a folder", args.output.display());
    }
    let bytes = write_program(&export, &args.output, &kept(&path), &terminal(args.quiet))?;
    let seconds = started.elapsed().as_secs_f64();
    let check = |tokens: Vec<TokenId>| args.check.run(&tokens, &checkpoint, &export, args);
    let checked: Option<Outcome> = tokens.map(check).transpose().with_context(in_checkpoint)?;
    let is_group_given = args.group_size.is_some();
    let report = Report { export: &export, weights, is_group_given, file: &args.output, bytes, seconds };
    if args.json {
        return print::json(&report.json(checked.as_ref()));
    }
    if !args.quiet {
        anstream::eprintln!("{report}");
    }
    checked.map_or(Ok(()), |checked| Ok(write!(anstream::stdout(), "{checked}")?))
}

/// Adds a hint to the error for a configuration without weights.
fn hint_of_random(error: ptero_checkpoint::Error, path: &Path) -> anyhow::Error {
    let error = anyhow::Error::from(error);
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        return anyhow::anyhow!("{error:#}\nhint: a configuration has no weights; `--random SEED` makes some up");
    }
    error
}
