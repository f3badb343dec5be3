//! The devices that programs run on.

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A device that programs run on. All give the same bits.
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
    /// The CPU, with all its cores and the best instruction set it has.
    #[default]
    Cpu,
    /// The definition of the arithmetic as code: slow, what the others are tested against.
    Reference,
}

impl Device {
    /// All devices that this build knows.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Reference];

    /// Returns the name: `cpu`, `reference`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Reference => "reference",
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
