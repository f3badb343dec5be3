//! Tiny models of every family, with random weights, against the logits that Hugging Face's transformers gives them
//! (`conformance/make_tiny.py`): S2.1, S4.1, S4.2.

use crate::draw::{Given, Session, With, backends, i64s, tokens};
use ptero_backend::Backend;
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_export::{Recipe, ScaleType, Storage, export};
use ptero_pte::{Bytes, DType, Program, Verified};
use ptero_sampling::inputs::Head;
use std::path::{Path, PathBuf};

/// Folders with a model and what it should say.
pub(crate) fn goldens() -> Vec<(String, PathBuf)> {
    let folders = std::fs::read_dir(folder("")).unwrap().map(|entry| entry.unwrap());
    let mut goldens: Vec<_> = folders.map(|entry| (entry.file_name().into_string().unwrap(), entry.path())).collect();
    goldens.sort();
    assert_eq!(goldens.len(), 29, "docs/CONFORMANCE.md counts them");
    goldens
}

/// The folder of a tiny model.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tiny").join(name)
}

pub(crate) fn open(folder: &Path) -> Checkpoint {
    let gguf = folder.join("model.gguf");
    Checkpoint::open(if gguf.exists() { &gguf } else { folder }, &Limits::default()).unwrap()
}

/// Exports, writes and reads back.
pub(crate) fn program(checkpoint: &Checkpoint, recipe: &Recipe) -> Verified {
    let export = export(checkpoint, recipe).unwrap_or_else(|error| panic!("{error}"));
    let (mut bytes, mut wrote) = (Vec::new(), 0);
    export.write(&mut bytes, &mut |more| wrote += more).unwrap();
    assert_eq!(wrote, export.weight_bytes());
    let limits = ptero_pte::Limits::DEFAULT;
    Verified::new(Program::read(&Bytes::from(bytes), &limits).unwrap(), &limits).unwrap()
}

pub(crate) fn exact() -> Recipe {
    Recipe { dtype: ScaleType::F32, ..Recipe::default() }
}

/// Tokens, and the logits after each.
pub(crate) struct Golden {
    pub(crate) tokens: Vec<i64>,
    pub(crate) logits: Vec<Vec<f32>>,
}

impl Golden {
    pub(crate) fn read(folder: &Path) -> Self {
        let golden = Checkpoint::open(&folder.join("golden.safetensors"), &Limits::default()).unwrap();
        let tokens = golden.tensor("tokens").unwrap().bytes().to_vec();
        let logits = golden.tensor("logits").unwrap();
        let width = usize::try_from(logits.columns()).unwrap();
        let all: Vec<f32> = floats(logits.bytes());
        Self {
            tokens: tokens.as_chunks().0.iter().map(|raw| i64::from_le_bytes(*raw)).collect(),
            logits: all.chunks(width).map(<[f32]>::to_vec).collect(),
        }
    }
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
}

/// Gives the tokens of some positions to a session.
pub(crate) fn feed(session: &mut Session<'_>, tokens: &[i64], from: usize, to: usize, with: Option<With>) -> Given {
    let count = (to - from) as u64;
    let positions: Vec<i64> = (from..to).map(|at| i64::try_from(at).unwrap()).collect();
    let mut given = vec![i64s(&[1, count], &tokens[from..to]), i64s(&[count], &positions)];
    given.extend(with.into_iter().flat_map(With::given));
    session.call(&given).remove(0)
}

/// How far logits are from what they should be, in units of the largest.
pub(crate) fn distance(got: &Given, wanted: &[f32]) -> f32 {
    assert_eq!(got.0, DType::F32);
    assert_eq!(*got.1.last().unwrap(), wanted.len() as u64, "S4.1: one row of logits");
    let largest = wanted.iter().fold(0_f32, |most, x| most.max(x.abs()));
    floats(&got.2).iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

pub(crate) const CLOSE: f32 = 1e-4;

/// Whole prompt, token by token, and every split into two chunks, each followed by a step of decoding.
fn compare(name: &str, program: &Verified, golden: &Golden, backend: &dyn Backend, most: usize) {
    let Golden { tokens, logits } = golden;
    let fresh = Session::new(program, backend);
    let check = |got: &Given, at: usize, how: &str| {
        let far = distance(got, &logits[at]);
        assert!(far <= CLOSE, "{name} on {}: position {at} of {how} is {far:e} away", backend.name());
    };
    let mut step = fresh.another();
    for at in 0..tokens.len() {
        check(&feed(&mut step, tokens, at, at + 1, None), at, "decoding");
    }
    for split in 1..tokens.len() {
        let mut session = fresh.another();
        // Chunks that are longer than a call takes go in several.
        let mut from = 0;
        for end in [split, tokens.len()] {
            while from < end {
                let to = end.min(from + most);
                check(&feed(&mut session, tokens, from, to, None), to - 1, "chunks");
                from = to;
            }
            if end == split && split + 1 < tokens.len() {
                check(&feed(&mut session, tokens, split, split + 1, None), split, "a step after a prompt");
                from = split + 1;
            }
        }
    }
    let mut whole = fresh.another();
    if tokens.len() <= most {
        check(&feed(&mut whole, tokens, 0, tokens.len(), None), tokens.len() - 1, "the whole prompt");
    }
}

#[test]
fn s2_1_logits_are_those_of_transformers_however_the_prompt_is_cut() {
    for (name, folder) in goldens() {
        let (checkpoint, golden) = (open(&folder), Golden::read(&folder));
        for most in [golden.tokens.len(), 5] {
            let recipe = Recipe { max_prefill: Some(u32::try_from(most).unwrap()), ..exact() };
            let program = program(&checkpoint, &recipe);
            backends().iter().for_each(|backend| compare(&name, &program, &golden, backend.as_ref(), most));
        }
    }
}

#[test]
fn s4_2_the_head_on_the_last_position_gives_what_slicing_after_it_gives() {
    for (name, folder) in goldens() {
        let (checkpoint, golden) = (open(&folder), Golden::read(&folder));
        let (last, every) = (exact(), Recipe { every_position: true, ..exact() });
        let [last, every] = [last, every].map(|recipe| program(&checkpoint, &recipe));
        for backend in backends() {
            let count = golden.tokens.len();
            let feed = |program| feed(&mut Session::new(program, backend.as_ref()), &golden.tokens, 0, count, None);
            let (last, every) = (feed(&last), feed(&every));
            let width = golden.logits[0].len();
            assert_eq!((last.1.clone(), every.1.clone()), (vec![1, width as u64], vec![1, count as u64, width as u64]));
            for (at, row) in floats(&every.2).chunks(width).enumerate() {
                let far = distance(
                    &(DType::F32, vec![width as u64], row.iter().flat_map(|x| x.to_le_bytes()).collect()),
                    &golden.logits[at],
                );
                assert!(far <= CLOSE, "{name}: position {at} is {far:e} away");
            }
            let far = distance(&last, &floats(&every.2)[(count - 1) * width..]);
            assert!(far <= 1e-6, "{name} on {}: {far:e} apart", backend.name());
        }
    }
}

#[test]
fn s1_8_a_program_that_samples_draws_the_same_tokens_for_the_same_seed_in_every_session() {
    for (name, folder) in goldens() {
        let (checkpoint, golden) = (open(&folder), Golden::read(&folder));
        for storage in [Storage::Plain, Storage::Int4, Storage::Int8] {
            let recipe = Recipe { linear: storage, embedding: storage, ..Recipe::default() };
            let sampling = Recipe { sample: Some(Head::Plain), ..recipe.clone() };
            let [plain, sampling] = [recipe, sampling].map(|recipe| program(&checkpoint, &recipe));
            assert_eq!(plain.bool_metadata("use_sampling").unwrap(), Some(false), "S1.1");
            assert_eq!(sampling.bool_metadata("use_sampling").unwrap(), Some(true), "S1.1");
            let fresh = Session::new(&sampling, &ptero_cpu::Cpu::new());
            let mut sessions = [fresh.another(), fresh.another()];
            let mut drawn = [Vec::new(), Vec::new()];
            for (at, seed) in (0..golden.tokens.len()).zip(100..) {
                // One session is a step later than the other: their states must stay separate.
                for (session, drawn) in sessions.iter_mut().zip(&mut drawn) {
                    let token = feed(session, &golden.tokens, at, at + 1, Some(With::seed(seed)));
                    assert_eq!(token.1, [1], "{name}: S0.1");
                    drawn.extend(tokens(&token));
                }
            }
            assert_eq!(drawn[0], drawn[1], "{name} {storage:?}");
            let vocabulary = i64::try_from(golden.logits[0].len()).unwrap();
            assert!(drawn[0].iter().all(|token| (0..vocabulary).contains(token)), "{name}");
            assert!(drawn[0].iter().any(|token| *token != drawn[0][0]), "{name}: tokens vary with the seed");
        }
    }
}

#[test]
fn blocks_of_gguf_are_kept_as_they_are() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tiny/qwen2_blocks");
    let (checkpoint, golden) = (open(&folder), Golden::read(&folder));
    let program = program(
        &checkpoint,
        &Recipe { linear: Storage::AsInCheckpoint, embedding: Storage::AsInCheckpoint, ..exact() },
    );
    let data = program.data_by_name();
    // Values are blocks of another kind than queries and keys, so they are no part of one matrix.
    for tensor in ["model.embed_tokens.weight", "model.layers.0.self_attn.v_proj.weight"] {
        assert!(data[tensor] == checkpoint.tensor(tensor).unwrap().bytes(), "{tensor} has the bytes of the checkpoint");
    }
    backends().iter().for_each(|backend| compare("kept blocks", &program, &golden, backend.as_ref(), 16));
}

#[test]
fn heads_of_llama_that_turn_only_in_part_are_refused() {
    let wanted = "config: `partial_rotary_factor` is 0.5, which is not supported";
    let part = serde_json::json!(0.5);
    assert_eq!(crate::gemma4::refused_with("llama", "partial_rotary_factor", part.clone()), wanted);
    let nested = serde_json::json!({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part});
    assert_eq!(crate::gemma4::refused_with("llama", "rope_parameters", nested), wanted);
}
