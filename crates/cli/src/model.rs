//! Models by the names that people give them: a program, or the one in the box.

mod voice;

pub use voice::{GenerationConfig, Voice, VoiceFiles};

use crate::files;
use anyhow::{Context, Result};
use ptero_pte::{Bytes, Limits, Program, Verified};
use std::path::{Path, PathBuf};

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
}

/// Opens a program, with the `.ptd` files that belong to it; without a name, the model in the box.
///
/// # Errors
/// When there is no such file, or it is no sound program.
pub fn open(model: Option<&str>, data: &[PathBuf]) -> Result<Opened> {
    let Some(model) = model else { return boxed() };
    let path = Path::new(model);
    let program = files::open(path, data)?;
    let program = Verified::new(program, &Limits::DEFAULT).with_context(|| path.display().to_string())?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Opened { name, program, folder: path.parent().map(Path::to_owned) })
}

fn boxed() -> Result<Opened> {
    let program = Program::read(&Bytes::from(BOXED_PROGRAM.to_vec()), &Limits::DEFAULT)?;
    let program = Verified::new(program, &Limits::DEFAULT)?;
    Ok(Opened { name: BOXED.to_owned(), program, folder: None })
}
