//! Compiled kernels on disk, so that only the first start of a new version compiles.
//!
//! An entry is a file named by the key: the digest of everything the compiler saw. It holds the digest of the cubin and then
//! the cubin, so that one that was damaged is not loaded. Whatever goes wrong with the disk, the kernel is compiled.

use crate::context::Version;
use crate::module::Source;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Everything that decides what a cubin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(blake3::Hash);

impl Key {
    /// `options` name the arch too; `generated` is the text of the header that is made for a variant.
    pub(crate) fn new(source: &Source, generated: &str, options: &[String], nvrtc: Version, driver: Version) -> Self {
        let mut hasher = blake3::Hasher::new();
        // Each part after its length, and each list after its own, so that none can pass for others.
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        let number = |number: usize| (number as u64).to_le_bytes();
        part(source.name.as_bytes());
        part(source.text.as_bytes());
        part(generated.as_bytes());
        part(&number(source.headers.len()));
        for (name, text) in source.headers {
            part(name.as_bytes());
            part(text.as_bytes());
        }
        part(&number(options.len()));
        for option in options {
            part(option.as_bytes());
        }
        part(nvrtc.to_string().as_bytes());
        part(driver.to_string().as_bytes());
        Self(hasher.finalize())
    }
}

/// A folder of compiled kernels, or none.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's: `$PTERO_CACHE`, `$XDG_CACHE_HOME/ptero` or `~/.cache/ptero`, the first that is set.
    pub fn of_user() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = set("PTERO_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|caches| caches.join("ptero")))
            .or_else(|| set("HOME").map(|home| home.join(".cache/ptero")));
        Self { folder: folder.map(|folder| folder.join("cuda")) }
    }

    /// This folder, which need not exist.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// None: everything is compiled every time.
    pub fn none() -> Self {
        Self::default()
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.cubin", key.0.to_hex())))
    }

    /// What was put there, if it is still what it was.
    pub(crate) fn get(&self, key: &Key) -> Option<Vec<u8>> {
        let mut entry = fs::read(self.path(key)?).ok()?;
        let (digest, cubin) = entry.split_first_chunk::<{ blake3::OUT_LEN }>()?;
        if blake3::Hash::from_bytes(*digest) != blake3::hash(cubin) {
            return None;
        }
        entry.drain(..blake3::OUT_LEN);
        Some(entry)
    }

    /// Keeps a cubin, if the disk lets us.
    pub(crate) fn put(&self, key: &Key, cubin: &[u8]) {
        let Some(path) = self.path(key) else { return };
        // Nothing depends on it: whoever misses the entry compiles.
        let _ = write_whole(&path, cubin);
    }
}

/// Writes beside the entry and moves it there, so that no reader sees half of one.
fn write_whole(path: &Path, cubin: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{count}.tmp", std::process::id()));
    let written = OpenOptions::new().write(true).create_new(true).open(&beside).and_then(|mut file| {
        file.write_all(blake3::hash(cubin).as_bytes())?;
        file.write_all(cubin)?;
        drop(file);
        fs::rename(&beside, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests;
