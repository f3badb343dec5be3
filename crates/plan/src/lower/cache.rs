//! Attention over the key-value cache outside the graph.
//!
//! A layer that attends to all positions has room for each. A layer with a sliding window has a ring buffer, stored twice, one
//! copy after the other: position `p` is at index `p mod length` and again at `length + p mod length`. So any run of up to
//! `length` positions is contiguous, wherever the ring wraps, and a window is read in place: no copy, no mask. The session
//! keeps which positions a ring holds, as integers of the host; a call that needs others is refused before anything runs.

use super::Lowerer;
use super::attention::{Heads, check_ranks};
use crate::builder::Tensor;
use crate::cache::Ring;
use crate::dim::Dim;
use crate::error::{Fault, Result, ensure};
use crate::graph::{BlockId, Carried, Loop, Op, SessionInt, StateId};
use crate::host::HostOp;
use crate::promote::to_float;
use ptero_pte::nodes::UpdateAndAttend;

/// The keys and values of a layer, `[batch, heads, positions, elements]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    keys: StateId,
    values: StateId,
    window: Option<i64>,
    ring: Option<Ring>,
}

/// The positions that rings hold; layers that are written at the same positions share a record.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    start: Dim,
    count: Dim,
    window: i64,
    ring: Ring,
}

/// Queries, keys and values of consecutive positions.
struct Run {
    start: Dim,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: f32,
}

impl Lowerer<'_> {
    /// Appends keys and values to the cache outside the graph; then queries attend to all positions in the layer's window.
    pub(super) fn update_and_attend(&mut self, n: &UpdateAndAttend) -> Result<Tensor> {
        let (q, k, v) = (self.tensor(n.q)?, self.tensor(n.k)?, self.tensor(n.v)?);
        let number = n.layer_id.ok_or(Fault::Unsupported("attention without a layer"))?;
        let scale = n.scale.ok_or(Fault::Unsupported("attention without a scale"))?;
        check_ranks([&q, &k, &v])?;
        let layer = self.cache_layer(number, &k, &v)?;
        let mut position = self.tensor(n.position)?;
        while position.rank() > 0 {
            position = self.builder.at(&position, 0, &Dim::fixed(0))?;
        }
        let start = self.builder.item(&position)?;
        let end = &start + k.size(2)?;
        let capacity = Dim::fixed(self.options.kv_cache.as_ref().map_or(0, |cache| cache.capacity()));
        for position in [&start, &end] {
            self.builder.check_within(position, 0, capacity.clone(), "position in the cache")?;
        }
        let run = Run { start, q, k, v, scale };
        let result = match (layer.window, layer.ring) {
            (Some(window), Some(ring)) => {
                self.check_record(window, ring, &run)?;
                self.attend_in_rounds(layer, ring, run)?
            }
            _ => self.attend_run(layer, run)?,
        };
        self.builder.cast(&result, n.out_dtype.unwrap_or(result.dtype))
    }

    /// The layer of that number; its states are added when it is first used.
    fn cache_layer(&mut self, number: i32, k: &Tensor, v: &Tensor) -> Result<Layer> {
        let cache = self.options.kv_cache.as_ref().ok_or(Fault::NoCache)?;
        let bad_layer = Fault::Value { what: "layer of the cache", value: number.into() };
        let described = *usize::try_from(number).ok().and_then(|at| cache.layers().get(at)).ok_or(bad_layer)?;
        let ring = cache.ring(&described);
        match self.caches.get(&number) {
            // Layers share the record of a ring only if each is written once.
            Some(Layer { ring: Some(_), .. }) => {
                return Err(Fault::Unsupported("a second node that writes a sliding-window layer"));
            }
            Some(known) => return Ok(*known),
            None => {}
        }
        let positions = ring.map_or(cache.capacity(), |ring| 2 * ring.length);
        let batch = k.size(0)?.as_fixed().filter(|batch| (1..=MOST_BATCH).contains(batch));
        let batch = batch.ok_or(Fault::Unsupported("a key-value cache of a batch that is not fixed"))?;
        let shape = [batch, described.kv_heads, positions, described.head_dim].map(Dim::fixed).to_vec();
        let dtype = cache.dtype();
        let mut state = |of: &Tensor| self.builder.state(dtype.unwrap_or(to_float(of.dtype)), shape.clone());
        let (keys, values) = (state(k), state(v));
        let layer = Layer { keys, values, window: described.window, ring };
        self.caches.insert(number, layer);
        Ok(layer)
    }

    /// Writes keys and values, then attends. A ring takes at most as many at once as leave each query its window.
    fn attend_run(&mut self, layer: Layer, run: Run) -> Result<Tensor> {
        let count = run.k.size(2)?.clone();
        let first = self.first_seen(layer.window, &run.start);
        let length = &(&run.start + &count) - &first;
        let at = match layer.ring {
            Some(ring) => self.builder.modulo(first.clone(), Dim::fixed(ring.length))?,
            None => first.clone(),
        };
        let mut seen = |state, new: &Tensor| {
            let held = self.builder.read(state);
            let wanted = held.shape_with(2, count.clone())?;
            self.builder.check_shape(&wanted, &new.shape, "keys or values and their cache")?;
            let written = match layer.ring {
                Some(ring) => self.write_ring(&held, ring, &run.start, new)?,
                None => self.builder.update(&held, new, 2, (run.start.clone(), count.clone(), 1))?,
            };
            self.builder.node(Op::Write { state, x: written.value });
            self.builder.narrow(&written, 2, &at, length.clone(), 1)
        };
        let (k, v) = (seen(layer.keys, &run.k)?, seen(layer.values, &run.v)?);
        let Run { q, scale, .. } = run;
        self.attend(Heads { q, k, v, mask: None, first, causal: true, window: layer.window, scale })
    }

    /// The oldest position that a query at `start` attends to.
    fn first_seen(&mut self, window: Option<i64>, start: &Dim) -> Dim {
        match window {
            Some(window) => self.builder.max(start - &Dim::fixed(window - 1), Dim::fixed(0)),
            None => Dim::fixed(0),
        }
    }

    /// Writes new positions into both copies of a ring, before and after it wraps. At most `ring.length` at once.
    fn write_ring(&mut self, held: &Tensor, ring: Ring, start: &Dim, new: &Tensor) -> Result<Tensor> {
        let (zero, length) = (Dim::fixed(0), Dim::fixed(ring.length));
        let count = new.size(2)?.clone();
        let at = self.builder.modulo(start.clone(), length.clone())?;
        // A single position never wraps.
        let before = if count.is(1) { count.clone() } else { self.builder.min(count.clone(), &length - &at) };
        let after = &count - &before;
        let shape = [held.size(0)?.clone(), held.size(1)?.clone(), Dim::fixed(2), length, held.size(3)?.clone()];
        let mut copies = self.builder.reshape(held, &shape)?;
        let runs = [(&at, &zero, &before), (&zero, &before, &after)];
        for (to, from, length) in runs.into_iter().filter(|(_, _, length)| !length.is(0)) {
            let part = self.builder.narrow(new, 2, from, length.clone(), 1)?;
            let part = self.builder.insert_axis(&part, 2);
            copies = self.builder.update(&copies, &part, 3, (to.clone(), length.clone(), 1))?;
        }
        self.builder.reshape(&copies, &held.shape)
    }

    /// Attends with any number of positions, at most `ring.most` at a time.
    fn attend_in_rounds(&mut self, layer: Layer, ring: Ring, run: Run) -> Result<Tensor> {
        let (count, most) = (run.k.size(2)?.clone(), Dim::fixed(ring.most));
        self.builder.check_equal(run.q.size(2)?, &count, "positions of queries and keys")?;
        if self.at_most(&count).is_some_and(|declared| declared <= ring.most) {
            self.builder.check_within(&count, 0, most, "number of positions written at once")?;
            return self.attend_run(layer, run);
        }
        let rounds = self.builder.floor_div(&count + &Dim::fixed(ring.most - 1), most.clone())?;
        let shape = vec![run.q.size(0)?.clone(), run.q.size(1)?.clone(), count.clone(), run.v.size(3)?.clone()];
        let dtype = to_float(run.q.dtype);
        let init = self.builder.fill(shape.clone(), |f| f.float(0.0, dtype))?;
        let [param, out] = [(); 2].map(|()| self.builder.new_tensor(dtype, shape.clone()));
        let round = self.builder.host(HostOp::Index { count: rounds.clone() });
        let body = self.block(|lowerer| {
            let at = &Dim::var(round) * &most;
            let length = lowerer.builder.min(most, &count - &at);
            let mut part = |tensor: &Tensor| lowerer.builder.narrow(tensor, 2, &at, length.clone(), 1);
            let (q, k, v) = (part(&run.q)?, part(&run.k)?, part(&run.v)?);
            let part = Run { start: &run.start + &at, q, k, v, scale: run.scale };
            let part = lowerer.attend_run(layer, part)?;
            let next = lowerer.builder.update(&param, &part, 2, (at, length, 1))?;
            lowerer.builder.add_result(&next);
            Ok::<(), Fault>(())
        })?;
        let carried = vec![Carried { init: init.value, param: param.value, out: out.value }];
        let stacked = Vec::new();
        self.builder.node(Op::Loop(Box::new(Loop { index: round, count: rounds, body, carried, stacked })));
        Ok(out)
    }

    /// The largest value of a size, if the program declares one.
    fn at_most(&self, size: &Dim) -> Option<i64> {
        let declared = |var: crate::dim::Var| match self.builder.graph.host.get(var.0 as usize) {
            Some(HostOp::Given { most }) => *most,
            _ => None,
        };
        size.as_fixed().or_else(|| size.as_var().and_then(declared))
    }

    /// Refuses positions that leave a gap, and positions whose window includes ones that are no longer held. A start at 0 is
    /// always possible.
    ///
    /// Positions that the call overwrites count as lost when it starts; those that it writes count as held only when it has
    /// succeeded, so that the record stays true if a call fails.
    fn check_record(&mut self, window: i64, ring: Ring, run: &Run) -> Result<()> {
        let (start, count) = (run.start.clone(), run.k.size(2)?.clone());
        let is_main = self.builder.block == self.main;
        ensure!(is_main, Fault::Unsupported("a sliding-window layer inside a branch or a loop"));
        let is_early = self.builder.is_early(&start) && self.builder.is_early(&count);
        ensure!(is_early, Fault::Unsupported("a sliding-window layer at a position that the program computes"));
        let record = Record { start: start.clone(), count: count.clone(), window, ring };
        if self.records.contains(&record) {
            return Ok(());
        }
        self.records.push(record);
        let first = self.builder.graph.session_ints.len();
        let [oldest, end] = [first, first + 1].map(|number| Dim::var(self.builder.host(HostOp::SessionInt(number))));
        self.builder.check_within(&start, 0, end, "position in a sliding-window layer")?;
        let oldest = self.builder.min(oldest, start.clone());
        let needed = self.first_seen(Some(window), &start);
        self.builder.check_within(
            &needed,
            oldest.clone(),
            start.clone(),
            "oldest position that a sliding window needs",
        )?;
        let kept = &(&start + &count) - &Dim::fixed(ring.length);
        let oldest = self.builder.max(oldest, kept);
        let end = &start + &count;
        self.builder.graph.session_ints.push(SessionInt { at_start: oldest.clone(), at_end: oldest });
        self.builder.graph.session_ints.push(SessionInt { at_start: start, at_end: end });
        Ok(())
    }
}

/// The largest batch of a key-value cache.
const MOST_BATCH: i64 = 1 << 12;

/// Stands for the main block until it is known.
pub(super) const NO_BLOCK: BlockId = BlockId(u32::MAX);
