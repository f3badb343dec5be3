//! The structure of a program: what is refused, and in which words.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::*;
use expect_test::{Expect, expect};
use ptero_pte::field::{Chain, Collected, Dst, DstValue, Fed, Int, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::schema::{AllocationDetails, EValue, Tensor};
use ptero_pte::{
    Bytes, Chains, DType, Delegate, Kind, Limits, Method, NamedData, Node, Payload, Program, TensorData, Verified,
};

/// The message about the sound program after `change`.
#[track_caller]
fn check(change: impl FnOnce(&mut Delegate), wanted: Expect) {
    wanted.assert_eq(&complaint_about(change));
}

fn chains(chains: Vec<Vec<Node>>) -> impl FnOnce(&mut Delegate) {
    |graph| graph.instruction_chains = Chains(chains)
}

fn copy(x: u32, out: u32) -> Node {
    IdCopy { x: Src(x), out: Dst(out) }.into()
}

fn branch(cond: i64, then: u32, otherwise: u32) -> Node {
    If { cond: Int::Literal(cond), then_chain_idx: Chain(then), else_chain_idx: Chain(otherwise) }.into()
}

fn scan(body: u32) -> Scan {
    Scan {
        originals: vec![Src(1)],
        sliced: vec![Fed(4)],
        outputs: vec![Collected(2)],
        carry: vec![Src(3)],
        body_chain_idx: Chain(body),
        scan_axis: 0,
    }
}

#[track_caller]
fn sound(change: impl FnOnce(&mut Delegate)) {
    let mut graph = graph();
    change(&mut graph);
    Verified::new(read(bytes_of(&program_of(graph))).unwrap(), &Limits::DEFAULT).unwrap();
}

#[test]
fn the_program_that_is_damaged_below_is_sound() {
    sound(|_| ());
}

#[test]
fn a_read_before_any_write_names_file_method_instruction_and_field() {
    let mut broken = graph();
    broken.instruction_chains[0].swap(0, 1);
    let folder = std::env::temp_dir();
    let path = folder.join(format!("ptero-verify-{}.pte", std::process::id()));
    std::fs::write(&path, bytes_of(&program_of(broken))).unwrap();
    let error = Verified::open(&path, &Limits::DEFAULT).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(error.kind(), Kind::Malformed);
    let text = error.to_string().replace(&path.display().to_string(), "smol.pte");
    expect![
        "smol.pte: method `forward`, delegate 0, instruction 0.0 (Add), field `a`: reads t4 before anything writes it"
    ]
    .assert_eq(&text);
}

#[test]
fn a_file_that_cannot_be_opened_is_named() {
    let error = Program::open("no/such.pte".as_ref(), &Limits::DEFAULT).unwrap_err();
    assert_eq!(error.kind(), Kind::System);
    assert!(error.to_string().starts_with("no/such.pte: No such file"), "{error}");
}

#[test]
fn slots_and_values_must_exist() {
    check(
        chains(vec![vec![copy(6, 2)]]),
        expect![
            "method `forward`, delegate 0, instruction 0.0 (IdCopy), field `x`: index 6, but there are only 6 tensor slots"
        ],
    );
    check(
        chains(vec![vec![copy(1, 2), ItemInt { x: Src(1), out: DstValue(2) }.into()]]),
        expect![
            "method `forward`, delegate 0, instruction 0.1 (ItemInt), field `out`: index 2, but there are only 2 values"
        ],
    );
    check(
        chains(vec![vec![copy(1, 2)], vec![copy(1, 99)]]),
        expect![
            "method `forward`, delegate 0, instruction 1.0 (IdCopy), field `out`: index 99, but there are only 6 tensor slots"
        ],
    );
    check(
        |graph| graph.input_map[0].idx = 9,
        expect![
            "method `forward`, delegate 0, field `input_map`, element 0: index 9, but there are only 6 tensor slots"
        ],
    );
}

#[test]
fn values_flow_like_tensors() {
    check(
        chains(vec![vec![AddInt { a: Int::Value(Value(0)), b: Int::Literal(1), out: DstValue(1) }.into(), copy(1, 2)]]),
        expect![
            "method `forward`, delegate 0, instruction 0.0 (AddInt), field `a`: reads v0 before anything writes it"
        ],
    );
}

#[test]
fn after_an_if_only_what_both_branches_wrote_is_there() {
    sound(chains(vec![vec![branch(1, 1, 2), copy(4, 2)], vec![copy(1, 4)], vec![copy(0, 4)]]));
    check(
        chains(vec![vec![branch(1, 1, 2), copy(4, 2)], vec![copy(1, 4)], vec![copy(0, 5)]]),
        expect![
            "method `forward`, delegate 0, instruction 0.1 (IdCopy), field `x`: reads t4 before anything writes it"
        ],
    );
    check(
        chains(vec![vec![branch(1, 1, 2)], vec![copy(1, 2)], vec![copy(4, 2)]]),
        expect![
            "method `forward`, delegate 0, instruction 0.0 (If), field `else_chain_idx`, instruction 2.0 (IdCopy), field `x`: reads t4 before anything writes it"
        ],
    );
    check(
        chains(vec![vec![branch(1, 1, 2)], vec![copy(1, 2)], vec![Noop {}.into()]]),
        expect!["method `forward`, delegate 0, field `output_map`, element 0: output t2 is not written on every path"],
    );
}

#[test]
fn the_body_of_a_scan_gets_its_slices_and_must_write_its_outputs() {
    sound(chains(vec![vec![scan(1).into()], vec![copy(4, 2)]]));
    check(
        chains(vec![vec![scan(1).into()], vec![copy(4, 5)]]),
        expect![
            "method `forward`, delegate 0, instruction 0.0 (Scan), field `outputs`: must be written by the body of the scan, but t2 is not"
        ],
    );
    check(
        chains(vec![vec![Scan { carry: vec![Src(5)], ..scan(1) }.into()], vec![copy(4, 2)]]),
        expect![
            "method `forward`, delegate 0, instruction 0.0 (Scan), field `carry`: reads t5 before anything writes it"
        ],
    );
    check(
        chains(vec![vec![Scan { sliced: vec![], ..scan(1) }.into()], vec![copy(1, 2)]]),
        expect!["method `forward`, delegate 0, instruction 0.0 (Scan): 1 `originals` but 0 `sliced`"],
    );
    check(
        chains(vec![vec![Scan { originals: vec![], sliced: vec![], ..scan(1) }.into()], vec![copy(1, 2)]]),
        expect!["method `forward`, delegate 0, instruction 0.0 (Scan), field `originals`: a scan over nothing"],
    );
}

#[test]
fn only_the_init_chain_writes_constants_and_it_has_no_inputs() {
    check(
        chains(vec![vec![copy(1, 2), copy(1, 0)]]),
        expect![
            "method `forward`, delegate 0, instruction 0.1 (IdCopy), field `out`: writes constant t0; only the init chain may"
        ],
    );
    sound(|graph| {
        graph.instruction_chains.push(vec![copy(3, 0)]);
        graph.init_chain_idx = 1;
    });
    check(
        |graph| {
            graph.instruction_chains.push(vec![copy(1, 0)]);
            graph.init_chain_idx = 1;
        },
        expect![
            "method `forward`, delegate 0, field `init_chain_idx`, instruction 1.0 (IdCopy), field `x`: reads t1 before anything writes it"
        ],
    );
    // What the init chain leaves in a temporary is gone when a call starts.
    check(
        |graph| {
            graph.instruction_chains.0 = vec![vec![copy(5, 2)], vec![copy(0, 5)]];
            graph.init_chain_idx = 1;
        },
        expect![
            "method `forward`, delegate 0, instruction 0.0 (IdCopy), field `x`: reads t5 before anything writes it"
        ],
    );
}

#[test]
fn chains_that_are_named_must_exist() {
    check(
        |graph| graph.main_chain_idx = 1,
        expect!["method `forward`, delegate 0, field `main_chain_idx`: index 1, but there are only 1 chains"],
    );
    check(
        |graph| graph.init_chain_idx = -2,
        expect!["method `forward`, delegate 0, field `init_chain_idx`: index -2, but there are only 1 chains"],
    );
    check(
        chains(vec![vec![branch(0, 7, 0)]]),
        expect![
            "method `forward`, delegate 0, instruction 0.0 (If), field `then_chain_idx`: index 7, but there are only 1 chains"
        ],
    );
}

#[test]
fn constants_have_a_name_and_exactly_their_bytes() {
    check(
        |graph| drop(graph.named_slots.remove(0)),
        expect!["method `forward`, delegate 0, tensor t0: has no name, so its data cannot be found"],
    );
    check(
        |graph| graph.named_slots[0].name = "v".to_owned(),
        expect!["method `forward`, delegate 0, tensor t0: no data named `v` in the program or its data files"],
    );
    check(
        |graph| graph.tensor_meta[0] = meta(DType::F32, &[2, 4]),
        expect!["method `forward`, delegate 0, tensor t0, named data `w`: 24 bytes of data for a tensor of 32 bytes"],
    );
    check(
        |graph| graph.tensor_meta[0] = meta(DType::F32, &[2, 2]),
        expect!["method `forward`, delegate 0, tensor t0, named data `w`: 24 bytes of data for a tensor of 16 bytes"],
    );
    check(
        |graph| graph.tensor_meta[0] = meta(DType::F32, &[-1, 3]),
        expect!["method `forward`, delegate 0, tensor t0: a size known only at run time, where it must be fixed"],
    );
    check(
        |graph| drop(graph.tensor_meta.pop()),
        expect!["method `forward`, delegate 0, tensor t3: has no shape and type in `tensor_meta`"],
    );
}

#[test]
fn a_constant_that_its_type_cannot_be_read_from_is_refused() {
    let mut program = program();
    program.named_data[0].data = Bytes::from(vec![7; 25]).slice(1..25).unwrap();
    let error = Verified::new(program, &Limits::DEFAULT).unwrap_err();
    expect!["method `forward`, delegate 0, tensor t0, named data `w`: offset 1 is not a multiple of 4"]
        .assert_eq(&error.to_string());
}

#[test]
fn shapes_and_types_of_the_border_are_checked() {
    check(
        |graph| graph.tensor_meta[1] = meta(DType::F64, &[2, 3]),
        expect!["method `forward`, delegate 0, tensor t1: element type f64 is not one that an MLX graph can hold"],
    );
    check(
        |graph| graph.tensor_meta[1] = meta(DType::F32, &[-2]),
        expect!["method `forward`, delegate 0, tensor t1: size -2 is negative"],
    );
    check(
        |graph| {
            graph.tensor_meta[1].shape[0].value = -1;
            graph.tensor_meta[1].shape[0].min_value = 5;
            graph.tensor_meta[1].shape[0].max_value = 4;
        },
        expect!["method `forward`, delegate 0, tensor t1: size bounds 5 to 4 make no sense"],
    );
    check(
        |graph| graph.tensor_meta[1].dim_order = Some(vec![1, 0]),
        expect!["method `forward`, delegate 0, tensor t1: a dimension order other than row-major"],
    );
    check(
        |graph| graph.tensor_meta[1].dim_order = Some(vec![0, 0]),
        expect!["method `forward`, delegate 0, tensor t1: dimension order [0, 0] is not a permutation of 2 dimensions"],
    );
    check(
        |graph| graph.tensor_meta[1] = meta(DType::I64, &[2, 3]),
        expect!["method `forward`, call 0, field `args`, element 0: element type f32 where the graph declares i64"],
    );
    check(
        |graph| graph.mutable_buffer_map[0].idx = 4,
        expect![
            "method `forward`, delegate 0, field `mutable_buffer_map`, element 0: found: slot of another role; needed: mutable buffer"
        ],
    );
}

#[test]
fn s0_3_random_bits_of_a_width_that_does_not_exist_are_refused() {
    let bits = |width| Node::from(RandomBits { out: Dst(2), shape: vec![Int::Literal(4)], seed: None, width });
    for width in [1, 2, 4] {
        sound(chains(vec![vec![bits(width)]]));
    }
    check(
        chains(vec![vec![bits(3)]]),
        expect![
            "method `forward`, delegate 0, instruction 0.0 (RandomBits), field `width`: random bits 3 bytes wide; only 1, 2 and 4 exist, and sampling needs 4"
        ],
    );
    for width in [0, -4, 8, i32::MAX] {
        assert!(complaint_about(chains(vec![vec![bits(width)]])).contains(&format!("random bits {width} bytes wide")));
    }
}

#[test]
fn what_is_newer_or_for_others_is_said_so() {
    check(
        |graph| graph.version = Some("2".to_owned()),
        expect!["method `forward`, delegate 0: graph version 2 is newer than the 1 this ptero knows"],
    );
    check(
        |graph| graph.version = Some("\u{1b}[2J".to_owned()),
        expect![r"method `forward`, delegate 0: graph version \u{1b}[2J is newer than the 1 this ptero knows"],
    );
    let mut program = program();
    program.methods[0].delegates[0].id = "XnnpackBackend".to_owned();
    program.methods[0].delegates[0].payload = Payload::Foreign(vec![1, 2, 3].into());
    let read = read(bytes_of(&program)).unwrap();
    assert_eq!(read, program, "a foreign delegate's data is kept as it is");
    let error = Verified::new(read, &Limits::DEFAULT).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    expect![
        "method `forward`, delegate 0: delegate `XnnpackBackend` is not one that ptero runs (only `MLXBackend` is)"
    ]
    .assert_eq(&error.to_string());

    let mut bytes = bytes_of(&common::program());
    bytes[4..8].copy_from_slice(b"ET13");
    expect!["file format ET13 is newer than the ET12 this ptero knows"].assert_eq(&complaint(bytes.clone()));
    bytes[4..8].copy_from_slice(b"GGUF");
    expect!["not an ExecuTorch program: the identifier at byte 4 is `GGUF`, not `ET12`"]
        .assert_eq(&complaint(bytes.clone()));
    bytes[4..8].copy_from_slice(b"FT01");
    assert_eq!(complaint(bytes), "a tensor data file (`.ptd`), not a program");
}

#[test]
fn calls_and_values_of_a_method_must_exist_and_fit() {
    let check = |change: &dyn Fn(&mut Program), wanted: Expect| {
        let mut program = program();
        change(&mut program);
        wanted.assert_eq(&complaint(bytes_of(&program)));
    };
    check(
        &|program| program.methods[0].inputs[0] = 5,
        expect!["method `forward`, field `inputs`: index 5, but there are only 2 values"],
    );
    check(
        &|program| program.methods[0].outputs[0] = -1,
        expect!["method `forward`, field `outputs`: index -1, but there are only 2 values"],
    );
    check(
        &|program| program.methods[0].delegates.clear(),
        expect!["method `forward`, call 0: index 0, but there are only 0 delegates"],
    );
    check(
        &|program| program.methods[0].values[0] = EValue::Int(ptero_pte::schema::Int { int_val: 1 }),
        expect!["method `forward`, call 0, field `args`, element 0: found: integer; needed: tensor"],
    );
    check(
        &|program| {
            if let ptero_pte::schema::Call::Delegate(call) = &mut program.methods[0].chains[0].instructions[0] {
                call.args.push(0);
            }
        },
        expect!["method `forward`, call 0: 3 arguments for a graph of 1 inputs and 1 outputs"],
    );
    check(
        &|program| {
            let place = AllocationDetails { memory_id: 1, memory_offset_low: 8, memory_offset_high: 0 };
            program.methods[0].buffer_sizes = vec![0, 31];
            let allocated = tensor(DType::F32, &[2, 3]);
            program.methods[0].values[0] =
                EValue::Tensor(ptero_pte::schema::Tensor { allocation_info: Some(place), ..allocated });
        },
        expect![
            "method `forward`, value 0, field `allocation_info`: 24 bytes at offset 8 reach outside the 31-byte buffer"
        ],
    );
    check(&|program| program.methods[1].name = "forward".to_owned(), expect!["methods: duplicate `forward`"]);
    check(
        &|program| {
            let twice = program.named_data[0].clone();
            program.named_data.push(twice);
        },
        expect!["named data: duplicate `w`"],
    );
}

#[test]
fn weights_may_lie_in_a_data_file_beside_the_program() {
    let mut program = program();
    let entries = std::mem::take(&mut program.named_data);
    let bytes = bytes_of(&program);
    expect!["method `forward`, delegate 0, tensor t0: no data named `w` in the program or its data files"]
        .assert_eq(&complaint(bytes.clone()));

    let mut file = Vec::new();
    TensorData { entries }.write(&mut file).unwrap();
    let data = TensorData::read(&Bytes::from(file), &Limits::DEFAULT).unwrap();
    let mut together = read(bytes).unwrap();
    together.attach(data.clone()).unwrap();
    let together = Verified::new(together, &Limits::DEFAULT).unwrap();
    assert_eq!(together.external_data, [NamedData { key: "w".to_owned(), data: vec![7; 24].into() }]);

    // Written again, the program holds everything itself.
    let one = read(bytes_of(&together)).unwrap();
    assert_eq!(one, common::program());
    let mut one = one;
    expect!["named data: duplicate `w`"].assert_eq(&one.attach(data).unwrap_err().to_string());
}

#[test]
fn s1_7_metadata_that_is_absent_is_none_and_metadata_of_the_wrong_kind_is_an_error() {
    let program = program();
    assert_eq!(program.int_metadata("get_max_seq_len").unwrap(), Some(64));
    assert_eq!(program.bool_metadata("use_sampling").unwrap(), None);
    expect!["method `get_max_seq_len`: found: integer; needed: bool"]
        .assert_eq(&program.bool_metadata("get_max_seq_len").unwrap_err().to_string());
    expect!["method `forward`: found: method that computes; needed: integer"]
        .assert_eq(&program.int_metadata("forward").unwrap_err().to_string());
}

#[test]
fn s1_7_a_list_of_integers_is_the_elements_of_its_tensor() {
    let mut program = program();
    let constant = program.constants.len();
    program.constants.push([512_i32, 0, -1].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into());
    let mut list = Tensor::new(DType::I32, vec![3]);
    list.data_buffer_idx = u32::try_from(constant).unwrap();
    let wide = Tensor { scalar_type: DType::I64, ..list.clone() };
    let empty = Tensor { data_buffer_idx: 0, ..list.clone() };
    for (name, tensor) in [("get_windows", list), ("wide", wide), ("empty", empty)] {
        program.methods.push(Method::metadata(name, EValue::Tensor(tensor)));
    }
    assert_eq!(program.ints_metadata("get_windows").unwrap(), Some(vec![512, 0, -1]));
    assert_eq!(program.ints_metadata("get_kv_heads").unwrap(), None);
    expect!["method `wide`: found: tensor; needed: i32 tensor"]
        .assert_eq(&program.ints_metadata("wide").unwrap_err().to_string());
    expect!["method `empty`: required, but absent"].assert_eq(&program.ints_metadata("empty").unwrap_err().to_string());
}
