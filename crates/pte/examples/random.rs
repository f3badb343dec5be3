//! Writes random sound programs, and the weights of some once more as `.ptd`, for fuzzers and other readers to try.
//!
//! `cargo run -p ptero-pte --example random -- FOLDER COUNT NODES`

#[path = "../tests/common/generate.rs"]
mod generate;

use generate::{Rng, program};
use ptero_pte::TensorData;
use std::fs::{File, create_dir_all};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(folder), Some(count), Some(nodes)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: random FOLDER COUNT NODES".into());
    };
    let (folder, nodes) = (PathBuf::from(folder), nodes.parse()?);
    create_dir_all(&folder)?;
    for seed in 0..count.parse()? {
        let program = program(&mut Rng::new(seed), nodes);
        program.write(&mut File::create(folder.join(format!("random-{seed}.pte")))?)?;
        if seed % 6 == 0 {
            let data = TensorData { entries: program.named_data };
            data.write(&mut File::create(folder.join(format!("random-{seed}.ptd")))?)?;
        }
    }
    Ok(())
}
