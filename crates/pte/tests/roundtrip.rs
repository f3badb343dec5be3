//! Reading what was written gives what was there, for every node of the table.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;
#[path = "common/generate.rs"]
mod generate;

use common::{bytes_of, chains_of, read};
use generate::{Rng, program};
use ptero_pte::field::{Dst, Int, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::{Limits, Node, Pending, Verified};
use std::collections::BTreeSet;
use std::io::Write;

#[test]
fn random_programs_are_sound_and_read_back_as_themselves() {
    let mut seen = BTreeSet::new();
    for seed in 0..400 {
        let program = program(&mut Rng::new(seed), 40);
        let bytes = bytes_of(&program);
        let again = read(bytes.clone()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(again, program, "seed {seed}");
        assert_eq!(bytes_of(&again), bytes, "seed {seed}: the same program gives the same bytes");
        let again = Verified::new(again, &Limits::DEFAULT).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        seen.extend(
            again
                .methods
                .iter()
                .flat_map(|method| method.mlx_delegates())
                .flat_map(|(_, graph)| graph.nodes())
                .map(Node::name),
        );
    }
    assert_eq!(seen.len(), Node::ROWS.len(), "every row of the table occurs");
}

#[test]
fn s0_2_an_absent_seed_stays_absent() {
    let bits = |seed| {
        Node::from(RandomBits { out: Dst(2), shape: vec![Int::Literal(1), Int::Value(Value(0))], seed, width: 4 })
    };
    for node in [bits(None), bits(Some(Value(0))), bits(Some(Value(1)))] {
        assert_eq!(chains_of(vec![node.clone()]), [[node]]);
    }
}

#[test]
fn absent_scalars_stay_apart_from_zeros() {
    let attend = |layer_id, scale, out_dtype| {
        Node::from(UpdateAndAttend {
            q: Src(1),
            k: Src(1),
            v: Src(1),
            position: Src(1),
            out: Dst(2),
            layer_id,
            scale,
            out_dtype,
        })
    };
    let nodes = vec![
        attend(None, None, None),
        attend(Some(0), Some(0.0), Some(ptero_pte::DType::U8)),
        FullLike { x: Src(1), out: Dst(2), v: ptero_pte::field::Float::Literal(-0.0), scalar_type: None }.into(),
        Squeeze { x: Src(1), out: Dst(2), dims: None }.into(),
        Squeeze { x: Src(1), out: Dst(2), dims: Some(vec![]) }.into(),
        Clip { x: Src(1), out: Dst(2), a_min: None, a_max: Some(Src(0)) }.into(),
    ];
    assert_eq!(chains_of(nodes.clone()), [nodes]);
}

#[test]
fn numbers_keep_their_bits() {
    let pad =
        Pad { x: Src(1), out: Dst(2), pad_width: vec![], mode: ptero_pte::field::PadMode::Edge, constant_value: -0.0 };
    let [nodes] = &chains_of(vec![pad.into()])[..] else { panic!("one chain") };
    let [Node::Pad(pad)] = &nodes[..] else { panic!("one pad") };
    assert!(pad.constant_value.is_sign_negative(), "minus zero is not the default, zero");
}

/// The order of rows and fields is the wire format: it only ever grows at the end. A change of any row changes this
/// digest; it is right to change it when upstream's schema has grown and `conformance/check_table.py` agrees.
#[test]
fn the_table_is_the_one_that_was_checked_against_upstream() {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for row in Node::ROWS {
        let fields = row.fields.concat().concat();
        for byte in format!("{} {} {fields}\n", row.tag, row.name).bytes().filter(|byte| *byte != b' ') {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    assert!((1..).zip(Node::ROWS).all(|(tag, row)| row.tag == tag), "tags count up from one");
    assert_eq!(Node::ROWS.len(), 136);
    assert_eq!(format!("{digest:016x}"), "919a0017b2f79542");
}

#[test]
fn a_node_is_printed_as_its_row_says() {
    let node: Node = Reshape { x: Src(0), out: Dst(1), shape: vec![Int::Literal(-1), Int::Value(Value(3))] }.into();
    assert_eq!(node.to_string(), "t1 = Reshape(x=t0, shape=[-1, v3])");
    let node: Node = RMSNorm { x: Src(4), weight: None, out: Dst(9), eps: 1e-5 }.into();
    assert_eq!(node.to_string(), "t9 = RMSNorm(x=t4, eps=1e-5)");
    let name = |slot| (slot == ptero_pte::Slot::Tensor(4)).then_some("model\u{1b}[31m.x");
    assert_eq!(node.notation(&name).to_string(), "t9 = RMSNorm(x=t4:model\\u{1b}[31m.x, eps=1e-5)");
}

#[test]
fn data_that_is_written_later_gives_the_same_file() {
    for seed in 0..100 {
        let whole = program(&mut Rng::new(seed), 20);
        let mut first = whole.clone();
        let later = first.named_data.split_off(first.named_data.len() / 2);
        let pending: Vec<Pending> =
            later.iter().map(|entry| Pending { key: entry.key.clone(), bytes: entry.data.len() as u64 }).collect();
        let mut rest = first.write_before(&pending, Vec::new()).unwrap();
        let data: Vec<u8> = later.iter().flat_map(|entry| entry.data.to_vec()).collect();
        for piece in data.chunks(7) {
            rest.write_all(piece).unwrap();
        }
        assert!(rest.write_all(&[0]).is_err(), "seed {seed}: there is no room for more");
        assert_eq!(rest.finish().unwrap(), bytes_of(&whole), "seed {seed}");
    }
}

#[test]
fn a_file_without_its_pending_data_is_not_finished() {
    let pending = [Pending { key: "weight".to_owned(), bytes: 10 }];
    let mut rest = ptero_pte::Program::default().write_before(&pending, Vec::new()).unwrap();
    rest.write_all(&[1; 4]).unwrap();
    let error = rest.finish().unwrap_err();
    assert_eq!(error.to_string(), "6 bytes of a program's data were not given");
}
