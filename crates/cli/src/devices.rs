//! `ptero devices`: lists the devices of this machine.

use crate::print;
use anyhow::Result;
use clap::Args;
use ptero_cpu::simd::Isa;
use serde::Serialize;
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

/// The devices of this machine.
#[derive(Debug, Serialize)]
struct Devices {
    cpu: Cpu,
    cuda: Cuda,
}

#[derive(Debug, Serialize)]
struct Cpu {
    instructions: &'static str,
    threads: usize,
}

/// The CUDA devices, or why there are none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Cuda {
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "a build without the feature finds none"))]
    Devices(Vec<CudaDevice>),
    None(String),
}

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
pub fn run(args: &DevicesArgs) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let devices = Devices { cpu: Cpu { instructions: Isa::best().name(), threads }, cuda: cuda() };
    if args.json {
        return print::json(&devices);
    }
    Ok(write!(std::io::stdout(), "{}", text(&devices))?)
}

fn text(devices: &Devices) -> String {
    let Cpu { instructions, threads } = devices.cpu;
    let cpu = format!("cpu     {instructions}, {}\n", print::counted(threads, "thread"));
    let line = |(ordinal, device): (usize, &CudaDevice)| {
        let CudaDevice { name, memory_bytes, arch, multiprocessors, driver_cuda, .. } = device;
        let memory = ((memory_bytes * 10) >> 30) as f64 / 10.0;
        format!(
            "cuda:{ordinal}  {name}, {memory:.1} GiB, {arch}, {multiprocessors} multiprocessors, driver for CUDA {driver_cuda}\n"
        )
    };
    match &devices.cuda {
        Cuda::None(reason) => format!("{cpu}cuda    none: {reason}\n"),
        Cuda::Devices(devices) => devices.iter().enumerate().map(line).fold(cpu, |text, line| text + &line),
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
    match ptero_cuda::devices() {
        Ok(devices) => Cuda::Devices(devices.into_iter().map(info).collect()),
        Err(error) => Cuda::None(error.to_string()),
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Cuda {
    Cuda::None("this build is without the feature `cuda`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu() -> Cpu {
        Cpu { instructions: "avx2", threads: 8 }
    }

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
        let devices = Devices { cpu: cpu(), cuda: Cuda::Devices(vec![device]) };
        assert_eq!(
            text(&devices),
            "cpu     avx2, 8 threads\n\
             cuda:0  NVIDIA H200, 139.6 GiB, sm_90a, 132 multiprocessors, driver for CUDA 13.0\n"
        );
    }

    #[test]
    fn the_reason_for_no_device_is_shown() {
        let devices = Devices { cpu: cpu(), cuda: Cuda::None("no driver".to_owned()) };
        assert_eq!(text(&devices), "cpu     avx2, 8 threads\ncuda    none: no driver\n");
        assert_eq!(
            serde_json::to_string(&devices).unwrap(),
            r#"{"cpu":{"instructions":"avx2","threads":8},"cuda":{"none":"no driver"}}"#
        );
    }
}
