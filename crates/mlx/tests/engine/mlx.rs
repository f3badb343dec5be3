//! What only a device that runs ahead can get wrong, and its texts beside the reference's.

use crate::tiny::{MODELS, PROMPT, all, exact, model, seeded, text, tiny};
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_engine::{SampleOptions, Sampling, Session, TokenSettings};
use ptero_export::Recipe;
use ptero_mlx::Mlx;
use ptero_reference::Reference;

#[test]
fn tiny_models_give_the_texts_of_the_reference() {
    let greedy = SampleOptions { sampling: Sampling::HostAllowed, ..SampleOptions::default() };
    for name in all() {
        let texts = [&Mlx as &dyn ptero_backend::Backend, &Reference].map(|backend| {
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
            let model = model(&name, &Recipe { max_prefill: Some(most), ..exact(false) }, &Mlx);
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
        let model = model(name, &exact(true), &Mlx);
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
    let model = model("qwen3_5_moe", &exact(true), &Mlx);
    let alone = [1, 2, 3].map(|seed| text(&mut model.session().unwrap(), &seeded(seed), 12));
    let threads = [1, 2, 3].map(|seed| {
        let model = model.clone();
        std::thread::spawn(move || text(&mut model.session().unwrap(), &seeded(seed), 12))
    });
    assert_eq!(threads.map(|thread| thread.join().unwrap()), alone);
}
