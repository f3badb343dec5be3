//! What only a device that runs ahead can get wrong, and its texts beside the reference's.

use crate::tiny::{MODELS, PROMPT, all, exact, model, seeded, text};
use ptero_engine::{SampleOptions, Sampling};
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
