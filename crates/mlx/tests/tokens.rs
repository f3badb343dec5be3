//! A sampling head on MLX draws the tokens that MLX drew when the same operations were written in Python (S0.8).
#![cfg(feature = "link")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../export/tests/export/draw.rs"]
#[allow(dead_code, reason = "shared with tests that do not run here")]
mod draw;
#[path = "../../sampling/tests/mlx_tokens.rs"]
mod mlx_tokens;

use draw::{Session, With, f32s, tokens};
use mlx_tokens::{Case, cases};
use ptero_export::{GraphBuilder, Logits, sampled_output};
use ptero_mlx::Mlx;
use ptero_pte::{Bytes, DType, Limits, Program, ShapeDim, Verified};
use ptero_sampling::inputs::Head;

/// The head alone, on logits that the caller gives.
fn head(rows: i32, vocabulary: i32) -> Verified {
    let mut b = GraphBuilder::new("head");
    let batch = ShapeDim::fixed(rows);
    let tensor = b.input("logits", DType::F32, [batch.clone(), ShapeDim::fixed(vocabulary)]);
    sampled_output(&mut b, &Logits { tensor, batch, vocabulary }, Head::Plain, None).unwrap();
    let mut program = Program::default();
    b.finish().add_to(&mut program, "forward");
    let mut bytes = Vec::new();
    program.write(&mut bytes).unwrap();
    let program = Program::read(&Bytes::from(bytes), &Limits::DEFAULT).unwrap();
    Verified::new(program, &Limits::DEFAULT).unwrap()
}

#[test]
fn s0_8_heads_draw_the_tokens_that_mlx_drew() {
    let (mut rows, mut different) = (0, Vec::new());
    for (number, case) in cases().into_iter().enumerate() {
        let Case { rows: count, vocabulary, logits, settings, seed, tokens: wanted } = case;
        let program = head(i32::try_from(count).unwrap(), i32::try_from(vocabulary).unwrap());
        let with =
            With { temperature: settings.temperature, top_k: settings.top_k, top_p: settings.top_p, seed: Some(seed) };
        let mut given = vec![f32s(&[count as u64, vocabulary as u64], &logits)];
        given.extend(with.given());
        let found = tokens(&Session::new(&program, &Mlx::new()).call(&given)[0]);
        rows += count;
        for (found, wanted) in found.into_iter().zip(wanted) {
            if found != i64::from(wanted) {
                different.push((number, found, wanted));
            }
        }
    }
    // Another processor may round a logarithm the other way.
    println!("{rows} rows, {} differ: {different:?}", different.len());
    assert!(different.len() * 100 < rows, "{different:?}");
}
