//! The full head as it gets into programs: by the exporter, onto logits, and in place of upstream's head.

use crate::draw::{Given, Session, With, f32s, i64s, tokens};
use crate::full::{Rng, Step, outputs};
use crate::tiny::{Golden, exact, floats, folder, open, program};
use ptero_backend::Backend;
use ptero_cpu::Cpu;
use ptero_export::{Graft, GraftError, GraphBuilder, Recipe, graft, metadata};
use ptero_plan::{Options, lower, passes};
use ptero_pte::nodes::IdCopy;
use ptero_pte::schema::{AllocationDetails, ContainerMetadata, EValue};
use ptero_pte::{DType, Limits, Program, ShapeDim, Verified};
use ptero_reference::Reference;
use ptero_sampling::inputs::Head;
use std::path::{Path, PathBuf};

const FULL: Head = Head::Full;

fn full() -> Graft {
    Graft { head: FULL, ..Graft::default() }
}

fn grafted(program: Program) -> Verified {
    graft(program, &full(), &Limits::DEFAULT).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refused(program: Program) -> GraftError {
    graft(program, &full(), &Limits::DEFAULT).expect_err("is refused")
}

/// A tiny model without a head, with upstream's, and with the full one.
fn tiny(name: &str) -> [Verified; 3] {
    let checkpoint = open(&folder(name));
    [None, Some(Head::Plain), Some(FULL)].map(|sample| program(&checkpoint, &Recipe { sample, ..exact() }))
}

/// The inputs of a call with tokens from a position on.
fn call(tokens: &[i64], from: usize, to: usize, step: &Step) -> Vec<Given> {
    let positions: Vec<i64> = (from..to).map(|at| i64::try_from(at).unwrap()).collect();
    let count = positions.len() as u64;
    let own = [i64s(&[1, count], &tokens[from..to]), i64s(&[count], &positions)];
    own.into_iter().chain(step.given()).collect()
}

fn history(tokens: &[i64]) -> Vec<i32> {
    tokens.iter().map(|token| i32::try_from(*token).unwrap()).collect()
}

#[test]
fn s1_1_exported_grafted_and_replaced_heads_draw_the_same_from_the_same_logits() {
    let mut rng = Rng(5);
    for name in ["llama", "qwen3_5_moe", "gemma4"] {
        let [logits, plain, exported] = tiny(name);
        let on_logits = grafted(logits.clone().into_program());
        let replaced = grafted(plain.clone().into_program());
        let golden = Golden::read(&folder(name));
        let mut model = Session::new(&logits, &Reference);
        let mut sessions = [&exported, &on_logits, &replaced].map(|program| Session::new(program, &Reference));
        let vocabulary = golden.logits[0].len();
        for (from, to) in [(0, 3), (3, 4), (4, 5), (5, 7), (7, 8)] {
            let step = Step::random(&mut rng, vocabulary);
            let given = call(&golden.tokens, from, to, &step);
            let row = floats(&model.call(&given[..2])[0].2);
            let wanted = step.wanted(&row, &history(&golden.tokens[..to]));
            for (session, how) in sessions.iter_mut().zip(["exported", "onto logits", "replaced"]) {
                assert_eq!(outputs(&session.call(&given)), wanted, "{name}, {how}, {from}..{to}: {step:?}");
            }
        }
    }
}

#[test]
fn s1_8_a_session_with_the_full_head_can_go_back_and_fork() {
    let [logits, _, exported] = tiny("llama");
    let (golden, mut rng) = (Golden::read(&folder("llama")), Rng(11));
    let (_, delegate) = exported.delegates("forward").next().unwrap();
    let mut graph = lower(delegate, &Options::default()).unwrap();
    for skip in [vec!["fuse-sampler".to_owned()], Vec::new()] {
        passes::run(&mut graph, &Reference.capabilities(), &skip);
        let context = usize::try_from(exported.int_metadata("get_max_context_len").unwrap().unwrap()).unwrap();
        assert!(graph.keeps_positions(Some(1), context), "{skip:?}");
    }
    let apart = ["fuse-sampler".to_owned()];
    let cpu = Cpu::new();
    for (backend, skip) in [(&Reference as &dyn Backend, [].as_slice()), (&Reference, &apart), (&cpu, &apart)] {
        let mut session = Session::without(&exported, backend, skip);
        let mut text = golden.tokens[..6].to_vec();
        let mut check = |session: &mut Session<'_>, text: &[i64], from: usize| {
            let mut step = Step::random(&mut rng, golden.logits[0].len());
            (step.penalties.repetition, step.penalties.frequency, step.prompt_end) = (1.5, 0.75, 2);
            let row = &floats(&Session::new(&logits, backend).call(&call(text, 0, text.len(), &step)[..2])[0].2);
            let (token, _) = outputs(&session.call(&call(text, from, text.len(), &step)));
            assert_eq!(token, step.wanted(row, &history(text)).0, "{} {from}: {step:?}", backend.name());
        };
        check(&mut session, &text, 0);
        text.extend([text[0], text[0], text[1]]);
        check(&mut session, &text, 6);
        let mut other = session.fork();
        // Back to position 4, with other tokens than before.
        text.truncate(4);
        text.extend([text[2], text[2]]);
        check(&mut session, &text, 4);
        let mut longer = golden.tokens[..6].to_vec();
        longer.extend([longer[0], longer[0], longer[1], longer[3]]);
        check(&mut other, &longer, 9);
        text.push(text[3]);
        check(&mut session, &text, 6);
    }
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn s0_8_programs_of_others_get_the_full_head_in_place_of_theirs() {
    let models = [
        "conformance/models/qwen3_5_moe_int4_sample/model.pte",
        "conformance/models/gemma4_31b_int4_sample/model.pte",
        "models/little-qwen.pte",
        "models/little-gemma.pte",
    ];
    for path in models {
        let plain = Verified::open(&repository(path), &Limits::DEFAULT).unwrap();
        let after = grafted(plain.clone().into_program());
        let [before, now] = [&plain, &after].map(|program| program.method("forward").unwrap());
        assert_eq!((now.inputs.len(), now.outputs.len()), (before.inputs.len() + 10, 4), "{path}");
        assert_eq!(now.inputs[..before.inputs.len()], before.inputs, "{path}");
        let others = |program: &Verified| {
            program.methods.iter().filter(|method| method.name != "forward").cloned().collect::<Vec<_>>()
        };
        assert_eq!(others(&plain), others(&after), "{path}");
        let kept = after.named_data.iter().filter(|entry| plain.named_data.contains(entry)).count();
        assert!(plain.named_data.len() - kept <= 8, "{path}: only scalars of the old head are gone");
        let [old, new] = [before, now].map(|method| method.mlx_delegates().next().unwrap().1);
        assert_eq!(new.num_mutable_buffer_tensors, old.num_mutable_buffer_tensors + 1, "{path}");
        let vocabulary = usize::try_from(plain.int_metadata("get_vocab_size").unwrap().unwrap()).unwrap();
        let mut sessions = [(&plain, [].as_slice()), (&after, &["fuse-sampler".to_owned()])]
            .map(|(program, skip)| Session::without(program, &Cpu::new(), skip));
        let text = [3, 1, 4, 1, 5];
        for (seed, (from, to)) in (20..).zip([(0, 3), (3, 5)]) {
            let with = With { temperature: 0.8, top_k: 40, top_p: 1.0, seed: Some(seed) };
            let mut step = Step { seed, ..Step::neutral(vocabulary) };
            (step.settings.temperature, step.settings.top_k) = (0.8, 40);
            let given = call(&text, from, to, &step);
            let [one, other] = &mut sessions;
            let wanted = tokens(&one.call(&[&given[..2], &with.given()].concat())[0]);
            assert_eq!(wanted, tokens(&other.call(&given)[0]), "{path}");
        }
    }
}

/// Two outputs: the logits, and a copy of them.
fn two_outputs(rows: i32, vocabulary: i32) -> Program {
    let mut b = GraphBuilder::new("0de1");
    let length = ShapeDim::between(1, 8);
    b.input("tokens", DType::I64, [ShapeDim::fixed(1), length.clone()]);
    b.input("input_pos", DType::I64, [length]);
    let shape = [rows, vocabulary].map(ShapeDim::fixed);
    let x = b.input("x", DType::F32, shape.clone());
    let [logits, copy] = ["logits", "copy"].map(|name| b.output(name, DType::F32, shape.clone()));
    b.emit(IdCopy { x: x.src(), out: logits.dst() });
    b.emit(IdCopy { x: x.src(), out: copy.dst() });
    let mut program = Program::default();
    b.finish().add_to(&mut program, "forward");
    program.methods.push(metadata::int("get_max_context_len", 16));
    program
}

fn first(head: Head) -> Graft {
    Graft { output: Some(0), head, ..Graft::default() }
}

#[test]
fn what_the_head_returns_follows_the_token_before_other_outputs() {
    let leaf = r#"{"type": null, "context": null, "children_spec": []}"#;
    let described = |count: usize| {
        let leaves = vec![leaf; count].join(", ");
        format!(r#"[1, {{"type": "builtins.tuple", "context": "null", "children_spec": [{leaves}]}}]"#)
    };
    let mut program = two_outputs(1, 32);
    program.methods[0].container =
        Some(ContainerMetadata { encoded_inp_str: String::new(), encoded_out_str: described(2) });
    program.methods[0].buffer_sizes = vec![0, 128];
    let place = AllocationDetails { memory_id: 1, memory_offset_low: 0, memory_offset_high: 0 };
    if let EValue::Tensor(logits) = &mut program.methods[0].values[3] {
        logits.allocation_info = Some(place);
    }
    let plain = graft(program.clone(), &first(Head::Plain), &Limits::DEFAULT).unwrap().into_program();
    for program in [program, plain] {
        let after = graft(program, &first(FULL), &Limits::DEFAULT).unwrap();
        let method = after.method("forward").unwrap();
        assert_eq!(method.container.as_ref().unwrap().encoded_out_str, described(5));
        assert_eq!(method.buffer_sizes, [0, 128 + 16 + 160 + 80], "each starts at a multiple of 16");
        let x: Vec<f32> = (0..32).map(|at| (at * 7 % 32) as f32).collect();
        let mut given = call(&[5], 0, 1, &Step::neutral(32));
        given.insert(2, f32s(&[1, 32], &x));
        let found = Session::new(&after, &Reference).call(&given);
        assert_eq!(found.len(), 5);
        assert_eq!(outputs(&found[..4]).0, 9, "9 * 7 is 31 more than 32");
        assert_eq!(floats(&found[4].2), x);
    }
}

#[test]
fn programs_that_cannot_have_the_full_head_are_refused_by_reason() {
    let bigram = Program::open(&repository("models/bigram.pte"), &Limits::DEFAULT).unwrap();
    assert!(matches!(refused(bigram), GraftError::NoText { method } if method == "forward"));
    let [.., exported] = tiny("llama");
    let again = refused(exported.into_program());
    assert!(again.to_string().starts_with("already samples: output 0: i64 [1]"), "{again}");
    let several = |program| graft(program, &first(FULL), &Limits::DEFAULT).unwrap_err();
    let mut unknown = two_outputs(1, 32);
    unknown.methods.truncate(1);
    assert!(matches!(several(unknown), GraftError::NoContext));
    let mut endless = two_outputs(1, 32);
    endless.methods[1] = metadata::int("get_max_context_len", 1 << 40);
    assert!(matches!(several(endless), GraftError::Context { .. }));
    let text = several(two_outputs(2, 32)).to_string();
    assert_eq!(text, "the full sampling head draws one token, but the logits have 2 rows");
    let text = several(two_outputs(1, 7)).to_string();
    assert_eq!(text, "a vocabulary of 7; the full sampling head returns the 20 likeliest tokens");
}
