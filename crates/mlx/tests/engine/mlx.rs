//! What only a device that runs ahead can get wrong, and its texts beside the reference's.

use crate::tiny::{MODELS, PROMPT, all, exact, model, seeded, text, tiny};
use ptero_backend::Backend;
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_cpu::Cpu;
use ptero_engine::{Engine, SampleOptions, Sampling, Session, TokenSettings};
use ptero_export::{Graft, Recipe, graft};
use ptero_mlx::Mlx;
use ptero_pte::{Program, Verified};
use ptero_reference::Reference;
use ptero_sampling::inputs::Head;
use std::path::Path;

/// A unit in the last place of bf16, in which the included models keep what layers add up.
const ROUNDING: f32 = 1.0 / 256.0;

#[test]
fn tiny_models_give_the_texts_of_the_reference() {
    let greedy = SampleOptions { sampling: Sampling::HostAllowed, ..SampleOptions::default() };
    for name in all() {
        let texts = [&Mlx::new() as &dyn Backend, &Reference].map(|backend| {
            let model = model(&name, &exact(true), backend);
            [&greedy, &seeded(3)].map(|options| text(&mut model.session().unwrap(), options, 12))
        });
        assert_eq!(texts[0], texts[1], "{name}");
    }
}

/// Tokens, and the logits that transformers gives after each.
fn golden(name: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let golden = Checkpoint::open(&tiny().join(name).join("golden.safetensors"), &Limits::default()).unwrap();
    let (tokens, logits) = (golden.tensor("tokens").unwrap().bytes(), golden.tensor("logits").unwrap());
    let tokens = tokens.as_chunks().0.iter().map(|raw| u32::try_from(i64::from_le_bytes(*raw)).unwrap());
    let floats: Vec<f32> = logits.bytes().as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect();
    (tokens.collect(), floats.chunks(usize::try_from(logits.columns()).unwrap()).map(<[f32]>::to_vec).collect())
}

/// Reads more tokens, and returns how far the logits are from what they should be, in units of the largest.
fn distance(session: &mut Session, tokens: &[u32], wanted: &[f32]) -> f32 {
    session.prefill(tokens, &TokenSettings::GREEDY).unwrap();
    let (got, largest) = (session.logits().unwrap(), wanted.iter().fold(0_f32, |most, x| most.max(x.abs())));
    assert_eq!(got.len(), wanted.len());
    got.iter().zip(wanted).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f32::max)
}

#[test]
fn s2_1_logits_are_those_of_transformers_however_the_prompt_is_cut() {
    for name in all() {
        let (tokens, logits) = golden(&name);
        for most in [3, 64] {
            let model = model(&name, &Recipe { max_prefill: Some(most), ..exact(false) }, &Mlx::new());
            for split in 1..=tokens.len() {
                let mut session = model.session().unwrap();
                let (first, rest) = tokens.split_at(split);
                let mut far = distance(&mut session, first, &logits[split - 1]);
                if let Some(last) = logits.last().filter(|_| !rest.is_empty()) {
                    far = far.max(distance(&mut session, rest, last));
                }
                assert!(far <= 1e-4, "{name}, cut at {split} and every {most}: {far:e} away");
            }
        }
    }
}

#[test]
fn a_text_that_ends_within_a_run_goes_on_as_if_no_step_had_been_made_ahead() {
    for name in MODELS {
        let model = model(name, &exact(true), &Mlx::new());
        let whole = text(&mut model.session().unwrap(), &seeded(7), 24);
        for length in [1, 2, 3, 7, 8, 9, 15] {
            let mut session = model.session().unwrap();
            let first = text(&mut session, &seeded(7), length);
            assert_eq!(first, whole[..length], "{name}");
            let schedule = seeded(7).schedule(&model).unwrap();
            let next = session.decode(first[length - 1], &schedule.at_step(length as u64)).unwrap();
            assert_eq!(next, whole[length], "{name}, after {length} tokens");
            assert_eq!(session.position(), PROMPT.len() + length, "{name}");
        }
    }
}

#[test]
fn sessions_on_several_threads_give_the_texts_they_give_alone() {
    let model = model("qwen3_5_moe", &exact(true), &Mlx::new());
    let alone = [1, 2, 3].map(|seed| text(&mut model.session().unwrap(), &seeded(seed), 12));
    let threads = [1, 2, 3].map(|seed| {
        let model = model.clone();
        std::thread::spawn(move || text(&mut model.session().unwrap(), &seeded(seed), 12))
    });
    assert_eq!(threads.map(|thread| thread.join().unwrap()), alone);
}

/// The 64 likeliest tokens that follow a prompt, one after another.
fn greedy(engine: &Engine, prompt: &[u32]) -> Vec<u32> {
    let mut session = engine.session().unwrap();
    session.ignore_ends(true);
    session.generate(prompt, &SampleOptions::default(), 64).unwrap().map(Result::unwrap).collect()
}

/// The part of the largest logit by which the CPU prefers a token to another one after these.
fn margin(engine: &Engine, tokens: &[u32], [token, other]: [u32; 2]) -> f32 {
    let mut session = engine.session().unwrap();
    session.prefill(tokens, &TokenSettings::GREEDY).unwrap();
    let logits = session.fetch_logits().unwrap().unwrap();
    let largest = logits.iter().fold(0_f32, |most, logit| most.max(logit.abs()));
    (logits[token as usize] - logits[other as usize]) / largest
}

#[test]
fn greedy_texts_of_the_included_models_leave_the_cpus_only_where_two_logits_are_within_rounding() {
    for name in ["little-qwen", "little-gemma"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../models/{name}.pte"));
        let program = Verified::open(&path, &ptero_pte::Limits::DEFAULT).unwrap();
        let [cpu, mlx] =
            [&Cpu::new() as &dyn Backend, &Mlx::new()].map(|device| Engine::new(&program, device, &[]).unwrap());
        let full = Graft { head: Head::Full, ..Graft::default() };
        let full = graft(Program::clone(&program), &full, &ptero_pte::Limits::DEFAULT).unwrap();
        let keeps_logits = Engine::new(&full, &Cpu::new(), &[]).unwrap();
        for prompt in [[0, 300, 400, 500], [0, 17, 23, 1999], [0, 900, 41, 7], [0, 5, 1200, 333]] {
            let [wanted, found] = [&cpu, &mlx].map(|engine| greedy(engine, &prompt));
            assert_eq!([wanted.len(), found.len()], [64; 2]);
            if let Some(at) = (0..64).find(|at| wanted[*at] != found[*at]) {
                let before = [&prompt[..], &wanted[..at]].concat();
                let margin = margin(&keeps_logits, &before, [wanted[at], found[at]]);
                println!("{name} {prompt:?}: {at} {margin}");
                assert!(margin <= ROUNDING, "{name} {prompt:?}: another token {at}, and {margin} between the two");
            }
        }
    }
}
