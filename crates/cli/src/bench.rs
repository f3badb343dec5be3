//! `ptero bench`: measures how fast a model runs, compared with what the machine can do.

mod chart;
mod decoding;
mod digest;
mod host;
mod measure;
mod page;
mod profile;
mod report;
mod sampling;
mod setup;
mod text;

pub(crate) use decoding::Decoding;
pub use profile::{Part, Profile, Spent, Step};
pub use report::{Comparison, Figures, Report, Run, Test};
pub(crate) use text::{Align, Column, Table, decimals, or_dash, range};

use crate::{device, print, progress};
use anyhow::{Context, Result, ensure};
use clap::{ArgGroup, Args};
use measure::Bench;
use ptero::Device as DeviceName;
use ptero::output::{OutputFile, write_whole};
use ptero_engine::{Engine, Settings};
use sampling::Samplers;
use setup::{Device, Source};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Arguments of `ptero bench`.
#[derive(Args, Debug)]
#[command(
    group(ArgGroup::new("draws").args(["sampling", "logits_digest"])),
    after_help = "Prompts are random token ids, the same in every run. Each test runs once to warm up and then --repeat
times; the table shows the median and the range. Tokens are chosen greedily. GB/s are the bytes that a
decoding step must read (weights, and state up to its position) divided by its time; the share is that
of the bandwidth that the same number of threads reach, measured after each test.

--profile runs each test --repeat more times and records its steps: how long they take, and how much of that is
reading weights and state at the machine's bandwidth (memory), work beyond that (compute), threads that wait for
each other in shared work (waiting), and threads that wait while one works alone (serial). With --html or --svg,
steps are drawn in order; with --json, they are listed one by one.

--logits-digest shows whether devices compute the same bits: the same model and options give the same SHA-256 on `cpu`
and `cuda`, with any number of threads. Logits are hashed as 32-bit floats, least significant byte first.

Examples:
  ptero bench smol.pte                     prompts of 16, 128 and 512 tokens, decoding at 0 and 512
  ptero bench smol.pte --lanes 1,8         one session, and eight that share every read of the weights
  ptero bench smol.pte --sampling          compare sampling in the program and on the host
  ptero bench smol.pte --html smol.html    write a page with plots
  ptero bench smol.pte --profile           show where the time of a token goes
  ptero bench smol.pte --logits-digest -p 512 -n 256 --device cuda
                                           compare the bits of this device with those of another
  ptero bench config.json --layers 4       measure a model without its weights
  ptero bench smol.pte --json | jq '.runs[0].tests[] | {test, tokens, depth, tokens_per_s}'"
)]
pub struct BenchArgs {
    /// A program (.pte), a checkpoint to export first, or a config.json, which gets random int4 weights
    /// [default: the included model]
    model: Option<String>,

    /// Keep only the first N layers of a config.json
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,

    /// Load tensor data (.ptd) of the program; can be repeated
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Prompt lengths to test; 0 for none [with --profile, none by default]
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_values_t = [16, 128, 512])]
    #[arg(default_value_if("profile", "true", "0"))]
    prompt_lengths: Vec<usize>,

    /// Number of decoding steps; 0 for none
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    decode: usize,

    /// Positions to fill before decoding
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_values_t = [0, 512])]
    depths: Vec<usize>,

    /// Numbers of sessions to decode at once, which read the weights once for all
    #[arg(long, alias = "parallel", value_name = "N,…", value_delimiter = ',', default_values_t = [1],
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    lanes: Vec<u16>,

    /// Number of repetitions of each test, after a warm-up
    #[arg(short, long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,

    /// Compare sampling in the program with sampling on the host, with the same settings and tokens
    #[arg(long)]
    sampling: bool,

    /// Measure nothing; print one SHA-256 over all logits of three texts of --decode tokens, sampled after the longest prompt
    #[arg(long, conflicts_with_all = ["profile", "html", "svg"])]
    logits_digest: bool,

    /// Show where the time goes, step by step: compute, memory, waiting for threads; on the device `cpu`
    #[arg(long)]
    profile: bool,

    /// Device to run on
    #[arg(long, default_value_t, value_parser = device::parser())]
    device: DeviceName,

    /// Numbers of threads of the device `cpu`, one run for each [default: all cores]
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    threads: Vec<u16>,

    /// Copy weights into huge pages of memory
    #[arg(long)]
    huge_pages: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Write a self-contained page with plots and tables
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,

    /// Write the plots alone
    #[arg(long, value_name = "OUT")]
    svg: Option<PathBuf>,

    /// Show no progress
    #[arg(long)]
    quiet: bool,

    #[command(flatten)]
    settings: SettingsArgs,
}

/// The settings of `--sampling` and `--logits-digest`.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "With --sampling or --logits-digest")]
struct SettingsArgs {
    /// Sampling temperature
    #[arg(long, alias = "temp", value_name = "T", default_value_t = 0.8, requires = "draws")]
    temperature: f32,

    /// Sample from the K most likely tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40, requires = "draws")]
    top_k: i64,

    /// Sample from the most likely tokens whose probabilities add up to P
    #[arg(long, value_name = "P", default_value_t = 0.95, requires = "draws")]
    top_p: f32,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    let SettingsArgs { temperature, top_k, top_p } = args.settings;
    let top_k = if top_k == 0 { Settings::PLAIN.top_k } else { top_k };
    let settings = Settings { temperature, top_k, top_p, ..Settings::PLAIN };
    settings.check()?;
    let is_profiled = args.profile && args.device.resolve() != DeviceName::Cpu;
    ensure!(!is_profiled, "--profile records the steps of the device `cpu`, not of `{}`", args.device.name());
    let data = args.data.iter().map(PathBuf::as_path);
    let inputs: Vec<&Path> = args.model.iter().map(Path::new).chain(data).collect();
    let pictures = [(&args.html, page::page as fn(&Report) -> String), (&args.svg, chart::chart)];
    let pictures = pictures.iter().filter_map(|(path, draw)| Some((path.as_deref()?, draw)));
    // Measuring takes long: paths that cannot be written are reported before it.
    for (path, _) in pictures.clone() {
        drop(OutputFile::create(path, &inputs)?);
    }
    let source = Source::open(args.model.as_deref(), &args.data, args.layers, args.quiet)?;
    if args.logits_digest {
        return digest::run(args, &source, settings);
    }
    let report = measure(args, &source, settings)?;
    if args.json {
        print::json(&report)?;
    } else {
        write!(anstream::stdout(), "{}", text::markdown(&report))?;
    }
    for (path, draw) in pictures {
        write_whole(path, &inputs, |out| out.write_all(draw(&report).as_bytes()))?;
    }
    Ok(())
}

fn measure(args: &BenchArgs, source: &Source, settings: Settings) -> Result<Report> {
    let mut report: Option<Report> = None;
    // Only the CPU has threads to choose.
    let threads: Vec<Option<u16>> = match args.device.resolve() {
        DeviceName::Cpu if !args.threads.is_empty() => args.threads.iter().copied().map(Some).collect(),
        _ => vec![None],
    };
    for threads in threads {
        let device = Device::open(args.device, threads, args.profile, args.huge_pages, args.quiet)?;
        let model = Engine::new(source.program.verified(), &*device.backend, &[])
            .with_context(|| source.program.name().to_owned())?;
        let bench = Bench::new(args, &model, device.profilers.try_iter().last());
        // The comparison of samplers is one more test.
        let total = bench.rounds() + u64::from(args.sampling) * (u64::from(args.repeat) + 1);
        let too_long = if bench.skipped.is_empty() { "" } else { ", and every test is longer" };
        ensure!(total > 0, "nothing to measure\nhint: the context is {} tokens{too_long}", model.context());
        // Compiled first: programs whose samplers cannot be compared are refused before anything is measured.
        let samplers = args.sampling.then(|| Samplers::compile(args, source, &device, &bench)).transpose()?;
        let progress = progress::counted(total, args.quiet);
        let mut run = bench.run(&device, &model, source, &progress)?;
        run.sampling = samplers.map(|samplers| samplers.compare(args, settings, &progress)).transpose()?;
        let report = report.get_or_insert_with(|| Report::new(args, source, &device, &model));
        report.skipped = bench.skipped;
        report.runs.push(run);
    }
    report.context("no number of threads")
}
