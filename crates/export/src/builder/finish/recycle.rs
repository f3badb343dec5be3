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
    let mut walk = Walk { chains, is_temporary, touched: vec![None; chains.len()], lives: BTreeMap::new(), now: 0 };
    // Chains that nothing runs come last: what they name must exist too.
    for chain in init.into_iter().chain([main]).chain(0..chains.len()) {
        if walk.touched.get(chain).is_some_and(Option::is_none) {
            walk.chain(chain);
        }
    }
    assign(walk.lives)
}

/// From the first touch to the last, both included.
#[derive(Clone, Copy)]
struct Life {
    first: u64,
    last: u64,
}

/// A walk over the nodes in an order in which they could run, with a clock that counts them.
struct Walk<'a, F> {
    chains: &'a [Vec<Node>],
    is_temporary: F,
    /// What a chain touches, once it is known. A chain being walked counts as known to touch nothing: none runs itself.
    touched: Vec<Option<BTreeSet<u32>>>,
    lives: BTreeMap<u32, Life>,
    now: u64,
}

impl<F: Fn(u32) -> bool> Walk<'_, F> {
    fn chain(&mut self, index: usize) -> BTreeSet<u32> {
        match self.touched.get_mut(index) {
            None => return BTreeSet::new(),
            Some(Some(known)) => return known.clone(),
            Some(unknown) => *unknown = Some(BTreeSet::new()),
        }
        let chains = self.chains;
        let mut touched = BTreeSet::new();
        for node in chains.get(index).into_iter().flatten() {
            touched.append(&mut self.node(node));
        }
        self.touched.iter_mut().skip(index).take(1).for_each(|known| *known = Some(touched.clone()));
        touched
    }

    fn node(&mut self, node: &Node) -> BTreeSet<u32> {
        let (mut touched, mut run) = (BTreeSet::new(), Vec::new());
        node.uses(&mut |_, used| match used {
            Use::Read(slot) | Use::Write(slot) | Use::Feed(slot) | Use::Collect(slot) => match slot {
                Slot::Tensor(tensor) if (self.is_temporary)(tensor) => _ = touched.insert(tensor),
                Slot::Tensor(_) | Slot::Value(_) => {}
            },
            Use::Chain(chain) => run.push(usize::try_from(chain).unwrap_or(usize::MAX)),
        });
        self.touch(&touched);
        let is_turning = !run.is_empty() && !matches!(node, Node::If(_));
        for chain in run {
            let is_known = self.touched.get(chain).is_some_and(Option::is_some);
            let mut within = self.chain(chain);
            if is_known {
                self.touch(&within);
            }
            touched.append(&mut within);
        }
        // A body may read in one turn what it wrote in the last, so all of it lives until the last turn is over.
        if is_turning {
            self.touch(&touched);
        }
        touched
    }

    fn touch(&mut self, tensors: &BTreeSet<u32>) {
        self.now += 1;
        let now = self.now;
        for tensor in tensors {
            self.lives.entry(*tensor).or_insert(Life { first: now, last: now }).last = now;
        }
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
