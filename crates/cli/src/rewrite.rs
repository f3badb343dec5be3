//! `ptero rewrite`: a program, checked and written again.

use anyhow::{Context, Result};
use clap::Args;
use ptero::output::write_whole;
use ptero_pte::{Limits, Verified};
use std::path::PathBuf;

/// Arguments of `ptero rewrite`.
#[derive(Args, Debug)]
#[command(
    after_help = "The result means the same and is laid out as ptero lays out its own exports: the same program always
gives the same bytes, stack traces are dropped, and data from .ptd files becomes part of the one file.

Example:
  ptero rewrite model.pte --data weights.ptd one-file.pte"
)]
pub struct RewriteArgs {
    /// The program to read (.pte)
    file: PathBuf,

    /// The program to write (.pte)
    out: PathBuf,

    /// Tensor data (.ptd) that belongs to the program; may be given several times
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: &RewriteArgs) -> Result<()> {
    let program = ptero::open_unverified(&args.file, &args.data)?;
    let program = Verified::new(program, &Limits::DEFAULT).with_context(|| args.file.display().to_string())?;
    // The input stays mapped as it was, so the result may replace it.
    Ok(write_whole(&args.out, &[], |out| program.write(out))?)
}
