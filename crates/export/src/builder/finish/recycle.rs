//! Slots for temporaries. A runtime holds what a slot holds until it is written again, so a model whose every node had a
//! slot of its own would keep all its activations; here a slot is used again once its tenant is done with.

use ptero_pte::{Node, Slot, Use};
use std::collections::{BTreeMap, BTreeSet};

/// The slot of each temporary that some node touches, counted from 0.
pub(super) fn slots(
    chains: &[Vec<Node>],
    init: Option<usize>,
    main: usize,
    is_temporary: impl Fn(u32) -> bool,
) -> BTreeMap<u32, u32> {
    let mut walk = Walk {
        chains,
        is_temporary,
        begun: vec![false; chains.len()],
        done: Vec::new(),
        held: vec![0; chains.len()],
        lives: BTreeMap::new(),
        now: 0,
    };
    // Chains that nothing runs come last: what they name must exist too.
    for chain in init.into_iter().chain([main]).chain(0..chains.len()) {
        walk.chain(chain);
    }
    assign(walk.finish())
}

/// From the first touch to the last, both included.
#[derive(Clone, Copy)]
struct Life {
    first: u64,
    last: u64,
}

/// A walk over the nodes in an order in which they could run, with a clock that counts them. It visits each chain once,
/// however often the chain is run, so that its length is that of the graph.
struct Walk<'a, F> {
    chains: &'a [Vec<Node>],
    is_temporary: F,
    begun: Vec<bool>,
    /// Chains in the order in which they ended: one that runs another comes after it.
    done: Vec<usize>,
    /// When each chain was last run after its visit; what it touches lives until then.
    held: Vec<u64>,
    lives: BTreeMap<u32, Life>,
    now: u64,
}

impl<F: Fn(u32) -> bool> Walk<'_, F> {
    fn chain(&mut self, index: usize) {
        match self.begun.get_mut(index) {
            Some(begun) if !*begun => *begun = true,
            Some(_) | None => return,
        }
        let chains = self.chains;
        chains.get(index).into_iter().flatten().for_each(|node| self.node(node));
        self.done.push(index);
    }

    fn node(&mut self, node: &Node) {
        let (touched, run) = self.uses(node);
        self.touch(&touched);
        for chain in &run {
            let is_known = self.begun.get(*chain).is_some_and(|begun| *begun);
            self.chain(*chain);
            if is_known {
                self.touch(&[]);
                self.hold(*chain, self.now);
            }
        }
        // A body may read in one turn what it wrote in the last, so all of it lives until the last turn is over.
        if !run.is_empty() && !matches!(node, Node::If(_)) {
            self.touch(&touched);
            run.iter().for_each(|chain| self.hold(*chain, self.now));
        }
    }

    /// The temporaries that a node touches itself, and the chains that it runs.
    fn uses(&self, node: &Node) -> (Vec<u32>, Vec<usize>) {
        let (mut touched, mut run) = (Vec::new(), Vec::new());
        node.uses(&mut |_, used| match used {
            Use::Read(slot) | Use::Write(slot) | Use::Feed(slot) | Use::Collect(slot) => match slot {
                Slot::Tensor(tensor) if (self.is_temporary)(tensor) => touched.push(tensor),
                Slot::Tensor(_) | Slot::Value(_) => {}
            },
            Use::Chain(chain) => run.push(usize::try_from(chain).unwrap_or(usize::MAX)),
        });
        (touched, run)
    }

    fn touch(&mut self, tensors: &[u32]) {
        self.now += 1;
        let now = self.now;
        for tensor in tensors {
            self.lives.entry(*tensor).or_insert(Life { first: now, last: now }).last = now;
        }
    }

    fn hold(&mut self, chain: usize, until: u64) {
        if let Some(held) = self.held.get_mut(chain) {
            *held = until.max(*held);
        }
    }

    /// Lets what each chain touches live as long as the chain is run, the chains that it runs included.
    fn finish(mut self) -> BTreeMap<u32, Life> {
        let chains = self.chains;
        while let Some(index) = self.done.pop() {
            let until = self.held.get(index).copied().unwrap_or(0);
            if until == 0 {
                continue;
            }
            for node in chains.get(index).into_iter().flatten() {
                let (touched, run) = self.uses(node);
                for tensor in touched {
                    self.lives.entry(tensor).and_modify(|life| life.last = until.max(life.last));
                }
                run.iter().for_each(|chain| self.hold(*chain, until));
            }
        }
        self.lives
    }
}

/// First come, first served; the lowest free slot. A slot is free when its tenant's last touch is past.
fn assign(lives: BTreeMap<u32, Life>) -> BTreeMap<u32, u32> {
    let mut order: Vec<(u32, Life)> = lives.into_iter().collect();
    order.sort_by_key(|(tensor, life)| (life.first, *tensor));
    let mut free = BTreeSet::new();
    let mut leaving = BTreeSet::new();
    let (mut slots, mut count) = (BTreeMap::new(), 0_u32);
    for (tensor, life) in order {
        while let Some(&(last, slot)) = leaving.first()
            && last < life.first
        {
            leaving.pop_first();
            free.insert(slot);
        }
        let slot = free.pop_first().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        leaving.insert((life.last, slot));
        slots.insert(tensor, slot);
    }
    slots
}

#[cfg(test)]
mod tests {
    use super::*;
    use ptero_pte::field::{Chain, Dst, Int, Src, Value};
    use ptero_pte::nodes::{IdCopy, If};
    use std::cell::Cell;

    /// A line of nodes, and as many nodes that run it again: the work must not be the product of the two.
    #[test]
    fn each_node_is_looked_at_twice_at_most_however_often_its_chain_is_run() {
        for many in [10, 1000] {
            let line = (0..many).map(|index| IdCopy { x: Src(index), out: Dst(index + 1) }.into()).collect();
            let again = If { cond: Int::Value(Value(0)), then_chain_idx: Chain(0), else_chain_idx: Chain(0) };
            let chains: [Vec<Node>; 2] = [line, vec![again.into(); many as usize]];
            let seen = Cell::new(0);
            let is_temporary = |_| {
                seen.set(seen.get() + 1);
                true
            };
            assert_eq!(slots(&chains, None, 0, is_temporary).len(), many as usize + 1);
            // A node of the line touches two tensors.
            assert!(seen.get() <= 2 * 2 * many, "{} looks at {many} nodes", seen.get());
        }
    }
}
