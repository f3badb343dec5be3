//! `ptero rewrite`: verifies a program and writes it again.

use anyhow::{Context, Result};
use clap::Args;
use ptero::output::write_whole;
use ptero_pte::{Limits, Program, Verified};
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
    #[command(flatten)]
    files: FilesArgs,
}

/// A program to read and one to write.
#[derive(Args, Debug)]
pub(crate) struct FilesArgs {
    /// Program to read (.pte)
    file: PathBuf,

    /// Program to write (.pte)
    out: PathBuf,

    /// Add tensor data (.ptd) to the program; can be repeated
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
}

impl FilesArgs {
    /// Reads the program, changes it and writes it.
    pub(crate) fn rewrite<E>(&self, change: impl FnOnce(Program) -> Result<Verified, E>) -> Result<()>
    where
        Result<Verified, E>: Context<Verified, E>,
    {
        let program = ptero::open_unverified(&self.file, &self.data)?;
        let program = change(program).with_context(|| self.file.display().to_string())?;
        // The input stays mapped, so the output may replace it.
        Ok(write_whole(&self.out, &[], |out| program.write(out))?)
    }
}

/// Runs the command.
pub fn run(args: &RewriteArgs) -> Result<()> {
    args.files.rewrite(|program| Verified::new(program, &Limits::DEFAULT))
}
