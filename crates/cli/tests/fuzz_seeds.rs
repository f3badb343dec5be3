//! The committed seeds of the fuzzer, and damaged copies of them, through the fuzzer's own entry points.

#[path = "../../../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "a library of its own for the fuzzer")]
mod targets;

use ptero_export::{Graft, graft};
use ptero_pte::{Limits, Program, SplitMix64};
use std::path::{Path, PathBuf};
use targets::TARGETS;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn seeds() -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(fuzz().join("seeds")).expect("the seeds are committed");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    assert!(paths.len() >= 20, "only {} seeds", paths.len());
    paths.iter().map(|path| std::fs::read(path).expect("readable")).collect()
}

#[test]
fn every_seed_passes_through_every_target() {
    for seed in seeds() {
        for (_, target) in TARGETS {
            target(&seed);
        }
    }
}

#[test]
fn every_target_is_one_of_the_fuzzer_too() {
    let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).expect("readable");
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        let target =
            std::fs::read_to_string(fuzz().join(format!("fuzz_targets/{name}.rs"))).expect("a file of its name");
        assert!(target.contains(&format!("ptero_fuzz::{name}(input)")), "{target}");
    }
}

#[test]
fn s1_1_one_seed_takes_a_sampling_head() {
    let program = Program::open(&fuzz().join("seeds/logits.pte"), &Limits::DEFAULT).expect("a sound program");
    graft(program, &Graft::default(), &Limits::DEFAULT).expect("its logits are of one position");
}

/// What a fuzzer does first: a few bytes changed, a piece repeated, a tail cut.
#[allow(clippy::cast_possible_truncation, reason = "seeds are small")]
fn damage(seed: &[u8], rng: &mut SplitMix64) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    let words = [0, 1, 4, 0x7f, 0xff, 0xffff, 0x7fff_ffff, u32::MAX];
    for _ in 0..1 + rng.below(6) {
        let size = bytes.len() as u64;
        let at = rng.below(size) as usize;
        match rng.below(4) {
            0 => bytes.get_mut(at).into_iter().for_each(|byte| *byte = rng.below(256) as u8),
            1 => {
                let word = rng.pick(&words).to_le_bytes();
                bytes.iter_mut().skip(at & !3).zip(word).for_each(|(to, from)| *to = from);
            }
            2 => bytes.truncate(size.saturating_sub(rng.below(64)) as usize),
            _ => {
                let piece: Vec<u8> = bytes.iter().skip(at).take(rng.below(32) as usize).copied().collect();
                let to = rng.below(size) as usize;
                bytes.iter_mut().skip(to).zip(piece).for_each(|(to, from)| *to = from);
            }
        }
    }
    bytes
}

#[test]
fn damaged_seeds_pass_through_every_target() {
    let mut rng = SplitMix64::new(2026);
    for seed in seeds() {
        for _ in 0..1000 {
            let damaged = damage(&seed, &mut rng);
            for (_, target) in TARGETS {
                target(&damaged);
            }
        }
    }
}
