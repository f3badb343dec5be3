//! Tells the cache of programs when exporters have changed: a digest of every source that decides what an export writes.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// From the exporter down.
const CRATES: [&str; 5] = ["export", "checkpoint", "sampling", "pte", "tensor"];

fn main() -> io::Result<()> {
    let mut digest = DefaultHasher::new();
    for name in CRATES {
        let sources = Path::new("..").join(name).join("src");
        println!("cargo:rerun-if-changed={}", sources.display());
        add(&sources, &mut digest)?;
    }
    println!("cargo:rustc-env=PTERO_EXPORTER={:016x}", digest.finish());
    Ok(())
}

fn add(folder: &Path, digest: &mut DefaultHasher) -> io::Result<()> {
    let entries: io::Result<Vec<PathBuf>> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect();
    let mut entries = entries?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            add(&path, digest)?;
        } else {
            (path.to_string_lossy(), fs::read(&path)?).hash(digest);
        }
    }
    Ok(())
}
