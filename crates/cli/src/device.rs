//! The arguments that choose a device.

use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use ptero::{Device, Options};
use ptero_plan::passes;

/// Parses the name of a device.
pub fn parser() -> impl TypedValueParser<Value = Device> {
    let names = PossibleValuesParser::new(Device::ALL.map(Device::name));
    names.try_map(|name| name.parse::<Device>())
}

/// Parses the name of a pass over graphs.
pub fn pass_parser() -> PossibleValuesParser {
    PossibleValuesParser::new(passes::names())
}

/// Where to run: arguments of every command that runs something.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Where to run
    #[arg(long, default_value_t, value_parser = parser(), help_heading = "Device")]
    pub device: Device,

    /// Threads of the device `cpu`; the result does not depend on it [default: all cores]
    #[arg(short, long, alias = "cpu_threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Device")]
    pub threads: Option<u16>,
}

impl DeviceArgs {
    /// Returns options to open models and programs with.
    pub fn options(&self) -> Options {
        let options = Options::new().device(self.device);
        self.threads.into_iter().fold(options, |options, threads| options.threads(threads.into()))
    }
}
