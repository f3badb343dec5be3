//! Attention over the key-value cache outside the graph.
//!
//! A layer that sees all positions has a place for each. One that sees a window has a ring, and keeps it twice, one copy
//! behind the other: position `p` lies at `p mod places` and again `places` further on. So any run of up to `places`
//! positions lies in order in one piece, wherever the ring wraps, and a window is read where it lies: no copy, no mask. A
//! record in the state tells which positions a ring holds; a call that would see others is refused.

use super::Lowerer;
use super::attention::Heads;
use crate::cache::Ring;
use crate::dim::Dim;
use crate::error::{Fault, Result};
use crate::plan::{BufferKind, PlanStep};
use crate::prim::View;
use ptero_pte::nodes::UpdateAndAttend;
use ptero_tensor::DType;

/// Where a layer keeps its keys and values, `[1, heads, places, elements]`.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    keys: View,
    values: View,
    window: Option<i64>,
    ring: Option<Ring>,
}

/// What rings hold: those of the layers that one block writes at the same positions.
#[derive(Clone, Debug)]
pub(super) struct Record {
    block: usize,
    start: Dim,
    count: Dim,
    window: i64,
    ring: Ring,
    /// State: the oldest position that is held, and the one behind the newest.
    span: View,
}

/// Queries, keys and values of consecutive positions.
struct Run {
    start: Dim,
    q: View,
    k: View,
    v: View,
    scale: f32,
}

impl Run {
    /// The part of `length` positions from `at` on.
    fn part(&self, at: &Dim, length: &Dim) -> Self {
        let [q, k, v] = [&self.q, &self.k, &self.v].map(|view| narrowed(view, at, length));
        Self { start: &self.start + at, q, k, v, scale: self.scale }
    }
}

/// `length` positions from `at` on.
fn narrowed(view: &View, at: &Dim, length: &Dim) -> View {
    view.narrowed(2, at, length.clone(), &Dim::fixed(1))
}

impl Lowerer<'_> {
    /// Keys and values go to the cache outside the graph, behind those of earlier positions; then queries attend to all
    /// that the layer sees.
    pub(super) fn update_and_attend(&mut self, n: &UpdateAndAttend) -> Result<()> {
        let (q, k, v) = (self.tensor(n.q)?, self.tensor(n.k)?, self.tensor(n.v)?);
        let layer = n.layer_id.ok_or(Fault::Unsupported("attention without a layer"))?;
        let scale = n.scale.ok_or(Fault::Unsupported("attention without a scale"))?;
        let layer = self.cache_layer(layer)?;
        let result = self.attention_result(&q, &k, &v)?;
        let mut position = self.tensor(n.position)?;
        while position.rank() > 0 {
            position = position.at(0, &Dim::fixed(0));
        }
        let start = self.item(position)?;
        let end = &start + k.size(2)?;
        let capacity = Dim::fixed(self.options.kv_cache.as_ref().map_or(0, |cache| cache.capacity()));
        for position in [&start, &end] {
            self.builder.within(position, Dim::fixed(0), capacity.clone(), "position in the cache")?;
        }
        let run = Run { start, q, k, v, scale };
        match (layer.window, layer.ring) {
            (Some(window), Some(ring)) => {
                self.check_record(window, ring, &run)?;
                self.attend_in_rounds(&layer, ring, &run, &result)?;
            }
            _ => self.attend_run(&layer, run, result.clone())?,
        }
        let result = self.builder.cast(&result, n.out_dtype.unwrap_or(result.dtype))?;
        self.set(n.out, result)
    }

    fn cache_layer(&mut self, number: i32) -> Result<Layer> {
        let cache = self.options.kv_cache.as_ref().ok_or(Fault::NoCache)?;
        let bad_layer = Fault::Value { what: "layer of the cache", value: number.into() };
        let described = usize::try_from(number).ok().and_then(|at| cache.layers().get(at)).ok_or(bad_layer)?;
        let ring = cache.ring(described);
        match self.caches.get(&number) {
            // The record of a ring is shared by layers that are written once each.
            Some(Layer { ring: Some(_), .. }) => {
                return Err(Fault::Unsupported("a second node that writes a sliding-window layer"));
            }
            Some(known) => return Ok(known.clone()),
            None => {}
        }
        let places = ring.map_or(cache.capacity(), |ring| 2 * ring.places);
        let shape = [1, described.kv_heads, places, described.head_dim].map(Dim::fixed);
        let [keys, values] = [(); 2].map(|()| self.new_state(cache.dtype(), &shape));
        let layer = Layer { keys, values, window: described.window, ring };
        self.caches.insert(number, layer.clone());
        Ok(layer)
    }

    fn new_state(&mut self, dtype: DType, shape: &[Dim]) -> View {
        let elements = shape.iter().fold(Dim::fixed(1), |product, size| &product * size);
        let buf = self.builder.buffer(dtype, elements, BufferKind::State);
        View::row_major(buf, dtype, shape.to_vec())
    }

    /// Writes keys and values, then attends. What a ring is given at once must leave each query its window.
    fn attend_run(&mut self, layer: &Layer, run: Run, out: View) -> Result<()> {
        let count = run.k.size(2)?.clone();
        for (cache, new) in [(&layer.keys, &run.k), (&layer.values, &run.v)] {
            let wanted = narrowed(cache, &Dim::fixed(0), &count).shape;
            self.builder.same_shape(&wanted, &new.shape, "keys or values and their cache")?;
            match layer.ring {
                Some(ring) => self.write_ring(cache, ring, &run.start, new)?,
                None => self.builder.copy_into(narrowed(cache, &run.start, &count), new)?,
            }
        }
        let first = self.first_seen(layer.window, &run.start);
        let length = &(&run.start + &count) - &first;
        let at = match layer.ring {
            Some(ring) => self.builder.modulo(first, Dim::fixed(ring.places))?,
            None => first,
        };
        let [k, v] = [&layer.keys, &layer.values].map(|cache| narrowed(cache, &at, &length));
        let Run { q, scale, .. } = run;
        self.attend(out, Heads { q, k, v, mask: None, causal: true, window: layer.window, scale })
    }

    /// The oldest position that a query at `start` sees.
    fn first_seen(&mut self, window: Option<i64>, start: &Dim) -> Dim {
        match window {
            Some(window) => self.builder.max(start + &Dim::fixed(1 - window), Dim::fixed(0)),
            None => Dim::fixed(0),
        }
    }

    /// Writes consecutive positions, no more than the ring has places: up to its end, then from its start; both copies at
    /// once.
    fn write_ring(&mut self, cache: &View, ring: Ring, start: &Dim, new: &View) -> Result<()> {
        let (zero, one, two, places) = (Dim::fixed(0), Dim::fixed(1), Dim::fixed(2), Dim::fixed(ring.places));
        let count = new.size(2)?.clone();
        let at = self.builder.modulo(start.clone(), places.clone())?;
        // A single position never wraps.
        let before = if count.is(1) { count.clone() } else { self.builder.min(count.clone(), &places - &at) };
        let after = &count - &before;
        let shape = [cache.size(0)?.clone(), cache.size(1)?.clone(), two, places, cache.size(3)?.clone()];
        let copies = self.builder.reshape(cache, &shape)?;
        let runs = [(&at, &zero, &before), (&zero, &before, &after)];
        for (to, from, length) in runs.into_iter().filter(|(_, _, length)| !length.is(0)) {
            let part = narrowed(new, from, length).with_axis_inserted(2);
            self.builder.copy_into(copies.narrowed(3, to, length.clone(), &one), &part)?;
        }
        Ok(())
    }

    /// Any number of positions, a ring's `most` at a time.
    fn attend_in_rounds(&mut self, layer: &Layer, ring: Ring, run: &Run, out: &View) -> Result<()> {
        let (count, most) = (run.k.size(2)?.clone(), Dim::fixed(ring.most));
        self.builder.same(run.q.size(2)?, &count, "positions of queries and keys")?;
        if self.at_most(&count).is_some_and(|declared| declared <= ring.most) {
            self.builder.within(&count, Dim::fixed(0), most, "number of positions written at once")?;
            return self.attend_run(layer, run.part(&Dim::fixed(0), &count), out.clone());
        }
        let rounds = self.builder.floor_div(&count + &Dim::fixed(ring.most - 1), most.clone())?;
        let round = self.builder.new_var();
        let body = self.block(|lowerer| {
            let at = &Dim::var(round) * &most;
            let length = lowerer.builder.min(most, &count - &at);
            lowerer.attend_run(layer, run.part(&at, &length), narrowed(out, &at, &length))
        })?;
        self.builder.step(PlanStep::Loop { index: round, count: rounds, body });
        Ok(())
    }

    /// The most that a size can be, where the program says so.
    fn at_most(&self, size: &Dim) -> Option<i64> {
        let declared = |var| self.largest.iter().find(|(known, _)| *known == var).map(|(_, most)| *most);
        size.as_fixed().or_else(|| size.as_var().and_then(declared))
    }

    /// Refuses positions that leave a gap, and positions whose window reaches back to what is no longer held. A start at 0
    /// needs nothing.
    ///
    /// What is about to be overwritten or taken back counts as lost from here on; what is about to be written counts as
    /// held only when the block has ended, so that a call that fails on the way leaves a record that is true.
    fn check_record(&mut self, window: i64, ring: Ring, run: &Run) -> Result<()> {
        let (block, start, count) = (self.builder.block, run.start.clone(), run.k.size(2)?.clone());
        let is_same = |known: &Record| {
            (known.block, known.window, known.ring) == (block, window, ring)
                && (&known.start, &known.count) == (&start, &count)
        };
        if self.records.iter().any(is_same) {
            return Ok(());
        }
        let span = self.new_state(DType::I32, &[Dim::fixed(2)]);
        let [oldest, end] = [0, 1].map(|at| self.builder.item(span.at(0, &Dim::fixed(at))));
        self.builder.within(&start, Dim::fixed(0), end, "position in a sliding-window layer")?;
        let oldest = self.builder.min(oldest, start.clone());
        let needed = self.first_seen(Some(window), &start);
        self.builder.within(&needed, oldest.clone(), start.clone(), "oldest position that a sliding window needs")?;
        let kept = &(&start + &count) - &Dim::fixed(ring.places);
        let oldest = self.builder.max(oldest, kept);
        self.builder.write_int(span.at(0, &Dim::fixed(0)), oldest);
        self.builder.write_int(span.at(0, &Dim::fixed(1)), start.clone());
        self.records.push(Record { block, start, count, window, ring, span });
        Ok(())
    }

    /// At the end of a block, what it wrote is held.
    pub(super) fn close_records(&mut self) {
        let block = self.builder.block;
        let records = std::mem::take(&mut self.records).into_iter();
        let (closed, open): (Vec<Record>, Vec<Record>) = records.partition(|record| record.block == block);
        self.records = open;
        for Record { start, count, span, .. } in closed {
            self.builder.write_int(span.at(0, &Dim::fixed(1)), &start + &count);
        }
    }
}
