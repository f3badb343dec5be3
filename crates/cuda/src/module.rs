//! The driver and NVRTC: finding the two libraries, compiling sources with NVRTC and loading them with the driver.
//!
//! Unsafe code is here because both are C libraries that are looked up at run time. Only this file and `launch.rs` call
//! them, and only after [`driver`] or [`nvrtc_version`] has found them.
#![allow(unsafe_code)]

use crate::cache::{Cache, Key};
use crate::context::{Arch, Device, Version};
use crate::error::{Error, MINIMUM, NvrtcStatus, Operation, Result};
use crate::launch::Kernel;
use bytemuck::Pod;
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use cudarc::driver::{CudaFunction, CudaModule, DriverError, result};
use cudarc::nvrtc::result as nvrtc_result;
use cudarc::nvrtc::{Ptx, sys as nvrtc_sys};
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A `.cu` file and what it includes.
///
/// It is compiled without a toolkit: no header is there but those named here. CUDA's own built-in names (`threadIdx`, `__shfl_sync`,
/// `atomicAdd`, `fminf`) need none, but `cuda_fp16.h`, `cuda_bf16.h`, `cooperative_groups.h`, `stdint.h` and the standard library
/// do not exist.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Source {
    /// The file's name, for messages.
    pub name: &'static str,
    /// What it holds (`include_str!`).
    pub text: &'static str,
    /// Names and contents of what it may `#include`.
    pub headers: &'static [(&'static str, &'static str)],
    /// Lets `a * b + c` become one instruction that rounds once. Off, results are those of the written operations.
    pub fused_multiply_add: bool,
}

/// What makes one of several kernels of a source.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variant<'a> {
    /// Macros and what they stand for, such as the tags of element types.
    pub defines: &'a [(&'a str, &'a str)],
    /// The text of `generated.cuh`; empty if nothing is generated.
    pub generated: &'a str,
}

/// The result of compiling a source.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Machine code for one arch.
    pub cubin: Vec<u8>,
    /// Warnings.
    pub log: String,
}

/// The driver's version, if there is one that is new enough; starts it.
pub(crate) fn driver() -> Result<Version> {
    // SAFETY: loading the library runs what it runs at load time, as in every CUDA program.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    let start = |error| match error {
        DriverError(CUresult::CUDA_ERROR_NO_DEVICE) => Error::NoDevice,
        DriverError(CUresult::CUDA_ERROR_STUB_LIBRARY) => Error::NoDriver,
        other => Operation::Start.failed(other),
    };
    let mut number = 0;
    // SAFETY: the library is there, and `number` lives until the call returns.
    unsafe { sys::cuDriverGetVersion(&mut number) }.result().map_err(start)?;
    let number = u32::try_from(number).unwrap_or(0);
    let found = Version { major: number / 1000, minor: number % 1000 / 10 };
    if found < MINIMUM {
        return Err(Error::OldDriver { found });
    }
    result::init().map_err(start)?;
    Ok(found)
}

/// Returns the number of devices, at least one.
pub(crate) fn device_count() -> Result<usize> {
    let count = result::device::get_count().map_err(|error| Operation::List.failed(error))?;
    usize::try_from(count).ok().filter(|count| *count > 0).ok_or(Error::NoDevice)
}

fn device(ordinal: usize) -> Result<sys::CUdevice, DriverError> {
    result::device::get(i32::try_from(ordinal).unwrap_or(i32::MAX))
}

/// A number that describes a device.
pub(crate) fn attribute(ordinal: usize, attribute: CUdevice_attribute) -> Result<u32> {
    // SAFETY: the device is one that the driver has just given.
    let number = device(ordinal).and_then(|device| unsafe { result::device::get_attribute(device, attribute) });
    Ok(u32::try_from(number.map_err(|error| Operation::List.failed(error))?).unwrap_or(0))
}

/// The name of a device and the size of its memory.
pub(crate) fn name_and_bytes(ordinal: usize) -> Result<(String, u64)> {
    let both = device(ordinal).and_then(|device| {
        // SAFETY: the device is one that the driver has just given.
        Ok((result::device::get_name(device)?, unsafe { result::device::total_mem(device) }?))
    });
    let (name, bytes) = both.map_err(|error| Operation::List.failed(error))?;
    Ok((name, bytes as u64))
}

/// Lets the driver keep freed memory for later allocations: getting it from the device again is slow.
pub(crate) fn keep_freed_memory(ordinal: usize) -> Result<(), DriverError> {
    let mut pool = std::ptr::null_mut();
    let mut keep = u64::MAX;
    let device = device(ordinal)?;
    // SAFETY: the device is one that the driver has just given; `pool` and `keep`, of the type that the attribute has, live until
    // the calls return.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&mut pool, device).result()?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        sys::cuMemPoolSetAttribute(pool, attribute, std::ptr::from_mut(&mut keep).cast()).result()
    }
}

/// NVRTC's version, if it is there and new enough.
pub fn nvrtc_version() -> Result<Version> {
    // SAFETY: loading the library runs what it runs at load time, as in every program that compiles for CUDA.
    if !unsafe { nvrtc_sys::is_culib_present() } && !load_nvrtc_from_toolkit() {
        return Err(Error::NoNvrtc);
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is there, and both numbers live until the call returns.
    let asked = unsafe { nvrtc_sys::nvrtcVersion(&mut major, &mut minor) };
    asked.result().map_err(|error| refused("asking for the version", "NVRTC", error))?;
    let number = |number: i32| u32::try_from(number).unwrap_or(0);
    let found = Version { major: number(major), minor: number(minor) };
    if found < MINIMUM { Err(Error::OldNvrtc { found }) } else { Ok(found) }
}

/// Loads NVRTC from where toolkits put it. Once loaded it is found by its name alone; so must be the library of built-in
/// functions, which it looks for when it compiles.
fn load_nvrtc_from_toolkit() -> bool {
    let load = |path: &Path| {
        // SAFETY: as for loading it by name.
        unsafe { libloading::Library::new(path) }.map(std::mem::forget).is_ok()
    };
    let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let toolkits = named.chain([PathBuf::from("/usr/local/cuda"), PathBuf::from("/opt/cuda")]);
    for folder in toolkits.map(|toolkit| toolkit.join("lib64")) {
        if !["libnvrtc.so.13", "libnvrtc.so.12"].iter().any(|name| load(&folder.join(name))) {
            continue;
        }
        let files = folder.read_dir().into_iter().flatten().flatten().map(|file| file.path());
        let is_builtins = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"libnvrtc-builtins.so."))
        };
        for path in files.filter(is_builtins) {
            let _ = load(&path);
        }
        // SAFETY: as above.
        return unsafe { nvrtc_sys::is_culib_present() };
    }
    false
}

/// The options that a source is compiled with.
pub(crate) fn options(source: &Source, variant: Variant<'_>, arch: Arch) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        "--generate-line-info".to_owned(),
        format!("--fmad={}", source.fused_multiply_add),
    ];
    options.extend(variant.defines.iter().map(|(name, value)| format!("--define-macro={name}={value}")));
    options
}

/// Compiles a source. Needs NVRTC, but no device and no driver.
pub fn compile(source: &Source, variant: Variant<'_>, arch: Arch) -> Result<Compiled> {
    let nvrtc = nvrtc_version()?;
    let failed = |doing| move |error| refused(doing, source.name, error);
    if !known_archs().map_err(failed("listing architectures"))?.contains(&arch) {
        return Err(Error::UnknownArch { arch, nvrtc });
    }
    let program = Program::new(source, variant)?;
    match program.compile(&options(source, variant, arch)) {
        Ok(()) => {
            let cubin = program.cubin().map_err(failed("taking the cubin"))?;
            Ok(Compiled { cubin, log: program.log().unwrap_or_default() })
        }
        Err(error) if error.0 == nvrtc_sys::nvrtcResult::NVRTC_ERROR_COMPILATION => {
            let log = program.log().unwrap_or_default();
            Err(Error::Compile { name: source.name, arch, nvrtc, log })
        }
        Err(error) => Err(failed("compiling")(error)),
    }
}

fn refused(doing: &'static str, name: &'static str, error: nvrtc_result::NvrtcError) -> Error {
    Error::Nvrtc { name, doing, status: NvrtcStatus(error) }
}

fn known_archs() -> Result<Vec<Arch>, nvrtc_result::NvrtcError> {
    let mut count = 0;
    // SAFETY: the library is there, and `count` lives until the call returns.
    unsafe { nvrtc_sys::nvrtcGetNumSupportedArchs(&mut count) }.result()?;
    let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for as many numbers as the library has just said.
    unsafe { nvrtc_sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) }.result()?;
    let numbers = numbers.into_iter().filter_map(|number| u32::try_from(number).ok());
    Ok(numbers.map(|number| Arch { major: number / 10, minor: number % 10 }).collect())
}

/// A program of NVRTC, destroyed when dropped.
struct Program(nvrtc_sys::nvrtcProgram);

impl Program {
    fn new(source: &Source, variant: Variant<'_>) -> Result<Self> {
        let headers = || source.headers.iter().copied().chain([("generated.cuh", variant.generated)]);
        let text = |name, text: &str| CString::new(text).map_err(|_| Error::ZeroByte(name));
        let name = text(source.name, source.name)?;
        let body = text(source.name, source.text)?;
        let names = headers().map(|(name, _)| text(name, name)).collect::<Result<Vec<_>>>()?;
        let bodies = headers().map(|(name, body)| text(name, body)).collect::<Result<Vec<_>>>()?;
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (name_pointers, body_pointers) = (pointers(&names), pointers(&bodies));
        let count = i32::try_from(names.len()).unwrap_or(0);
        let mut program = std::ptr::null_mut();
        // SAFETY: all texts end in a zero byte and live until the call returns, by when the library has copied them; both lists
        // have `count` entries.
        let made = unsafe {
            nvrtc_sys::nvrtcCreateProgram(
                &mut program,
                body.as_ptr(),
                name.as_ptr(),
                count,
                body_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        made.result().map_err(|error| refused("making a program", source.name, error))?;
        Ok(Self(program))
    }

    fn compile(&self, options: &[String]) -> Result<(), nvrtc_result::NvrtcError> {
        // SAFETY: the program exists until `self` is dropped.
        unsafe { nvrtc_result::compile_program(self.0, options) }
    }

    fn cubin(&self) -> Result<Vec<u8>, nvrtc_result::NvrtcError> {
        let mut size = 0;
        // SAFETY: the program exists, and `size` lives until the call returns.
        unsafe { nvrtc_sys::nvrtcGetCUBINSize(self.0, &mut size) }.result()?;
        let mut cubin = vec![0_u8; size];
        // SAFETY: there is room for as many bytes as the library has just said.
        unsafe { nvrtc_sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast::<c_char>()) }.result()?;
        Ok(cubin)
    }

    fn log(&self) -> Result<String, nvrtc_result::NvrtcError> {
        // SAFETY: the program exists until `self` is dropped.
        let log = unsafe { nvrtc_result::get_program_log(self.0) }?;
        let bytes: &[u8] = bytemuck::cast_slice(&log);
        let log = CStr::from_bytes_until_nul(bytes).map(CStr::to_bytes).unwrap_or(bytes);
        Ok(String::from_utf8_lossy(log).trim().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program exists and is not used after this. There is nothing to do about a failure.
        let _ = unsafe { nvrtc_result::destroy_program(self.0) };
    }
}

/// A compiled source on a device.
#[derive(Debug)]
pub struct Module {
    loaded: Arc<Loaded>,
    name: &'static str,
}

/// What kernels of a module share. Streams on which one was put keep it until their work is done.
#[derive(Debug)]
pub(crate) struct Loaded {
    module: Arc<CudaModule>,
    pub(crate) device: Device,
}

impl Module {
    /// Compiles a source for the device, or takes it from the user's cache, and loads it.
    pub fn load(device: &Device, source: &Source) -> Result<Self> {
        Self::load_from(&Cache::of_user(), device, source, Variant::default())
    }

    /// As [`Module::load`], with a cache of the caller's choice, and for a variant of the source.
    pub fn load_from(cache: &Cache, device: &Device, source: &Source, variant: Variant<'_>) -> Result<Self> {
        let (arch, driver) = (device.info().arch, device.info().driver);
        let key = Key::new(source, variant.generated, &options(source, variant, arch), nvrtc_version()?, driver);
        let cubin = match cache.get(&key) {
            Some(cubin) => cubin,
            None => {
                let Compiled { cubin, .. } = compile(source, variant, arch)?;
                cache.put(&key, &cubin);
                cubin
            }
        };
        let module = device.context().load_module(Ptx::from_binary(cubin));
        let module = module.map_err(|error| Operation::Load(source.name).failed(error))?;
        Ok(Self { loaded: Arc::new(Loaded { module, device: device.clone() }), name: source.name })
    }

    /// A kernel by its name, which must be `extern "C"` and have at most one parameter: of the size of `A`, or none with `A = ()`.
    ///
    /// Drivers before CUDA 12.4 cannot say how large a parameter is; there it is not checked.
    pub fn kernel<A: Pod>(&self, name: &'static str) -> Result<Kernel<A>> {
        self.kernel_of(name, size_of::<A>())
    }

    /// As [`Module::kernel`], for a parameter of that many bytes.
    pub(crate) fn kernel_of<A: ?Sized>(&self, name: &'static str, bytes: usize) -> Result<Kernel<A>> {
        let failed = |error| Operation::Find(name).failed(error);
        self.loaded.device.context().bind_to_thread().map_err(failed)?;
        let function = self.loaded.module.load_function(name).map_err(|error| match error {
            DriverError(CUresult::CUDA_ERROR_NOT_FOUND) => Error::NoKernel { name: self.name, kernel: name },
            other => failed(other),
        })?;
        let kernel = Kernel::new(function.clone(), &self.loaded, (name, bytes))?;
        if self.loaded.device.info().driver >= (Version { major: 12, minor: 4 }) {
            let there = parameter_size(&function);
            if bytes != there {
                return Err(Error::Arguments { kernel: name, here: bytes, there });
            }
        }
        Ok(kernel)
    }
}

/// The size of a kernel's first parameter, 0 if it has none. Only from CUDA 12.4 on.
///
/// Others are not asked for: compute-sanitizer reports the driver's answer that there is none as an error.
fn parameter_size(function: &CudaFunction) -> usize {
    let (mut offset, mut size) = (0, 0);
    // SAFETY: the function exists, and both numbers live until the call returns.
    let asked = unsafe { sys::cuFuncGetParamInfo(function.cu_function(), 0, &mut offset, &mut size) };
    asked.result().map_or(0, |()| size)
}
