//! `ptero conformance`: runs a corpus of programs whose results are known, and prints a table.

use crate::device::{self, DeviceArgs};
use crate::{hint, tensors};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use ptero::{DType, Tensor};
use ptero_backend::Fault;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Arguments of `ptero conformance`.
#[derive(Args, Debug)]
#[command(
    after_help = "Each case is a folder with model.pte, input.bin, expected_output.bin and case.json (rtol, atol, kv_cache, model). With
\"calls\": N there, files are input_0.bin to input_N-1.bin and so on, and the calls share one state.
The exit status is 0 when no case failed; programs that are refused because they bring code of their own do not count as
failed."
)]
pub struct ConformanceArgs {
    /// The folder of cases
    corpus: PathBuf,

    #[command(flatten)]
    device: DeviceArgs,

    /// Leave out a pass over the plan; may be given several times
    #[arg(long, value_name = "PASS", value_parser = device::pass_parser())]
    without: Vec<String>,

    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
}

/// What `case.json` says that matters here.
#[derive(Deserialize)]
struct Case {
    /// The program, from the case's folder.
    #[serde(default = "model")]
    model: PathBuf,
    rtol: f64,
    atol: f64,
    #[serde(default)]
    skip_comparison: bool,
    #[serde(default)]
    kv_cache: Option<String>,
    /// How many calls on one state, each with files of its own; without it, one call with files without a number.
    #[serde(default)]
    calls: Option<u32>,
}

impl Case {
    /// The files of inputs and of wanted outputs, call by call.
    fn calls(&self) -> Vec<(String, String)> {
        let files = |number: String| (format!("input{number}.bin"), format!("expected_output{number}.bin"));
        match self.calls {
            None => vec![files(String::new())],
            Some(count) => (0..count).map(|call| files(format!("_{call}"))).collect(),
        }
    }
}

fn model() -> PathBuf {
    PathBuf::from("model.pte")
}

/// How a case ended.
enum Outcome {
    /// Equal to the last bit.
    Equal,
    /// Within the case's tolerance.
    Close,
    /// The program brings code that is not run.
    Refused(String),
    Failed(String),
}

/// Runs the command; `false` when a case failed.
pub fn run(args: &ConformanceArgs) -> Result<bool> {
    let entries =
        std::fs::read_dir(&args.corpus).with_context(|| format!("could not read {}", args.corpus.display()))?;
    let mut cases: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    cases.retain(|case| case.join("case.json").exists() && name(case).contains(&args.filter));
    cases.sort();
    ensure!(!cases.is_empty(), "{} holds no case", args.corpus.display());
    let (mut equal, mut close, mut refused, mut failed) = (0, 0, 0, 0);
    let mut slowest = (Duration::ZERO, String::new());
    for case in &cases {
        let start = Instant::now();
        match outcome(case, args) {
            Outcome::Equal => equal += 1,
            Outcome::Close => close += 1,
            Outcome::Refused(why) => {
                refused += 1;
                println!("refused  {}: {why}", name(case));
            }
            Outcome::Failed(why) => {
                failed += 1;
                println!("FAILED   {}: {why}", name(case));
            }
        }
        let taken = start.elapsed();
        if taken > slowest.0 {
            slowest = (taken, name(case));
        }
    }
    println!("device   {}", args.device.device);
    println!("passed   {} of {} ({equal} bit-equal, {close} within tolerance)", equal + close, cases.len());
    println!("refused  {refused}");
    println!("failed   {failed}");
    println!("slowest  {} ({:.0} ms)", slowest.1, slowest.0.as_secs_f64() * 1000.0);
    Ok(failed == 0)
}

fn name(case: &Path) -> String {
    case.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn outcome(folder: &Path, args: &ConformanceArgs) -> Outcome {
    match try_case(folder, args) {
        Ok(outcome) => outcome,
        Err(error) => match error.downcast_ref::<ptero::Error>().map(ptero::Error::innermost) {
            Some(ptero::Error::Device(found)) if matches!(found.fault(), Fault::Foreign { .. }) => {
                Outcome::Refused(found.to_string())
            }
            _ => Outcome::Failed(hint::text(&error)),
        },
    }
}

fn try_case(folder: &Path, args: &ConformanceArgs) -> Result<Outcome> {
    let case: Case = serde_json::from_slice(&std::fs::read(folder.join("case.json"))?)?;
    let mut options = args.device.options().without_passes(&args.without);
    if let Some(spec) = &case.kv_cache {
        options = options.kv_cache(spec.parse()?);
    }
    let program = options.open_program(folder.join(&case.model))?;
    let mut method = program.method("forward")?;
    let mut equal = true;
    for (call, (input, output)) in case.calls().iter().enumerate() {
        let got = method.run(tensors::read(&folder.join(input))?).with_context(|| format!("call {call}"))?;
        let wanted = tensors::read(&folder.join(output))?;
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

/// `|got - want| <= atol + rtol * |want|`; NaN equals NaN; booleans must be equal.
fn compare(got: &Tensor, wanted: &Tensor, case: &Case) -> Result<()> {
    let (found, expected) = (numbers(got)?, numbers(wanted)?);
    let exact = wanted.dtype() == DType::Bool;
    let mut worst: Option<(usize, f64)> = None;
    for (at, (got, want)) in found.iter().zip(&expected).enumerate() {
        let distance = (got - want).abs();
        let allowed = if exact { 0.0 } else { case.atol + case.rtol * want.abs() };
        let same = got == want || (got.is_nan() && want.is_nan()) || distance <= allowed;
        if !same && worst.is_none_or(|(_, most)| distance > most || distance.is_nan()) {
            worst = Some((at, distance));
        }
    }
    let Some((at, distance)) = worst else { return Ok(()) };
    let value = |numbers: &[f64]| numbers.get(at).copied().unwrap_or(f64::NAN);
    bail!("element {at} is {}, not {} (off by {distance:e})", value(&found), value(&expected))
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|raw| number(*raw)).collect()
    }
    let bytes = tensor.bytes();
    Ok(match tensor.dtype() {
        DType::F32 => each(bytes, |raw| f32::from_le_bytes(raw).into()),
        DType::F16 => each(bytes, |raw| half::f16::from_le_bytes(raw).into()),
        DType::Bf16 => each(bytes, |raw| half::bf16::from_le_bytes(raw).into()),
        DType::I32 => each(bytes, |raw| i32::from_le_bytes(raw).into()),
        // Only compared; 53 bits are enough to see a difference.
        DType::I64 => each(bytes, |raw| i64::from_le_bytes(raw) as f64),
        DType::Bool | DType::U8 => each(bytes, |[byte]| byte.into()),
        other => bail!("{other} cannot be compared"),
    })
}
