//! `ptero exec`: runs a program with tensors from files, like upstream's op test runner.

use crate::device::{self, DeviceArgs};
use crate::progress::terminal;
use crate::{tensors, with};
use anyhow::{Result, ensure};
use clap::Args;
use ptero::output::write_whole;
use ptero::{KvCacheSpec, Options};
use std::path::PathBuf;

/// Arguments of `ptero exec`.
#[derive(Args, Debug)]
#[command(
    after_help = "Format of input and output files: u32 count; for each tensor u32 type (0 f32, 1 f16, 2 i32, 3 i64, 4 bf16,
5 bool, 6 u8), u32 rank, i32 sizes, then the elements.

Examples:
  ptero exec --pte model.pte --input input.bin --output output.bin
  ptero exec --pte step.pte --input 1.bin --output a.bin --input 2.bin --output b.bin   two calls, one state

SPEC of --kv-cache: capacity[,layers,kv_heads,head_dim][,type][@window[:window…]]
Layers, heads and dimensions are needed if the program's metadata does not have them. The type is ExecuTorch's number
(6 f32, 5 f16, 15 bf16; default: the type of the keys). Windows repeat over the layers: a layer with window W sees the
last W positions, with window 0 all.
  --kv-cache 4096,2,8,64                two layers that see all 4096 positions
  --kv-cache 4096,6,8,64,15@512:512:0   every third layer sees all, the others the last 512
  --kv-cache 4096,15                    take layers and windows from the metadata"
)]
pub struct ExecArgs {
    /// Program (.pte)
    #[arg(long, value_name = "FILE")]
    pte: PathBuf,

    /// Load tensor data (.ptd) of the program; can be repeated
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Inputs of a call; can be repeated for calls on the same state
    #[arg(long, value_name = "FILE", required = true)]
    input: Vec<PathBuf>,

    /// Where to write the outputs of a call; one for each --input
    #[arg(long, value_name = "FILE", required = true)]
    output: Vec<PathBuf>,

    /// Size of an external key-value cache (see below)
    #[arg(long, value_name = "SPEC")]
    kv_cache: Option<KvCacheSpec>,

    #[command(flatten)]
    device: DeviceArgs,

    /// Method to call
    #[arg(long, default_value = "forward")]
    method: String,

    /// Skip an optimisation pass; can be repeated
    #[arg(long, value_name = "PASS", value_parser = device::pass_parser())]
    without: Vec<String>,

    /// Print the type and shape of each output
    #[arg(long, short)]
    verbose: bool,
}

/// Runs the command.
pub fn run(args: &ExecArgs) -> Result<()> {
    let (inputs, outputs) = (args.input.len(), args.output.len());
    ensure!(inputs == outputs, "{inputs} inputs but {outputs} outputs: give one --output for each --input");
    let options = args.device.options().data(&args.data).without_passes(&args.without).progress(terminal(false));
    let options = with(options, args.kv_cache.clone(), Options::kv_cache);
    let program = options.open_program(&args.pte)?;
    let mut method = program.method(&args.method)?;
    for (input, output) in args.input.iter().zip(&args.output) {
        let results = method.run(tensors::read(input)?)?;
        if args.verbose {
            results.iter().for_each(|tensor| anstream::eprintln!("{} {:?}", tensor.dtype(), tensor.shape()));
        }
        write_whole(output, &[], |out| tensors::write(&results, out))?;
    }
    Ok(())
}
