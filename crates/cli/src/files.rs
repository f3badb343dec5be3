//! Opening programs with the data beside them, and writing files that are whole or not there.

use anyhow::{Context, Result};
use ptero_pte::{Limits, Program, TensorData};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
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

/// Writes a file under a temporary name beside it and renames it when it is complete, so that nobody ever finds half of
/// it and a file may replace the one it was made from.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?);
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = File::create(&part).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&part, path));
    if done.is_err() {
        // The first error is the one to tell; that the leftovers could not be removed adds nothing.
        let _ = fs::remove_file(&part);
    }
    done
}
