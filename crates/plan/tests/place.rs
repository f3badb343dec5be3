//! The memory of temporaries.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[path = "common/program.rs"]
mod program;
#[path = "common/small.rs"]
mod small;

use program::*;
use ptero_plan::{Arena, Placement, bufferize};
use ptero_pte::field::Collected;
use ptero_pte::{DType, Node, TensorMeta};
use small::lower_small;

fn placement(x: TensorMeta, chains: Vec<Vec<Node>>) -> Placement {
    bufferize(&lower_small(x, chains).unwrap(), Arena::aligned(64)).unwrap().placement
}

#[test]
fn temporaries_that_are_not_alive_together_share_memory() {
    // Ten sorts in a row: only what one reads and what it writes are alive at once.
    let sorts = [sort(1, 5)].into_iter().chain((0..8).map(|_| sort(5, 5))).chain([sort(5, 3)]);
    let placement = placement(meta(DType::F32, &[-1, 4]), vec![sorts.collect()]);
    assert_eq!(placement.unbounded, 0);
    assert_eq!(placement.unshared_bytes, 10 * 64 * 4 * 4);
    assert_eq!(placement.arena_bytes, 2 * 64 * 4 * 4);
    let offsets: Vec<u64> = placement.places.iter().flatten().map(|place| place.start).collect();
    assert!(offsets.windows(2).all(|pair| pair[0] != pair[1]), "neighbours do not overlap: {offsets:?}");
}

#[test]
fn a_temporary_used_in_a_loop_lives_through_all_its_rounds() {
    // t7 is computed before the loop and read at its start; t8 is computed in the loop after that. They may not share memory.
    let body = vec![sort(7, 8), sort(8, 9), sort(9, 3)];
    let chains = vec![vec![sort(0, 7), scan(vec![], vec![Collected(3)])], body];
    let placement = placement(meta(DType::F32, &[4, 3]), chains);
    let mut offsets: Vec<u64> = placement.places.iter().flatten().map(|place| place.start).collect();
    let count = offsets.len();
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), count, "all of them are alive in every round");
}

#[test]
fn a_size_without_a_bound_is_left_to_the_call() {
    let nodes = vec![item(2, 0), full(vec![value(0); 3], 0.0, 3)];
    let placement = placement(meta(DType::F32, &[1]), vec![nodes]);
    assert_eq!((placement.arena_bytes, placement.unbounded), (0, 1));
}
