//! Nodes that run chains, and what is read later.

use super::{Held, Lowerer};
use crate::dim::Dim;
use crate::error::{Fault, PlanError, Result, Shape};
use crate::plan::{HostOp, PlanStep};
use crate::prim::View;
use ptero_pte::nodes::{If, Scan};
use ptero_pte::{Node, Slot, Use};
use std::collections::{BTreeSet, HashMap};

impl Lowerer<'_> {
    /// The place that a fault of the node itself, not of its chains, is found at.
    fn here(&self, node: &'static str, fault: Fault) -> PlanError {
        let (chain, index) = self.path.last().map_or((0, 0), |place| (place.chain, place.next.saturating_sub(1)));
        PlanError { chain, index, node, fault }
    }

    pub(super) fn branch(&mut self, n: &If) -> Result<(), PlanError> {
        let condition = self.int(n.cond).map_err(|fault| self.here("If", fault))?;
        let chain = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let (then, otherwise) = (chain(n.then_chain_idx.0), chain(n.else_chain_idx.0));
        if let Some(known) = condition.as_fixed() {
            return self.chain(if known == 0 { otherwise } else { then }, false);
        }
        let origin = self.builder.origin;
        let (before, moved) = (self.held.clone(), std::mem::take(&mut self.moved));
        let then_block = self.block(|lowerer| lowerer.chain(then, false))?;
        let after_then = std::mem::replace(&mut self.held, before);
        let else_block = self.block(|lowerer| lowerer.chain(otherwise, false))?;
        self.builder.origin = origin;
        // What a branch moved, it left elsewhere than the other one did.
        let mut written = self.moved.clone();
        self.moved.extend(moved);
        self.written_by(then, &mut written);
        self.written_by(otherwise, &mut written);
        self.merge(after_then, written, then_block, else_block).map_err(|fault| self.here("If", fault))?;
        self.builder.step(PlanStep::If { condition, then: then_block, otherwise: else_block });
        Ok(())
    }

    /// After two branches, slots that either wrote and that someone reads later hold the same in both: each branch copies
    /// its own into a place that both share. Slots that only one of them left filled hold nothing.
    fn merge(
        &mut self,
        mut then: HashMap<Slot, Held>,
        written: BTreeSet<Slot>,
        then_block: usize,
        else_block: usize,
    ) -> Result<()> {
        for slot in written {
            let pair = (then.remove(&slot), self.held.remove(&slot));
            let (Some(a), Some(b)) = pair else { continue };
            if a == b {
                self.held.insert(slot, a);
            } else if self.is_read_later(slot) {
                let merged = self.merged(&a, &b, then_block, else_block)?;
                self.held.insert(slot, merged);
            }
        }
        Ok(())
    }

    fn merged(&mut self, a: &Held, b: &Held, then_block: usize, else_block: usize) -> Result<Held> {
        let outside = self.builder.block;
        let merged = match (a, b) {
            (Held::Value(a), Held::Value(b)) => {
                let out = self.builder.new_var();
                for (block, value) in [(then_block, a), (else_block, b)] {
                    self.builder.block = block;
                    self.builder.step(PlanStep::Host { out, op: HostOp::Copy(value.clone()) });
                }
                Held::Value(Dim::var(out))
            }
            (Held::Tensor(a), Held::Tensor(b)) if a.rank() == b.rank() && a.dtype == b.dtype => {
                let shape = self.merged_shape(a, b, then_block, else_block);
                let out = self.builder.new_tensor(a.dtype, shape);
                for (block, view) in [(then_block, a), (else_block, b)] {
                    self.builder.block = block;
                    self.builder.copy_into(out.clone(), view)?;
                }
                Held::Tensor(out)
            }
            (Held::Tensor(a), Held::Tensor(b)) => {
                return Err(Fault::Shapes { left: Shape(a.shape.clone()), right: Shape(b.shape.clone()) });
            }
            (Held::Tensor(_), Held::Value(_)) | (Held::Value(_), Held::Tensor(_)) => return Err(Fault::NoTensor),
        };
        self.builder.block = outside;
        Ok(merged)
    }

    /// Sizes that differ become values that each branch fills with its own.
    fn merged_shape(&mut self, a: &View, b: &View, then_block: usize, else_block: usize) -> Vec<Dim> {
        let mut shape = Vec::with_capacity(a.rank());
        for (a, b) in a.shape.iter().zip(&b.shape) {
            if a == b {
                shape.push(a.clone());
                continue;
            }
            let out = self.builder.new_var();
            for (block, size) in [(then_block, a), (else_block, b)] {
                self.builder.block = block;
                self.builder.step(PlanStep::Host { out, op: HostOp::Copy(size.clone()) });
            }
            shape.push(Dim::var(out));
        }
        shape
    }

    /// Runs the body once per place of an axis. Slots that the body reads and then writes carry over: they get a buffer of
    /// their own that each round reads and writes.
    pub(super) fn scan(&mut self, n: &Scan, chain: usize, index: usize) -> Result<(), PlanError> {
        let at_scan = |fault| PlanError { chain, index, node: "Scan", fault };
        let body = usize::try_from(n.body_chain_idx.0).unwrap_or(usize::MAX);
        let mut written = BTreeSet::new();
        self.written_by(body, &mut written);
        self.keep_before_loop(&written).map_err(at_scan)?;
        let originals = self.tensors(&n.originals).map_err(at_scan)?;
        let rank = originals.first().map_or(0, View::rank);
        let axis = crate::builder::axis(n.scan_axis.into(), rank).map_err(at_scan)?;
        let count = originals.first().map_or(Ok(Dim::fixed(0)), |view| view.size(axis).cloned()).map_err(at_scan)?;
        let most = Dim::fixed(i64::MAX);
        self.builder.within(&count, Dim::fixed(1), most, "number of rounds of a scan").map_err(at_scan)?;
        let carried = self.carried(body, written).map_err(at_scan)?;

        let round = self.builder.new_var();
        for (original, slot) in originals.iter().zip(&n.sliced) {
            self.held.insert(Slot::Tensor(slot.0), Held::Tensor(original.at(axis, &Dim::var(round))));
        }
        let (mut stacked, origin) = (Vec::new(), self.builder.origin);
        let block = self.block(|lowerer| {
            lowerer.chain(body, true)?;
            lowerer.builder.origin = origin;
            for output in &n.outputs {
                let view = lowerer.tensor(ptero_pte::field::Src(output.0)).map_err(at_scan)?;
                let whole = lowerer.collect(&view, axis, &count, &Dim::var(round)).map_err(at_scan)?;
                stacked.push((Slot::Tensor(output.0), whole));
            }
            lowerer.carry_over(&carried).map_err(at_scan)
        })?;
        self.builder.step(PlanStep::Loop { index: round, count, body: block });
        for (slot, whole) in stacked {
            self.held.insert(slot, Held::Tensor(whole));
        }
        Ok(())
    }

    /// What shows a state that a loop writes is copied before the loop: a copy inside it would be made anew in each round.
    fn keep_before_loop(&mut self, written: &BTreeSet<Slot>) -> Result<()> {
        for slot in written {
            if let Slot::Tensor(tensor) = slot
                && let Some(state) = self.states.get(tensor).cloned()
            {
                self.keep_old(*tensor, &state, true)?;
            }
        }
        Ok(())
    }

    /// The slots that hold something now, and that the chain reads before it writes them, each moved into a buffer of its
    /// own.
    fn carried(&mut self, body: usize, mut written: BTreeSet<Slot>) -> Result<Vec<(Slot, View)>> {
        written.retain(|slot| self.nodes(body).iter().find_map(|node| self.first_use(node, *slot)) == Some(true));
        let mut carried = Vec::new();
        for slot in written {
            let is_state = matches!(slot, Slot::Tensor(tensor) if self.states.contains_key(&tensor));
            match self.held.get(&slot).cloned() {
                Some(Held::Tensor(view)) if !is_state => {
                    let own = self.builder.copy(&view)?;
                    self.held.insert(slot, Held::Tensor(own.clone()));
                    carried.push((slot, own));
                }
                // State carries over by itself, and a slot that holds nothing yet has nothing to carry.
                Some(Held::Tensor(_)) | None => {}
                Some(Held::Value(_)) => return Err(Fault::Unsupported("an integer that a scan carries over")),
            }
        }
        Ok(carried)
    }

    fn carry_over(&mut self, carried: &[(Slot, View)]) -> Result<()> {
        for (slot, own) in carried {
            if let Some(Held::Tensor(view)) = self.held.get(slot).cloned()
                && view != *own
            {
                self.builder.same_shape(&view.shape, &own.shape, "what a scan carries over")?;
                self.builder.copy_into(own.clone(), &view)?;
                self.held.insert(*slot, Held::Tensor(own.clone()));
            }
        }
        Ok(())
    }

    /// Writes one round's output into its place of the whole.
    fn collect(&mut self, view: &View, axis: usize, count: &Dim, round: &Dim) -> Result<View> {
        let mut shape = view.shape.clone();
        shape.insert(axis.min(shape.len()), count.clone());
        let whole = self.builder.new_tensor(view.dtype, shape);
        self.builder.copy_into(whole.at(axis, round), view)?;
        Ok(whole)
    }

    fn written_by(&self, chain: usize, written: &mut BTreeSet<Slot>) {
        for node in self.nodes(chain) {
            node.uses(&mut |_, used| match used {
                Use::Write(slot) | Use::Feed(slot) | Use::Collect(slot) => drop(written.insert(slot)),
                Use::Chain(inner) => self.written_by(usize::try_from(inner).unwrap_or(usize::MAX), written),
                Use::Read(_) => {}
            });
        }
    }

    /// Whether anyone reads the slot after the place reached, before it is written anew.
    pub(super) fn is_read_later(&self, slot: Slot) -> bool {
        for place in self.path.iter().rev() {
            let nodes = self.nodes(place.chain);
            let rest = nodes.get(place.next..).unwrap_or_default();
            // A chain that repeats starts over before the one around it goes on.
            let again = if place.repeats { nodes } else { &[] };
            if let Some(is_read) = rest.iter().chain(again).find_map(|node| self.first_use(node, slot)) {
                return is_read;
            }
        }
        self.graph.output_map.iter().any(|output| output.slot() == slot)
    }

    fn nodes(&self, chain: usize) -> &[Node] {
        self.graph.instruction_chains.get(chain).map(Vec::as_slice).unwrap_or_default()
    }

    /// What a node does first with a slot: reads it (`true`), or fills it whatever happens (`false`).
    fn first_use(&self, node: &Node, slot: Slot) -> Option<bool> {
        let (mut reads, mut feeds, mut writes, mut chains) = (false, false, false, Vec::new());
        node.uses(&mut |_, used| match used {
            Use::Read(used) => reads |= used == slot,
            Use::Feed(used) => feeds |= used == slot,
            Use::Chain(chain) => chains.push(usize::try_from(chain).unwrap_or(usize::MAX)),
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
