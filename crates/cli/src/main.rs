//! The command `ptero`.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use ptero_cli::{bench, conformance, devices, exec, export, graft, hint, inspect, rewrite, run};
use std::io::Write;
use std::process::ExitCode;

/// Runs exported language models that sample their own next token.
///
/// A program is a `.pte` file: ExecuTorch's format with an MLX delegate graph.
#[derive(Parser)]
#[command(name = "ptero", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write text with a model
    Run(Box<run::RunArgs>),
    /// Make a program from a checkpoint
    Export(export::ExportArgs),
    /// Show what is inside a program
    Inspect(inspect::InspectArgs),
    /// Check a program and write it again, as one file
    Rewrite(rewrite::RewriteArgs),
    /// Make a program that returns logits sample its own tokens
    GraftSampler(graft::GraftArgs),
    /// Run a program on tensors from files
    Exec(exec::ExecArgs),
    /// Measure how fast a model runs here
    Bench(bench::BenchArgs),
    /// Run a folder of programs with known results and print a table
    Conformance(conformance::ConformanceArgs),
    /// List the devices of this machine
    Devices(devices::DevicesArgs),
}

fn main() -> ExitCode {
    let succeeds = |()| ExitCode::SUCCESS;
    let succeeds_if = |good| if good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Export(args) => export::run(&args).map(succeeds),
        Command::Inspect(args) => inspect::run(&args).map(succeeds_if),
        Command::Rewrite(args) => rewrite::run(&args).map(succeeds),
        Command::GraftSampler(args) => graft::run(&args).map(succeeds),
        Command::Exec(args) => exec::run(&args).map(succeeds),
        Command::Bench(args) => bench::run(&args).map(succeeds),
        Command::Conformance(args) => conformance::run(&args).map(succeeds_if),
        Command::Devices(args) => devices::run(&args).map(succeeds),
    };
    match result {
        Ok(code) => code,
        // Whoever reads from us has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody can be told, the exit code still tells.
            let _ = writeln!(anstream::stderr(), "\x1b[31merror\x1b[0m: {}", hint::text(&error));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(std::io::ErrorKind::BrokenPipe)
    };
    error.chain().any(broken)
}
