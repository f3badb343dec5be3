//! The arguments that choose a device.

use crate::with;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ptero::{Device, Options};
use ptero_plan::passes;

/// Parses the name of a device.
pub fn parser() -> impl TypedValueParser<Value = Device> {
    let names = PossibleValuesParser::new(Device::ALL.map(Device::name));
    names.try_map(|name| name.parse::<Device>())
}

/// Parses the name of an optimisation pass.
pub fn pass_parser() -> PossibleValuesParser {
    PossibleValuesParser::new(passes::names())
}

/// The device to run on.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Device to run on
    #[arg(long, default_value_t, value_parser = parser(), help_heading = "Device")]
    pub device: Device,

    /// Number of threads of the device `cpu`; results do not depend on it [default: all cores]
    #[arg(short, long, alias = "cpu_threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Device")]
    pub threads: Option<u16>,

    /// Copy weights into huge pages of memory: faster to read where the system has them, slower to start
    #[arg(long, help_heading = "Device")]
    pub huge_pages: bool,

    /// Run the Metal kernels that the program brings, on Apple GPUs: only for programs that you trust
    #[arg(long, help_heading = "Device")]
    pub allow_foreign_kernels: bool,
}

impl DeviceArgs {
    /// Returns options to open models and programs with.
    pub fn options(&self) -> Options {
        let options =
            Options::new().device(self.device).huge_pages(self.huge_pages).foreign_kernels(self.allow_foreign_kernels);
        with(options, self.threads, |options, threads| options.threads(threads.into()))
    }
}
