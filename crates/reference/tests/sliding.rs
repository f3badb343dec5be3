//! Sliding-window layers of the cache outside the graph, against attention over the whole history.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use common::{Slots, fixed, lowered};
use ptero_backend::{Backend, Executable, Fault, InputValue, OutputValue, State, run_once};
use ptero_plan::graph::{Graph, Op};
use ptero_plan::{CacheLayer, KvCache, Options, PlanError};
use ptero_pte::field::{Dst, DstValue, IntOrSrc, Src, Value};
use ptero_pte::nodes::{Add, ItemInt, Take, UpdateAndAttend};
use ptero_pte::{DType, Node, ShapeDim, TensorMeta};
use ptero_reference::Reference;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

mod common;

const WINDOW: usize = 4;
/// A window and as many positions as are written at once, which share one.
const SLOTS: usize = 2 * WINDOW - 1;
const CAPACITY: usize = 512;
/// Heads of queries.
const HEADS: usize = 2;
/// Heads of keys and values.
const GROUPS: usize = 1;
/// Elements of a head.
const WIDTH: usize = 3;

fn attend(layer: i32, out: u32) -> Node {
    UpdateAndAttend {
        q: Src(0),
        k: Src(1),
        v: Src(2),
        position: Src(3),
        out: Dst(out),
        layer_id: Some(layer),
        scale: Some(0.5),
        out_dtype: None,
    }
    .into()
}

/// Fails unless `t4` is 0: takes the element at twice that number of an axis of one. The device computes the number, so that it is
/// not known before the nodes before it have run.
fn fails_unless_zero() -> [Node; 3] {
    let twice = Add { a: Src(4), b: Src(4), out: Dst(9) };
    let item = ItemInt { x: Src(9), out: DstValue(0) };
    [twice.into(), item.into(), Take { x: Src(1), out: Dst(8), index: IntOrSrc::Value(Value(0)), axis: 0 }.into()]
}

/// Lowers a graph with inputs `q`, `k`, `v` of a varying number of positions, at most `most` (-1: any), the position, and a number
/// that fails a call unless it is 0 (t0 to t4); outputs t5 to t7.
fn lower(nodes: Vec<Node>, most: i32, options: &Options) -> Result<Graph, PlanError> {
    let varying = ShapeDim { value: -1, min_value: 0, max_value: most };
    let tensor = |heads: usize| {
        let mut meta = fixed(DType::F32, &[1, heads, 1, WIDTH].map(|size| i32::try_from(size).unwrap()));
        meta.shape[2] = varying.clone();
        meta
    };
    let (queries, keys) = (tensor(HEADS), tensor(GROUPS));
    let position = TensorMeta { shape: vec![varying.clone()], ..fixed(DType::I64, &[]) };
    let named = vec![
        ("q", queries.clone()),
        ("k", keys.clone()),
        ("v", keys),
        ("position", position),
        ("zero", fixed(DType::I64, &[1])),
        ("a", queries.clone()),
        ("b", queries.clone()),
        ("c", queries),
    ];
    let slots = Slots { constants: 0, inputs: 5, outputs: 3, states: 0, temporaries: 2, values: 1 };
    lowered(vec![nodes], &slots, named, Vec::new(), options)
}

fn cache(windows: [usize; 3], capacity: usize) -> Options {
    let [kv_heads, head_dim] = [GROUPS, WIDTH].map(|size| i64::try_from(size).unwrap());
    let layers = windows.map(|window| CacheLayer { kv_heads, head_dim, window: i64::try_from(window).ok() });
    let layers = layers.map(|layer| CacheLayer { window: layer.window.filter(|window| *window > 0), ..layer });
    let cache = KvCache::new(i64::try_from(capacity).unwrap(), layers.to_vec());
    Options { kv_cache: Some(cache.unwrap()), ..Options::default() }
}

/// Layers 0 and 2 have the window, layer 1 sees all; between 0 and 1 a call can fail.
fn sliding(most: i32) -> Graph {
    sliding_of(most, CAPACITY)
}

fn sliding_of(most: i32, capacity: usize) -> Graph {
    let nodes = [vec![attend(0, 5)], fails_unless_zero().to_vec(), vec![attend(1, 6), attend(2, 7)]].concat();
    lower(nodes, most, &cache([WINDOW, 0, WINDOW], capacity)).unwrap()
}

/// The vector of a head at a position of the history numbered `history`.
fn vector(history: u64, what: usize, head: usize, position: usize) -> Vec<f32> {
    let number = |at: usize| {
        let seed = history.wrapping_mul(97) + (((what * 8 + head) * 1024 + position) * 8 + at) as u64;
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 40) as f32) / (1 << 23) as f32 - 1.0
    };
    (0..WIDTH).map(number).collect()
}

/// A sequence and the state that has seen it.
struct Sequence {
    executable: Box<dyn Executable>,
    state: Box<dyn State>,
    /// The number of the history that was written at each position.
    histories: Vec<u64>,
}

impl Sequence {
    fn new(graph: Graph) -> Self {
        let executable = Reference.compile(Arc::new(graph)).unwrap();
        Self { state: executable.state(0).unwrap(), executable, histories: Vec::new() }
    }

    /// Gives `count` positions from `start` on, of a history, and runs.
    fn write(&mut self, history: u64, start: usize, count: usize, zero: i64) -> Result<(), Fault> {
        for (input, heads) in [HEADS, GROUPS, GROUPS].into_iter().enumerate() {
            let rows = (0..heads).flat_map(|head| (start..start + count).map(move |at| (head, at)));
            let numbers = rows.flat_map(|(head, position)| vector(history, input, head, position));
            let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
            let shape = [1, heads, count, WIDTH].map(|size| size as u64);
            let value = InputValue::Tensor { dtype: DType::F32, shape: &shape, bytes: &bytes };
            self.state.write(input, value).map_err(|error| error.fault().clone())?;
        }
        let positions: Vec<u8> = (start as u64..).take(count).flat_map(u64::to_le_bytes).collect();
        let shape = [count as u64];
        self.state.write(3, InputValue::Tensor { dtype: DType::I64, shape: &shape, bytes: &positions }).unwrap();
        let zero = zero.to_le_bytes();
        self.state.write(4, InputValue::Tensor { dtype: DType::I64, shape: &[1], bytes: &zero }).unwrap();
        let run = run_once(&*self.executable, self.state.as_mut(), &AtomicBool::new(false));
        run.map_err(|error| error.fault().clone())?;
        self.histories.truncate(start);
        self.histories.resize(start + count, history);
        Ok(())
    }

    /// The rows of the three layers at each position of the last call: `[layer][head][position]`.
    fn results(&self) -> Vec<Vec<f32>> {
        let read = |output| {
            let OutputValue::Tensor { bytes, .. } = self.state.read(output).unwrap() else { panic!("a tensor") };
            bytes.as_chunks().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect()
        };
        (0..3).map(read).collect()
    }

    /// What they must be: every query over all positions that it may see, one after the other.
    fn wanted(&self, start: usize) -> Vec<Vec<f64>> {
        let rows = (0..HEADS).flat_map(|head| (start..self.histories.len()).map(move |at| (head, at)));
        let layer = |window: usize| {
            rows.clone().flat_map(move |(head, at)| self.row(head, at, (at + 1).saturating_sub(window))).collect()
        };
        vec![layer(WINDOW), layer(usize::MAX), layer(WINDOW)]
    }

    fn row(&self, head: usize, at: usize, first: usize) -> Vec<f64> {
        let written = |what, head, position: usize| vector(self.histories[position], what, head, position);
        let (query, group) = (written(0, head, at), head / (HEADS / GROUPS));
        let score = |position| -> f64 {
            written(1, group, position).iter().zip(&query).map(|(a, b)| f64::from(*a) * f64::from(*b) * 0.5).sum()
        };
        let weights: Vec<f64> = (first..=at).map(|position| score(position).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut row = [0.0; WIDTH];
        for (position, weight) in (first..=at).zip(&weights) {
            let value = written(2, group, position);
            row.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight / total * f64::from(value));
        }
        row.to_vec()
    }

    #[track_caller]
    fn check(&self, start: usize) {
        for (layer, (got, wanted)) in self.results().iter().zip(self.wanted(start)).enumerate() {
            assert_eq!(got.len(), wanted.len());
            let worst = got.iter().zip(&wanted).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-5, "layer {layer} from {start} on is off by {worst}");
        }
    }
}

#[test]
fn s1_3_chunks_of_any_length_and_single_steps_agree_with_the_whole_history() {
    for chunk in [1, 2, 3, 4, 5, 7, 8, 13, 40] {
        let mut sequence = Sequence::new(sliding(-1));
        // Forty positions in chunks, then thirty alone: the ring of seven wraps ten times.
        let mut start = 0;
        for count in std::iter::repeat_n(chunk, 40_usize.div_ceil(chunk)).chain([1; 30]) {
            sequence.write(1, start, count, 0).unwrap();
            sequence.check(start);
            start += count;
        }
    }
}

#[test]
fn s1_3_how_a_prompt_is_cut_changes_no_bit() {
    let last = |chunk: usize| {
        let mut sequence = Sequence::new(sliding(-1));
        for start in (0..24).step_by(chunk) {
            sequence.write(1, start, chunk, 0).unwrap();
        }
        sequence.write(1, 24, 1, 0).unwrap();
        sequence.results()
    };
    let whole = last(24);
    assert!([1, 2, 3, 4, 6, 8, 12].into_iter().all(|chunk| last(chunk) == whole));
}

/// A naive model of the ring: the position in each slot.
struct Ring([Option<usize>; SLOTS]);

impl Ring {
    fn holds(&self, position: usize) -> bool {
        self.0[position % SLOTS] == Some(position)
    }

    fn write(&mut self, start: usize, count: usize) {
        for place in &mut self.0 {
            *place = place.filter(|position| *position < start);
        }
        (start..start + count).for_each(|position| self.0[position % SLOTS] = Some(position));
    }
}

#[test]
fn positions_that_go_back_are_right_as_far_as_the_ring_reaches_and_else_refused() {
    let mut sequence = Sequence::new(sliding(-1));
    let mut ring = Ring([None; SLOTS]);
    let (mut random, mut refused, mut back) = (1_u64, 0, 0);
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap() % below
    };
    for history in 1..2000 {
        let end = sequence.histories.len();
        let start = match draw(8) {
            0 if end > 0 => draw(end),
            1..=4 => end.saturating_sub(draw(8)),
            5 => end + draw(2),
            _ => end,
        };
        let count = 1 + draw(9);
        let start = if start + count > CAPACITY { 0 } else { start };
        let is_held = start <= end && (start.saturating_sub(WINDOW - 1)..start).all(|position| ring.holds(position));
        match sequence.write(history, start, count, 0) {
            Ok(()) => {
                assert!(is_held, "{start} after {end} needs what is gone");
                back += usize::from(start < end);
                ring.write(start, count);
                sequence.check(start);
            }
            Err(fault) => {
                assert!(!is_held, "{start} after {end}: {fault}");
                refused += 1;
            }
        }
    }
    assert!(refused > 100 && back > 100, "{refused} calls were refused, {back} went back");
}

#[test]
fn positions_that_a_ring_does_not_hold_are_named() {
    let mut sequence = Sequence::new(sliding(-1));
    sequence.write(1, 0, 20, 0).unwrap();
    let fault = |sequence: &mut Sequence, start| sequence.write(1, start, 1, 0).unwrap_err().to_string();
    assert_eq!(fault(&mut sequence, 21), "position in a sliding-window layer is 21, outside 0 to 20");
    assert_eq!(fault(&mut sequence, 15), "oldest position that a sliding window needs is 12, outside 13 to 15");
    assert_eq!(fault(&mut sequence, 512), "position in the cache is 513, outside 0 to 512");
    // What was refused changed nothing.
    sequence.write(2, 16, 1, 0).unwrap();
    sequence.check(16);
    sequence.write(3, 0, 9, 0).unwrap();
    sequence.check(0);
    sequence.state.reset().unwrap();
    assert_eq!(fault(&mut sequence, 9), "position in a sliding-window layer is 9, outside 0 to 0");
}

#[test]
fn a_call_that_failed_on_the_way_is_repeated_and_not_continued() {
    let mut sequence = Sequence::new(sliding(-1));
    sequence.write(1, 0, 10, 0).unwrap();
    // Layer 0 is written, layer 2 is not.
    assert_eq!(sequence.write(1, 10, 3, 1).unwrap_err().to_string(), "index along an axis is 2, outside -1 to 0");
    let fault = sequence.write(1, 13, 1, 0).unwrap_err().to_string();
    assert_eq!(fault, "position in a sliding-window layer is 13, outside 0 to 10");
    sequence.write(1, 10, 3, 0).unwrap();
    sequence.check(10);
    // Layer 0 has another history from 10 on, and layer 2 the old one.
    sequence.write(2, 10, 1, 1).unwrap_err();
    let fault = sequence.write(1, 12, 1, 0).unwrap_err().to_string();
    assert_eq!(fault, "position in a sliding-window layer is 12, outside 0 to 10");
    sequence.write(2, 10, 3, 0).unwrap();
    sequence.check(10);
    // Writes enough positions that layer 0 has lost those that a repetition needs.
    sequence.write(1, 13, 9, 1).unwrap_err();
    let fault = sequence.write(1, 13, 9, 0).unwrap_err().to_string();
    assert_eq!(fault, "oldest position that a sliding window needs is 10, outside 13 to 13");
}

/// The number of elements of each state.
fn state_sizes(graph: &Graph) -> Vec<usize> {
    let count = |sizes: &[ptero_plan::dim::Dim]| sizes.iter().map(|size| size.as_fixed().unwrap()).product::<i64>();
    graph.states.iter().map(|state| usize::try_from(count(&state.shape)).unwrap()).collect()
}

#[test]
fn a_ring_has_a_size_of_its_own_and_layers_share_its_record() {
    let graph = sliding(4);
    let mut sizes = state_sizes(&graph);
    sizes.sort_unstable();
    let (ring, all) = (2 * SLOTS * GROUPS * WIDTH, CAPACITY * GROUPS * WIDTH);
    assert_eq!(sizes, [ring, ring, ring, ring, all, all]);
    assert_eq!(graph.session_ints.len(), 2, "the oldest position that both rings hold, and the one after the newest");
    assert!(graph.blocks.iter().flat_map(|block| &block.nodes).all(|node| !matches!(node.op, Op::Loop(_))));
    // The program declares four positions at most, and they fit at once; more are refused.
    let mut sequence = Sequence::new(graph);
    for start in (0..20).step_by(4) {
        sequence.write(1, start, 4, 0).unwrap();
        sequence.check(start);
    }
    let fault = sequence.write(1, 20, 5, 0).unwrap_err().to_string();
    assert_eq!(fault, "a size that varies is 5, outside 0 to 4");
}

#[test]
fn where_a_ring_would_save_nothing_all_positions_stay_and_any_can_be_taken_back() {
    let graph = sliding_of(-1, 2 * SLOTS);
    assert_eq!(state_sizes(&graph), [2 * SLOTS * GROUPS * WIDTH; 6]);
    let mut sequence = Sequence::new(graph);
    for (history, start, count) in [(1, 0, 9), (1, 9, 1), (1, 10, 4), (2, 5, 3), (2, 8, 1), (3, 0, 14)] {
        sequence.write(history, start, count, 0).unwrap();
        sequence.check(start);
    }
}

#[test]
fn two_nodes_that_write_one_ring_are_refused() {
    let nodes = vec![attend(0, 5), attend(1, 6), attend(1, 6), attend(0, 7)];
    let error = lower(nodes, -1, &cache([WINDOW, 0, 0], CAPACITY)).unwrap_err().to_string();
    assert_eq!(
        error,
        "instruction 0.3 (UpdateAndAttend): a second node that writes a sliding-window layer is not supported"
    );
}
