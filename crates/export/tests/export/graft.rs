//! The graft: what it changes, what it leaves alone, and what it refuses.

use crate::draw::{Session, With, backends, f32s, tokens};
use ptero_export::{Graft, GraphBuilder, graft, metadata};
use ptero_pte::nodes::{Add, IdCopy, Multiply};
use ptero_pte::schema::{AllocationDetails, Call, ContainerMetadata, EValue, MoveCall, Tensor, TensorList};
use ptero_pte::{Bytes, DType, DelegateEntry, Limits, Method, Payload, Program, ShapeDim, Verified};
use ptero_sampling::inputs::Head;
use std::path::Path;

/// `sum += x; logits = sum * weight`: a model with state and a weight. `shape` is that of its logits.
fn model(dtype: DType, shape: &[ShapeDim]) -> Program {
    let mut b = GraphBuilder::new("0de1");
    let sizes: Vec<i32> = shape.iter().map(|dim| if dim.value == -1 { dim.max_value } else { dim.value }).collect();
    let x = b.input("x", dtype, shape.to_vec());
    let sum = b.state("sum", dtype, sizes);
    let logits = b.output("logits", dtype, shape.to_vec());
    let weight = b.constant(
        "_scalar_0.0",
        dtype,
        [],
        vec![0_u8; usize::try_from(dtype.bytes()).unwrap() - 1].into_iter().chain([0x40]).collect::<Vec<u8>>(),
    );
    b.emit(Add { a: sum.src(), b: x.src(), out: sum.dst() });
    b.emit(Multiply { a: sum.src(), b: weight.src(), out: logits.dst() });
    let mut program = Program::default();
    b.finish().add_to(&mut program, "forward");
    program.methods.push(metadata::int("get_vocab_size", 7));
    program
}

fn fixed(sizes: &[i32]) -> Vec<ShapeDim> {
    sizes.iter().map(|size| ShapeDim::fixed(*size)).collect()
}

fn grafted(program: Program) -> Verified {
    graft(program, &Graft::default(), &Limits::DEFAULT).unwrap()
}

#[track_caller]
fn refused(program: Program, how: &Graft) -> String {
    graft(program, how, &Limits::DEFAULT).expect_err("is refused").to_string()
}

const X: [f32; 14] = [0.5, 3.0, 1.0, 2.0, -1.0, 0.0, 1.5, 4.0, 3.0, 1.0, 2.0, -1.0, 0.0, 1.5];

#[test]
fn s1_1_a_grafted_program_returns_tokens_and_takes_the_parameters_behind_its_inputs() {
    let before = model(DType::F32, &fixed(&[2, 7]));
    let after = grafted(before.clone());
    let method = after.method("forward").unwrap();
    let tensor = |index: &i32| match &method.values[usize::try_from(*index).unwrap()] {
        EValue::Tensor(tensor) => (tensor.scalar_type, tensor.sizes.clone()),
        other => panic!("{other:?}"),
    };
    let scalar = |dtype| (dtype, Vec::new());
    let inputs: Vec<_> = method.inputs.iter().map(tensor).collect();
    let (f32, i64) = (DType::F32, DType::I64);
    assert_eq!(inputs, [(f32, vec![2, 7]), scalar(f32), scalar(i64), scalar(f32), scalar(i64)]);
    assert_eq!(method.outputs.iter().map(tensor).collect::<Vec<_>>(), [(i64, vec![2])]);
    assert_eq!(after.bool_metadata("use_sampling").unwrap(), Some(true));
    assert_eq!(after.method("get_vocab_size"), before.method("get_vocab_size"));
    let (kept, new) = after.named_data.split_at(before.named_data.len());
    assert_eq!(kept, before.named_data);
    assert!(kept.iter().zip(&before.named_data).all(|(a, b)| a.data.is_same_window(&b.data)), "no weight is copied");
    assert_eq!(new.iter().map(|entry| entry.data.len()).sum::<usize>(), 5 * 4 + 8);
    assert!(new.iter().any(|entry| entry.key == "0de1/_scalar_0.0_2"), "a name that is taken gets a number");
}

#[test]
fn s1_8_a_grafted_program_keeps_its_state_and_greedy_agrees_with_its_logits() {
    for (dtype, shape) in [(DType::F32, [2, 7].as_slice()), (DType::F32, &[2, 1, 7]), (DType::Bf16, &[2, 7])] {
        let before = Verified::new(model(dtype, &fixed(shape)), &Limits::DEFAULT).unwrap();
        let after = grafted(before.clone().into_program());
        for backend in backends() {
            let mut plain = Session::new(&before, backend.as_ref());
            let mut sampling = Session::new(&after, backend.as_ref());
            let sizes: Vec<u64> = shape.iter().map(|size| u64::try_from(*size).unwrap()).collect();
            for turn in 0..5_usize {
                let x: Vec<f32> = (0..14).map(|index| X[(index * (turn + 1)) % 14]).collect();
                let (_, _, raw) = f32s(&sizes, &x);
                let x = (dtype, sizes.clone(), ptero_backend::cast(&raw, DType::F32, dtype).unwrap());
                let (_, _, logits) = plain.call(std::slice::from_ref(&x)).remove(0);
                let logits = ptero_backend::cast(&logits, dtype, DType::F32).unwrap();
                let logits: Vec<f32> =
                    logits.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect();
                let best = |row: &[f32]| (0_i64..).zip(row).reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap().0;
                let greedy = With { temperature: 0.0, ..With::seed(0) };
                let given: Vec<_> = [x].into_iter().chain(greedy.given()).collect();
                let drawn = tokens(&sampling.call(&given)[0]);
                assert_eq!(drawn, logits.chunks(7).map(best).collect::<Vec<_>>(), "{shape:?} turn {turn}");
            }
        }
    }
}

#[test]
fn without_a_seed_there_is_no_such_input() {
    let how = Graft { head: Head::Unseeded, ..Graft::default() };
    let after = graft(model(DType::F32, &fixed(&[1, 7])), &how, &Limits::DEFAULT).unwrap();
    assert_eq!(after.method("forward").unwrap().inputs.len(), 4);
}

#[test]
fn upstreams_flag_that_is_not_set_is_set_in_its_place() {
    let mut program = model(DType::F32, &fixed(&[1, 7]));
    program.methods.insert(1, metadata::flag("use_sampling", false));
    let after = grafted(program);
    assert_eq!(after.methods[1], metadata::flag("use_sampling", true));
    assert_eq!(after.methods.len(), 3);
}

#[test]
fn s1_7_a_flag_that_is_no_bool_is_an_error() {
    let mut program = model(DType::F32, &fixed(&[1, 7]));
    program.methods.push(metadata::int("use_sampling", 1));
    assert_eq!(refused(program, &Graft::default()), "method `use_sampling`: found: integer; needed: bool");
}

/// A second output beside the logits: the sum itself.
fn two_outputs() -> Program {
    let mut b = GraphBuilder::new("");
    let x = b.input("x", DType::F32, fixed(&[1, 7]));
    let sum = b.state("sum", DType::F32, [1, 7]);
    let copy = b.output("copy", DType::F32, fixed(&[1, 7]));
    let logits = b.output("logits", DType::F32, fixed(&[1, 7]));
    b.emit(Add { a: sum.src(), b: x.src(), out: sum.dst() });
    b.emit(IdCopy { x: sum.src(), out: copy.dst() });
    b.emit(IdCopy { x: sum.src(), out: logits.dst() });
    let mut program = Program::default();
    b.finish().add_to(&mut program, "forward");
    program
}

#[test]
fn of_several_outputs_one_is_named_and_the_others_stay() {
    let refusal = refused(two_outputs(), &Graft::default());
    assert_eq!(refusal, "method `forward` has several outputs: 0: f32 [1, 7], 1: f32 [1, 7]");
    let how = Graft { output: Some(1), ..Graft::default() };
    let after = graft(two_outputs(), &how, &Limits::DEFAULT).unwrap();
    let mut session = Session::new(&after, backends()[0].as_ref());
    let x = f32s(&[1, 7], &X[..7]);
    let given: Vec<_> = [x.clone()].into_iter().chain(With { temperature: 0.0, ..With::seed(0) }.given()).collect();
    let outputs = session.call(&given);
    assert_eq!(outputs[0], x);
    assert_eq!(tokens(&outputs[1]), [1]);
    let how = Graft { output: Some(2), ..Graft::default() };
    assert_eq!(refused(two_outputs(), &how), "method `forward` has no output 2: it has 2, counted from 0");
}

#[test]
fn what_samples_already_is_refused() {
    let again = grafted(model(DType::F32, &fixed(&[1, 7]))).into_program();
    assert_eq!(refused(again, &Graft::default()), "already samples: output 0: i64 [1] holds token ids, not logits");
    let mut flagged = model(DType::F32, &fixed(&[1, 7]));
    flagged.methods.push(metadata::flag("use_sampling", true));
    assert_eq!(refused(flagged, &Graft::default()), "already samples: the program's metadata says `use_sampling`");
    let bigram = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/bigram.pte");
    let bigram = Program::open(&bigram, &Limits::DEFAULT).unwrap();
    assert!(refused(bigram, &Graft::default()).starts_with("already samples"));
}

#[test]
fn s4_1_logits_of_more_than_the_last_position_are_refused_with_their_shape() {
    let shape = [ShapeDim::fixed(1), ShapeDim::between(1, 8), ShapeDim::fixed(7)];
    let wanted = "output 0 has the shape [1, 1..8, 7]; the head takes the logits of one position, (B, V) or (B, 1, V)\n\
                  hint: export the model so that it computes the last position only";
    assert_eq!(refused(model(DType::F32, &shape), &Graft::default()), wanted);
    assert!(refused(model(DType::F32, &fixed(&[1, 4, 7])), &Graft::default()).contains("[1, 4, 7]"));
    assert!(refused(model(DType::F32, &fixed(&[7])), &Graft::default()).contains("[7]"));
    let shape = [ShapeDim::fixed(1), ShapeDim::between(1, 8)];
    let wanted = "output 0 has the shape [1, 1..8], so the size of the vocabulary is known only at run time\n\
                  hint: export the model with a vocabulary of a fixed size";
    assert_eq!(refused(model(DType::F32, &shape), &Graft::default()), wanted);
}

#[test]
fn methods_and_outputs_that_do_not_fit_are_refused() {
    let how = |method: &str| Graft { method: method.to_owned(), ..Graft::default() };
    let program = model(DType::F32, &fixed(&[1, 7]));
    assert_eq!(refused(program.clone(), &how("decode")), "no method `decode` (there is: `forward`)");
    let hint = "hint: the head becomes part of its graph; export the method for MLX";
    let wanted = format!("method `get_vocab_size` has no MLX delegate\n{hint}");
    assert_eq!(refused(program.clone(), &how("get_vocab_size")), wanted);
    let mut foreign = program.clone();
    let payload = Payload::Foreign(Bytes::default());
    foreign.methods[0].delegates[0] = DelegateEntry { id: "XnnpackBackend".to_owned(), payload, specs: Vec::new() };
    let wanted = format!("method `forward` has no MLX delegate, only `XnnpackBackend`\n{hint}");
    assert_eq!(refused(foreign, &Graft::default()), wanted);
    let mut integer = program.clone();
    integer.methods[0].values[1] = EValue::Tensor(Tensor::new(DType::I32, vec![1, 7]));
    let wanted = "output 0: i32 [1, 7] does not hold logits: they are f32, f16 or bf16";
    assert_eq!(refused(integer, &Graft::default()), wanted);
    let mut passed = program.clone();
    passed.methods[0].outputs = vec![0];
    let wanted = "output 0 is not what an MLX delegate computes, so the head cannot be part of its graph\n\
                  hint: export the model so that the delegate computes the logits as they are returned";
    assert_eq!(refused(passed, &Graft::default()), wanted);
    let mut listed = program.clone();
    listed.methods[0].values.push(EValue::TensorList(TensorList { items: vec![0, 1] }));
    let mut moved = program;
    moved.methods[0].values.push(EValue::Tensor(Tensor::new(DType::F32, vec![1, 7])));
    moved.methods[0].chains[0].instructions.push(Call::Move(MoveCall { move_from: 1, move_to: 2 }));
    let wanted = "output 0 is used by another part of the method too, so it cannot be replaced\n\
                  hint: export the model so that it only returns the logits";
    assert_eq!(refused(listed, &Graft::default()), wanted);
    assert_eq!(refused(moved, &Graft::default()), wanted);
}

fn planned(method: &mut Method, bytes: i64) {
    method.buffer_sizes = vec![0, bytes];
    let place = AllocationDetails { memory_id: 1, memory_offset_low: 0, memory_offset_high: 0 };
    if let EValue::Tensor(tensor) = &mut method.values[1] {
        tensor.allocation_info = Some(place);
    }
}

#[test]
fn tokens_that_need_more_memory_than_the_logits_get_it_at_the_end_of_the_plan() {
    for (vocabulary, buffer, start) in [(7, 2 * 7 * 4, 0), (1, 48, 16)] {
        let mut program = model(DType::F32, &fixed(&[2, vocabulary]));
        planned(&mut program.methods[0], i64::from(2 * vocabulary * 4));
        let after = grafted(program);
        let method = after.method("forward").unwrap();
        let EValue::Tensor(token) = &method.values[1] else { panic!() };
        assert_eq!(token.allocation_info.as_ref().unwrap().offset(), start);
        // 16 bytes of tokens after 8 of logits, both rounded up.
        assert_eq!(method.buffer_sizes, [0, if start == 0 { buffer } else { 32 }]);
    }
}

#[test]
fn the_description_of_the_inputs_grows_where_it_is_of_the_usual_form() {
    let leaf = r#"{"type": null, "context": null, "children_spec": []}"#;
    let described = |leaves: usize| {
        let leaves = vec![leaf; leaves].join(", ");
        format!(
            r#"[1, {{"type": "builtins.tuple", "context": "null", "children_spec": [{{"type": "builtins.tuple", "context": "null", "children_spec": [{leaves}]}}, {{"type": "builtins.dict", "context": "[]", "children_spec": []}}]}}]"#
        )
    };
    for (before, after) in [(described(1), described(5)), (described(0), described(4)), ("?".into(), "?".into())] {
        let mut program = model(DType::F32, &fixed(&[1, 7]));
        let container =
            |inputs: String| Some(ContainerMetadata { encoded_inp_str: inputs, encoded_out_str: leaf.into() });
        program.methods[0].container = container(before);
        assert_eq!(grafted(program).methods[0].container, container(after));
    }
}
