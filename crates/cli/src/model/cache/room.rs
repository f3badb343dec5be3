//! What is removed from a cache that is full.

use super::limit::Limit;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Whoever was given a program opens it within this time; until then it stays.
const OPENED_WITHIN: Duration = Duration::from_secs(60);

/// Removes the programs that were not used for longest until the rest is within the limit; never `newest`. Gives what is gone.
pub(super) fn make(folder: &Path, limit: Limit, newest: &Path) -> Vec<PathBuf> {
    // A program that cannot be looked at or removed is left: the new one does not depend on it.
    let mut programs: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(|entry| is_program(&entry.file_name())) {
        let Ok(metadata) = entry.metadata() else { continue };
        let used = [metadata.accessed(), metadata.modified()].into_iter().flatten().max();
        programs.push((used.unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), entry.path()));
    }
    programs.sort();
    let mut bytes: u64 = programs.iter().map(|(_, bytes, _)| bytes).sum();
    let is_idle = |used: &SystemTime| used.elapsed().is_ok_and(|time| time > OPENED_WITHIN);
    let mut removed = Vec::new();
    for (used, size, path) in programs {
        if bytes > limit.0 && path != newest && is_idle(&used) && fs::remove_file(&path).is_ok() {
            bytes -= size;
            removed.push(path);
        }
    }
    removed
}

/// Whether a file has a name that only this cache gives: `NAME-DIGEST.pte`.
fn is_program(name: &OsStr) -> bool {
    let digest = name.to_str().and_then(|name| name.strip_suffix(".pte")?.rsplit_once('-'));
    digest.is_some_and(|(_, digest)| digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
