//! Unsafe code lives in the files that DESIGN names, and nowhere else.

use std::path::{Path, PathBuf};

/// The files and folders that exist so far and may hold unsafe code.
const ALLOWED: &[&str] = &[
    "crates/cpu/src/pool.rs",
    "crates/cpu/src/pool/matrices.rs",
    "crates/cpu/src/simd.rs",
    "crates/cpu/src/simd/",
    "crates/cuda/src/launch.rs",
    "crates/cuda/src/module.rs",
    "crates/mlx/src/bridge.rs",
    "crates/tensor/src/bytes.rs",
];
/// Crates without any: they must say so themselves.
const FORBIDDEN: &[&str] = &[
    "crates/pte/src/lib.rs",
    "crates/checkpoint/src/lib.rs",
    "crates/plan/src/lib.rs",
    "crates/sampling/src/lib.rs",
    "crates/text/src/lib.rs",
    "crates/backend/src/lib.rs",
    "crates/engine/src/lib.rs",
    "crates/export/src/lib.rs",
    "crates/server/src/lib.rs",
    "crates/cli/src/lib.rs",
    "crates/cli/src/main.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn holds_unsafe(text: &str) -> bool {
    // Written so that this file does not find itself.
    let word = concat!("un", "safe");
    let starts = ["{", "fn", "impl", "trait", "extern"].map(|what| format!("{word} {what}"));
    text.lines().any(|line| !line.trim_start().starts_with("//") && starts.iter().any(|start| line.contains(start)))
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    let mut files = Vec::new();
    rust_files(&root().join("crates"), &mut files);
    let found: Vec<String> = files
        .iter()
        .filter(|path| holds_unsafe(&std::fs::read_to_string(path).expect("readable")))
        .map(|path| path.strip_prefix(root()).expect("inside").to_string_lossy().replace('\\', "/"))
        .collect();
    let covers = |allowed: &str, file: &str| file == allowed || allowed.ends_with('/') && file.starts_with(allowed);
    let outside: Vec<_> = found.iter().filter(|file| !ALLOWED.iter().any(|allowed| covers(allowed, file))).collect();
    assert!(outside.is_empty(), "{outside:?}");
    let unused: Vec<_> = ALLOWED.iter().filter(|allowed| !found.iter().any(|file| covers(allowed, file))).collect();
    assert!(unused.is_empty(), "{unused:?} may hold unsafe code and do not");
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
    for file in FORBIDDEN {
        let text = std::fs::read_to_string(root().join(file)).expect("readable");
        assert!(text.contains("#![forbid(unsafe_code)]"), "{file}");
    }
}
