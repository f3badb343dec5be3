//! Files that are whole or not there.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file that nobody wrote to for so long has no writer.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// A file under a hidden temporary name beside the one it will have. [`OutputFile::finish`] gives it that name; dropped
/// before, it is removed. What a killed run left behind is removed by the next one that writes the same name.
#[derive(Debug)]
pub struct OutputFile {
    /// As it was given, for messages.
    path: PathBuf,
    target: PathBuf,
    part: PathBuf,
    /// Locked while it is written, which is how others see that its writer lives.
    out: Option<BufWriter<File>>,
}

impl OutputFile {
    /// Begins a file that will be `path` and must not be one of `inputs`.
    ///
    /// # Errors
    /// When `path` is one of `inputs`, exists and is no plain file, or its folder cannot be written to.
    pub fn create(path: &Path, inputs: &[&Path]) -> Result<Self> {
        Self::begin(path, inputs).with_context(|| could_not_write(path))
    }

    fn begin(path: &Path, inputs: &[&Path]) -> Result<Self> {
        let target = target_of(path)?;
        let is_target = |input: &&Path| fs::canonicalize(input).is_ok_and(|input| input == target);
        ensure!(!inputs.iter().any(is_target), "it is the input; give another name");
        let (folder, name) = target.parent().zip(target.file_name()).context("not a file name")?;
        remove_leftovers(folder, name);
        let (part, file) = create_part(folder, name)?;
        Ok(Self { path: path.to_owned(), target, part, out: Some(BufWriter::new(file)) })
    }

    /// Brings everything to the disk and gives the file its name.
    ///
    /// # Errors
    /// When the disk is full or fails; nothing has appeared under the name then.
    pub fn finish(mut self) -> Result<()> {
        self.complete().with_context(|| could_not_write(&self.path))
    }

    fn complete(&mut self) -> io::Result<()> {
        let Some(out) = self.out.take() else { return Ok(()) };
        let file = out.into_inner().inspect_err(|_| remove(&self.part)).map_err(io::IntoInnerError::into_error)?;
        // Renamed while it is open, and so while it is locked: nobody can take it for a leftover.
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
            // What is still in the buffer is not wanted.
            drop(out.into_parts());
            remove(&self.part);
        }
    }
}

/// Writes a file that is whole or not there.
///
/// # Errors
/// As [`OutputFile::create`] and [`OutputFile::finish`], and when `write` fails.
pub fn write_whole(path: &Path, inputs: &[&Path], write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let mut out = OutputFile::create(path, inputs)?;
    write(&mut out).with_context(|| could_not_write(path))?;
    out.finish()
}

fn could_not_write(path: &Path) -> String {
    format!("could not write {}", path.display())
}

/// The file itself: absolute, and where a link leads, so that the link stays one.
fn target_of(path: &Path) -> Result<PathBuf> {
    if path.symlink_metadata().is_ok() {
        let target = fs::canonicalize(path)?;
        // As root, a rename would put a file where `/dev/null` is.
        if !target.metadata()?.is_file() {
            bail!("it is there and is no plain file");
        }
        return Ok(target);
    }
    let name = path.file_name().context("not a file name")?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(fs::canonicalize(folder).with_context(|| format!("the folder {}", folder.display()))?.join(name))
}

/// A locked file that nobody has: `.NAME.PROCESS-COUNT.part`.
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

/// Removes what killed runs left behind in a folder, whatever it was to become.
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

/// A run that was killed could not clean up, but it no longer holds its lock.
fn remove_parts(folder: &Path, is_part: impl Fn(&OsStr) -> bool) {
    // Nothing here is worth an error: the new file does not depend on it.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| is_part(&entry.file_name())) {
        let is_dead = File::open(entry.path()).is_ok_and(|file| match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            // Without locks, age must do.
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

/// The first error is the one to tell; that the leftovers could not be removed adds nothing.
fn remove(part: &Path) {
    let _ = fs::remove_file(part);
}

#[cfg(test)]
mod tests;
