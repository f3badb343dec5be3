//! Which programs are removed from a full cache.

use super::limit::Limit;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A program that was handed out is opened within this time, and must not be removed until then.
const OPENED_WITHIN: Duration = Duration::from_secs(60);

/// Removes the least recently used programs until the rest is within the limit, but never `newest`. Returns what was removed.
pub(super) fn least_recently_used(folder: &Path, limit: Limit, newest: &Path) -> Vec<PathBuf> {
    // Programs that cannot be read or removed are left: the new one does not depend on them.
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

/// Returns `true` for a file name of this cache: `NAME-DIGEST.pte`.
fn is_program(name: &OsStr) -> bool {
    let digest = name.to_str().and_then(|name| name.strip_suffix(".pte")?.rsplit_once('-'));
    digest.is_some_and(|(_, digest)| digest.len() == 16 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
