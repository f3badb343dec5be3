//! The cache in the layout of `huggingface_hub`: `blobs` by hash, `snapshots` with links to them by commit, `refs` to commits.

use super::Repository;
use super::repository::is_commit;
use ptero_checkpoint::{Bytes, INDEX, Limits, WHOLE, read_index};
use std::fs;
use std::path::{Path, PathBuf};

/// The part of the cache that belongs to one repository.
pub(super) struct Cache<'a> {
    repository: &'a Repository,
    /// `models--owner--name`.
    folder: PathBuf,
    #[cfg(feature = "hub")]
    locks: PathBuf,
}

impl<'a> Cache<'a> {
    pub(super) fn new(root: &Path, repository: &'a Repository) -> Self {
        Self {
            repository,
            folder: root.join(repository.folder()),
            #[cfg(feature = "hub")]
            locks: root.join(".locks").join(repository.folder()),
        }
    }

    /// Returns the path of the file or of the snapshot, if it is complete.
    pub(super) fn find(&self) -> Option<PathBuf> {
        let snapshot = self.snapshot(&self.commit()?);
        match self.repository.file() {
            Some(file) => Some(snapshot.join(file)).filter(|file| file.is_file()),
            None => Some(snapshot).filter(|folder| is_complete(folder)),
        }
    }

    /// Returns the commit of the revision when it was last looked up.
    fn commit(&self) -> Option<String> {
        let revision = self.repository.revision();
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = fs::read_to_string(self.reference()).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    fn reference(&self) -> PathBuf {
        self.folder.join("refs").join(self.repository.revision())
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }
}

/// Returns `true` if the folder has all files of a checkpoint. Python's tools may have downloaded only some.
fn is_complete(snapshot: &Path) -> bool {
    let is_there = |name: &str| snapshot.join(name).is_file();
    let shards_are_there = || {
        let index = Bytes::map(&snapshot.join(INDEX)).ok();
        let shards = index.and_then(|index| read_index(&index, &Limits::DEFAULT).ok());
        shards.is_some_and(|shards| shards.iter().all(|shard| is_there(shard)))
    };
    is_there("config.json") && (is_there(WHOLE) || shards_are_there())
}

#[cfg(feature = "hub")]
mod writing {
    use super::Cache;
    use crate::hub::Problem;
    use crate::hub::repository::is_commit;
    use std::fs::{self, File, TryLockError};
    use std::io;
    use std::path::{Path, PathBuf};

    impl Cache<'_> {
        /// Returns the path of the content with this hash.
        pub(in crate::hub) fn blob(&self, hash: &str) -> PathBuf {
            self.folder.join("blobs").join(hash)
        }

        /// Locks the content with this hash against other processes, also Python's, until the file is closed. Calls `wait` if
        /// another process holds the lock.
        pub(in crate::hub) fn lock(&self, hash: &str, wait: impl FnOnce()) -> Result<File, Problem> {
            let path = self.locks.join(format!("{hash}.lock"));
            let open = || {
                fs::create_dir_all(&self.locks)?;
                File::options().create(true).truncate(false).write(true).open(&path)
            };
            let file = open().map_err(Problem::disk(&path))?;
            if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                wait();
                file.lock().map_err(Problem::disk(&path))?;
            }
            // Some file systems have no locks. Without one, two downloads may write the same file; the hash then differs.
            Ok(file)
        }

        /// Links a file of a snapshot to the content with this hash. The caller holds its lock.
        pub(in crate::hub) fn link(&self, commit: &str, name: &str, hash: &str) -> Result<(), Problem> {
            let path = self.snapshot(commit).join(name);
            let up = std::iter::repeat_n("..", 2 + name.matches('/').count());
            let target: PathBuf = up.chain(["blobs", hash]).collect();
            let set = || {
                let folder = path.parent().unwrap_or(&self.folder);
                fs::create_dir_all(folder)?;
                let temporary = folder.join(format!(".{}.{}.link", hash, std::process::id()));
                match symlink(&target, &temporary) {
                    Ok(()) => fs::rename(&temporary, &path).inspect_err(|_| drop(fs::remove_file(&temporary))),
                    // Without links, move the content, as Python's tools do.
                    Err(_) => fs::rename(self.blob(hash), &path),
                }
            };
            set().map_err(Problem::disk(&path))
        }

        /// Stores the commit of the revision, after all files are complete.
        pub(in crate::hub) fn remember(&self, commit: &str) -> Result<(), Problem> {
            let path = self.reference();
            let is_known = is_commit(self.repository.revision()) || self.commit().as_deref() == Some(commit);
            if is_known {
                return Ok(());
            }
            let set = || {
                fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
                fs::write(&path, commit)
            };
            set().map_err(Problem::disk(&path))
        }
    }

    #[cfg(unix)]
    fn symlink(target: &Path, link: &Path) -> io::Result<()> {
        let _ = fs::remove_file(link);
        std::os::unix::fs::symlink(target, link)
    }

    #[cfg(windows)]
    fn symlink(target: &Path, link: &Path) -> io::Result<()> {
        let _ = fs::remove_file(link);
        std::os::windows::fs::symlink_file(target, link)
    }

    #[cfg(not(any(unix, windows)))]
    fn symlink(_: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
