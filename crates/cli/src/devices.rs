//! `ptero devices`: what this machine has.

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
    /// Print everything as JSON
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

/// Those of CUDA, or why there are none.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Cuda {
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
    let cpu =
        Cpu { instructions: Isa::best().name(), threads: std::thread::available_parallelism().map_or(1, usize::from) };
    let devices = Devices { cpu, cuda: cuda() };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &devices)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", text(&devices))?;
    }
    Ok(())
}

fn text(devices: &Devices) -> String {
    let Cpu { instructions, threads } = devices.cpu;
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    let mut text = format!("cpu     {instructions}, {threads}\n");
    match &devices.cuda {
        Cuda::None(why) => text += &format!("cuda    none: {why}\n"),
        Cuda::Devices(devices) => {
            for (ordinal, device) in devices.iter().enumerate() {
                let CudaDevice { name, arch, multiprocessors, driver_cuda, .. } = device;
                let memory = gib(device.memory_bytes);
                text += &format!(
                    "cuda:{ordinal}  {name}, {memory}, {arch}, {multiprocessors} multiprocessors, driver for CUDA {driver_cuda}\n"
                );
            }
        }
    }
    text
}

fn gib(bytes: u64) -> String {
    let tenths = (bytes * 10) >> 30;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

#[cfg(feature = "cuda")]
fn cuda() -> Cuda {
    match ptero_cuda::devices() {
        Ok(devices) => Cuda::Devices(devices.into_iter().map(CudaDevice::from).collect()),
        Err(error) => Cuda::None(error.to_string()),
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Cuda {
    Cuda::None("this build is without the feature `cuda`".to_owned())
}

#[cfg(feature = "cuda")]
impl From<ptero_cuda::DeviceInfo> for CudaDevice {
    fn from(device: ptero_cuda::DeviceInfo) -> Self {
        Self {
            name: device.name,
            memory_bytes: device.memory_bytes,
            arch: device.arch.to_string(),
            multiprocessors: device.multiprocessors,
            l2_bytes: device.l2_bytes,
            driver_cuda: device.driver.to_string(),
        }
    }
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
    fn the_reason_why_there_are_none_is_told() {
        let devices = Devices { cpu: cpu(), cuda: Cuda::None("no driver".to_owned()) };
        assert_eq!(text(&devices), "cpu     avx2, 8 threads\ncuda    none: no driver\n");
        assert_eq!(
            serde_json::to_string(&devices).unwrap(),
            r#"{"cpu":{"instructions":"avx2","threads":8},"cuda":{"none":"no driver"}}"#
        );
    }
}
