//! Where temporaries lie.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "common/program.rs"]
mod program;
#[path = "common/small.rs"]
mod small;

use program::lowered;
use ptero_plan::{Options, Placement, bufferize};
use ptero_pte::field::{Chain, Collected, Dst, DstValue, Fed, Float, Int, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::{DType, Node, TensorMeta};
use small::{meta, metas, program};

fn placement(x: TensorMeta, chains: Vec<Vec<Node>>) -> Placement {
    let graph = lowered(&program(metas(x), chains), &Options::default()).unwrap();
    bufferize(&graph, 64).unwrap().placement
}

#[test]
fn temporaries_that_are_not_alive_together_share_memory() {
    // Ten sorts in a row: only what one reads and what it writes are alive at once.
    let sorts = (0..10).map(|step| {
        let (x, out) = if step == 0 {
            (1, 5)
        } else if step == 9 {
            (5, 3)
        } else {
            (5, 5)
        };
        Node::from(Sort { x: Src(x), out: Dst(out), axis: 0 })
    });
    let placement = placement(meta(DType::F32, &[-1, 4]), vec![sorts.collect()]);
    assert_eq!(placement.unbounded, 0);
    assert_eq!(placement.unshared_bytes, 10 * 64 * 4 * 4);
    assert_eq!(placement.arena_bytes, 2 * 64 * 4 * 4);
    let offsets: Vec<u64> = placement.places.iter().flatten().map(|place| place.start).collect();
    assert!(offsets.windows(2).all(|pair| pair[0] != pair[1]), "neighbours do not overlap: {offsets:?}");
}

#[test]
fn what_a_loop_touches_lives_through_all_its_rounds() {
    let scan = Scan {
        originals: vec![Src(1)],
        sliced: vec![Fed(5)],
        outputs: vec![Collected(3)],
        carry: vec![],
        body_chain_idx: Chain(1),
        scan_axis: 0,
    };
    // t7 is made before the loop and read at its start; t8 is made in the loop after that. They may not share.
    let body: Vec<Node> = vec![
        Sort { x: Src(7), out: Dst(8), axis: 0 }.into(),
        Sort { x: Src(8), out: Dst(9), axis: 0 }.into(),
        Sort { x: Src(9), out: Dst(3), axis: 0 }.into(),
    ];
    let chains = vec![vec![Sort { x: Src(0), out: Dst(7), axis: 0 }.into(), scan.into()], body];
    let placement = placement(meta(DType::F32, &[4, 3]), chains);
    let mut offsets: Vec<u64> = placement.places.iter().flatten().map(|place| place.start).collect();
    let count = offsets.len();
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), count, "all of them are alive in every round");
}

#[test]
fn a_size_without_a_bound_is_left_to_the_call() {
    let nodes: Vec<Node> = vec![
        ItemInt { x: Src(2), out: DstValue(0) }.into(),
        Full { out: Dst(3), shape: vec![Int::Value(Value(0)); 3], v: Float::Literal(0.0), scalar_type: DType::F32 }
            .into(),
    ];
    let placement = placement(meta(DType::F32, &[1]), vec![nodes]);
    assert_eq!((placement.arena_bytes, placement.unbounded), (0, 1));
}
