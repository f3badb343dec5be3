//! A partly downloaded file and its running hash.

use super::Problem;
use super::select::{Hash, RemoteFile};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

/// `BLOB.incomplete`, which is renamed to `BLOB` when size and hash are right.
pub(super) struct PartialFile<'a> {
    remote: &'a RemoteFile,
    blob: &'a Path,
    path: PathBuf,
    file: File,
    length: u64,
    hash: Context,
}

impl<'a> PartialFile<'a> {
    /// Continues what an earlier process left, or begins.
    pub(super) fn open(blob: &'a Path, remote: &'a RemoteFile) -> Result<Self, Problem> {
        let path = blob.with_added_extension("incomplete");
        let open = || {
            fs::create_dir_all(blob.parent().unwrap_or(Path::new(".")))?;
            File::options().create(true).truncate(false).read(true).write(true).open(&path)
        };
        let file = open().map_err(Problem::disk(&path))?;
        let mut part = Self { remote, blob, path, file, length: 0, hash: begin(remote) };
        part.hash_existing().map_err(Problem::disk(&part.path))?;
        if part.length > remote.bytes {
            part.restart()?;
        }
        Ok(part)
    }

    fn hash_existing(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 18];
        loop {
            let read = self.file.read(&mut buffer)?;
            let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { return Ok(()) };
            self.hash.update(bytes);
            self.length += bytes.len() as u64;
        }
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Discards everything received so far.
    pub(super) fn restart(&mut self) -> Result<(), Problem> {
        (self.length, self.hash) = (0, begin(self.remote));
        let empty = self.file.set_len(0).and_then(|()| self.file.rewind());
        empty.map_err(Problem::disk(&self.path))
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        let length = self.length.saturating_add(bytes.len() as u64);
        if length > self.remote.bytes {
            return Err(self.wrong_size());
        }
        self.file.write_all(bytes).map_err(Problem::disk(&self.path))?;
        self.hash.update(bytes);
        self.length = length;
        Ok(())
    }

    pub(super) fn wrong_size(&self) -> Problem {
        Problem::WrongSize { file: self.remote.name.clone(), bytes: self.remote.bytes }
    }

    /// Renames the file to its blob if the hash is right.
    pub(super) fn finish(self) -> Result<(), Problem> {
        let hash: String = self.hash.clone().finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if hash != self.remote.hash.text() {
            let problem =
                Problem::WrongHash { file: self.remote.name.clone(), hash: self.remote.hash.text().to_owned() };
            self.remove();
            return Err(problem);
        }
        let named = self.file.sync_all().and_then(|()| fs::rename(&self.path, self.blob));
        named.map_err(Problem::disk(&self.path))
    }

    /// Removes the file.
    pub(super) fn remove(self) {
        drop(self.file);
        // A file that stays is checked again later.
        let _ = fs::remove_file(&self.path);
    }
}

fn begin(remote: &RemoteFile) -> Context {
    match remote.hash {
        Hash::Sha256(_) => Context::new(&SHA256),
        Hash::Git(_) => {
            let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            hash.update(format!("blob {}\0", remote.bytes).as_bytes());
            hash
        }
    }
}
