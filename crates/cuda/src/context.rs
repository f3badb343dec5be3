//! Lists and opens devices.

use crate::error::{Error, OLDEST_ARCH, Operation, Result};
use crate::{launch, module};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use std::fmt;
use std::sync::Arc;

/// A version of CUDA, of the driver or of NVRTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// What comes before the point.
    pub major: u32,
    /// What comes after it.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What a cubin is compiled for: the compute capability of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arch {
    /// The generation: 8 is Ampere, 9 is Hopper.
    pub major: u32,
    /// The chip in it.
    pub minor: u32,
}

impl fmt::Display for Arch {
    /// As NVRTC names it. Hopper is `sm_90a`, the only name under which `wgmma` and `setmaxnreg` exist.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Arch { major, minor } = self;
        let suffix = if (*major, *minor) == (9, 0) { "a" } else { "" };
        write!(f, "sm_{major}{minor}{suffix}")
    }
}

/// What is known of a device without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, as the driver counts.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Its compute capability.
    pub arch: Arch,
    /// Its streaming multiprocessors.
    pub multiprocessors: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its second-level cache.
    pub l2_bytes: u64,
    /// The shared memory that a block can have at most, once its kernel asks for it.
    pub shared_bytes: u32,
    /// The newest CUDA that the driver knows.
    pub driver: Version,
}

impl DeviceInfo {
    /// Checks that programs can run on it: it is not too old, and there is an NVRTC to compile kernels with.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self) -> Result<()> {
        if self.arch < OLDEST_ARCH {
            return Err(Error::OldDevice { name: self.name.clone(), arch: self.arch });
        }
        module::nvrtc_version().map(drop)
    }
}

/// The devices of this machine, in the driver's order; never empty.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    let driver = module::driver()?;
    (0..module::device_count()?).map(|ordinal| info(ordinal, driver)).collect()
}

fn info(ordinal: usize, driver: Version) -> Result<DeviceInfo> {
    let attribute = |attribute| module::attribute(ordinal, attribute);
    let (name, memory_bytes) = module::name_and_bytes(ordinal)?;
    Ok(DeviceInfo {
        ordinal,
        name,
        arch: Arch {
            major: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        },
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        memory_bytes,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        driver,
    })
}

/// An open device. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    info: DeviceInfo,
    context: Arc<CudaContext>,
    /// The device reads the host's memory through the host's page tables: copies do not pass through memory of the driver, and
    /// must be waited for.
    copies_in_place: bool,
}

impl Device {
    /// Opens a device by its number.
    pub fn open(ordinal: usize) -> Result<Self> {
        let driver = module::driver()?;
        let count = module::device_count()?;
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        let info = info(ordinal, driver)?;
        let in_place = Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
        let copies_in_place = module::attribute(ordinal, in_place)? != 0;
        let context = CudaContext::new(ordinal).map_err(|error| Operation::Open(ordinal).failed(error))?;
        launch::track_no_events(&context);
        if context.has_async_alloc() {
            module::keep_freed_memory(ordinal).map_err(|error| Operation::Open(ordinal).failed(error))?;
        }
        Ok(Self(Arc::new(Opened { info, context, copies_in_place })))
    }

    /// What is known of it.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// The memory that is free.
    pub fn free_bytes(&self) -> Result<u64> {
        self.context().bind_to_thread().map_err(|error| Operation::List.failed(error))?;
        let (free, _) = cudarc::driver::result::mem_get_info().map_err(|error| Operation::List.failed(error))?;
        Ok(free as u64)
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    pub(crate) fn copies_in_place(&self) -> bool {
        self.0.copies_in_place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hopper_has_a_name_of_its_own() {
        let name = |major, minor| Arch { major, minor }.to_string();
        assert_eq!(name(9, 0), "sm_90a");
        assert_eq!(name(8, 0), "sm_80");
        assert_eq!(name(8, 9), "sm_89");
        assert_eq!(name(12, 0), "sm_120");
    }

    #[test]
    fn a_device_before_ampere_is_refused() {
        let info = DeviceInfo {
            ordinal: 0,
            name: "Tesla T4".to_owned(),
            arch: Arch { major: 7, minor: 5 },
            multiprocessors: 40,
            memory_bytes: 16 << 30,
            l2_bytes: 4 << 20,
            shared_bytes: 64 << 10,
            driver: Version { major: 13, minor: 0 },
        };
        assert_eq!(
            info.check().unwrap_err().to_string(),
            "Tesla T4 is sm_75, and sm_80 is needed: choose another device"
        );
    }

    #[test]
    fn opening_a_device_succeeds_or_says_what_is_missing() {
        match Device::open(0) {
            Ok(device) => println!("{:?}", device.info()),
            Err(error) => assert!(error.to_string().contains("driver"), "{error}"),
        }
        match devices() {
            Ok(devices) => assert!(!devices.is_empty()),
            Err(error) => assert!(error.to_string().contains("driver"), "{error}"),
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_never_opened() {
        println!("{}", Device::open(usize::MAX).unwrap_err());
    }
}
