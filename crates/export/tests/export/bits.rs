//! The same bits, on every tiny model: however a prompt is cut, on any number of threads, on every instruction set and on the reference
//! (docs/ARITHMETIC.md).

use crate::draw::Session;
use crate::tiny::{Golden, exact, feed, goldens, open, program};
use ptero_backend::Backend;
use ptero_cpu::Cpu;
use ptero_cpu::simd::Isa;
use ptero_export::{Recipe, ScaleType, Storage};
use ptero_pte::Verified;
use ptero_reference::Reference;

/// The logits of all positions, when that many tokens are given at once.
fn logits(program: &Verified, backend: &dyn Backend, tokens: &[i64], chunk: usize) -> Vec<u8> {
    let mut session = Session::new(program, backend);
    let starts = (0..tokens.len()).step_by(chunk);
    starts.flat_map(|from| feed(&mut session, tokens, from, tokens.len().min(from + chunk), None).2).collect()
}

#[test]
fn logits_are_the_same_bits_for_every_chunk_thread_and_instruction_set() {
    let quantized = Recipe { dtype: ScaleType::Bf16, linear: Storage::Int4, embedding: Storage::Int8, ..exact() };
    let mut compared = 0;
    for (name, folder) in goldens() {
        let checkpoint = open(&folder);
        let tokens = Golden::read(&folder).tokens;
        let mixed = Recipe { sensitive: Some(Storage::Int8), ..quantized.clone() };
        for recipe in [exact(), quantized.clone(), mixed] {
            let recipe = Recipe { every_position: true, max_prefill: Some(64), ..recipe };
            // Some have layers that are no whole groups.
            let Some(program) =
                ptero_export::export(&checkpoint, &recipe).is_ok().then(|| program(&checkpoint, &recipe))
            else {
                continue;
            };
            let expected = logits(&program, &Reference, &tokens, 7);
            let backends = Isa::available().into_iter().flat_map(|isa| [1, 2, 16].map(|threads| (isa, threads)));
            for ((isa, threads), chunk) in backends.zip([1, 7, 64, 3].into_iter().cycle()) {
                let found = logits(&program, &Cpu::with(threads, isa), &tokens, chunk);
                assert!(found == expected, "{name}: chunks of {chunk}, {threads} threads, {}", isa.name());
            }
            for chunk in [1, 7, 64, 512] {
                let found = logits(&program, &Cpu::with(2, Isa::best()), &tokens, chunk.min(tokens.len()));
                assert!(found == expected, "{name}: chunks of {chunk}");
            }
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared}");
}
