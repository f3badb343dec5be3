//! `ptero inspect`: what is inside a program.

mod page;
mod report;
mod sampling;
mod text;

pub use page::{TEMPLATE, page};
pub use report::Report;
pub(crate) use text::size;
pub use text::{STYLES, nodes, summary, weights};

use anyhow::{Context, Result};
use clap::Args;
use ptero::output::write_whole;
use ptero::{Device, KvCacheSpec};
use ptero_plan::{bufferize, passes};
use ptero_pte::{Limits, Program, Verified, check};
use std::io::Write;
use std::path::PathBuf;

/// Arguments of `ptero inspect`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  ptero inspect model.pte                     a summary: methods, inputs, weights, how it samples
  ptero inspect model.pte --nodes             every instruction, with the names of weights and inputs
  ptero inspect model.pte --plan              what the nodes become: primitives, buffers, host values
  ptero inspect model.pte --json | jq .methods[0].graph.nodes
  ptero inspect model.pte --html model.html   the graph as a page to open in a browser

Weights are mapped, not read: a large program answers as fast as a small one. A program that opens but is not sound
is shown as far as it goes, the problem is named, and the exit status is 1.")]
pub struct InspectArgs {
    /// The program (.pte)
    file: PathBuf,

    /// Tensor data (.ptd) that belongs to the program; may be given several times
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// List every instruction
    #[arg(long)]
    nodes: bool,

    /// List every constant with its type, shape, size and place in the file
    #[arg(long)]
    weights: bool,

    /// Print the graph that devices get: primitives over values, each with the instruction it came from, and what the passes
    /// say
    #[arg(long)]
    graph: bool,

    /// Print the plan that the CPU runs: the same primitives over buffers, and what memory they take
    #[arg(long)]
    plan: bool,

    /// Leave out a pass over the graph; may be given several times
    #[arg(long, value_name = "PASS", value_parser = crate::device::pass_parser())]
    without: Vec<String>,

    /// The cache of programs that keep keys and values outside, as for `ptero exec`
    #[arg(long, value_name = "SPEC")]
    kv_cache: Option<KvCacheSpec>,

    /// Print everything as JSON
    #[arg(long, conflicts_with_all = ["nodes", "weights", "graph", "plan"])]
    json: bool,

    /// Write a self-contained page with the graph drawn
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
}

/// Runs the command; `false` when the program is not sound.
pub fn run(args: &InspectArgs) -> Result<bool> {
    let program = ptero::open_unverified(&args.file, &args.data)?;
    let problem = check(&program, &Limits::DEFAULT).err().map(|error| error.to_string());
    let report = report_of(&program, &args.file, problem)?;
    if let Some(path) = &args.html {
        let page = page(&report)?;
        write_whole(path, &[&args.file], |out| out.write_all(page.as_bytes()))?;
    }
    show(args, &report)?;
    if (args.graph || args.plan) && report.problem.is_none() {
        show_graphs(args, program)?;
    }
    Ok(report.problem.is_none())
}

fn show_graphs(args: &InspectArgs, program: Program) -> Result<()> {
    let kv_cache = args.kv_cache.as_ref().map(|spec| spec.for_program(&program)).transpose()?;
    let program = Verified::new(program, &Limits::DEFAULT)?;
    let capabilities = Device::Cpu.backend(Some(1)).capabilities();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for method in &program.methods {
        let name = method.name.escape_debug();
        for (_, delegate) in program.delegates(&method.name) {
            let (graph, notes) = passes::prepare(delegate, kv_cache.clone(), &capabilities, &args.without)
                .with_context(|| format!("method `{name}`"))?;
            if args.graph {
                writeln!(out, "\n{name}, graph\n{graph}")?;
            }
            if args.plan {
                let plan = bufferize(&graph, 64).with_context(|| format!("method `{name}`"))?;
                let memory = &plan.placement;
                let (shared, apart) = (text::size(memory.arena_bytes), text::size(memory.unshared_bytes));
                writeln!(out, "\n{name}, plan\n{plan}")?;
                let unbounded = memory.unbounded;
                writeln!(out, "memory {shared} for temporaries, {apart} if none shared; {unbounded} of no fixed size")?;
            }
            notes.lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
    }
    Ok(out.flush()?)
}

fn report_of(program: &Program, file: &std::path::Path, problem: Option<String>) -> Result<Report> {
    let bytes = std::fs::metadata(file).with_context(|| format!("could not read {}", file.display()))?.len();
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Report::new(program, name, bytes, problem))
}

fn show(args: &InspectArgs, report: &Report) -> Result<()> {
    let stdout = anstream::stdout();
    let mut out = std::io::BufWriter::new(stdout.lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
    } else if args.html.is_none() || args.nodes || args.weights || args.graph || args.plan {
        summary(report, &mut out)?;
        if args.weights {
            weights(report, &mut out)?;
        }
        if args.nodes {
            nodes(report, &mut out)?;
        }
    }
    if let Some(path) = &args.html {
        anstream::eprintln!("wrote {}", path.display());
    }
    out.flush()?;
    Ok(())
}
