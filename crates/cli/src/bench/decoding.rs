//! How fast programs decode, for other commands: the test `decode` of `ptero bench`.

use super::measure::Bench;
use super::setup::{Device, Source};
use super::{Test, progress};
use crate::device::DeviceArgs;
use anyhow::{Context, Result};
use ptero::Program;
use ptero_engine::Engine;

/// Measures one program after the other on the same device.
pub(crate) struct Decoding {
    device: Device,
    is_quiet: bool,
}

impl Decoding {
    /// The number of decoding steps, at most the context of the program; the default of `ptero bench`.
    pub(crate) const STEPS: usize = 64;
    /// The number of repetitions after a warm-up; the default of `ptero bench`.
    pub(crate) const REPEATS: u32 = 5;

    pub(crate) fn new(device: &DeviceArgs, is_quiet: bool) -> Result<Self> {
        let device = Device::open(device.device, device.threads, false, device.huge_pages, is_quiet)?;
        Ok(Self { device, is_quiet })
    }

    /// Returns what `ptero bench --prompt-lengths 0 --depths 0` measures.
    pub(crate) fn measure(&self, program: Program) -> Result<Test> {
        let source = Source { program, bytes: None };
        let name = || source.program.name().to_owned();
        let model = Engine::new(source.program.verified(), &*self.device.backend, &[]).with_context(name)?;
        let bench = Bench::decoding(Self::STEPS, Self::REPEATS, &model);
        let progress = progress::counted(bench.rounds(), self.is_quiet);
        let run = bench.run(&self.device, &model, &source, &progress)?;
        progress.finish_and_clear();
        run.tests.into_iter().next().context("no test was run")
    }
}
