//! Checkpoints of which there is only a configuration.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ptero_checkpoint::{Checkpoint, Limits};
use std::path::{Path, PathBuf};

fn config(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("random-{name}.json"));
    std::fs::write(&path, text).unwrap();
    path
}

fn open(path: &Path, seed: u64, layers: Option<u32>) -> Checkpoint {
    Checkpoint::random(path, seed, layers, &Limits::default()).unwrap()
}

fn numbers(checkpoint: &Checkpoint, name: &str, rows: std::ops::Range<u64>) -> Vec<f32> {
    let tensor = checkpoint.find(name, &[64, 48]).unwrap();
    let mut numbers = vec![0.0; usize::try_from(rows.end - rows.start).unwrap() * 48];
    tensor.read_rows(rows, &mut numbers).unwrap();
    numbers
}

#[test]
fn numbers_follow_from_the_seed_and_the_name_wherever_reading_starts() {
    let path = config("numbers", "{}");
    let checkpoint = open(&path, 1, None);
    let all = numbers(&checkpoint, "a", 0..64);
    assert_eq!(all, [numbers(&checkpoint, "a", 0..10), numbers(&checkpoint, "a", 10..64)].concat());
    assert_eq!(all, numbers(&open(&path, 1, None), "a", 0..64));
    assert_ne!(all, numbers(&checkpoint, "b", 0..64));
    assert_ne!(all, numbers(&open(&path, 2, None), "a", 0..64));
    let (sum, most) = all.iter().fold((0.0, 0.0_f32), |(sum, most), x| (sum + x, most.max(x.abs())));
    assert!((sum / all.len() as f32).abs() < 1e-3 && most < 0.0351 && most > 0.034, "{sum} {most}");
}

#[test]
fn factors_of_norms_are_near_one_and_rows_outside_are_refused() {
    let checkpoint = open(&config("norms", "{}"), 1, None);
    let norm = checkpoint.find("model.norm.weight", &[8]).unwrap();
    let mut numbers = vec![0.0; 8];
    norm.read_rows(0..1, &mut numbers).unwrap();
    assert!(numbers.iter().all(|x| (x - 1.0).abs() < 0.04), "{numbers:?}");
    assert!(norm.read_rows(0..2, &mut [0.0; 16]).is_err());
    assert!(norm.row_bytes(1..3).is_err());
    assert!(checkpoint.find("huge", &[u64::MAX, 3]).is_none());
}

#[test]
fn layers_are_left_out_of_the_part_that_is_about_text() {
    let text =
        r#"{"text_config": {"num_hidden_layers": 3, "layer_types": ["a", "b", "c"]}, "vision_config": {"depth": 9}}"#;
    let path = config("layers", text);
    let layers = |layers| open(&path, 1, layers).config().unwrap()["text_config"].clone();
    assert_eq!(layers(Some(2)), serde_json::json!({"num_hidden_layers": 2, "layer_types": ["a", "b"]}));
    assert_eq!(layers(Some(7)), layers(None));
}

#[test]
fn what_is_no_configuration_is_refused() {
    for (name, text, wanted) in [("list", "[]", "not a JSON object"), ("cut", "{", "EOF")] {
        let error = Checkpoint::random(&config(name, text), 1, None, &Limits::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("random-{name}.json")) && error.contains(wanted), "{error}");
    }
}
