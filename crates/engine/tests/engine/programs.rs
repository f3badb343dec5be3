//! Metadata and signature are checked once, before anything runs: S1.2, S1.7.

use crate::tiny::{device, exact, exported, seeded, text, verified};
use ptero_engine::Engine;
use ptero_export::{Recipe, metadata};
use ptero_pte::schema::{Bool, Call, EValue, Text};
use ptero_pte::{Method, Payload, Program};

fn refusal(program: Program) -> String {
    Engine::new(&verified(program), device().as_ref(), &[]).unwrap_err().to_string()
}

/// The tiny model with other metadata, or without.
fn with(sample: bool, name: &str, method: Option<Method>) -> Program {
    let mut program = exported("llama", &exact(sample));
    program.methods.retain(|method| method.name != name);
    program.methods.extend(method);
    program
}

#[test]
fn s1_8_an_engine_reports_the_metadata_of_its_program() {
    for sample in [true, false] {
        let recipe = Recipe { max_context: Some(48), max_prefill: Some(16), ..exact(sample) };
        let model = Engine::new(&verified(exported("llama", &recipe)), device().as_ref(), &[]).unwrap();
        assert_eq!((model.vocabulary(), model.context(), model.max_prefill()), (96, 48, 16));
        assert_eq!((model.bos_id(), model.eos_ids()), (Some(1), &[2][..]));
        assert_eq!((model.samples_itself(), model.takes_seed()), (sample, true));
    }
}

#[test]
fn s1_2_a_program_that_claims_to_sample_must_return_one_i64() {
    let program = with(false, "use_sampling", Some(metadata::flag("use_sampling", true)));
    assert_eq!(refusal(program), "`use_sampling` is set, but `forward` returns f32 [1, 96]; one i64 is wanted");
    let wanted = "`forward` returns i64 [1]; logits of the last position, `[1, vocabulary]`, are wanted \
                  (a program that returns tokens sets `use_sampling`)";
    assert_eq!(refusal(with(true, "use_sampling", Some(metadata::flag("use_sampling", false)))), wanted);
    assert_eq!(refusal(with(true, "use_sampling", None)), wanted);
    assert!(
        Engine::new(&verified(with(false, "use_sampling", None)), device().as_ref(), &[]).is_ok(),
        "absent means not"
    );
}

#[test]
fn s1_7_metadata_of_the_wrong_type_is_an_error_and_never_absent() {
    let names = [
        "get_max_context_len",
        "get_max_seq_len",
        "get_max_ctx_len",
        "get_max_prefill_chunk",
        "get_prefill_chunk_size",
        "get_vocab_size",
        "get_bos_id",
        "get_eos_ids",
        "get_eos_id",
        "use_sampling",
    ];
    for name in names {
        for sample in [true, false] {
            let text = EValue::Text(Text { string_val: "1".to_owned() });
            let error = refusal(with(sample, name, Some(Method::metadata(name, text))));
            assert!(error.contains(name) && error.contains("text"), "{name}: {error}");
        }
        let other = if name == "use_sampling" {
            metadata::int(name, 1)
        } else {
            Method::metadata(name, EValue::Bool(Bool { bool_val: true }))
        };
        let error = refusal(with(true, name, Some(other)));
        assert!(error.contains(name), "{name}: {error}");
    }
}

#[test]
fn s1_7_metadata_that_makes_no_sense_is_an_error() {
    for (name, value) in [("get_max_context_len", 0), ("get_max_prefill_chunk", -1), ("get_vocab_size", 1 << 40)] {
        let error = refusal(with(true, name, Some(metadata::int(name, value))));
        assert_eq!(error, format!("metadata `{name}` is {value}, which makes no sense"));
    }
    let error = refusal(with(false, "get_vocab_size", Some(metadata::int("get_vocab_size", 97))));
    assert_eq!(error, "metadata `get_vocab_size` is 97, but there are logits for 96 tokens");
    assert!(
        Engine::new(&verified(with(false, "get_vocab_size", None)), device().as_ref(), &[]).is_ok(),
        "logits tell it"
    );
    assert_eq!(refusal(with(true, "get_vocab_size", None)), "the program has no metadata `get_vocab_size`");
    let mut program = with(true, "get_max_context_len", None);
    program.methods.retain(|method| method.name != "get_max_seq_len");
    assert_eq!(refusal(program), "the program has no metadata `get_max_context_len`");
}

#[test]
fn programs_of_another_form_are_refused() {
    assert_eq!(refusal(with(true, "forward", None)), "the program has no method `forward`");
    let every = exported("llama", &Recipe { every_position: true, ..exact(false) });
    assert_eq!(
        refusal(every),
        "`forward` returns f32 [1, 64, 96]; logits of the last position, `[1, vocabulary]`, are wanted"
    );
    let program = verified(with(true, "get_bos_id", None));
    let error = Engine::new(&program, device().as_ref(), &["fuse-nothing".to_owned()]).unwrap_err();
    assert_eq!(error.to_string(), "there is no pass `fuse-nothing`");
}

#[test]
fn arguments_of_the_delegate_in_another_order_are_found() {
    for sample in [true, false] {
        let mut program = with(sample, "get_eos_ids", None);
        let straight = Engine::new(&verified(program.clone()), device().as_ref(), &[]).unwrap();
        let forward = program.methods.iter_mut().find(|method| method.name == "forward").unwrap();
        let Payload::Mlx(graph) = &mut forward.delegates[0].payload else { panic!("a graph") };
        graph.input_map.reverse();
        let Call::Delegate(call) = &mut forward.chains[0].instructions[0] else { panic!("a call") };
        call.args[..graph.input_map.len()].reverse();
        let permuted = Engine::new(&verified(program), device().as_ref(), &[]).unwrap();
        let [straight, permuted] =
            [straight, permuted].map(|model| text(&mut model.session().unwrap(), &seeded(3), 12));
        assert_eq!(straight, permuted);
    }
}
