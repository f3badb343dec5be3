//! Files that are complete or do not exist.

use crate::error::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteFault {
    /// The disk is full or fails, or the folder cannot be written to.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is the input.
    #[error("it is the input; give another name")]
    IsInput,
    /// It exists and is a folder or a device.
    #[error("it exists and is not a regular file")]
    NotAFile,
    /// The path does not end with the name of a file.
    #[error("not a file name")]
    NoName,
    /// Its folder does not exist.
    #[error("the folder {}: {cause}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        cause: io::Error,
    },
}

/// A file that was not written to for this long has no writer.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// A file under a hidden temporary name beside the one it will have. [`OutputFile::finish`] gives it that name; dropped
/// before, it is removed. What a killed process left is removed by the next one that writes the same name.
#[derive(Debug)]
pub struct OutputFile {
    /// As given, for messages.
    path: PathBuf,
    target: PathBuf,
    part: PathBuf,
    /// Locked while it is written, so that others see that its writer is alive.
    out: Option<BufWriter<File>>,
}

impl OutputFile {
    /// Begins to write `path`, which must not be one of `inputs`.
    ///
    /// # Errors
    /// When `path` is one of `inputs`, exists and is not a regular file, or its folder cannot be written to.
    pub fn create(path: &Path, inputs: &[&Path]) -> Result<Self> {
        Self::begin(path, inputs).map_err(failed(path))
    }

    fn begin(path: &Path, inputs: &[&Path]) -> Result<Self, WriteFault> {
        let target = target_of(path)?;
        let is_target = |input: &&Path| fs::canonicalize(input).is_ok_and(|input| input == target);
        if inputs.iter().any(is_target) {
            return Err(WriteFault::IsInput);
        }
        let (folder, name) = target.parent().zip(target.file_name()).ok_or(WriteFault::NoName)?;
        remove_leftovers(folder, name);
        let (part, file) = create_part(folder, name)?;
        Ok(Self { path: path.to_owned(), target, part, out: Some(BufWriter::new(file)) })
    }

    /// Writes everything to the disk and renames the file to its path.
    ///
    /// # Errors
    /// When the disk is full or fails; the path is then untouched.
    pub fn finish(mut self) -> Result<()> {
        self.complete().map_err(|error| failed(&self.path)(error.into()))
    }

    fn complete(&mut self) -> io::Result<()> {
        let Some(out) = self.out.take() else { return Ok(()) };
        let file = out.into_inner().inspect_err(|_| remove(&self.part)).map_err(io::IntoInnerError::into_error)?;
        // Renamed while it is open and locked, so that nobody takes it for a leftover.
        let done = file.sync_all().and_then(|()| fs::rename(&self.part, &self.target));
        if done.is_err() {
            drop(file);
            remove(&self.part);
        }
        done
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.as_mut().map_or(Ok(0), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(out) = self.out.take() {
            // The buffer must not be flushed.
            drop(out.into_parts());
            remove(&self.part);
        }
    }
}

/// Writes a file completely or not at all.
///
/// # Errors
/// Same as [`OutputFile::create`] and [`OutputFile::finish`], and when `write` fails.
pub fn write_whole(path: &Path, inputs: &[&Path], write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut out = OutputFile::create(path, inputs)?;
    write(&mut out).map_err(|error| failed(path)(error.into()))?;
    out.finish()
}

fn failed(path: &Path) -> impl Fn(WriteFault) -> Error {
    |fault| Error::Write { path: path.to_owned(), fault }
}

/// Returns the absolute path, with links resolved, so that a link stays a link.
fn target_of(path: &Path) -> Result<PathBuf, WriteFault> {
    if path.symlink_metadata().is_ok() {
        let target = fs::canonicalize(path)?;
        // As root, a rename would put a file where `/dev/null` is.
        if !target.metadata()?.is_file() {
            return Err(WriteFault::NotAFile);
        }
        return Ok(target);
    }
    let name = path.file_name().ok_or(WriteFault::NoName)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let missing = |cause| WriteFault::Folder { folder: folder.to_owned(), cause };
    Ok(fs::canonicalize(folder).map_err(missing)?.join(name))
}

/// Creates and locks a new file `.NAME.PROCESS-COUNT.part`.
fn create_part(folder: &Path, name: &OsStr) -> io::Result<(PathBuf, File)> {
    for count in 0_u32.. {
        let mut hidden = prefix(name);
        hidden.push(format!("{}-{count}.part", std::process::id()));
        let part = folder.join(hidden);
        let file = match File::create_new(&part) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            created => created?,
        };
        // Not every file system has locks; without them, leftovers stay for a day.
        let _ = file.lock();
        // Before it was locked, another run may have taken it for a leftover.
        if part.exists() {
            return Ok((part, file));
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn prefix(name: &OsStr) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    prefix
}

/// Removes what killed processes left in a folder.
pub(crate) fn remove_all_leftovers(folder: &Path) {
    remove_parts(folder, |name| {
        let whole = name.as_encoded_bytes().strip_prefix(b".").and_then(|name| name.strip_suffix(b".part"));
        whole.and_then(|name| name.rsplit(|byte| *byte == b'.').next()).is_some_and(is_process_and_count)
    });
}

fn remove_leftovers(folder: &Path, name: &OsStr) {
    let prefix = prefix(name);
    remove_parts(folder, |name| {
        let rest = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
        rest.and_then(|rest| rest.strip_suffix(b".part")).is_some_and(is_process_and_count)
    });
}

fn is_process_and_count(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-')
}

/// Removes the parts whose lock nobody holds: their process was killed.
fn remove_parts(folder: &Path, is_part: impl Fn(&OsStr) -> bool) {
    // Errors are ignored: the new file does not depend on leftovers.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| is_part(&entry.file_name())) {
        let is_dead = File::open(entry.path()).is_ok_and(|file| match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            // Without locks, age decides.
            Err(TryLockError::Error(_)) => {
                let written = entry.metadata().and_then(|metadata| metadata.modified());
                written.is_ok_and(|written| written.elapsed().is_ok_and(|age| age > ABANDONED_AFTER))
            }
        });
        if is_dead {
            remove(&entry.path());
        }
    }
}

/// Removes a file if possible: an earlier error is the one to report.
fn remove(part: &Path) {
    let _ = fs::remove_file(part);
}

#[cfg(test)]
mod tests;
