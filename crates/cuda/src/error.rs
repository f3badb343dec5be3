//! Errors of devices, and the operations that failed.

use crate::context::{Arch, Version};
use crate::sample::LogitType;
use cudarc::driver::DriverError;
use cudarc::nvrtc::result::NvrtcError;
use std::fmt;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum Error {
    // The machine lacks something.
    #[error("no CUDA driver was found (libcuda.so.1): install the NVIDIA driver, or choose another device")]
    NoDriver,
    #[error("the NVIDIA driver knows CUDA {found} at most, and {MINIMUM} is needed: install a newer driver")]
    OldDriver { found: Version },
    #[error("the NVIDIA driver found no CUDA device: choose another device")]
    NoDevice,
    #[error("{name} is {arch}, and {OLDEST_ARCH} is needed: choose another device")]
    OldDevice { name: String, arch: Arch },
    #[error("no CUDA device {ordinal}; there are only {count}")]
    NoSuchDevice { ordinal: usize, count: usize },
    #[error(
        "NVRTC (libnvrtc.so) was not found: install the CUDA toolkit's NVRTC, and name its folder in LD_LIBRARY_PATH or \
         CUDA_HOME if it lies in an unusual place"
    )]
    NoNvrtc,
    #[error("NVRTC is version {found}, and {MINIMUM} is needed: install a newer CUDA toolkit")]
    OldNvrtc { found: Version },
    #[error("NVRTC {nvrtc} does not compile for {arch}: install a newer CUDA toolkit")]
    UnknownArch { arch: Arch, nvrtc: Version },
    #[error("no device memory for {bytes} bytes")]
    OutOfMemory { bytes: usize },

    // A library refused a call.
    #[error("{doing}: {status}")]
    Driver { doing: Operation, status: Status },
    #[error("could not compile `{name}`, {doing}: {status}")]
    Nvrtc { name: &'static str, doing: &'static str, status: NvrtcStatus },
    #[error("`{name}` does not compile for {arch} (NVRTC {nvrtc})\n{log}")]
    Compile { name: &'static str, arch: Arch, nvrtc: Version, log: String },

    // The caller asked for something that cannot be.
    #[error("`{0}` holds a zero byte")]
    ZeroByte(&'static str),
    #[error("elements {start} to {end} of a buffer of {len}")]
    OutOfRange { start: usize, end: usize, len: usize },
    #[error("{len} elements of {size} bytes are more than memory can hold")]
    TooLarge { len: usize, size: usize },
    #[error("kernel `{0}` was given a buffer of another stream")]
    OtherStream(&'static str),
    #[error("{0} cannot be captured in a graph")]
    Capturing(Operation),
    #[error("`{name}` has {length} elements, and {expected} are needed")]
    Length { name: &'static str, length: usize, expected: usize },
    #[error("cannot draw from a vocabulary of {vocabulary}: it must be between 1 and {longest}")]
    Vocabulary { vocabulary: usize, longest: usize },
    #[error("the kernels are for logits of type {expected:?}, and these are {is:?}")]
    Logits { is: LogitType, expected: LogitType },
    #[error("cannot draw {0} rows")]
    Rows(usize),
    #[error(transparent)]
    Refused(#[from] ptero_sampling::categorical::Refused),
    #[error("the capture gave no graph")]
    NoGraph,
    #[error("`{name}` has no kernel `{kernel}`")]
    NoKernel { name: &'static str, kernel: &'static str },
    #[error("kernel `{kernel}` takes {there} bytes of arguments, and is given {here}")]
    Arguments { kernel: &'static str, here: usize, there: usize },
    #[error("kernel `{kernel}` cannot run in {grid:?} blocks of {block:?} threads; at most {most} threads to a block")]
    Grid { kernel: &'static str, grid: [u32; 3], block: [u32; 3], most: u32 },
}

/// The oldest CUDA that driver and NVRTC may be.
pub(crate) const MINIMUM: Version = Version { major: 12, minor: 0 };

/// The oldest GPUs that kernels are written for.
pub(crate) const OLDEST_ARCH: Arch = Arch { major: 8, minor: 0 };

/// The operation during which the driver failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the text of each is its documentation")]
pub enum Operation {
    Start,
    List,
    Open(usize),
    NewStream,
    Synchronize,
    Time,
    Allocate,
    Write,
    Zero,
    Read,
    Load(&'static str),
    Find(&'static str),
    Configure(&'static str),
    Launch(&'static str),
    Capture,
    Replay,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Start => f.write_str("starting the CUDA driver"),
            Operation::List => f.write_str("listing CUDA devices"),
            Operation::Open(ordinal) => write!(f, "opening CUDA device {ordinal}"),
            Operation::NewStream => f.write_str("making a stream"),
            Operation::Synchronize => f.write_str("waiting for a stream"),
            Operation::Time => f.write_str("taking the time on a stream"),
            Operation::Allocate => f.write_str("allocating a buffer"),
            Operation::Write => f.write_str("writing a buffer"),
            Operation::Zero => f.write_str("zeroing a buffer"),
            Operation::Read => f.write_str("reading a buffer"),
            Operation::Load(name) => write!(f, "loading `{name}`"),
            Operation::Find(kernel) => write!(f, "looking for kernel `{kernel}`"),
            Operation::Configure(kernel) => write!(f, "configuring kernel `{kernel}`"),
            Operation::Launch(kernel) => write!(f, "launching kernel `{kernel}`"),
            Operation::Capture => f.write_str("capturing a graph"),
            Operation::Replay => f.write_str("replaying a graph"),
        }
    }
}

impl Operation {
    /// Returns the error of this operation.
    pub(crate) fn failed(self, error: DriverError) -> Error {
        Error::Driver { doing: self, status: Status(error) }
    }
}

/// The status that the driver returned: the name of the error, and its description.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub(crate) DriverError);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.0)?;
        match self.0.error_string() {
            Ok(words) => write!(f, " ({})", words.to_string_lossy()),
            Err(_) => Ok(()),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The status that NVRTC returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvrtcStatus(pub(crate) NvrtcError);

impl fmt::Display for NvrtcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.0)
    }
}
