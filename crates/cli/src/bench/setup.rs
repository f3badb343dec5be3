//! The program and the device to measure.

use crate::progress::terminal;
use anyhow::{Context, Result, bail};
use ptero::{Device as DeviceName, Options, Program};
use ptero_backend::Backend;
use ptero_cpu::Cpu;
use ptero_cpu::machine::Machine;
use ptero_cpu::pool::Scratch;
use ptero_cpu::profile::Profiler;
use ptero_cpu::simd::Isa;
use ptero_export::{Graft, graft, has_full_head};
use ptero_pte::{Limits, Verified};
use ptero_sampling::inputs::Head;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

/// The program to measure.
pub(super) struct Source {
    pub(super) program: Program,
    /// The size of the program and its data files; `None` if the program is not a file.
    pub(super) bytes: Option<u64>,
}

impl Source {
    pub(super) fn open(model: Option<&str>, data: &[PathBuf], layers: Option<u32>, is_quiet: bool) -> Result<Self> {
        let options = Options::new().data(data).progress(terminal(is_quiet));
        let config = model.map(Path::new).filter(|path| is_config(path));
        let program = match (config, model) {
            (Some(config), _) => options.random_program(config, layers)?,
            (None, _) if layers.is_some() => bail!("`--layers` is for a config.json, whose weights are random"),
            (None, Some(model)) => options.open_program(model)?,
            (None, None) => options.included_program()?,
        };
        let size = |path: &Path| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
        let data_bytes: u64 = data.iter().filter_map(|path| size(path)).sum();
        // A configuration is much smaller than its model.
        let file = model.map(Path::new).filter(|_| config.is_none());
        Ok(Self { program, bytes: file.and_then(size).map(|bytes| bytes + data_bytes) })
    }

    /// Returns `true` if the program samples its own tokens.
    pub(super) fn samples(&self) -> Result<bool> {
        Ok(self.program.verified().bool_metadata("use_sampling")?.unwrap_or(false))
    }

    /// Returns the program, with a sampling head added if it returns logits.
    pub(super) fn sampling(&self) -> Result<Verified> {
        if self.samples()? {
            return Ok(self.program.verified().clone());
        }
        graft(self.program.verified().clone().into_program(), &Graft::default(), &Limits::DEFAULT)
            .context("the program returns logits, and could not be made to sample")
    }

    /// Returns the program with the full head, whose logits can be read.
    pub(super) fn keeping_logits(&self) -> Result<Verified> {
        let program = self.program.verified().clone();
        if has_full_head(&program) {
            return Ok(program);
        }
        let how = Graft { head: Head::Full, ..Graft::default() };
        graft(program.into_program(), &how, &Limits::DEFAULT)
            .context("the program could not be given the full sampling head, whose logits can be read")
    }
}

/// The device, and the CPU that samples on the host: the same threads if the device is the CPU.
pub(super) struct Device {
    pub(super) name: &'static str,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) host: Cpu,
    pub(super) threads: usize,
    /// The profilers of the programs that were compiled, if they have any: only on the CPU.
    pub(super) profilers: Receiver<Arc<Profiler>>,
    /// Measures the memory bandwidth; `None` if the device does not read from host memory.
    machine: Option<Machine>,
}

impl Device {
    pub(super) fn open(
        device: DeviceName,
        threads: Option<u16>,
        is_profiled: bool,
        huge_pages: bool,
        is_quiet: bool,
    ) -> Result<Self> {
        let device = device.resolve();
        let isa = Isa::best();
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if device == DeviceName::Reference { 1 } else { threads.map_or(all, usize::from) };
        let (host, (sender, profilers)) = (Cpu::with(threads, isa).with_huge_pages(huge_pages), mpsc::channel());
        let host = if is_profiled { host.profiled(sender) } else { host };
        let backend: Arc<dyn Backend> = match device {
            DeviceName::Cpu => Arc::new(host.clone()),
            other => Arc::from(Options::new().device(other).progress(terminal(is_quiet)).backend()?),
        };
        let machine = matches!(device, DeviceName::Cpu | DeviceName::Reference).then(|| Machine::new(isa));
        Ok(Self { name: device.name(), backend, host, threads, profilers, machine })
    }

    /// Measures how many bytes per second the threads read from memory.
    pub(super) fn bandwidth(&self) -> Option<f64> {
        let mut scratch = Scratch::default();
        self.machine.as_ref().map(|machine| machine.bandwidth(&mut self.host.workers(&mut scratch)))
    }
}

/// Returns `true` for a configuration without weights.
fn is_config(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) && path.is_file()
}
