//! What each device is on this machine.

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
    let info = |device: ptero_cuda::DeviceInfo| CudaInfo {
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
