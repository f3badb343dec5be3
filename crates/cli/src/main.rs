//! The command `ptero`.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use ptero_cli::{bench, conformance, devices, exec, export, graft, hint, inspect, rewrite, run, serve};
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
    /// Generate text with a model
    Run(Box<run::RunArgs>),
    /// Serve a model over HTTP, as OpenAI's API does
    Serve(Box<serve::ServeArgs>),
    /// Convert a checkpoint to a program
    Export(export::ExportArgs),
    /// Show the contents of a program
    Inspect(inspect::InspectArgs),
    /// Verify a program and write it as one file
    Rewrite(rewrite::RewriteArgs),
    /// Add a sampling head to a program that returns logits
    GraftSampler(graft::GraftArgs),
    /// Run a program with tensors from files
    Exec(exec::ExecArgs),
    /// Measure the speed of a model
    Bench(bench::BenchArgs),
    /// Run programs with known results and print a table
    Conformance(conformance::ConformanceArgs),
    /// List the devices of this machine
    Devices(devices::DevicesArgs),
}

fn main() -> ExitCode {
    let succeeds = |()| ExitCode::SUCCESS;
    let succeeds_if = |good| if good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::run(&args).map(succeeds),
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
        // The reader of the output, such as `head`, needs no more.
        Err(error) if hint::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            hint::print(&error);
            ExitCode::FAILURE
        }
    }
}
