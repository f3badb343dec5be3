//! The models in the box: `models/little-*.pte`.

use crate::tiny::seeded;
use crate::tiny::{GenerateWith, threaded};
use ptero_engine::{Engine, SampleOptions};
use ptero_pte::{Limits, Verified};
use std::ops::ControlFlow;
use std::path::Path;

/// Starts a text.
const START: u32 = 0;

#[test]
fn s1_8_the_included_models_give_the_same_text_for_the_same_seed_on_any_number_of_threads() {
    for name in ["little-qwen", "little-gemma"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../models/{name}.pte"));
        assert!(std::fs::metadata(&path).unwrap().len() <= 12_000_000, "{name} fits into the box");
        let program = Verified::open(&path, &Limits::DEFAULT).unwrap();
        assert!(program.data_by_name().contains_key("files/tokenizer.json"), "{name} is whole");
        let text = |threads: usize, options: &SampleOptions| {
            let model = Engine::new(&program, threaded(threads).as_ref(), &[]).unwrap();
            assert!(model.samples_itself());
            let (mut session, mut text) = (model.session().unwrap(), Vec::new());
            let on_token = |token| {
                text.push(token);
                ControlFlow::Continue(())
            };
            session.generate_with(&[START, 300, 400, 500], options, 12, on_token).unwrap();
            text
        };
        let drawn = text(1, &seeded(7));
        assert_eq!(drawn, text(2, &seeded(7)), "{name}");
        assert_ne!(drawn, text(1, &seeded(8)), "{name}: another seed, another text");
        assert_eq!(text(1, &SampleOptions::default()), text(2, &SampleOptions::default()), "{name}, greedy");
    }
}
