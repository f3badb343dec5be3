//! What each device is on this machine.

use crate::device::Device;
use ptero_cpu::simd::Isa;
use serde::Serialize;

/// What the CPU offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CpuInfo {
    /// The best instruction set that programs use.
    pub instructions: &'static str,
    /// The number of threads.
    pub threads: usize,
}

/// A CUDA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CudaInfo {
    /// Its name.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// The architecture that kernels are compiled for.
    pub arch: String,
    /// Its streaming multiprocessors.
    pub multiprocessors: u32,
    /// Its second-level cache.
    pub l2_bytes: u64,
    /// The newest CUDA that the driver supports.
    pub driver_cuda: String,
    /// What is missing to run programs on it: a newer GPU or driver, or NVRTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// The MLX that this build is linked to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MlxInfo {
    /// Its version.
    pub version: String,
    /// `true` if it computes on a GPU.
    pub gpu: bool,
    /// The name of what it computes on.
    pub name: String,
    /// The memory of the GPU, if there is one.
    pub memory_bytes: Option<u64>,
}

/// The devices of this machine; for those that are not there, why.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The CPU.
    pub cpu: CpuInfo,
    /// CUDA devices, in the driver's order.
    pub cuda: Result<Vec<CudaInfo>, String>,
    /// MLX.
    pub mlx: Result<MlxInfo, String>,
}

impl Devices {
    /// Returns the device that [`Device::Auto`] stands for: CUDA if programs can run on the first CUDA device, otherwise MLX if it
    /// has a GPU, otherwise the CPU.
    pub fn best(&self) -> Device {
        let is_usable = |devices: &Vec<CudaInfo>| devices.first().is_some_and(|first| first.missing.is_none());
        if self.cuda.as_ref().is_ok_and(is_usable) {
            Device::Cuda
        } else if self.mlx.as_ref().is_ok_and(|mlx| mlx.gpu) {
            Device::Mlx
        } else {
            Device::Cpu
        }
    }
}

/// Returns the devices of this machine.
///
/// ```
/// let devices = ptero::devices();
/// println!("{} threads with {}", devices.cpu.threads, devices.cpu.instructions);
/// if let Err(reason) = devices.mlx {
///     println!("no MLX: {reason}");
/// }
/// ```
pub fn devices() -> Devices {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Devices { cpu: CpuInfo { instructions: Isa::best().name(), threads }, cuda: cuda(), mlx: mlx() }
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Vec<CudaInfo>, String> {
    let info = |device: &ptero_cuda::DeviceInfo| CudaInfo {
        name: device.name.clone(),
        memory_bytes: device.memory_bytes,
        arch: device.arch.to_string(),
        multiprocessors: device.multiprocessors,
        l2_bytes: device.l2_bytes,
        driver_cuda: device.driver.to_string(),
        missing: device.check().err().map(|error| error.to_string()),
    };
    let devices = ptero_cuda::devices().map_err(|error| error.to_string())?;
    Ok(devices.iter().map(info).collect())
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Vec<CudaInfo>, String> {
    Err("this build is without the feature `cuda`".to_owned())
}

#[cfg(feature = "mlx")]
pub(crate) fn mlx() -> Result<MlxInfo, String> {
    let info = ptero_mlx::info().map_err(|error| error.to_string())?;
    let memory_bytes = Some(info.memory).filter(|bytes| *bytes > 0);
    Ok(MlxInfo { version: info.version, gpu: info.has_gpu, name: info.device_name, memory_bytes })
}

#[cfg(not(feature = "mlx"))]
pub(crate) fn mlx() -> Result<MlxInfo, String> {
    Err("this build is without the feature `mlx`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuda(missing: Option<&str>) -> CudaInfo {
        CudaInfo {
            name: "NVIDIA H200".to_owned(),
            memory_bytes: 150_000_000_000,
            arch: "sm_90a".to_owned(),
            multiprocessors: 132,
            l2_bytes: 50 << 20,
            driver_cuda: "13.0".to_owned(),
            missing: missing.map(str::to_owned),
        }
    }

    fn mlx(gpu: bool) -> MlxInfo {
        MlxInfo { version: "0.32.4".to_owned(), gpu, name: String::new(), memory_bytes: None }
    }

    #[test]
    fn the_best_device_is_the_first_that_programs_can_run_on() {
        let none = || Err("none".to_owned());
        let unusable = || Ok(vec![cuda(Some("no NVRTC")), cuda(None)]);
        let cases: [(Result<_, String>, Result<_, String>, Device); 8] = [
            (Ok(vec![cuda(None)]), Ok(mlx(true)), Device::Cuda),
            (Ok(vec![cuda(None), cuda(Some("too old"))]), none_mlx(), Device::Cuda),
            // Programs run on the first CUDA device and on no other.
            (unusable(), Ok(mlx(true)), Device::Mlx),
            (unusable(), none_mlx(), Device::Cpu),
            (none(), Ok(mlx(true)), Device::Mlx),
            (none(), Ok(mlx(false)), Device::Cpu),
            (Ok(Vec::new()), Ok(mlx(false)), Device::Cpu),
            (none(), none_mlx(), Device::Cpu),
        ];
        for (cuda, mlx, best) in cases {
            let devices = Devices { cpu: CpuInfo { instructions: "avx2", threads: 8 }, cuda, mlx };
            assert_eq!(devices.best(), best, "{devices:?}");
        }
    }

    fn none_mlx() -> Result<MlxInfo, String> {
        Err("none".to_owned())
    }

    #[test]
    fn auto_is_the_best_of_the_devices_of_this_machine() {
        assert_eq!(Device::Auto.resolve(), devices().best());
    }
}
