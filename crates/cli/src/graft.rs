//! `ptero graft-sampler`: adds a sampling head to a program that returns logits.

use crate::rewrite::FilesArgs;
use anyhow::Result;
use clap::Args;
use ptero_export::{Graft, graft};
use ptero_pte::Limits;
use ptero_sampling::inputs::{Head, SAMPLER_INPUTS, SAMPLER_OUTPUTS, SamplerInput, SamplerOutput};

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

    /// Add the head with every option of the sampler; it replaces the plain head if the program has one
    #[arg(long, conflicts_with = "no_seed")]
    full: bool,
}

/// Lists the inputs of the sampler, from the same table as the exporter.
fn after_help() -> String {
    let parameter = |input: &SamplerInput| format!("  {:18} {}  {}\n", input.name, input.dtype.name(), input.help);
    let of_head = |is_full: bool| -> String {
        SAMPLER_INPUTS.iter().filter(|input| (input.head == Head::Full) == is_full).map(parameter).collect()
    };
    let [parameters, more] = [false, true].map(of_head);
    let output = |output: &SamplerOutput| format!("  {:18} {}  {}\n", output.name, output.dtype.name(), output.help);
    let outputs: String = SAMPLER_OUTPUTS.iter().map(output).collect();
    format!(
        "The method must return the logits of one position, (B, V) or (B, 1, V), from an MLX delegate. Afterwards it
returns one token id per row, i64 [B], and takes these additional inputs:

{parameters}
With --full also these:

{more}
and it returns after the token:

{outputs}
The plain head has the same nodes as that of ExecuTorch's exporter, so the result runs wherever the program ran.
The metadata `use_sampling` becomes true; everything else stays the same.

Examples:
  ptero graft-sampler logits.pte sampling.pte
  ptero graft-sampler logits.pte sampling.pte --method decode --output 0
  ptero graft-sampler smol.pte smol-full.pte --full"
    )
}

/// Runs the command.
pub fn run(args: &GraftArgs) -> Result<()> {
    let head = match (args.full, args.no_seed) {
        (true, _) => Head::Full,
        (false, true) => Head::Unseeded,
        (false, false) => Head::Plain,
    };
    let how = Graft { method: args.method.clone(), output: args.output, head };
    args.files.rewrite(|program| graft(program, &how, &Limits::DEFAULT))
}
