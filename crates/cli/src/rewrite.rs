//! `ptero rewrite`: verifies a program and writes it again.

use anyhow::{Context, Result};
use clap::Args;
use ptero::output::write_whole;
use ptero_pte::{Limits, Verified};
use std::path::PathBuf;

/// Arguments of `ptero rewrite`.
#[derive(Args, Debug)]
#[command(
    after_help = "The result has the layout of ptero's exports: the same program always gives the same bytes. Stack traces are
dropped, and data from .ptd files becomes part of the file.

Example:
  ptero rewrite model.pte --data weights.ptd one-file.pte"
)]
pub struct RewriteArgs {
    /// Program to read (.pte)
    file: PathBuf,

    /// Program to write (.pte)
    out: PathBuf,

    /// Add tensor data (.ptd) to the program; can be repeated
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: &RewriteArgs) -> Result<()> {
    let program = ptero::open_unverified(&args.file, &args.data)?;
    let program = Verified::new(program, &Limits::DEFAULT).with_context(|| args.file.display().to_string())?;
    // The input stays mapped, so the output may replace it.
    Ok(write_whole(&args.out, &[], |out| program.write(out))?)
}
