//! `ptero graft-sampler`: adds a sampling head to a program that returns logits.

use crate::rewrite::FilesArgs;
use anyhow::Result;
use clap::Args;
use ptero_export::{Graft, graft};
use ptero_pte::Limits;
use ptero_sampling::inputs::{SAMPLER_INPUTS, SamplerInput};

/// Arguments of `ptero graft-sampler`.
#[derive(Args, Debug)]
#[command(after_help = after_help())]
pub struct GraftArgs {
    #[command(flatten)]
    files: FilesArgs,

    /// Method that returns the logits
    #[arg(long, default_value = "forward")]
    method: String,

    /// Index of the output with the logits, if the method has several
    #[arg(long, value_name = "N")]
    output: Option<usize>,

    /// Take no seed and use the runtime's random keys
    #[arg(long)]
    no_seed: bool,
}

/// Lists the inputs of the sampler, from the same table as the exporter.
fn after_help() -> String {
    let parameter = |input: &SamplerInput| format!("  {:12} {} []  {}\n", input.name, input.dtype.name(), input.help);
    let parameters: String = SAMPLER_INPUTS.iter().map(parameter).collect();
    format!(
        "The method must return the logits of one position, (B, V) or (B, 1, V), from an MLX delegate. Afterwards it
returns one token id per row, i64 [B], and takes these additional inputs:

{parameters}
The head has the same nodes as that of ExecuTorch's exporter, so the result runs wherever the program ran.
The metadata `use_sampling` becomes true; everything else stays the same.

Examples:
  ptero graft-sampler logits.pte sampling.pte
  ptero graft-sampler logits.pte sampling.pte --method decode --output 0"
    )
}

/// Runs the command.
pub fn run(args: &GraftArgs) -> Result<()> {
    let how = Graft { method: args.method.clone(), output: args.output, is_seeded: !args.no_seed };
    args.files.rewrite(|program| graft(program, &how, &Limits::DEFAULT))
}
