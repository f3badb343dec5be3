//! One SHA-256 over the logits of 1,000 sampled tokens: the same on every machine, every instruction set and any number of threads.
//!
//! ```text
//! cargo run --release -p ptero-cli --example same_bits            all instruction sets of this machine
//! cargo run --release -p ptero-cli --example same_bits -- FILE    also the logits of this checkpoint: GGUF, or a folder
//! ```
//!
//! The models are small ones of each family (`benches/configs/small`), with random weights of four bits, of eight, and not quantized.

use anyhow::{Context, Result};
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_engine::{Engine, TokenId, TokenSettings};
use ptero_export::{Recipe, Storage, export};
use ptero_pte::{Bytes, Program, Verified};
use ptero_sampling::settings::Settings;
use ring::digest::{Context as Digest, SHA256};
use std::path::{Path, PathBuf};

/// Length of the prompt: longer than a block of keys, and not a multiple of it.
const PROMPT: TokenId = 300;
/// Number of sampled tokens of all models together.
const TOKENS: u64 = 1000;

fn main() -> Result<()> {
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/configs/small");
    let models = [
        ("llama", Storage::Int4),
        ("gemma4", Storage::Int8),
        ("qwen3_5_moe", Storage::Int4),
        ("llama", Storage::Plain),
    ];
    let mut programs = Vec::new();
    for (name, storage) in models {
        let path = small.join(format!("{name}.json"));
        let checkpoint = Checkpoint::random(&path, 1, None, &Limits::default())?;
        programs.push(program(&checkpoint, storage).with_context(|| path.display().to_string())?);
    }
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        programs.push(program(&Checkpoint::open(&path, &Limits::default())?, Storage::Int4)?);
    }
    let most = std::thread::available_parallelism().map_or(2, usize::from);
    let mut digests = Vec::new();
    for isa in Isa::available() {
        for threads in [1, most] {
            let digest = digest(&programs, isa, threads)?;
            println!("{digest}  {} {threads} threads", isa.name());
            digests.push(digest);
        }
    }
    digests.dedup();
    anyhow::ensure!(digests.len() == 1, "the bits differ");
    Ok(())
}

/// A program that returns logits.
fn program(checkpoint: &Checkpoint, storage: Storage) -> Result<Verified> {
    let recipe = Recipe { linear: storage, embedding: storage, max_context: Some(2048), ..Recipe::default() };
    let mut bytes = Vec::new();
    export(checkpoint, &recipe)?.write(&mut bytes, &mut |_| {})?;
    let limits = ptero_pte::Limits::DEFAULT;
    Ok(Verified::new(Program::read(&Bytes::from(bytes), &limits)?, &limits)?)
}

/// The digest of all logits, prompts in chunks of another length for each number of threads.
fn digest(programs: &[Verified], isa: Isa, threads: usize) -> Result<String> {
    let mut digest = Digest::new(&SHA256);
    let settings = Settings { temperature: 0.8, top_k: 40, top_p: 0.95, ..Settings::PLAIN };
    for program in programs {
        let mut session = Engine::new(program, &Cpu::with(threads, isa), &[])?.session()?;
        session.ignore_ends(true);
        let vocabulary = TokenId::try_from(session.engine().vocabulary())?;
        let prompt: Vec<TokenId> = (0..PROMPT).map(|at| (at * at + 7) % vocabulary).collect();
        let mut token = 0;
        for chunk in prompt.chunks(if threads == 1 { 7 } else { prompt.len() }) {
            token = session.prefill(chunk, &TokenSettings::new(settings, 0))?;
        }
        for seed in 1..=TOKENS / programs.len() as u64 {
            let logits = session.logits().context("the program returns logits")?;
            logits.iter().for_each(|logit| digest.update(&logit.to_le_bytes()));
            token = session.decode(token, &TokenSettings::new(settings, i64::try_from(seed)?))?;
        }
    }
    Ok(digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}
