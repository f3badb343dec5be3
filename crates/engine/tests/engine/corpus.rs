//! Models that upstream's own exporters made (`conformance/make_models.py`): S1.2, S1.3, S1.8.

use crate::tiny::{GenerateWith, PROMPT, backends, ways};
use ptero_backend::Backend;
use ptero_cpu::Cpu;
use ptero_engine::{Engine, SampleOptions, Sampling, TokenId};
use ptero_pte::{Limits, Verified};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Upstream's programs with and without a head, of the same model.
const PAIRS: [[&str; 2]; 2] =
    [["qwen3_5_moe_int4_sample", "qwen3_5_moe_int4"], ["gemma4_31b_int4_sample", "gemma4_31b_int4"]];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/models")
}

/// The elements of a file's first tensor, which are i64: a count, a type, a rank and the sizes stand before them.
fn integers(path: &Path) -> Vec<u32> {
    let bytes = std::fs::read(path).unwrap();
    let number = |at: usize| i32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap());
    assert_eq!(number(1), 3, "i64");
    let rank = usize::try_from(number(2)).unwrap();
    let count: usize = (0..rank).map(|axis| usize::try_from(number(3 + axis)).unwrap()).product();
    let raw = &bytes[4 * (3 + rank)..];
    raw[..8 * count].as_chunks().0.iter().map(|raw| u32::try_from(i64::from_le_bytes(*raw)).unwrap()).collect()
}

/// The folders of all of upstream's programs.
pub(crate) fn programs() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// A prompt of an engine's tokens.
pub(crate) fn prompt(model: &Engine) -> Vec<TokenId> {
    let vocabulary = TokenId::try_from(model.vocabulary()).unwrap();
    PROMPT.map(|token| token % vocabulary).to_vec()
}

pub(crate) fn model(path: &Path, backend: &dyn Backend) -> Engine {
    let file = if path.is_dir() { path.join("model.pte") } else { path.to_owned() };
    let program = Verified::open(&file, &Limits::DEFAULT).unwrap();
    Engine::new(&program, backend, &[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn text(model: &Engine, prompt: &[u32], options: &SampleOptions, count: usize) -> Vec<u32> {
    let (mut session, mut text) = (model.session().unwrap(), Vec::new());
    let on_token = |token| {
        text.push(token);
        ControlFlow::Continue(())
    };
    session.generate_with(prompt, options, count, on_token).unwrap();
    text
}

#[test]
fn s1_8_upstreams_programs_give_upstreams_tokens_and_the_same_with_either_sampler() {
    let folder = folder();
    for backend in backends() {
        for [sampling, logits] in PAIRS {
            let prompt = integers(&folder.join(sampling).join("input_0.bin"));
            let expected = |call| integers(&folder.join(sampling).join(format!("expected_output_{call}.bin")))[0];
            let [sampling, logits] = [sampling, logits].map(|name| model(&folder.join(name), backend.as_ref()));
            // Qwen's state is recurrent, Gemma's windows are rings.
            assert!(!sampling.can_rewind() && !logits.can_rewind());
            let greedy = SampleOptions { sampling: Sampling::HostAllowed, ..SampleOptions::default() };
            let wanted: Vec<u32> = (0..4).map(expected).collect();
            assert_eq!(text(&sampling, &prompt, &greedy, 4), wanted, "{sampling:?}");
            for options in [1, 2, -9].into_iter().flat_map(ways) {
                let texts = [&sampling, &logits].map(|model| text(model, &prompt, &options, 8));
                assert_eq!(texts[0], texts[1], "{sampling:?}: {options:?}");
            }
        }
    }
}

/// Upstream's programs are smaller than a huge page, so that they get normal ones, as on a system that refuses huge pages. The model
/// of the repository gets huge ones where the system has them.
#[test]
fn weights_in_huge_pages_give_the_bits_of_the_mapped_file() {
    let included = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/little-qwen.pte");
    for path in programs().into_iter().chain([included]) {
        let texts = [false, true].map(|has_huge_pages| {
            let model = model(&path, &Cpu::new().with_huge_pages(has_huge_pages));
            let options = SampleOptions { sampling: Sampling::HostAllowed, temperature: 0.9, ..ways(7)[0] };
            let (mut session, mut token) = (model.session().unwrap(), None);
            let schedule = options.schedule(&model).unwrap();
            let step = |step| {
                let sampling = schedule.at_step(step);
                let next = match token {
                    None => session.prefill(&prompt(&model), &sampling),
                    Some(token) => session.decode(token, &sampling),
                };
                token = Some(next.unwrap());
                (token, session.logits().map(|logits| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()))
            };
            (0..12).map(step).collect::<Vec<_>>()
        });
        assert_eq!(texts[0], texts[1], "{}", path.display());
    }
}
