//! Opening programs with the data beside them.

use anyhow::{Context, Result};
use ptero_pte::{Limits, Program, TensorData};
use std::path::{Path, PathBuf};

/// Opens a program and the `.ptd` files that belong to it.
pub fn open(file: &Path, data: &[PathBuf]) -> Result<Program> {
    let mut program = Program::open(file, &Limits::DEFAULT)?;
    for path in data {
        let data = TensorData::open(path, &Limits::DEFAULT)?;
        program.attach(data).with_context(|| path.display().to_string())?;
    }
    Ok(program)
}
