//! `ptero devices`: lists the devices of this machine.

use crate::print;
use clap::Args;
use ptero::{CpuInfo, CudaInfo, Device, Devices, MlxInfo};
use serde_json::{Value, json};
use std::io::Write;

/// Arguments of `ptero devices`.
#[derive(Args, Debug)]
#[command(
    after_help = "`--device` takes the names at the beginning of the lines; `cuda` is the first CUDA device, `auto` the device that the
last line names. docs/DEVICES.md says how to get each.

Example:
  ptero devices --json | jq .cuda.devices[0].name"
)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &DevicesArgs) -> anyhow::Result<()> {
    let devices = ptero::devices();
    let auto = devices.best();
    if args.json {
        return print::json(&json(&devices, auto));
    }
    Ok(write!(std::io::stdout(), "{}", text(&devices, auto))?)
}

fn json(devices: &Devices, auto: Device) -> Value {
    let none = |reason: &String| json!({ "none": reason });
    json!({
        "cpu": devices.cpu,
        "cuda": devices.cuda.as_ref().map_or_else(none, |devices| json!({ "devices": devices })),
        "mlx": devices.mlx.as_ref().map_or_else(none, |mlx| json!(mlx)),
        "auto": auto.name(),
    })
}

fn text(Devices { cpu, cuda, mlx }: &Devices, auto: Device) -> String {
    let CpuInfo { instructions, threads } = cpu;
    let cpu = format!("cpu     {instructions}, {}\n", print::counted(*threads, "thread"));
    let cuda = match cuda {
        Ok(devices) => devices.iter().enumerate().map(cuda_line).collect(),
        Err(reason) => format!("cuda    none: {reason}\n"),
    };
    let mlx = match mlx {
        Ok(mlx) => mlx_line(mlx),
        Err(reason) => format!("mlx     none: {reason}\n"),
    };
    format!("{cpu}{cuda}{mlx}auto    {auto}\n")
}

fn cuda_line((ordinal, device): (usize, &CudaInfo)) -> String {
    let CudaInfo { name, memory_bytes, arch, multiprocessors, driver_cuda, missing, .. } = device;
    let memory = gibibytes(*memory_bytes);
    let missing = missing.as_ref().map(|missing| format!("; cannot be used: {missing}")).unwrap_or_default();
    format!(
        "cuda:{ordinal}  {name}, {memory}, {arch}, {multiprocessors} multiprocessors, driver for CUDA {driver_cuda}{missing}\n"
    )
}

fn mlx_line(MlxInfo { version, gpu, name, memory_bytes }: &MlxInfo) -> String {
    let what = if *gpu { "GPU" } else { "no GPU" };
    let memory = memory_bytes.map(|bytes| format!(", {}", gibibytes(bytes))).unwrap_or_default();
    let name = if name.is_empty() { String::new() } else { format!(": {name}") };
    format!("mlx     {version}, {what}{name}{memory}\n")
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.1} GiB", ((bytes * 10) >> 30) as f64 / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu() -> CpuInfo {
        CpuInfo { instructions: "avx2", threads: 8 }
    }

    #[test]
    fn each_device_has_a_line() {
        let cuda = CudaInfo {
            name: "NVIDIA H200".to_owned(),
            memory_bytes: 150_000_000_000,
            arch: "sm_90a".to_owned(),
            multiprocessors: 132,
            l2_bytes: 50 << 20,
            driver_cuda: "13.0".to_owned(),
            missing: None,
        };
        let old = CudaInfo { arch: "sm_75".to_owned(), missing: Some("too old".to_owned()), ..cuda.clone() };
        let mlx = MlxInfo {
            version: "0.32.4".to_owned(),
            gpu: true,
            name: "Apple M4 Max".to_owned(),
            memory_bytes: Some(64 << 30),
        };
        let devices = Devices { cpu: cpu(), cuda: Ok(vec![cuda, old]), mlx: Ok(mlx) };
        assert_eq!(
            text(&devices, Device::Cuda),
            "cpu     avx2, 8 threads\n\
             cuda:0  NVIDIA H200, 139.6 GiB, sm_90a, 132 multiprocessors, driver for CUDA 13.0\n\
             cuda:1  NVIDIA H200, 139.6 GiB, sm_75, 132 multiprocessors, driver for CUDA 13.0; cannot be used: too old\n\
             mlx     0.32.4, GPU: Apple M4 Max, 64.0 GiB\n\
             auto    cuda\n"
        );
        let json = json(&devices, Device::Cuda).to_string();
        assert!(json.contains(r#""cuda":{"devices":[{"name":"NVIDIA H200","memory_bytes":"#), "{json}");
        assert!(json.contains(r#""mlx":{"version":"0.32.4","gpu":true,"#), "{json}");
    }

    #[test]
    fn the_reason_for_no_device_is_shown() {
        let devices = Devices { cpu: cpu(), cuda: Err("no driver".to_owned()), mlx: Err("no feature".to_owned()) };
        assert_eq!(
            text(&devices, Device::Cpu),
            "cpu     avx2, 8 threads\ncuda    none: no driver\nmlx     none: no feature\nauto    cpu\n"
        );
        assert_eq!(
            json(&devices, Device::Cpu).to_string(),
            r#"{"cpu":{"instructions":"avx2","threads":8},"cuda":{"none":"no driver"},"mlx":{"none":"no feature"},"auto":"cpu"}"#
        );
    }
}
