//! Prompts in chunks: S1.3.

use crate::tiny::{MODELS, PROMPT, backends, device, endless, exact, model, seeded, session, text};
use ptero_engine::{Engine, TokenSettings};
use ptero_export::Recipe;

#[test]
fn s1_3_a_prompt_in_chunks_gives_the_text_of_one_in_one_piece() {
    for name in MODELS {
        for sample in [true, false] {
            for backend in backends() {
                let texts = [1, 2, 3, 5, 10, 11, 64].map(|most| {
                    let recipe = Recipe { max_prefill: Some(most), ..exact(sample) };
                    let model = model(name, &recipe, backend.as_ref());
                    assert_eq!(model.max_prefill(), usize::try_from(most).unwrap());
                    let mut session = model.session().unwrap();
                    [2, 9].map(|seed| text(&mut session, &seeded(seed), 12))
                });
                assert!(texts.iter().all(|text| *text == texts[0]), "{name} on {}: {texts:?}", backend.name());
            }
        }
    }
}

#[test]
fn s1_3_logits_are_those_of_the_last_chunk() {
    for name in MODELS {
        let logits = [4, 64].map(|most| {
            let mut session = session(name, &Recipe { max_prefill: Some(most), ..exact(false) });
            session.prefill(&PROMPT, &TokenSettings::GREEDY).unwrap();
            assert_eq!(session.position(), PROMPT.len());
            session.logits().unwrap().to_vec()
        });
        assert_eq!(logits[0].len(), 96);
        let apart = logits[0].iter().zip(&logits[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-5, "{name}: {apart}");
    }
}

#[test]
fn s1_3_chunks_are_no_longer_than_metadata_the_input_and_the_context_allow() {
    let most = |name: &str, value: Option<u32>| {
        let mut program = endless("llama", &exact(true)).into_program();
        program.methods.retain(|method| method.name != name);
        program.methods.extend(value.map(|value| ptero_export::metadata::int(name, i64::from(value))));
        let model = Engine::new(&crate::tiny::verified(program), device().as_ref(), &[]).unwrap();
        assert_eq!(model.context(), 64, "{name}");
        model.max_prefill()
    };
    assert_eq!(most("get_max_prefill_chunk", Some(7)), 7);
    assert_eq!(most("get_max_prefill_chunk", None), 64, "the size of the input");
    assert_eq!(most("get_max_prefill_chunk", Some(1000)), 64, "the size of the input");
    assert_eq!(most("get_prefill_chunk_size", Some(5)), 5, "upstream's other name");
    assert_eq!(most("get_max_seq_len", Some(9)), 9, "which is not the context where that is said apart");
    assert_eq!(most("get_max_context_len", None), 64, "get_max_seq_len is both");
}
