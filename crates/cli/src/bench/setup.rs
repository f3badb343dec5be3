//! What is measured, and on what.

use crate::device::{self, DeviceArgs};
use crate::model::{self, Opened};
use anyhow::{Context, Result, bail};
use ptero_backend::Backend;
use ptero_cpu::Cpu;
use ptero_cpu::machine::Machine;
use ptero_cpu::pool::Scratch;
use ptero_cpu::simd::Isa;
use ptero_export::{Graft, graft};
use ptero_pte::{Limits, Verified};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The program, and how long it took to open.
pub(super) struct Source {
    pub(super) name: String,
    /// Of the file, where it is one.
    pub(super) bytes: Option<u64>,
    pub(super) program: Verified,
    pub(super) open_time: Duration,
}

impl Source {
    pub(super) fn open(model: Option<&str>, data: &[PathBuf], layers: Option<u32>, is_quiet: bool) -> Result<Self> {
        let opened = match model.map(Path::new).filter(|path| model::is_config(path)) {
            Some(config) => model::open_made_up(config, layers, is_quiet)?,
            None if layers.is_some() => bail!("`--layers` is for a config.json, whose weights are made up"),
            None => model::open(model, data, is_quiet)?,
        };
        let size = |path: &Path| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
        let beside: u64 = data.iter().filter_map(|path| size(path)).sum();
        // That of a configuration says nothing.
        let program = model.map(Path::new).filter(|path| !model::is_config(path));
        let bytes = program.and_then(size).map(|bytes| bytes + beside);
        let Opened { name, program, open_time, .. } = opened;
        Ok(Self { name, bytes, program, open_time })
    }

    /// Whether it draws its own tokens.
    pub(super) fn samples(&self) -> Result<bool> {
        Ok(self.program.bool_metadata("use_sampling")?.unwrap_or(false))
    }

    /// The program, or one that returns logits with the head that draws from them.
    pub(super) fn sampling(&self) -> Result<Verified> {
        if self.samples()? {
            return Ok(self.program.clone());
        }
        graft(self.program.clone().into_program(), &Graft::default(), &Limits::DEFAULT)
            .context("the program returns logits, and could not be made to sample")
    }
}

/// Where it runs, and the threads of the host beside it: the same ones, where the host is the device.
pub(super) struct Device {
    pub(super) name: String,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) host: Cpu,
    pub(super) threads: usize,
    /// To measure its bandwidth with; `None` where that is not the memory that programs are read from.
    machine: Option<Machine>,
}

impl Device {
    pub(super) fn open(name: &str, threads: Option<u16>) -> Result<Self> {
        let isa = Isa::best();
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = match name {
            "reference" => 1,
            _ => threads.map_or(all, usize::from),
        };
        let host = Cpu::with(threads, isa);
        let backend: Arc<dyn Backend> = match name {
            "cpu" => Arc::new(host.clone()),
            _ => Arc::from(device::open(&DeviceArgs { device: name.to_owned(), threads: None })?),
        };
        let machine = matches!(name, "cpu" | "reference").then(|| Machine::new(isa));
        Ok(Self { name: name.to_owned(), backend, host, threads, machine })
    }

    /// The instructions of the host.
    pub(super) fn instructions(&self) -> &'static str {
        self.host.isa().name()
    }

    /// Bytes per second that its threads read from memory, measured now.
    pub(super) fn bandwidth(&self) -> Option<f64> {
        let mut scratch = Scratch::default();
        self.machine.as_ref().map(|machine| machine.bandwidth(&mut self.host.workers(&mut scratch)))
    }
}
