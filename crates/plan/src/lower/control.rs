//! Nodes that run chains: branches and scans.

use super::{Held, Lowerer, Refusal, chain_of};
use crate::builder::{Tensor, axis};
use crate::dim::Dim;
use crate::error::{Fault, Result, ensure};
use crate::graph::{BlockId, Carried, Loop, Op, Stacked};
use crate::host::HostOp;
use ptero_pte::field::Src;
use ptero_pte::nodes::{If, Scan};
use ptero_pte::{Node, Slot, Use};
use std::collections::{BTreeSet, HashMap};

impl Lowerer<'_> {
    pub(super) fn branch(&mut self, n: &If) -> Result<(), Refusal> {
        let condition = self.int(n.cond)?;
        let (then, otherwise) = (n.then_chain_idx.0 as usize, n.else_chain_idx.0 as usize);
        if let Some(known) = condition.as_fixed() {
            return Ok(self.chain(if known == 0 { otherwise } else { then }, false)?);
        }
        let origin = self.builder.origin;
        let before = self.held.clone();
        let then_block = self.block(|lowerer| lowerer.chain(then, false))?;
        let after_then = std::mem::replace(&mut self.held, before);
        let else_block = self.block(|lowerer| lowerer.chain(otherwise, false))?;
        self.builder.origin = origin;
        let (written, states) = self.written_by(&[then, otherwise]);
        let merged = self.merge(&condition, after_then, written, [then_block, else_block])?;
        let outs = merged.iter().map(|(_, out)| out.value).collect();
        self.builder.node(Op::If { condition, then: then_block, otherwise: else_block, outs });
        self.held.extend(merged.into_iter().map(|(slot, out)| (slot, Held::Tensor(out))));
        self.read_states(|slot| states.contains(slot));
        Ok(())
    }

    /// The slots that chains write, without states, and the states: blocks write these themselves.
    fn written_by(&self, chains: &[usize]) -> (BTreeSet<Slot>, BTreeSet<Slot>) {
        let mut written = BTreeSet::new();
        chains.iter().for_each(|chain| self.add_written(*chain, &mut written));
        let is_state = |slot: &Slot| matches!(slot, Slot::Tensor(tensor) if self.states.contains_key(tensor));
        let (states, others) = written.into_iter().partition(is_state);
        (others, states)
    }

    /// Merges the slots that two branches wrote and that are read later: each holds the result of the branch that ran. Slots
    /// that only one of them filled become empty.
    fn merge(
        &mut self,
        condition: &Dim,
        mut then: HashMap<Slot, Held>,
        written: BTreeSet<Slot>,
        blocks: [BlockId; 2],
    ) -> Result<Vec<(Slot, Tensor)>> {
        let mut merged = Vec::new();
        for slot in written {
            let pair = (then.remove(&slot), self.held.remove(&slot));
            let (Some(a), Some(b)) = pair else { continue };
            match (a, b) {
                (a, b) if a == b => drop(self.held.insert(slot, a)),
                _ if !self.is_read_later(slot) => {}
                (Held::Value(a), Held::Value(b)) => {
                    let [then, otherwise] = blocks;
                    let chosen = self.builder.chosen(condition, [(then, &a), (otherwise, &b)]);
                    self.held.insert(slot, Held::Value(chosen));
                }
                (Held::Tensor(a), Held::Tensor(b)) => merged.push((slot, self.merged(condition, &a, &b, blocks)?)),
                (Held::Tensor(_), Held::Value(_)) | (Held::Value(_), Held::Tensor(_)) => return Err(Fault::NoTensor),
            }
        }
        Ok(merged)
    }

    /// Merges the results of two branches. Sizes that differ become host values that each branch sets.
    fn merged(&mut self, condition: &Dim, a: &Tensor, b: &Tensor, [then, otherwise]: [BlockId; 2]) -> Result<Tensor> {
        ensure!(a.rank() == b.rank() && a.dtype == b.dtype, Fault::shapes(&a.shape, &b.shape));
        let sizes = a.shape.iter().zip(&b.shape);
        let shape = sizes.map(|(a, b)| self.builder.chosen(condition, [(then, a), (otherwise, b)])).collect();
        for (block, tensor) in [(then, a), (otherwise, b)] {
            self.builder.graph.block_mut(block).results.push(tensor.value);
        }
        Ok(self.builder.new_tensor(a.dtype, shape))
    }

    /// Runs the body once per index of an axis. Slots that the body reads and then writes carry over.
    pub(super) fn scan(&mut self, n: &Scan) -> Result<(), Refusal> {
        let body = n.body_chain_idx.0 as usize;
        let (written, states) = self.written_by(&[body]);
        let originals = self.tensors(&n.originals)?;
        let axis = axis(n.scan_axis.into(), originals.first().map_or(0, Tensor::rank))?;
        let count = originals.first().map_or(Ok(Dim::fixed(0)), |x| x.size(axis).cloned())?;
        self.builder.check_within(&count, 1, i64::MAX, "number of rounds of a scan")?;
        let outside = self.held.clone();
        let mut carried = self.carried(body, &written)?;
        let round = self.builder.host(HostOp::Index { count: count.clone() });
        let (mut stacked, origin) = (Vec::new(), self.builder.origin);
        let block = self.block(|lowerer| {
            lowerer.read_states(|slot| states.contains(slot));
            for (original, slot) in originals.iter().zip(&n.sliced) {
                let part = lowerer.builder.at(original, axis, &Dim::var(round))?;
                lowerer.held.insert(Slot::Tensor(slot.0), Held::Tensor(part));
            }
            lowerer.chain(body, true)?;
            lowerer.builder.origin = origin;
            lowerer.carry_over(&carried)?;
            let collected: BTreeSet<Slot> = n.outputs.iter().map(|output| Slot::Tensor(output.0)).collect();
            let last = written.iter().filter(|slot| !collected.contains(slot)).copied().collect();
            carried.extend(lowerer.last_of_body(last, &carried)?);
            for output in &n.outputs {
                let part = lowerer.tensor(Src(output.0))?;
                lowerer.builder.add_result(&part);
                let mut shape = part.shape;
                shape.insert(axis.min(shape.len()), count.clone());
                stacked.push((Slot::Tensor(output.0), lowerer.builder.new_tensor(part.dtype, shape)));
            }
            Ok::<(), Refusal>(())
        })?;
        self.held = outside;
        let mut slots = Vec::new();
        let mut ends = Vec::new();
        for CarriedSlot { slot, init, param } in carried {
            let init = match init {
                Some(init) => init,
                None => self.builder.fill(param.shape.clone(), |f| f.int(Dim::fixed(0), param.dtype))?,
            };
            let out = self.builder.new_tensor(param.dtype, param.shape);
            ends.push(Carried { init: init.value, param: param.value, out: out.value });
            slots.push((slot, out));
        }
        let stacks = stacked.iter().map(|(_, whole)| Stacked { out: whole.value, axis }).collect();
        self.builder.node(Op::Loop(Box::new(Loop {
            index: round,
            count,
            body: block,
            carried: ends,
            stacked: stacks,
        })));
        // Slots that the body wrote are empty after its last round, except for results.
        written.iter().for_each(|slot| drop(self.held.remove(slot)));
        self.held.extend(slots.into_iter().chain(stacked).map(|(slot, tensor)| (slot, Held::Tensor(tensor))));
        self.read_states(|slot| states.contains(slot));
        Ok(())
    }

    /// The slots that are filled now, and that the chain reads before it writes them: each becomes a parameter of the body.
    fn carried(&mut self, body: usize, written: &BTreeSet<Slot>) -> Result<Vec<CarriedSlot>> {
        let reads_first =
            |slot: &&Slot| self.nodes(body).iter().find_map(|node| self.first_use(node, **slot)) == Some(true);
        let slots: Vec<Slot> = written.iter().filter(reads_first).copied().collect();
        let mut carried = Vec::new();
        for slot in slots {
            match self.held.get(&slot).cloned() {
                Some(Held::Tensor(init)) => {
                    let param = self.builder.new_tensor(init.dtype, init.shape.clone());
                    self.held.insert(slot, Held::Tensor(param.clone()));
                    carried.push(CarriedSlot { slot, init: Some(init), param });
                }
                // An empty slot has nothing to carry.
                None => {}
                Some(Held::Value(_)) => return Err(Fault::Unsupported("an integer that a scan carries over")),
            }
        }
        Ok(carried)
    }

    /// Adds what the next round starts with to the results of the body.
    fn carry_over(&mut self, carried: &[CarriedSlot]) -> Result<()> {
        for CarriedSlot { slot, param, .. } in carried {
            let Some(Held::Tensor(next)) = self.held.get(slot).cloned() else { return Err(Fault::NoTensor) };
            self.builder.check_shape(&next.shape, &param.shape, "what a scan carries over")?;
            // A carried value keeps its initial type.
            let next = self.builder.cast(&next, param.dtype)?;
            let next = self.builder.broadcast(&next, &param.shape)?;
            self.builder.add_result(&next);
        }
        Ok(())
    }

    /// Slots that the body fills and no round reads, but that are read after the loop.
    fn last_of_body(&mut self, slots: Vec<Slot>, carried: &[CarriedSlot]) -> Result<Vec<CarriedSlot>> {
        let mut last = Vec::new();
        for slot in slots {
            let is_carried = carried.iter().any(|carried| carried.slot == slot);
            let Some(Held::Tensor(left)) = self.held.get(&slot).cloned() else { continue };
            if is_carried || !self.is_read_later(slot) {
                continue;
            }
            let is_early = left.shape.iter().all(|size| self.builder.is_early(size));
            ensure!(is_early, Fault::Unsupported("a tensor that a scan leaves, of a size that the scan computes,"));
            self.builder.add_result(&left);
            let param = self.builder.new_tensor(left.dtype, left.shape);
            last.push(CarriedSlot { slot, init: None, param });
        }
        Ok(last)
    }

    fn add_written(&self, chain: usize, written: &mut BTreeSet<Slot>) {
        for node in self.nodes(chain) {
            node.uses(&mut |_, used| match used {
                Use::Write(slot) | Use::Feed(slot) | Use::Collect(slot) => drop(written.insert(slot)),
                Use::Chain(inner) => self.add_written(inner as usize, written),
                Use::Read(_) => {}
            });
        }
    }

    /// Returns `true` if the slot is read after the current instruction, before it is written again.
    fn is_read_later(&self, slot: Slot) -> bool {
        for place in self.path.iter().rev() {
            let nodes = self.nodes(place.chain);
            let rest = nodes.get(place.next..).unwrap_or_default();
            // A loop starts over before the enclosing chain continues.
            let again = if place.repeats { nodes } else { &[] };
            if let Some(is_read) = rest.iter().chain(again).find_map(|node| self.first_use(node, slot)) {
                return is_read;
            }
        }
        self.delegate.output_map.iter().any(|output| output.slot() == slot)
    }

    fn nodes(&self, chain: usize) -> &[Node] {
        chain_of(self.delegate, chain)
    }

    /// What a node does first with a slot: reads it (`true`), or always fills it (`false`).
    fn first_use(&self, node: &Node, slot: Slot) -> Option<bool> {
        let (mut reads, mut feeds, mut writes, mut chains) = (false, false, false, Vec::new());
        node.uses(&mut |_, used| match used {
            Use::Read(used) => reads |= used == slot,
            Use::Feed(used) => feeds |= used == slot,
            Use::Chain(chain) => chains.push(chain as usize),
            Use::Collect(used) | Use::Write(used) => writes |= used == slot,
        });
        if reads || feeds {
            return Some(reads);
        }
        let inside = |chain: &usize| self.nodes(*chain).iter().find_map(|node| self.first_use(node, slot));
        let inside: Vec<Option<bool>> = chains.iter().map(inside).collect();
        if inside.contains(&Some(true)) {
            return Some(true);
        }
        let every_branch_writes = !inside.is_empty() && inside.iter().all(|first| *first == Some(false));
        (writes || every_branch_writes).then_some(false)
    }
}

/// A slot whose value a loop passes from round to round.
struct CarriedSlot {
    slot: Slot,
    /// Its value before the loop.
    init: Option<Tensor>,
    param: Tensor,
}
