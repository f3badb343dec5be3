//! The devices that programs run on.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// A device that programs run on. All but MLX give the same bits.
///
/// ```
/// use ptero::Device;
///
/// assert_eq!("cpu".parse::<Device>()?, Device::Cpu);
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The best device that this machine and this build have: see [`Device::resolve`].
    #[default]
    Auto,
    /// The CPU, with all its cores and the best instruction set it has.
    Cpu,
    /// An NVIDIA GPU, the first one, with the feature `cuda`. Driver and NVRTC are looked up when it is opened.
    Cuda,
    /// MLX, with the feature `mlx`: Apple GPUs on macOS, elsewhere what the installed MLX was built for. Computes with MLX's own
    /// kernels, so results differ from the other devices' by rounding.
    Mlx,
    /// The definition of the arithmetic as code: slow, what the others are tested against.
    Reference,
}

impl Device {
    /// All devices, including those that this build does not have.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Cpu, Self::Cuda, Self::Mlx, Self::Reference];

    /// Returns the name, as users give it: `auto`, `cpu`, `cuda`, `mlx`, `reference`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Mlx => "mlx",
            Self::Reference => "reference",
        }
    }

    /// Returns the device that [`Device::Auto`] stands for on this machine, as [`Devices::best`](crate::Devices::best) says, and any
    /// other device as it is. The machine is looked at once.
    pub fn resolve(self) -> Self {
        static BEST: OnceLock<Device> = OnceLock::new();
        match self {
            Self::Auto => *BEST.get_or_init(|| crate::devices().best()),
            Self::Cpu | Self::Cuda | Self::Mlx | Self::Reference => self,
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|device| device.name() == name);
        found.ok_or_else(|| Error::UnknownDevice { name: name.to_owned() })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_found_by_its_name() {
        for device in Device::ALL {
            assert_eq!(device.name().parse::<Device>().ok(), Some(device));
        }
        let error = "abacus".parse::<Device>().unwrap_err();
        assert_eq!(error.to_string(), "there is no device `abacus` (there are: auto, cpu, cuda, mlx, reference)");
    }

    #[test]
    fn only_auto_stands_for_another_device() {
        assert_ne!(Device::Auto.resolve(), Device::Auto);
        assert_eq!(Device::Reference.resolve(), Device::Reference);
    }
}
