//! How programs and models are opened.

use crate::device::Device;
use crate::error::{Context, Result};
use crate::kv_cache::KvCacheSpec;
use crate::model::Model;
use crate::program::Program;
use crate::progress::Progress;
use crate::source::Source;
use ptero_backend::{Backend, Loading};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_reference::Reference;
use std::path::{Path, PathBuf};

/// Options for opening a [`Model`] or a [`Program`], in the manner of [`std::fs::OpenOptions`].
///
/// ```
/// use ptero::{Device, Options};
///
/// let model = Options::new().device(Device::Cpu).threads(1).included_model()?;
/// assert_eq!(model.name(), "little-qwen");
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) device: Device,
    pub(crate) threads: Option<usize>,
    pub(crate) huge_pages: bool,
    pub(crate) foreign_kernels: bool,
    pub(crate) without: Vec<String>,
    pub(crate) data: Vec<PathBuf>,
    pub(crate) tokenizer: Option<PathBuf>,
    pub(crate) chat_template: Option<PathBuf>,
    pub(crate) kv_cache: Option<KvCacheSpec>,
    pub(crate) full_sampler: bool,
    pub(crate) name: Option<String>,
    pub(crate) progress: Progress,
}

impl Options {
    /// Returns the defaults: the best device there is; of the CPU, all cores.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs on this device.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Uses this many threads of the CPU; the result does not depend on it.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Copies weights into huge pages of memory, which the CPU reads faster where the system has them. Otherwise they stay in the
    /// mapped file, which starts faster and is shared with other processes.
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Runs kernels that programs bring as Metal source, on Apple GPUs through MLX: for programs that you trust. Known kernels need no
    /// permission, since ptero has its own for them. Experimental.
    pub fn foreign_kernels(mut self, foreign_kernels: bool) -> Self {
        self.foreign_kernels = foreign_kernels;
        self
    }

    /// Opens the device.
    ///
    /// # Errors
    /// When this build or this machine does not have it.
    #[doc(hidden)]
    pub fn backend(&self) -> Result<Box<dyn Backend>> {
        match self.device.resolve() {
            Device::Auto | Device::Cpu => {
                let cpu = self.threads.map_or_else(Cpu::new, |threads| Cpu::with(threads.max(1), Isa::best()));
                Ok(Box::new(cpu.with_huge_pages(self.huge_pages)))
            }
            Device::Cuda => cuda(self.progress.loading()),
            Device::Mlx => mlx(self.foreign_kernels, self.progress.loading()),
            Device::Reference => Ok(Box::new(Reference)),
        }
    }

    /// Leaves out passes over the graph, by name; the result does not depend on optimisations.
    pub fn without_passes<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.without.extend(names.into_iter().map(Into::into));
        self
    }

    /// Attaches tensor data (`.ptd` files) that belongs to the program.
    pub fn data<P: Into<PathBuf>>(mut self, files: impl IntoIterator<Item = P>) -> Self {
        self.data.extend(files.into_iter().map(Into::into));
        self
    }

    /// Uses this `tokenizer.json`, or the one in this folder, instead of the model's own.
    pub fn tokenizer(mut self, path: impl Into<PathBuf>) -> Self {
        self.tokenizer = Some(path.into());
        self
    }

    /// Uses this chat template (Jinja) instead of the model's own.
    pub fn chat_template(mut self, path: impl Into<PathBuf>) -> Self {
        self.chat_template = Some(path.into());
        self
    }

    /// Sets the size of the key-value cache, for programs that keep keys and values outside the graph.
    pub fn kv_cache(mut self, spec: KvCacheSpec) -> Self {
        self.kv_cache = Some(spec);
        self
    }

    /// Puts the full sampling head in the place of a model's own, so that min-p, penalties, logit biases, log-probabilities and
    /// grammars work. Tokens that are sampled without these stay the same.
    ///
    /// ```
    /// use ptero::{LogProbabilities, Options};
    ///
    /// let model = Options::new().full_sampler(true).included_model()?;
    /// let settings = model.generator().min_p(0.05).repetition_penalty(1.1).seed(7).max_tokens(4);
    /// let mut generator = settings.log_probabilities(LogProbabilities::Model).start()?;
    /// for piece in generator.generate("The king")? {
    ///     let piece = piece?;
    ///     println!("{:?} {:?}", piece.text, piece.log_probabilities.map(|row| row.token));
    /// }
    /// # Ok::<(), ptero::Error>(())
    /// ```
    pub fn full_sampler(mut self, full_sampler: bool) -> Self {
        self.full_sampler = full_sampler;
        self
    }

    /// Calls the model this, and not by its file or checkpoint.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Reports the progress of downloads, of exports, and of weights that a device copies.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Opens a model: see [`Model::open`].
    ///
    /// # Errors
    /// Same as [`Model::open`].
    pub fn open_model(&self, source: impl AsRef<Path>) -> Result<Model> {
        Model::load(self.open_program(source)?)
    }

    /// Opens the small model that is included in this crate.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn included_model(&self) -> Result<Model> {
        Model::load(self.included_program()?)
    }

    /// Opens a program: see [`Program::open`].
    ///
    /// # Errors
    /// Same as [`Program::open`].
    pub fn open_program(&self, source: impl AsRef<Path>) -> Result<Program> {
        Ok(Program::new(Source::open(source.as_ref(), self)?, self.clone()))
    }

    /// Opens the program of the included model.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn included_program(&self) -> Result<Program> {
        Ok(Program::new(Source::included()?, self.clone()))
    }

    /// Makes a program from a `config.json` with random weights and at most `layers` layers, to measure the speed of a model
    /// that is not there. It is cached like the program of a checkpoint.
    ///
    /// # Errors
    /// When the configuration cannot be exported.
    pub fn random_program(&self, config: impl AsRef<Path>, layers: Option<u32>) -> Result<Program> {
        let found = Source::random(config.as_ref(), layers, self);
        Ok(Program::new(found.context(|| config.as_ref().display().to_string())?, self.clone()))
    }
}

#[cfg(feature = "cuda")]
fn cuda(loading: Loading) -> Result<Box<dyn Backend>> {
    match ptero_cuda::Cuda::new() {
        Ok(cuda) => Ok(Box::new(cuda.with_loading(loading))),
        Err(error) => Err(crate::error::Error::NoDevice { device: Device::Cuda, reason: error.to_string() }),
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda(_loading: Loading) -> Result<Box<dyn Backend>> {
    Err(crate::error::Error::NotInBuild { device: Device::Cuda, feature: "cuda" })
}

#[cfg(feature = "mlx")]
fn mlx(foreign_kernels: bool, loading: Loading) -> Result<Box<dyn Backend>> {
    Ok(Box::new(ptero_mlx::Mlx::new().with_foreign_kernels(foreign_kernels).with_loading(loading)))
}

#[cfg(not(feature = "mlx"))]
fn mlx(_foreign_kernels: bool, _loading: Loading) -> Result<Box<dyn Backend>> {
    Err(crate::error::Error::NotInBuild { device: Device::Mlx, feature: "mlx" })
}
