//! `ptero bench`: how fast a model runs here, beside what the machine can do.

mod chart;
mod host;
mod measure;
mod page;
mod report;
mod sampling;
mod setup;
mod text;

pub use report::{Comparison, Figures, Report, Run, Test};

use crate::device;
use crate::progress;
use anyhow::{Context, Result, ensure};
use clap::Args;
use measure::Bench;
use ptero::Device as DeviceName;
use ptero::output::OutputFile;
use ptero_engine::{Engine, Settings};
use report::Skipped;
use sampling::Samplers;
use setup::{Device, Source};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Arguments of `ptero bench`.
#[derive(Args, Debug)]
#[command(after_help = "Prompts are random token ids, the same in every run. Each test is run once to warm up and then
--repeat times; the table shows the median and the range. Tokens are the likeliest ones, drawn as
the program has it: by itself, or on the host. GB/s are the bytes that a step of decoding must read
(weights, and state up to its position) over its time; the share is of what as many threads read
from memory, measured beside each test.

Examples:
  ptero bench smol.pte                     prompts of 16, 128 and 512 tokens, decoding at 0 and 512
  ptero bench smol.pte -p 512 -n 128 -d 0,1024 -t 1,2
  ptero bench smol.pte --sampling          tokens drawn in the program, beside those on the host
  ptero bench smol.pte --html smol.html    a page with plots
  ptero bench config.json --layers 4       how fast a model would run that is not here yet
  ptero bench smol.pte --json | jq '.runs[0].tests[] | {test, tokens, depth, tokens_per_s}'")]
pub struct BenchArgs {
    /// A program (.pte), a checkpoint, which is exported into a cache first, or a config.json, whose weights are made up (int4)
    /// [default: the small model that ptero carries]
    model: Option<String>,

    /// Of a config.json, leave the model its first layers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,

    /// Tensor data (.ptd) that belongs to the program; may be given several times
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Tokens of the prompts; 0 for none
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_values_t = [16, 128, 512])]
    prompt_lengths: Vec<usize>,

    /// Steps of decoding; 0 for none
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    decode: usize,

    /// Positions that are filled before decoding starts
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_values_t = [0, 512])]
    depths: Vec<usize>,

    /// How often each test is run, after once to warm up
    #[arg(short, long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,

    /// Compare drawing tokens in the program with drawing them on the host: the same program, settings and tokens
    #[arg(long)]
    sampling: bool,

    /// Where to run
    #[arg(long, default_value_t, value_parser = device::parser())]
    device: DeviceName,

    /// Threads of the device `cpu`, one run for each number [default: all cores]
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    threads: Vec<u16>,

    /// Print everything as JSON
    #[arg(long)]
    json: bool,

    /// Write a page with plots and tables, which needs nothing else
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

/// What `--sampling` draws with.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "With --sampling")]
struct SettingsArgs {
    /// Divides the logits before the draw
    #[arg(long, alias = "temp", value_name = "T", default_value_t = 0.8, requires = "sampling")]
    temperature: f32,

    /// Draw among this many of the likeliest tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 40, requires = "sampling")]
    top_k: i64,

    /// Draw among the likeliest tokens that together have this mass
    #[arg(long, value_name = "P", default_value_t = 0.95, requires = "sampling")]
    top_p: f32,
}

impl From<SettingsArgs> for Settings {
    fn from(args: SettingsArgs) -> Self {
        let SettingsArgs { temperature, top_k, top_p } = args;
        Self { temperature, top_k: if top_k == 0 { Self::PLAIN.top_k } else { top_k }, top_p }
    }
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    let settings = Settings::from(args.settings);
    settings.check()?;
    // Before anything is measured, since that takes long.
    let drawings = Drawing::create_all(args)?;
    let source = Source::open(args.model.as_deref(), &args.data, args.layers, args.quiet)?;
    let report = measured(args, &source, settings)?;
    let drawn = drawings.into_iter().try_for_each(|drawing| drawing.finish(&report));
    // What was measured is told even where it could not be drawn.
    print(args, &report)?;
    drawn
}

/// A file that is drawn when everything is measured.
struct Drawing<'a> {
    path: &'a Path,
    file: OutputFile,
    draw: fn(&Report) -> String,
}

impl<'a> Drawing<'a> {
    fn create_all(args: &'a BenchArgs) -> Result<Vec<Self>> {
        let data = args.data.iter().map(PathBuf::as_path);
        let inputs: Vec<&Path> = args.model.iter().map(Path::new).chain(data).collect();
        let wanted = [(&args.html, page::page as fn(&Report) -> String), (&args.svg, chart::chart)];
        let wanted = wanted.into_iter().filter_map(|(path, draw)| Some((path.as_deref()?, draw)));
        wanted.map(|(path, draw)| Ok(Self { path, file: OutputFile::create(path, &inputs)?, draw })).collect()
    }

    fn finish(mut self, report: &Report) -> Result<()> {
        let written = self.file.write_all((self.draw)(report).as_bytes());
        written.with_context(|| format!("could not write {}", self.path.display()))?;
        Ok(self.file.finish()?)
    }
}

fn print(args: &BenchArgs, report: &Report) -> Result<()> {
    let stdout = anstream::stdout();
    let mut out = std::io::BufWriter::new(stdout.lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", text::table(report))?;
    }
    Ok(out.flush()?)
}

fn measured(args: &BenchArgs, source: &Source, settings: Settings) -> Result<Report> {
    let mut report: Option<Report> = None;
    // Devices other than the CPU have no threads to choose.
    let threads: Vec<Option<u16>> = match args.device {
        DeviceName::Cpu if !args.threads.is_empty() => args.threads.iter().copied().map(Some).collect(),
        _ => vec![None],
    };
    for threads in threads {
        let device = Device::open(args.device, threads);
        let model = Engine::new(source.program.verified(), &*device.backend, &[])
            .with_context(|| source.program.name().to_owned())?;
        let bench = Bench::new(args, &model);
        let total = bench.rounds() + if args.sampling { sampling::rounds(args) } else { 0 };
        ensure!(total > 0, "nothing to measure\nhint: the context is {} tokens{}", model.context(), bench.why());
        // What it refuses is refused before anything is measured.
        let samplers = args.sampling.then(|| Samplers::compile(args, source, &device, &bench)).transpose()?;
        let progress = progress::counted(total, args.quiet);
        let mut run = bench.run(&device, &model, source, &progress)?;
        let report = report.get_or_insert_with(|| Report::new(args, source, &device, &model, bench.skipped()));
        run.sampling = samplers.map(|samplers| samplers.compare(args, settings, &progress)).transpose()?;
        report.runs.push(run);
    }
    report.ok_or_else(|| anyhow::anyhow!("no number of threads"))
}

impl Skipped {
    fn new(test: &'static str, tokens: usize, depth: Option<usize>, context: usize) -> Self {
        Self { test, tokens, depth, reason: format!("does not fit the context of {context} tokens") }
    }
}
