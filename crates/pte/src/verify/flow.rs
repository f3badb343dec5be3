//! What flows through the slots: nothing is read before it is written, through `If` and `Scan` too, and constants are
//! written by the init chain alone. Knows no node type; it follows the uses that the table states.

use crate::Limits;
use crate::delegate::{Delegate, Role};
use crate::error::{Error, Fault, Result, Step, at_most, pick};
use crate::field::{Slot, Use};
use crate::nodes::Node;
use ptero_tensor::fault::AtStep;
use std::collections::HashSet;

pub(super) fn check(graph: &Delegate, limits: &Limits) -> Result<()> {
    check_nesting(graph, limits)?;
    if let Some(init) = graph.init_chain() {
        Flow::new(graph, limits, true).chain(init).at(|| Step::named("field", "init_chain_idx"))?;
    }
    // Temporaries and values of the init chain are gone when a call starts.
    let mut flow = Flow::new(graph, limits, false);
    flow.chain(usize::try_from(graph.main_chain_idx).unwrap_or(usize::MAX))?;
    for (index, output) in graph.output_map.iter().enumerate() {
        if !flow.held.contains(&output.slot()) {
            return Err(Fault::OutputUnwritten(output.slot()))
                .at(|| Step::indexed("element", index))
                .at(|| Step::named("field", "output_map"));
        }
    }
    Ok(())
}

/// Chains run chains, but none runs itself and the nesting has a limit.
fn check_nesting(graph: &Delegate, limits: &Limits) -> Result<()> {
    let mut heights = vec![None; graph.instruction_chains.len()];
    (0..heights.len()).try_for_each(|chain| height(graph, limits, chain, &mut heights, &mut Vec::new()).map(drop))
}

/// How many chains deep a run of `chain` goes. `open` holds the chains on the way to it.
fn height(
    graph: &Delegate,
    limits: &Limits,
    chain: usize,
    heights: &mut Vec<Option<usize>>,
    open: &mut Vec<usize>,
) -> Result<usize> {
    if open.contains(&chain) {
        return Err(Fault::Recursive(chain).into());
    }
    let known = heights.get(chain).copied().flatten();
    let mut tallest = known.unwrap_or(1);
    if known.is_none() {
        open.push(chain);
        // Checked on the way down, so that the way down is never longer than the limit.
        at_most("nested chains", open.len() as u64, limits.nesting as u64)?;
        for child in children(nodes_of(graph, chain)?) {
            let below = height(graph, limits, child, heights, open)?;
            tallest = tallest.max(below.saturating_add(1));
        }
        open.pop();
    }
    if let Some(entry) = heights.get_mut(chain) {
        *entry = Some(tallest);
    }
    at_most("nested chains", open.len().saturating_add(tallest) as u64, limits.nesting as u64)?;
    Ok(tallest)
}

fn nodes_of(graph: &Delegate, chain: usize) -> Result<&[Node]> {
    pick(&graph.instruction_chains, i64::try_from(chain).unwrap_or(i64::MAX), "chains").map(Vec::as_slice)
}

fn children(nodes: &[Node]) -> Vec<usize> {
    let mut children = Vec::new();
    for node in nodes {
        node.uses(&mut |_, used| {
            if let Use::Chain(chain) = used {
                children.push(usize::try_from(chain).unwrap_or(usize::MAX));
            }
        });
    }
    children.sort_unstable();
    children.dedup();
    children
}

/// Which slots hold something while the chains are walked.
struct Flow<'a> {
    graph: &'a Delegate,
    limits: &'a Limits,
    init: bool,
    held: HashSet<Slot>,
    /// The slots filled so far, oldest first, so that a branch can be taken back.
    trail: Vec<Slot>,
    visits: u64,
}

impl<'a> Flow<'a> {
    fn new(graph: &'a Delegate, limits: &'a Limits, init: bool) -> Self {
        let mut flow = Self { graph, limits, init, held: HashSet::new(), trail: Vec::new(), visits: 0 };
        (0..graph.num_constant_tensors).for_each(|constant| flow.fill(Slot::Tensor(constant)));
        graph.mutable_buffer_map.iter().for_each(|state| flow.fill(state.slot()));
        if !init {
            graph.input_map.iter().for_each(|input| flow.fill(input.slot()));
        }
        flow
    }

    fn fill(&mut self, slot: Slot) {
        if self.held.insert(slot) {
            self.trail.push(slot);
        }
    }

    fn chain(&mut self, chain: usize) -> Result<()> {
        for (index, node) in nodes_of(self.graph, chain)?.iter().enumerate() {
            self.node(node).at(|| Step::Instruction(chain, index, node.name()))?;
        }
        Ok(())
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        self.visits += 1;
        at_most("instructions, each chain counted where it is run", self.visits, self.limits.visits)?;
        let mut uses = Vec::new();
        node.uses(&mut |field, used| uses.push((field, used)));
        for &(field, used) in &uses {
            if let Use::Read(slot) = used
                && !self.held.contains(&slot)
            {
                return Err(at_field(Fault::ReadBeforeWrite(slot), field));
            }
        }
        self.write(&uses, |used| if let Use::Feed(slot) = used { Some(slot) } else { None })?;
        let chains = uses.iter().filter_map(|&(field, used)| match used {
            Use::Chain(chain) => Some((field, usize::try_from(chain).unwrap_or(usize::MAX))),
            Use::Read(_) | Use::Feed(_) | Use::Collect(_) | Use::Write(_) => None,
        });
        self.alternatives(chains)?;
        for &(field, used) in &uses {
            if let Use::Collect(slot) = used
                && !self.held.contains(&slot)
            {
                return Err(at_field(Fault::NotCollected(slot), field));
            }
        }
        self.write(&uses, |used| if let Use::Collect(slot) | Use::Write(slot) = used { Some(slot) } else { None })
    }

    fn write(&mut self, uses: &[(&'static str, Use)], written: impl Fn(Use) -> Option<Slot>) -> Result<()> {
        for &(field, used) in uses {
            let Some(slot) = written(used) else { continue };
            if let Slot::Tensor(tensor) = slot
                && !self.init
                && self.graph.role(tensor) == Some(Role::Constant)
            {
                return Err(at_field(Fault::WritesConstant(tensor), field));
            }
            self.fill(slot);
        }
        Ok(())
    }

    /// Runs each chain from the same start; afterwards a slot holds something when every chain filled it.
    fn alternatives(&mut self, chains: impl Iterator<Item = (&'static str, usize)>) -> Result<()> {
        let mut common: Option<Vec<Slot>> = None;
        for (field, chain) in chains {
            let start = self.trail.len();
            self.chain(chain).at(|| Step::named("field", field))?;
            let filled: Vec<Slot> = self.trail.drain(start..).collect();
            for &slot in &filled {
                self.held.remove(&slot);
            }
            common = Some(match common {
                None => filled,
                Some(mut common) => {
                    let filled: HashSet<Slot> = filled.into_iter().collect();
                    common.retain(|slot| filled.contains(slot));
                    common
                }
            });
        }
        common.into_iter().flatten().for_each(|slot| self.fill(slot));
        Ok(())
    }
}

fn at_field(fault: Fault, field: &'static str) -> Error {
    Error::from(fault).at(Step::named("field", field))
}
