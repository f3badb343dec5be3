//! The devices that this build knows.
#![allow(clippy::indexing_slicing, reason = "a constant loop over a constant table")]

use anyhow::{Result, bail};
use clap::Args;
use ptero_backend::Backend;
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_plan::passes::{CANONICALISATIONS, OPTIMISATIONS};
use ptero_reference::Reference;

/// Their names.
pub const NAMES: [&str; 2] = ["cpu", "reference"];
/// The one that is taken unless another is named.
pub const DEFAULT: &str = "cpu";

/// The passes that graphs go through before a device gets them.
pub const PASS_NAMES: [&str; CANONICALISATIONS.len() + OPTIMISATIONS.len()] = {
    let mut names = [""; CANONICALISATIONS.len() + OPTIMISATIONS.len()];
    let mut at = 0;
    while at < names.len() {
        let canonical = CANONICALISATIONS.len();
        names[at] = if at < canonical { CANONICALISATIONS[at].name } else { OPTIMISATIONS[at - canonical].name };
        at += 1;
    }
    names
};

/// Where to run: arguments of every command that runs something.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Where to run
    #[arg(long, default_value = DEFAULT, value_parser = NAMES, help_heading = "Device")]
    pub device: String,

    /// Threads of the device `cpu`; the result does not depend on it [default: all cores]
    #[arg(short, long, alias = "cpu_threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Device")]
    pub threads: Option<u16>,
}

/// The device that the arguments name.
pub fn open(args: &DeviceArgs) -> Result<Box<dyn Backend>> {
    match args.device.as_str() {
        "cpu" => Ok(Box::new(args.threads.map_or_else(Cpu::new, |threads| Cpu::with(threads.into(), Isa::best())))),
        "reference" => Ok(Box::new(Reference)),
        other => bail!("no device `{other}` (there is: {})", NAMES.join(", ")),
    }
}
