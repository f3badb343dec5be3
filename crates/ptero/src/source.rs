//! Finds a program: a file, the cached program of a checkpoint, or the model that ptero includes.

use crate::cache::{self, Origin};
use crate::error::{Context, Error, Result};
use crate::hub::{self, Repository};
use crate::options::Options;
use ptero_pte::{Bytes, Limits, Program, TensorData, Verified};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of the included model.
pub const INCLUDED: &str = "little-qwen";

static INCLUDED_PROGRAM: &[u8] = include_bytes!("../../../models/little-qwen.pte");

/// A program that was found and verified.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    /// The path or name that errors show.
    pub(crate) shown: String,
    pub(crate) program: Verified,
    /// Where its bytes are.
    pub(crate) contents: Contents,
    /// The folder of the program, where its tokenizer may be.
    pub(crate) folder: Option<PathBuf>,
    /// The time to map and verify the program.
    pub(crate) open_time: Duration,
}

/// Where the bytes of a program are.
#[derive(Clone, Debug)]
pub(crate) enum Contents {
    /// In this program.
    Included,
    /// In these files.
    Files(Vec<PathBuf>),
}

impl Contents {
    fn new(path: &Path, data: &[PathBuf]) -> Self {
        Self::Files(std::iter::once(path.to_owned()).chain(data.iter().cloned()).collect())
    }

    /// Returns a digest of the bytes.
    pub(crate) fn digest(&self) -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        match self {
            Self::Included => drop(hasher.update(INCLUDED_PROGRAM)),
            Self::Files(paths) => {
                for path in paths {
                    hasher.update(&Bytes::map(path).map_err(Error::read(path))?);
                }
            }
        }
        Ok(hasher.finalize())
    }
}

impl Source {
    fn new(
        name: String,
        path: Option<&Path>,
        contents: Contents,
        verified: impl FnOnce() -> Result<Verified>,
    ) -> Result<Self> {
        let start = Instant::now();
        let program = verified()?;
        let folder = path.and_then(Path::parent).map(Path::to_owned);
        let shown = path.map_or_else(|| name.clone(), |path| path.display().to_string());
        Ok(Self { name, shown, program, contents, folder, open_time: start.elapsed() })
    }

    /// Opens a program. A checkpoint, which may be one of the hub, is exported into the cache first.
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Self> {
        if is_program(path) {
            return Self::new(stem(path), Some(path), Contents::new(path, &options.data), || {
                verified(path, &options.data)
            });
        }
        let checkpoint = hub::resolve(path, &hub::Options::from_env(options.progress.clone()))?;
        let (recipe, origin) = (cache::default_recipe(&checkpoint), Origin::Checkpoint(&checkpoint));
        let path = cache::program_of(origin, &recipe, &options.progress)?;
        Self::new(origin.name(), None, Contents::new(&path, &options.data), || {
            verified(&path, &options.data).or_else(|_| {
                // The disk failed, or somebody changed the cache: export again.
                std::fs::remove_file(&path).map_err(Error::read(&path))?;
                verified(&cache::program_of(origin, &recipe, &options.progress)?, &options.data)
            })
        })
    }

    /// Makes a program from a `config.json` with random weights, with at most `layers` layers.
    pub(crate) fn random(config: &Path, layers: Option<u32>, options: &Options) -> Result<Self> {
        let origin = Origin::Config(config, layers);
        let path = cache::program_of(origin, &cache::random_recipe(), &options.progress)?;
        Self::new(origin.name(), None, Contents::new(&path, &[]), || verified(&path, &[]))
    }

    /// Opens the included model.
    pub(crate) fn included() -> Result<Self> {
        Self::new(INCLUDED.to_owned(), None, Contents::Included, || {
            let program = Program::read(&Bytes::from(INCLUDED_PROGRAM.to_vec()), &Limits::DEFAULT)?;
            Ok(Verified::new(program, &Limits::DEFAULT)?)
        })
    }
}

fn verified(path: &Path, data: &[PathBuf]) -> Result<Verified> {
    Verified::new(open_unverified(path, data)?, &Limits::DEFAULT).context(|| path.display().to_string())
}

/// Opens a program and the `.ptd` files that belong to it, without verifying it: for tools that look into broken programs.
#[doc(hidden)]
pub fn open_unverified(path: &Path, data: &[PathBuf]) -> Result<Program> {
    let mut program = Program::open(path, &Limits::DEFAULT)?;
    for path in data {
        let data = TensorData::open(path, &Limits::DEFAULT)?;
        program.attach(data).context(|| path.display().to_string())?;
    }
    Ok(program)
}

/// Returns the name that a model gets when it is opened, and checks that its file or folder can be read. What is not here may be
/// a repository of the hub, which is not asked.
///
/// # Errors
/// When there is no such file, or it cannot be read.
#[doc(hidden)]
pub fn name_of(path: &Path) -> Result<String> {
    if path.is_dir() {
        path.read_dir().map_err(Error::read(path))?;
    } else if path.try_exists().map_err(Error::read(path))? {
        File::open(path).map_err(Error::read(path))?;
    } else if is_program(path) {
        return Err(Error::NoSuchFile(path.to_owned()));
    } else {
        return Ok(Repository::parse(&path.to_string_lossy())?.model_name());
    }
    Ok(if is_program(path) { stem(path) } else { Origin::Checkpoint(path).name() })
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns `true` for a file that is not a checkpoint, and for any name that ends like a program.
fn is_program(path: &Path) -> bool {
    let has_extension = |wanted: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(wanted));
    has_extension("pte") || path.is_file() && !has_extension("gguf") && !has_extension("safetensors")
}
