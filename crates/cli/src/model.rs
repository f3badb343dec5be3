//! Models by the names that people give them: a program, a checkpoint that becomes one, or the model in the box.

pub mod cache;
mod voice;

pub use voice::{GenerationConfig, Voice, VoiceFiles};

use crate::{files, hub};
use anyhow::{Context, Result};
use ptero_pte::{Bytes, Limits, Program, Verified};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of the model that every `ptero` carries.
pub const BOXED: &str = "little-qwen";

static BOXED_PROGRAM: &[u8] = include_bytes!("../../../models/little-qwen.pte");

/// A model that was found and checked.
#[derive(Debug)]
pub struct Opened {
    /// What to call it.
    pub name: String,
    /// The program.
    pub program: Verified,
    /// The folder that the program lies in, where its tokenizer may lie too.
    pub folder: Option<PathBuf>,
    /// How long it took to map and check the program, once it was there.
    pub open_time: Duration,
}

/// Opens a program, with the `.ptd` files that belong to it. A checkpoint, which may be one of the hub, is exported into
/// the cache first, unless it is there already; without a name, it is the model in the box.
///
/// # Errors
/// When there is no such file, it is no sound program, or the checkpoint cannot be exported.
pub fn open(model: Option<&str>, data: &[PathBuf], is_quiet: bool) -> Result<Opened> {
    let Some(model) = model else { return boxed() };
    let path = Path::new(model);
    if is_program(path) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let start = Instant::now();
        let program = verified(path, data)?;
        return Ok(Opened { name, program, folder: path.parent().map(Path::to_owned), open_time: start.elapsed() });
    }
    let checkpoint = hub::resolve(model, &hub::Options::from_env(is_quiet))?;
    let recipe = cache::default_recipe(&checkpoint);
    let origin = cache::Origin::Checkpoint(&checkpoint);
    let path = cache::program_of(origin, &recipe, is_quiet)?;
    let start = Instant::now();
    let program = verified(&path, data).or_else(|_| {
        // Only a disk that fails, or a person, damages what the cache keeps; it is made again.
        std::fs::remove_file(&path)?;
        verified(&cache::program_of(origin, &recipe, is_quiet)?, data)
    })?;
    Ok(Opened { name: origin.name(), program, folder: None, open_time: start.elapsed() })
}

/// Opens a model of which only a `config.json` is there: with weights that are made up, from the cache or exported into it
/// now. With `layers`, it has at most that many layers.
///
/// # Errors
/// When the configuration cannot be exported.
pub fn open_made_up(config: &Path, layers: Option<u32>, is_quiet: bool) -> Result<Opened> {
    let origin = cache::Origin::Config(config, layers);
    let path = cache::program_of(origin, &cache::recipe_to_measure(), is_quiet)?;
    let start = Instant::now();
    let program = verified(&path, &[])?;
    Ok(Opened { name: origin.name(), program, folder: None, open_time: start.elapsed() })
}

/// Whether a name means the configuration of a model, without the model.
pub fn is_config(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) && path.is_file()
}

fn verified(path: &Path, data: &[PathBuf]) -> Result<Verified> {
    let program = files::open(path, data)?;
    Verified::new(program, &Limits::DEFAULT).with_context(|| path.display().to_string())
}

/// Whether a name means a program: a file that is no checkpoint, or what is called like one.
fn is_program(path: &Path) -> bool {
    let has_extension = |wanted: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(wanted));
    has_extension("pte") || path.is_file() && !has_extension("gguf") && !has_extension("safetensors")
}

fn boxed() -> Result<Opened> {
    let start = Instant::now();
    let program = Program::read(&Bytes::from(BOXED_PROGRAM.to_vec()), &Limits::DEFAULT)?;
    let program = Verified::new(program, &Limits::DEFAULT)?;
    Ok(Opened { name: BOXED.to_owned(), program, folder: None, open_time: start.elapsed() })
}
