//! The cache that `huggingface_hub` lays out: `blobs` by hash, `snapshots` of links to them by commit, `refs` to commits.

use super::Repository;
use super::repository::is_commit;
use ptero_checkpoint::{Bytes, INDEX, Limits, WHOLE, read_index};
use std::fs;
use std::path::{Path, PathBuf};

/// What the cache holds of one repository.
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

    /// What is asked for, if all of it is there: the file, or the snapshot's folder.
    pub(super) fn find(&self) -> Option<PathBuf> {
        let snapshot = self.snapshot(&self.commit()?);
        match self.repository.file() {
            Some(file) => Some(snapshot.join(file)).filter(|file| file.is_file()),
            None => Some(snapshot).filter(|folder| is_complete(folder)),
        }
    }

    /// The commit that the revision meant when it was last looked up.
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

/// Whether the folder can be opened as a checkpoint. Python's tools may have fetched only a part.
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
        /// Where content of this hash is kept.
        pub(in crate::hub) fn blob(&self, hash: &str) -> PathBuf {
            self.folder.join("blobs").join(hash)
        }

        /// Keeps other processes, Python's too, from fetching the same content for as long as the file is open.
        pub(in crate::hub) fn lock(&self, hash: &str, say: impl FnOnce()) -> Result<File, Problem> {
            let path = self.locks.join(format!("{hash}.lock"));
            let open = || {
                fs::create_dir_all(&self.locks)?;
                File::options().create(true).truncate(false).write(true).open(&path)
            };
            let file = open().map_err(Problem::disk(&path))?;
            if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                say();
                file.lock().map_err(Problem::disk(&path))?;
            }
            // Not every file system has locks. Without one two downloads may disturb each other, which the hash shows.
            Ok(file)
        }

        /// Lets a file of a snapshot be the content of this hash, whose lock the caller holds.
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
                    // Where there are no links, the content itself moves, as Python's tools do it.
                    Err(_) => fs::rename(self.blob(hash), &path),
                }
            };
            set().map_err(Problem::disk(&path))
        }

        /// Remembers what the revision means, once all of it is there.
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
