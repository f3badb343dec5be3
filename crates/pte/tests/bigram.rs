//! The program in `models/` is the one that the example writes.

#[allow(dead_code, reason = "the example's `main` writes the file")]
#[path = "../examples/bigram.rs"]
mod example;

use ptero_pte::{Limits, Verified};
use std::path::Path;

#[test]
fn the_committed_program_is_what_the_example_writes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/bigram.pte");
    let mut written = Vec::new();
    example::program().write(&mut written).expect("writing to memory does not fail");
    let committed = std::fs::read(&path).expect("models/bigram.pte is committed");
    assert!(committed == written, "write it again: cargo run -p ptero-pte --example bigram");
    assert_eq!(*Verified::open(&path, &Limits::DEFAULT).expect("is sound"), example::program());
}
