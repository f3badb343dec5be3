//! One regression test for each known class of attack on loaders of this kind; `docs/SECURITY.md` lists them. Every
//! attack must end in an error, quickly and without taking memory for what a file merely claims.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;
#[path = "common/generate.rs"]
mod generate;

use common::*;
use flatbuffers::{FlatBufferBuilder, UnionWIPOffset, WIPOffset};
use ptero_pte::field::{Chain, Dst, Int, Src};
use ptero_pte::nodes::{IdCopy, If};
use ptero_pte::schema::EValue;
use ptero_pte::{Bytes, Chains, DType, Limits, NamedData, Node, Program, TensorData, Verified};

type Offset = WIPOffset<UnionWIPOffset>;

/// A table by another implementation of the format, its fields given by entry.
fn table(out: &mut FlatBufferBuilder<'_>, fields: &[(u16, Offset)]) -> Offset {
    let start = out.start_table();
    for (entry, field) in fields {
        out.push_slot_always(4 + 2 * entry, *field);
    }
    let end = out.end_table(start);
    WIPOffset::new(end.value())
}

fn finished(mut out: FlatBufferBuilder<'_>, root: Offset) -> Vec<u8> {
    out.finish(root, Some("ET12"));
    out.finished_data().to_vec()
}

fn with_u32(mut bytes: Vec<u8>, at: usize, value: u32) -> Vec<u8> {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn with_u64(mut bytes: Vec<u8>, at: usize, value: u64) -> Vec<u8> {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fn find(bytes: &[u8], needle: &[u8]) -> usize {
    bytes.windows(needle.len()).position(|window| window == needle).expect("is in the file")
}

#[test]
fn a_forged_root_offset_is_refused() {
    let bytes = bytes_of(&program());
    let size = u32::try_from(bytes.len()).unwrap();
    for root in [0, 1, 3, size - 3, size, size + 4, u32::MAX - 3, u32::MAX] {
        let complaint = complaint(with_u32(bytes.clone(), 0, root));
        assert!(complaint.starts_with("program table: "), "{root}: {complaint}");
    }
}

#[test]
fn a_forged_table_offset_is_refused() {
    let bytes = bytes_of(&program());
    let root = u32_at(&bytes, 0);
    for vtable in [1, 2, u32::MAX, 0x8000_0000, 0x7fff_ffff, 0x7fff_fffc, u32::try_from(root).unwrap() + 4] {
        let complaint = complaint(with_u32(bytes.clone(), root, vtable));
        assert!(complaint.contains("outside") || complaint.contains("multiple"), "{vtable:#x}: {complaint}");
    }
    // A vtable that claims to be longer than the file, or a table that does.
    let vtable = root - u32_at(&bytes, root);
    for (at, claim) in [(vtable, 0xfffe), (vtable + 2, 0xffff)] {
        let mut forged = bytes.clone();
        forged[at..at + 2].copy_from_slice(&u16::to_le_bytes(claim));
        assert!(complaint(forged).contains("outside"));
    }
}

/// An old-style program: one method with one delegate whose data lies inside the table of contents.
fn inline_delegate(data: &[u8], index: u32) -> Vec<u8> {
    let mut out = FlatBufferBuilder::new();
    let data = out.create_vector(data).as_union_value();
    let inline = table(&mut out, &[(0, data)]);
    let inline = out.create_vector(&[inline]).as_union_value();
    let processed = {
        let start = out.start_table();
        out.push_slot_always(6, index);
        WIPOffset::new(out.end_table(start).value())
    };
    let id = out.create_string("MLXBackend").as_union_value();
    let delegate = table(&mut out, &[(0, id), (1, processed)]);
    let delegates = out.create_vector(&[delegate]).as_union_value();
    let name = out.create_string("forward").as_union_value();
    let plan = table(&mut out, &[(0, name), (7, delegates)]);
    let plans = out.create_vector(&[plan]).as_union_value();
    let root = table(&mut out, &[(1, plans), (3, inline)]);
    finished(out, root)
}

#[test]
fn a_forged_inline_delegate_length_is_refused() {
    let whole = bytes_of(&program());
    let blob = &whole[find(&whole, b"MLX0") - 4..];
    let blob = &blob[..u32_at(blob, 8)];
    let honest = inline_delegate(blob, 0);
    assert_eq!(read(honest.clone()).unwrap().methods[0].mlx_delegates().count(), 1, "inline delegates are read");

    let length = find(&honest, b"MLX0") - 8;
    assert_eq!(u32_at(&honest, length), blob.len());
    for claim in [u32::MAX, u32::try_from(honest.len()).unwrap(), 0x7fff_ffff] {
        assert!(complaint(with_u32(honest.clone(), length, claim)).contains("outside"));
    }
    assert!(complaint(with_u32(honest.clone(), length, 23)).contains("outside the 23-byte buffer"));
    assert!(complaint(inline_delegate(blob, 1)).contains("index 1, but there are only 1 inline delegates"));
    // The length that the blob itself claims for its graph.
    for claim in [0, 23, 1 << 40, u64::MAX] {
        assert!(complaint(with_u64(honest.clone(), length + 12, claim)).contains("outside"), "{claim}");
    }
    // A region too short for its graph: whichever table falls outside is named.
    assert!(complaint(with_u64(honest, length + 12, 32)).contains("delegate 0"));
}

#[test]
fn a_null_table_where_one_is_required_is_refused() {
    let bytes = bytes_of(&program());
    // Every offset of the vector of methods, set to zero.
    let name = find(&bytes, b"get_max_seq_len");
    let mut refused = 0;
    for at in (40..name).step_by(4) {
        let forged = with_u32(bytes.clone(), at, 0);
        refused += usize::from(read(forged).is_err());
    }
    assert!(refused > 10, "only {refused} zeroed words were noticed");

    let mut out = FlatBufferBuilder::new();
    let plans = out.create_vector(&[0_u32]).as_union_value();
    let root = table(&mut out, &[(1, plans)]);
    let complaint_text = complaint(finished(out, root));
    assert_eq!(
        complaint_text,
        "program table, field `execution_plan`, element 0: a null offset where a table is required"
    );

    let mut out = FlatBufferBuilder::new();
    let plan = table(&mut out, &[]);
    let plans = out.create_vector(&[plan]).as_union_value();
    let root = table(&mut out, &[(1, plans)]);
    assert_eq!(
        complaint(finished(out, root)),
        "program table, field `execution_plan`, element 0, field `name`: required, but absent"
    );
}

#[test]
fn element_counts_that_overflow_are_refused() {
    let huge = [i32::MAX, i32::MAX, i32::MAX];
    let mut program = program();
    program.methods[0].values[0] = EValue::Tensor(tensor(DType::F32, &huge));
    assert!(complaint(bytes_of(&program)).ends_with("value 0: the tensor's element count does not fit 64 bits"));
    for slot in 0..4 {
        let complaint = complaint_about(|graph| graph.tensor_meta[slot] = meta(DType::I64, &huge));
        assert!(
            complaint.ends_with(&format!("tensor t{slot}: the tensor's element count does not fit 64 bits")),
            "{complaint}"
        );
    }
    // Just below: the count fits, the bytes do not.
    let complaint = complaint_about(|graph| graph.tensor_meta[1] = meta(DType::I64, &[i32::MAX, i32::MAX]));
    assert!(complaint.contains("does not fit"), "{complaint}");
}

#[test]
fn rank_bombs_are_refused() {
    for rank in [17, 1000, 100_000] {
        let complaint = complaint_about(|graph| graph.tensor_meta[1] = meta(DType::F32, &vec![1; rank]));
        assert!(complaint.ends_with(&format!("tensor t1: {rank} dimensions, over the limit of 16")), "{complaint}");
        let mut program = program();
        program.methods[0].values[0] = EValue::Tensor(tensor(DType::F32, &vec![1; rank.min(200)]));
        assert!(complaint_is_limit(&bytes_of(&program)));
    }
}

fn complaint_is_limit(bytes: &[u8]) -> bool {
    let result = read(bytes).and_then(|program| Verified::new(program, &Limits::DEFAULT));
    result.is_err_and(|error| error.kind() == ptero_pte::Kind::Limit)
}

/// Where the table of segment `index` keeps its offset and size: each 8 bytes, found by their values.
fn segment_fields(bytes: &[u8], offset: u64, size: u64) -> (usize, usize) {
    let both = [offset.to_le_bytes(), size.to_le_bytes()].concat();
    let at = find(bytes, &both);
    (at, at + 8)
}

#[test]
fn segments_outside_the_file_overlapping_or_short_are_refused() {
    let mut two = program();
    two.named_data.push(NamedData { key: "unused".to_owned(), data: vec![9; 40].into() });
    let bytes = bytes_of(&two);
    let base = u64::from_le_bytes(bytes[24..32].try_into().unwrap());
    let last = bytes.len() as u64 - base - 40;
    let (offset, size) = segment_fields(&bytes, last, 40);

    for (at, value) in [(size, 41), (size, u64::MAX), (offset, last + 1), (offset, u64::MAX - 39), (offset, 1 << 63)] {
        let complaint = complaint(with_u64(bytes.clone(), at, value));
        assert!(complaint.contains("reach outside"), "{complaint}");
    }
    let overlapping = with_u64(bytes.clone(), offset, last - 128 + 16);
    assert!(complaint(overlapping).contains("overlap"), "the last segment inside the one before");
    // A segment shorter than its tensor.
    let (_, w_size) = segment_fields(&bytes, last - 128, 24);
    assert!(complaint(with_u64(bytes.clone(), w_size, 23)).ends_with("23 bytes of data for a tensor of 24 bytes"));
    // Header numbers: contents beyond the file, data that starts beyond it, data longer than it.
    for (at, value) in [(16, u64::MAX), (16, bytes.len() as u64 + 1), (24, u64::MAX), (24, 1), (32, u64::MAX)] {
        assert!(complaint(with_u64(bytes.clone(), at, value)).starts_with("extended header: "), "{at} {value}");
    }
}

#[test]
fn numbers_that_wrap_in_a_data_file_are_refused() {
    let entry = |key: &str, size| NamedData { key: key.to_owned(), data: vec![7; size].into() };
    let data = TensorData { entries: vec![entry("v", 4), entry("w", 24)] };
    let mut bytes = Vec::new();
    data.write(&mut bytes).unwrap();
    let read = |bytes: Vec<u8>| TensorData::read(&Bytes::from(bytes), &Limits::DEFAULT);
    assert_eq!(read(bytes.clone()).unwrap(), data);
    for at in [16, 24, 32, 40] {
        for value in [u64::MAX, u64::MAX - 7, 1 << 63, bytes.len() as u64 + 8] {
            let error = read(with_u64(bytes.clone(), at, value)).expect_err("must be refused").to_string();
            assert!(error.contains("outside") || error.contains("multiple"), "{at} {value}: {error}");
        }
    }
    let (offset, size) = segment_fields(&bytes, 128, 24);
    for (at, value) in [(offset, u64::MAX - 23), (offset, u64::MAX), (size, u64::MAX), (size, 25)] {
        let error = read(with_u64(bytes.clone(), at, value)).expect_err("must be refused").to_string();
        assert!(error.contains("segment 1: ") && error.contains("outside"), "{error}");
    }
    for length in 0..bytes.len() {
        read(bytes[..length].to_vec()).expect_err("a part of a file is no file");
    }
}

#[test]
fn texts_without_an_end_or_that_are_no_text_are_refused() {
    let bytes = bytes_of(&program());
    let name = find(&bytes, b"get_max_seq_len");
    let mut unterminated = bytes.clone();
    unterminated[name + 15] = b'X';
    assert!(complaint(unterminated).ends_with("field `name`: text is not terminated by a zero byte"));
    let mut not_text = bytes.clone();
    not_text[name] = 0xff;
    assert!(complaint(not_text).ends_with("field `name`: text is not UTF-8"));
    let mut embedded = bytes.clone();
    embedded[name + 3] = 0;
    let program = read(embedded).unwrap();
    assert_eq!(program.methods[1].name, "get\0max_seq_len", "a zero inside a text is a character like any other");
    // A text that claims to reach beyond the file.
    assert!(complaint(with_u32(bytes, name - 4, u32::MAX)).contains("outside"));
}

fn branch(then: usize, otherwise: usize) -> Node {
    let chain = |index| Chain(u32::try_from(index).unwrap());
    If { cond: Int::Literal(1), then_chain_idx: chain(then), else_chain_idx: chain(otherwise) }.into()
}

#[test]
fn chains_that_run_themselves_are_refused() {
    let copy: Node = IdCopy { x: Src(1), out: Dst(2) }.into();
    let with = |chains: Vec<Vec<Node>>| complaint_about(|graph| graph.instruction_chains = Chains(chains));
    assert!(with(vec![vec![branch(0, 0)]]).ends_with("chain 0 runs itself, directly or through others"));
    let complaint = with(vec![vec![copy.clone(), branch(1, 2)], vec![branch(2, 2)], vec![branch(1, 1)]]);
    assert!(complaint.contains("runs itself"), "{complaint}");
    // Even where nothing runs them.
    assert!(with(vec![vec![copy], vec![branch(2, 2)], vec![branch(1, 1)]]).contains("runs itself"));
}

#[test]
fn chains_nested_too_deep_or_too_often_are_refused() {
    let copy: Node = IdCopy { x: Src(1), out: Dst(2) }.into();
    let nested = |depth: usize| {
        let mut chains: Vec<Vec<Node>> = (1..depth).map(|next| vec![branch(next, next)]).collect();
        chains.push(vec![copy.clone()]);
        Chains(chains)
    };
    for depth in [17, 1_000, 100_000] {
        let complaint = complaint_about(|graph| graph.instruction_chains = nested(depth));
        assert!(complaint.contains("nested chains, over the limit of 16"), "{complaint}");
    }
    // Sixteen deep is allowed: two to the sixteenth runs of the innermost chain.
    let mut graph = graph();
    graph.instruction_chains = nested(16);
    Verified::new(program_of(graph), &Limits::DEFAULT).unwrap();
    // Twelve deep, four branches each: sixteen million runs, which nobody walks through.
    let complaint = complaint_about(|graph| {
        let mut chains: Vec<Vec<Node>> = (1..12).map(|next| vec![branch(next, next), branch(next, next)]).collect();
        chains.push(vec![copy.clone()]);
        graph.instruction_chains = Chains(chains);
    });
    assert!(complaint.contains("instructions, each chain counted where it is run"), "{complaint}");
}

#[test]
fn a_million_elements_in_a_hundred_bytes_are_refused() {
    let mut out = FlatBufferBuilder::new();
    let plans = out.create_vector::<u32>(&[]).as_union_value();
    let root = table(&mut out, &[(1, plans)]);
    let bytes = finished(out, root);
    assert!(bytes.len() < 100, "{}", bytes.len());
    read(bytes.clone()).unwrap();
    let length = bytes.len() - 4;
    for claim in [1, 1_000_000, u32::MAX] {
        let complaint = complaint(with_u32(bytes.clone(), length, claim));
        assert!(complaint.starts_with("program table, field `execution_plan`: "), "{complaint}");
    }
    let complaint = complaint_about(|graph| graph.num_temp_tensors = u32::MAX);
    assert!(complaint.ends_with("tensor slots, over the limit of 1000000"), "{complaint}");
    let complaint = complaint_about(|graph| graph.num_values = 1_000_001);
    assert!(complaint.ends_with("1000001 values, over the limit of 1000000"), "{complaint}");
}

/// A vector whose elements are all the same table, which holds a vector of the same kind, and so on: few bytes, much work.
#[test]
fn tables_that_are_counted_again_and_again_are_refused() {
    let mut out = FlatBufferBuilder::new();
    let operator_name = out.create_string(&"x".repeat(1000)).as_union_value();
    let operator = table(&mut out, &[(0, operator_name)]);
    let operators = out.create_vector(&[operator; 1000]).as_union_value();
    let name = out.create_string("forward").as_union_value();
    let plan = table(&mut out, &[(0, name), (6, operators)]);
    let plans = out.create_vector(&[plan; 1000]).as_union_value();
    let root = table(&mut out, &[(1, plans)]);
    let bytes = finished(out, root);
    assert!(bytes.len() < 10_000);
    let complaint = complaint(bytes);
    assert!(complaint.contains("tables overlap so often"), "{complaint}");
}

#[test]
fn every_truncation_is_refused() {
    let bytes = bytes_of(&program());
    for length in 0..bytes.len() {
        read(&bytes[..length]).expect_err("a part of a file is no program");
    }
    read(bytes).unwrap();
}

#[test]
fn no_damaged_byte_does_harm() {
    let program = generate::program(&mut generate::Rng::new(3), 20);
    let bytes = bytes_of(&program);
    let mut refused = 0;
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            let result = read(damaged).and_then(|program: Program| Verified::new(program, &Limits::DEFAULT));
            refused += usize::from(result.is_err());
        }
    }
    assert!(refused > bytes.len() / 2, "{refused} of {} damaged files were refused", 3 * bytes.len());
}

#[test]
fn limits_are_parameters() {
    let bytes = Bytes::from(bytes_of(&program()));
    let strict = |limits: Limits| {
        let result = Program::read(&bytes, &limits).and_then(|program| Verified::new(program, &limits));
        result.expect_err("must be refused").to_string()
    };
    assert!(strict(Limits { elements: 1, ..Limits::DEFAULT }).contains("over the limit of 1"));
    assert!(strict(Limits { elements: 5, ..Limits::DEFAULT }).contains("6 tensor slots, over the limit of 5"));
    assert!(strict(Limits { nesting: 0, ..Limits::DEFAULT }).contains("1 nested chains, over the limit of 0"));
    assert!(strict(Limits { visits: 1, ..Limits::DEFAULT }).contains("2 instructions"));
    let large = generate::program(&mut generate::Rng::new(1), 100);
    let error = Program::read(&Bytes::from(bytes_of(&large)), &Limits { overlap: 0, ..Limits::DEFAULT }).unwrap_err();
    assert!(error.to_string().contains("overlap"), "{error}");
}
