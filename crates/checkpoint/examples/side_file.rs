//! Writes a file beside the weights to standard output; of a GGUF file, what a Hugging Face folder would hold.
//!
//!     cargo run -p ptero-checkpoint --example side_file -- model.gguf tokenizer.json

use ptero_checkpoint::{Checkpoint, Limits};
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, name] = arguments.as_slice() else { return Err("usage: side_file CHECKPOINT NAME".into()) };
    let checkpoint = Checkpoint::open(&PathBuf::from(path), &Limits::DEFAULT)?;
    let bytes = checkpoint.file(name)?.ok_or("there is no such file")?;
    Ok(std::io::stdout().write_all(&bytes)?)
}
