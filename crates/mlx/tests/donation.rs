//! State is donated: a step of decoding replaces the arrays of caches without copying them.
//!
//! One test: MLX counts the memory of the process.
#![cfg(feature = "link")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use ptero_checkpoint::{Checkpoint, Limits};
use ptero_engine::{Engine, SampleOptions, Session};
use ptero_export::{Recipe, export};
use ptero_mlx::{Mlx, memory};
use ptero_pte::{Bytes, Program, Verified};
use ptero_sampling::inputs::Head;
use ptero_tensor::ScaleType;
use std::path::Path;

/// So long that one cache is far larger than all else that a step makes.
const CONTEXT: u32 = 1 << 15;

fn model(name: &str, sample: bool) -> Engine {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../export/tests/tiny").join(name);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.long"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(tiny.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(tiny.join("config.json")).unwrap();
    let longer = config.replace("_embeddings\": 64", &format!("_embeddings\": {CONTEXT}"));
    assert_ne!(config, longer);
    std::fs::write(folder.join("config.json"), longer).unwrap();
    let folder = Checkpoint::open(&folder, &Limits::default()).unwrap();
    let sample = sample.then_some(Head::Plain);
    let recipe = Recipe { max_context: Some(CONTEXT), dtype: ScaleType::F32, sample, ..Recipe::default() };
    let mut bytes = Vec::new();
    export(&folder, &recipe).unwrap().write(&mut bytes, &mut |_| ()).unwrap();
    let program = Program::read(&Bytes::from(bytes), &ptero_pte::Limits::DEFAULT).unwrap();
    Engine::new(&Verified::new(program, &ptero_pte::Limits::DEFAULT).unwrap(), &Mlx::new(), &[]).unwrap()
}

fn say(session: &mut Session, prompt: &[u32], tokens: usize) {
    session.ignore_ends(true);
    assert_eq!(
        session.generate(prompt, &SampleOptions::default(), tokens).unwrap().map(Result::unwrap).count(),
        tokens
    );
}

#[test]
fn steps_of_decoding_need_no_memory_for_a_copy_of_a_cache() {
    // In runs of several steps, step by step, and with recurrent state, which is kept, beside caches, which are not.
    for (name, sample, row_bytes) in [("llama", true, 64), ("llama", false, 64), ("qwen3_5_moe", true, 128)] {
        let model = model(name, sample);
        let mut session = model.session().unwrap();
        say(&mut session, &[1, 2, 3, 4, 5], 4);
        let before = memory();
        let cache = u64::from(CONTEXT) * row_bytes;
        assert!(before.active > 2 * cache, "{name}: {before:?} holds the caches");
        say(&mut session, &[7], 20);
        let more = memory().peak - before.active;
        assert!(more < cache, "{name}, sampling {sample}: {more} bytes more, and a cache has {cache}");
        // A fork shares them until it writes: then each cache is copied once.
        let mut fork = session.fork().unwrap();
        let before = memory();
        say(&mut fork, &[7], 20);
        let after = memory();
        assert!(after.active - before.active >= 2 * cache, "{name}: {before:?} {after:?}");
    }
}
