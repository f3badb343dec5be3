//! `ptero devices`: lists the devices of this machine.

use crate::print;
use clap::Args;
use ptero_cpu::simd::Isa;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;

/// Arguments of `ptero devices`.
#[derive(Args, Debug)]
#[command(after_help = "Programs run on the CPU so far; CUDA devices are listed, and cannot run programs yet.

Example:
  ptero devices --json | jq .cuda.devices[0].name")]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The CUDA devices, or why there are none.
type Cuda = Result<Vec<CudaDevice>, String>;

#[derive(Debug, Serialize)]
struct CudaDevice {
    name: String,
    memory_bytes: u64,
    arch: String,
    multiprocessors: u32,
    l2_bytes: u64,
    driver_cuda: String,
}

/// Runs the command.
pub fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (instructions, cuda) = (Isa::best().name(), cuda());
    if args.json {
        return print::json(&json(instructions, threads, &cuda));
    }
    Ok(write!(std::io::stdout(), "{}", text(instructions, threads, &cuda))?)
}

fn json(instructions: &str, threads: usize, cuda: &Cuda) -> Value {
    let cuda = match cuda {
        Ok(devices) => json!({ "devices": devices }),
        Err(reason) => json!({ "none": reason }),
    };
    json!({ "cpu": { "instructions": instructions, "threads": threads }, "cuda": cuda })
}

fn text(instructions: &str, threads: usize, cuda: &Cuda) -> String {
    let cpu = format!("cpu     {instructions}, {}\n", print::counted(threads, "thread"));
    let line = |(ordinal, device): (usize, &CudaDevice)| {
        let CudaDevice { name, memory_bytes, arch, multiprocessors, driver_cuda, .. } = device;
        let memory = ((memory_bytes * 10) >> 30) as f64 / 10.0;
        format!(
            "cuda:{ordinal}  {name}, {memory:.1} GiB, {arch}, {multiprocessors} multiprocessors, driver for CUDA {driver_cuda}\n"
        )
    };
    match cuda {
        Ok(devices) => devices.iter().enumerate().map(line).fold(cpu, |text, line| text + &line),
        Err(reason) => format!("{cpu}cuda    none: {reason}\n"),
    }
}

#[cfg(feature = "cuda")]
fn cuda() -> Cuda {
    let info = |device: ptero_cuda::DeviceInfo| CudaDevice {
        name: device.name,
        memory_bytes: device.memory_bytes,
        arch: device.arch.to_string(),
        multiprocessors: device.multiprocessors,
        l2_bytes: device.l2_bytes,
        driver_cuda: device.driver.to_string(),
    };
    let devices = ptero_cuda::devices().map_err(|error| error.to_string())?;
    Ok(devices.into_iter().map(info).collect())
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Cuda {
    Err("this build is without the feature `cuda`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_a_line() {
        let device = CudaDevice {
            name: "NVIDIA H200".to_owned(),
            memory_bytes: 150_000_000_000,
            arch: "sm_90a".to_owned(),
            multiprocessors: 132,
            l2_bytes: 50 << 20,
            driver_cuda: "13.0".to_owned(),
        };
        let cuda = Ok(vec![device]);
        assert_eq!(
            text("avx2", 8, &cuda),
            "cpu     avx2, 8 threads\n\
             cuda:0  NVIDIA H200, 139.6 GiB, sm_90a, 132 multiprocessors, driver for CUDA 13.0\n"
        );
        assert!(
            json("avx2", 8, &cuda).to_string().contains(r#""cuda":{"devices":[{"name":"NVIDIA H200","memory_bytes":"#)
        );
    }

    #[test]
    fn the_reason_for_no_device_is_shown() {
        let cuda = Err("no driver".to_owned());
        assert_eq!(text("avx2", 8, &cuda), "cpu     avx2, 8 threads\ncuda    none: no driver\n");
        assert_eq!(
            json("avx2", 8, &cuda).to_string(),
            r#"{"cpu":{"instructions":"avx2","threads":8},"cuda":{"none":"no driver"}}"#
        );
    }
}
