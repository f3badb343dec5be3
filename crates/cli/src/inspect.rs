//! `ptero inspect`: shows the contents of a program.

mod page;
mod report;
mod sampling;
mod text;

pub use page::{TEMPLATE, page};
pub use report::Report;
pub use text::{STYLES, nodes, summary, weights};

use crate::print::{self, size};
use anyhow::{Context, Result};
use clap::Args;
use ptero::output::write_whole;
use ptero::{Device, KvCacheSpec, Options};
use ptero_plan::{Arena, bufferize, passes};
use ptero_pte::{Limits, Program, Verified, check};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

/// Arguments of `ptero inspect`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  ptero inspect model.pte                     a summary: methods, inputs, weights, sampling
  ptero inspect model.pte --nodes             every instruction, with the names of weights and inputs
  ptero inspect model.pte --plan              what runs: primitives, buffers, host values
  ptero inspect model.pte --json | jq .methods[0].graph.nodes
  ptero inspect model.pte --html model.html   the graph as a page for the browser

Weights are not read. If a program is not valid, its contents and the problem are shown, and the exit status is 1.")]
pub struct InspectArgs {
    /// Program (.pte)
    file: PathBuf,

    /// Load tensor data (.ptd) of the program; can be repeated
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// List every instruction
    #[arg(long)]
    nodes: bool,

    /// List every constant with its type, shape, size and offset
    #[arg(long)]
    weights: bool,

    /// Print the graph that devices compile, and the notes of the optimisation passes
    #[arg(long)]
    graph: bool,

    /// Print the plan that the CPU runs, and its memory use
    #[arg(long)]
    plan: bool,

    /// Skip an optimisation pass; can be repeated
    #[arg(long, value_name = "PASS", value_parser = crate::device::pass_parser())]
    without: Vec<String>,

    /// Size of an external key-value cache, as for `ptero exec`
    #[arg(long, value_name = "SPEC")]
    kv_cache: Option<KvCacheSpec>,

    /// Print JSON
    #[arg(long, conflicts_with_all = ["nodes", "weights", "graph", "plan"])]
    json: bool,

    /// Write a self-contained page that draws the graph
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
}

/// Runs the command; returns `false` if the program is not valid.
pub fn run(args: &InspectArgs) -> Result<bool> {
    let program = ptero::open_unverified(&args.file, &args.data)?;
    let problem = check(&program, &Limits::DEFAULT).err().map(|error| error.to_string());
    let is_valid = problem.is_none();
    let bytes = std::fs::metadata(&args.file).with_context(|| format!("could not read {}", args.file.display()))?.len();
    let name = args.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let report = Report::new(&program, name, bytes, problem);
    if let Some(path) = &args.html {
        let page = page(&report)?;
        write_whole(path, &[&args.file], |out| out.write_all(page.as_bytes()))?;
        anstream::eprintln!("wrote {}", path.display());
    }
    if args.json {
        print::json(&report)?;
    } else if args.html.is_none() || args.nodes || args.weights || args.graph || args.plan {
        let mut out = BufWriter::new(anstream::stdout().lock());
        summary(&report, &mut out)?;
        if args.weights {
            weights(&report, &mut out)?;
        }
        if args.nodes {
            nodes(&report, &mut out)?;
        }
        out.flush()?;
    }
    if is_valid && (args.graph || args.plan) {
        show_graphs(args, program)?;
    }
    Ok(is_valid)
}

fn show_graphs(args: &InspectArgs, program: Program) -> Result<()> {
    let kv_cache = args.kv_cache.as_ref().map(|spec| spec.for_program(&program)).transpose()?;
    let program = Verified::new(program, &Limits::DEFAULT)?;
    let capabilities = Options::new().device(Device::Cpu).threads(1).backend()?.capabilities();
    let mut out = BufWriter::new(std::io::stdout().lock());
    for method in &program.methods {
        let name = method.name.escape_debug();
        for (_, delegate) in program.delegates(&method.name) {
            let (graph, notes) = passes::prepare(delegate, kv_cache.clone(), &capabilities, &args.without)
                .with_context(|| format!("method `{name}`"))?;
            if args.graph {
                writeln!(out, "\n{name}, graph\n{graph}")?;
            }
            if args.plan {
                let plan = bufferize(&graph, Arena::aligned(64)).with_context(|| format!("method `{name}`"))?;
                let memory = &plan.placement;
                let (shared, unshared) = (size(memory.arena_bytes), size(memory.unshared_bytes));
                writeln!(out, "\n{name}, plan\n{plan}")?;
                let unbounded = memory.unbounded;
                writeln!(
                    out,
                    "memory {shared} for temporaries, {unshared} if none shared; {unbounded} of no fixed size"
                )?;
            }
            notes.lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
    }
    Ok(out.flush()?)
}
