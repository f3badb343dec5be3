//! `ptero conformance`: runs programs with known results and prints a table.

use crate::device::{self, DeviceArgs};
use crate::{hint, tensors, with};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ptero::{DType, Options, Tensor};
use ptero_backend::Fault;
use ptero_backend::number::{Element, Number};
use serde::Deserialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Arguments of `ptero conformance`.
#[derive(Args, Debug)]
#[command(
    after_help = "Each case is a folder with model.pte, input.bin, expected_output.bin and case.json (rtol, atol, kv_cache, model). With
\"calls\": N there, the files are input_0.bin to input_N-1.bin and so on, and the calls share one state.
The exit status is 0 if no case failed. Programs that are refused because they contain code of their own do not count
as failed."
)]
pub struct ConformanceArgs {
    /// Folder of cases
    corpus: PathBuf,

    #[command(flatten)]
    device: DeviceArgs,

    /// Skip an optimisation pass; can be repeated
    #[arg(long, value_name = "PASS", value_parser = device::pass_parser())]
    without: Vec<String>,

    /// Run only cases whose name contains TEXT
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
}

/// The fields of `case.json` that are used here.
#[derive(Deserialize)]
struct Case {
    /// The program, relative to the folder of the case.
    #[serde(default = "default_model")]
    model: PathBuf,
    rtol: f64,
    atol: f64,
    #[serde(default)]
    skip_comparison: bool,
    kv_cache: Option<String>,
    /// The number of calls on one state, each with numbered files; `None` for one call with files without a number.
    calls: Option<u32>,
}

fn default_model() -> PathBuf {
    PathBuf::from("model.pte")
}

/// The result of a case that ran.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// All outputs are bit-equal.
    Equal,
    /// All outputs are within the tolerance of the case.
    Close,
    /// The program contains code that ptero does not run.
    Refused,
    Failed,
}

/// Runs the command; returns `false` if a case failed.
pub fn run(args: &ConformanceArgs) -> Result<bool> {
    let entries =
        std::fs::read_dir(&args.corpus).with_context(|| format!("could not read {}", args.corpus.display()))?;
    let mut cases: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    cases.retain(|case| case.join("case.json").exists() && name(case).contains(&args.filter));
    cases.sort();
    ensure!(!cases.is_empty(), "{} holds no case", args.corpus.display());
    let (mut outcomes, mut out) = (Vec::new(), std::io::stdout());
    let mut slowest = (Duration::ZERO, String::new());
    for case in &cases {
        let (start, name) = (Instant::now(), name(case));
        outcomes.push(match run_case(case, args) {
            Ok(outcome) => outcome,
            Err(error) => match foreign_code(&error) {
                Some(reason) => {
                    writeln!(out, "refused  {name}: {reason}")?;
                    Outcome::Refused
                }
                None => {
                    writeln!(out, "FAILED   {name}: {}", hint::text(&error))?;
                    Outcome::Failed
                }
            },
        });
        slowest = slowest.max((start.elapsed(), name));
    }
    let count = |wanted: Outcome| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    let (equal, close, failed) = (count(Outcome::Equal), count(Outcome::Close), count(Outcome::Failed));
    writeln!(out, "device   {}", args.device.device.resolve())?;
    writeln!(out, "passed   {} of {} ({equal} bit-equal, {close} within tolerance)", equal + close, cases.len())?;
    writeln!(out, "refused  {}", count(Outcome::Refused))?;
    writeln!(out, "failed   {failed}")?;
    writeln!(out, "slowest  {} ({:.0} ms)", slowest.1, slowest.0.as_secs_f64() * 1000.0)?;
    Ok(failed == 0)
}

fn name(case: &Path) -> String {
    case.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Describes the error of a program that contains code of its own.
fn foreign_code(error: &anyhow::Error) -> Option<String> {
    match error.downcast_ref::<ptero::Error>()?.innermost() {
        ptero::Error::Device(error) if matches!(error.fault(), Fault::Foreign { .. }) => Some(error.to_string()),
        _ => None,
    }
}

fn run_case(folder: &Path, args: &ConformanceArgs) -> Result<Outcome> {
    let case: Case = serde_json::from_slice(&std::fs::read(folder.join("case.json"))?)?;
    let spec = case.kv_cache.as_deref().map(str::parse).transpose()?;
    let options = with(args.device.options().without_passes(&args.without), spec, Options::kv_cache);
    let program = options.open_program(folder.join(&case.model))?;
    let mut method = program.method("forward")?;
    let mut equal = true;
    for call in 0..case.calls.unwrap_or(1) {
        let number = case.calls.map_or_else(String::new, |_| format!("_{call}"));
        let read = |name: &str| tensors::read(&folder.join(format!("{name}{number}.bin")));
        let got = method.run(read("input")?).with_context(|| format!("call {call}"))?;
        let wanted = read("expected_output")?;
        equal &= got == wanted;
        compare_all(&got, &wanted, &case).with_context(|| format!("call {call}"))?;
    }
    Ok(if equal { Outcome::Equal } else { Outcome::Close })
}

fn compare_all(got: &[Tensor], wanted: &[Tensor], case: &Case) -> Result<()> {
    ensure!(got.len() == wanted.len(), "{} outputs, {} wanted", got.len(), wanted.len());
    for (index, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        ensure!(got.shape() == wanted.shape(), "output {index} has shape {:?}, not {:?}", got.shape(), wanted.shape());
        if !case.skip_comparison {
            compare(got, wanted, case).with_context(|| format!("output {index}"))?;
        }
    }
    Ok(())
}

/// Checks that `|got - wanted| <= atol + rtol * |wanted|`. NaN equals NaN; booleans must be equal.
fn compare(got: &Tensor, wanted: &Tensor, case: &Case) -> Result<()> {
    let is_exact = wanted.dtype() == DType::Bool;
    let mut worst = None;
    for (at, (got, wanted)) in numbers(got)?.zip(numbers(wanted)?).enumerate() {
        let distance = (got - wanted).abs();
        let allowed = if is_exact { 0.0 } else { case.atol + case.rtol * wanted.abs() };
        let is_same = got == wanted || (got.is_nan() && wanted.is_nan()) || distance <= allowed;
        if !is_same && worst.is_none_or(|(_, _, _, most)| distance > most || distance.is_nan()) {
            worst = Some((at, got, wanted, distance));
        }
    }
    let Some((at, got, wanted, distance)) = worst else { return Ok(()) };
    bail!("element {at} is {got}, not {wanted} (off by {distance:e})")
}

/// Returns the elements of a tensor; 53 bits of an integer are enough to compare it.
fn numbers(tensor: &Tensor) -> Result<impl Iterator<Item = f64>> {
    // A bool with another byte than 0 or 1 is not equal to `true`.
    let dtype = if tensor.dtype() == DType::Bool { DType::U8 } else { tensor.dtype() };
    let (element, bytes) = (Element::new(dtype)?, tensor.bytes());
    Ok((0..bytes.len() / element.bytes()).map(move |at| match element.load(bytes, at) {
        Number::Int(value) => value as f64,
        Number::Float(value) => value.into(),
    }))
}
