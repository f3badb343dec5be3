//! `ptero exec`: runs a program on tensors from files, as upstream's op test runner does.

use crate::device::{self, DeviceArgs};
use crate::tensors;
use anyhow::{Result, ensure};
use clap::Args;
use ptero::KvCacheSpec;
use ptero::output::write_whole;
use std::path::PathBuf;

/// Arguments of `ptero exec`.
#[derive(Args, Debug)]
#[command(
    after_help = "Input and output files hold tensors one after the other: u32 count; per tensor u32 type (0 f32, 1 f16, 2 i32,
3 i64, 4 bf16, 5 bool, 6 u8), u32 rank, i32 sizes, then the elements.

Examples:
  ptero exec --pte model.pte --input input.bin --output output.bin
  ptero exec --pte step.pte --input 1.bin --output a.bin --input 2.bin --output b.bin   one state, two calls

SPEC of --kv-cache: the number of positions; unless the program's metadata describes them, the number of layers,
of key heads and of elements per head; the element type by ExecuTorch's number (6 f32, 5 f16, 15 bf16;
by default that of the keys); and windows, repeated over the layers: a layer with window W sees the last W
positions, one with window 0 all.
  --kv-cache 4096,2,8,64                two equal layers that see all 4096 positions
  --kv-cache 4096,6,8,64,15@512:512:0   every third layer sees all, the others the last 512
  --kv-cache 4096,15                    layers and windows as the program describes them (get_n_caches,
                                        get_kv_heads, get_head_dims, get_windows)"
)]
pub struct ExecArgs {
    /// The program (.pte)
    #[arg(long, value_name = "FILE")]
    pte: PathBuf,

    /// Tensor data (.ptd) that belongs to the program; may be given several times
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,

    /// Tensors for a call; given several times, the calls run in order on one state
    #[arg(long, value_name = "FILE", required = true)]
    input: Vec<PathBuf>,

    /// Where a call's results go; as many as inputs
    #[arg(long, value_name = "FILE", required = true)]
    output: Vec<PathBuf>,

    /// The cache of programs that keep keys and values outside: capacity[,layers,kv_heads,head_dim][,type][@window[:window…]]
    #[arg(long, value_name = "SPEC")]
    kv_cache: Option<KvCacheSpec>,

    #[command(flatten)]
    device: DeviceArgs,

    /// The method to call
    #[arg(long, default_value = "forward")]
    method: String,

    /// Leave out a pass over the graph; may be given several times
    #[arg(long, value_name = "PASS", value_parser = device::pass_parser())]
    without: Vec<String>,

    /// Print the type and shape of each result
    #[arg(long, short)]
    verbose: bool,
}

/// Runs the command.
pub fn run(args: &ExecArgs) -> Result<()> {
    let (inputs, outputs) = (args.input.len(), args.output.len());
    ensure!(inputs == outputs, "{inputs} inputs but {outputs} outputs: give one --output for each --input");
    let options = args.device.options().data(&args.data).without_passes(&args.without);
    let options = args.kv_cache.iter().fold(options, |options, spec| options.kv_cache(spec.clone()));
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
