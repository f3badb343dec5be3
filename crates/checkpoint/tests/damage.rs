//! Damaged copies of sound files give an answer or an error, never a panic.

use ptero_checkpoint::{Bytes, Checkpoint, Limits, SIDE_FILES, read_index};
use std::path::Path;

/// Everything that can be asked of what was read.
fn walk(checkpoint: &Checkpoint) {
    for (_, tensor) in checkpoint.tensors() {
        for row in 0..tensor.rows() {
            let mut out = vec![0.0; usize::try_from(tensor.columns()).expect("small")];
            assert_eq!(tensor.read_rows(row..row + 1, &mut out).is_ok(), tensor.format().is_float());
        }
    }
    for value in checkpoint.metadata().values() {
        if let Some(array) = value.as_array() {
            assert_eq!(array.iter().count() as u64, array.len());
        }
    }
    checkpoint.chat_template(&Limits::DEFAULT).expect("there are no files");
    for name in SIDE_FILES {
        match checkpoint.file(name) {
            Ok(made) => assert!(made.is_none_or(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).is_ok())),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn read(bytes: &[u8]) {
    let bytes = Bytes::from(bytes.to_vec());
    for checkpoint in
        [Checkpoint::from_gguf(&bytes, &Limits::DEFAULT), Checkpoint::from_safetensors(&bytes, &Limits::DEFAULT)]
    {
        match checkpoint {
            Ok(checkpoint) => walk(&checkpoint),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let _ = read_index(&bytes, &Limits::DEFAULT);
}

fn goldens() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    let names =
        ["tiny.gguf", "llama.gguf", "folder/model-00001-of-00002.safetensors", "folder/model.safetensors.index.json"];
    names.map(|name| std::fs::read(folder.join(name)).expect("committed")).to_vec()
}

/// The whole table of contents is in the first bytes, this many.
const CONTENTS: usize = 2500;

#[test]
fn no_damaged_byte_does_harm() {
    for file in goldens() {
        for at in 0..file.len().min(CONTENTS) {
            for byte in [0, 1, 9, b'"', b'9', 0x7f, 0x80, 0xff, file[at] ^ 1] {
                let mut damaged = file.clone();
                damaged[at] = byte;
                read(&damaged);
            }
        }
    }
}

#[test]
fn no_forged_number_does_harm() {
    for file in goldens() {
        for at in 0..file.len().min(CONTENTS) - 8 {
            for number in [u64::MAX, 1 << 63, 1 << 60, u64::MAX - 31, 1 << 32, file.len() as u64, 0] {
                let mut damaged = file.clone();
                damaged[at..at + 8].copy_from_slice(&number.to_le_bytes());
                read(&damaged);
            }
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    for (at, file) in goldens().into_iter().enumerate() {
        for end in 0..file.len() {
            let bytes = Bytes::from(file[..end].to_vec());
            let refused = match at {
                // The padding after the last tensor may be missing.
                0..=2 if end > file.len() - 64 => true,
                0..=2 => Checkpoint::from_gguf(&bytes, &Limits::DEFAULT).is_err(),
                3 => Checkpoint::from_safetensors(&bytes, &Limits::DEFAULT).is_err(),
                _ => read_index(&bytes, &Limits::DEFAULT).is_err(),
            };
            assert!(refused, "file {at} cut at {end}");
        }
    }
}
