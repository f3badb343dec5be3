//! `ptero graft-sampler`: a program that returns logits, made to sample.

use anyhow::{Context, Result};
use clap::Args;
use ptero::output::write_whole;
use ptero_export::{Graft, graft};
use ptero_pte::Limits;
use ptero_sampling::inputs::{SAMPLER_INPUTS, SamplerInput};
use std::path::PathBuf;

/// Arguments of `ptero graft-sampler`.
#[derive(Args, Debug)]
#[command(after_help = after_help())]
pub struct GraftArgs {
    /// The program to read (.pte)
    file: PathBuf,

    /// The program to write (.pte)
    out: PathBuf,

    /// Tensor data (.ptd) that belongs to the program and becomes part of it; may be given several times
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// The method that returns the logits
    #[arg(long, default_value = "forward")]
    method: String,

    /// Which output the logits are, counted from 0, where the method has several
    #[arg(long, value_name = "N")]
    output: Option<usize>,

    /// Take no seed: draw from the runtime's own sequence of keys
    #[arg(long)]
    no_seed: bool,
}

/// The parameters are those of the one table that all of ptero reads.
fn after_help() -> String {
    let parameter = |input: &SamplerInput| format!("  {:12} {} []  {}\n", input.name, input.dtype.name(), input.help);
    let parameters: String = SAMPLER_INPUTS.iter().map(parameter).collect();
    format!(
        "The method must return the logits of one position, (B, V) or (B, 1, V), out of an MLX delegate.
In their place it then returns one token id per row, i64 [B], and after its own inputs it takes

{parameters}
The head is the sequence of nodes that ExecuTorch's own exporter writes, so the result runs wherever
the program ran. Its metadata says use_sampling. Weights, state, other outputs and other methods
stay what they are.

Examples:
  ptero graft-sampler logits.pte sampling.pte
  ptero graft-sampler logits.pte sampling.pte --method decode --output 0
  ptero inspect sampling.pte                  says how it samples"
    )
}

/// Runs the command.
pub fn run(args: &GraftArgs) -> Result<()> {
    let program = ptero::open_unverified(&args.file, &args.data)?;
    let how = Graft { method: args.method.clone(), output: args.output, is_seeded: !args.no_seed };
    let program = graft(program, &how, &Limits::DEFAULT).with_context(|| args.file.display().to_string())?;
    // The input stays mapped as it was, so the result may replace it.
    Ok(write_whole(&args.out, &[], |out| program.write(out))?)
}
