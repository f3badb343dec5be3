//! Upstream's head in a program that has it: where it is, and the program without it.

use super::site::Site;
use super::text::{graph, input_slot};
use ptero_pte::field::{Int, Src, Value};
use ptero_pte::nodes::{Argmax, If, RandomBits};
use ptero_pte::{Delegate, Method, Node, Payload, Program, Role, ShapeDim, Slot, Use};
use ptero_sampling::inputs::{Head, InputShape};
use std::collections::{BTreeSet, HashSet};

/// A head of the main chain: a comparison with the temperature, its item, and the branch on it.
#[derive(Debug)]
pub(super) struct PlainHead {
    /// The index of the branch in the main chain.
    branch: usize,
    /// Its two chains.
    chains: [usize; 2],
    logits: LogitsSlot,
    /// The slots of its inputs, in the order of the table.
    inputs: Vec<u32>,
}

/// Logits of one row that a head read.
#[derive(Clone, Debug)]
pub(super) struct LogitsSlot {
    pub(super) slot: u32,
    pub(super) batch: ShapeDim,
    pub(super) vocabulary: i32,
}

/// A graph whose head was taken out.
#[derive(Debug)]
pub(super) struct Removed {
    /// The graph, up to the head.
    pub(super) graph: Delegate,
    /// The nodes of the main chain after the head.
    pub(super) after: Vec<Node>,
    pub(super) logits: LogitsSlot,
    /// The slots of the inputs of the head.
    pub(super) inputs: Vec<u32>,
    /// Constants that nothing reads any more.
    pub(super) dropped: Vec<u32>,
}

impl PlainHead {
    /// Works on programs that are not verified. `output` is that of the graph.
    pub(super) fn find(method: &Method, delegate: usize, output: usize) -> Option<Self> {
        let graph = graph(method, delegate)?;
        let Slot::Tensor(token) = graph.output_map.get(output)?.slot() else { return None };
        let nodes = chain(graph, usize::try_from(graph.main_chain_idx).ok()?);
        let branch = nodes.iter().rposition(|node| matches!(node, Node::If(_)))?;
        let (start, rest) = nodes.split_at_checked(branch)?;
        let (Node::If(run), after) = rest.split_first()? else { return None };
        let [.., compared @ Node::Greater(greater), item @ Node::ItemInt(value)] = start else { return None };
        if run.cond != Int::Value(Value(value.out.0)) || value.x.0 != greater.out.0 {
            return None;
        }
        let chains = chains_of(run)?;
        let (slot, vocabulary, is_seeded) = shape_of(graph, chains, token)?;
        let inputs = inputs(method, graph, delegate, greater.a, is_seeded)?;
        if !is_apart(graph, chains, [compared, item], after, token) || !runs_once(graph, chains) {
            return None;
        }
        let logits = LogitsSlot { slot, batch: ShapeDim::fixed(1), vocabulary };
        Some(Self { branch, chains, logits, inputs })
    }

    /// Takes the head out of a verified program, with the data of constants that only it read.
    pub(super) fn remove(&self, program: &mut Program, site: &Site) -> Option<Removed> {
        let found = program.methods.get(site.method).and_then(|method| graph(method, site.delegate))?;
        let mut graph = found.clone();
        let main = usize::try_from(graph.main_chain_idx).ok()?;
        let before = tensors_read(&graph);
        let after = graph.instruction_chains.0.get_mut(main)?.split_off(self.branch + 1);
        graph.instruction_chains.0.get_mut(main)?.truncate(self.branch.checked_sub(2)?);
        let after = remove_chains(&mut graph, self.chains, after);
        let mut left = tensors_read(&graph);
        after.iter().for_each(|node| add_reads(node, &mut left));
        let dropped: Vec<u32> =
            before.difference(&left).copied().filter(|slot| graph.role(*slot) == Some(Role::Constant)).collect();
        drop_data(program, site, &graph, &dropped);
        Some(Removed { graph, after, logits: self.logits.clone(), inputs: self.inputs.clone(), dropped })
    }
}

fn chain(graph: &Delegate, index: usize) -> &[Node] {
    graph.instruction_chains.get(index).map_or(&[], Vec::as_slice)
}

fn chains_of(run: &If) -> Option<[usize; 2]> {
    let [then, otherwise] = [run.then_chain_idx, run.else_chain_idx].map(|chain| usize::try_from(chain.0).ok());
    then.zip(otherwise).map(<[usize; 2]>::from).filter(|[then, otherwise]| then != otherwise)
}

/// The logits, the size of the vocabulary, and `true` if there is a seed: one branch draws from all of one row, the other takes
/// the largest.
fn shape_of(graph: &Delegate, [then, otherwise]: [usize; 2], token: u32) -> Option<(u32, i32, bool)> {
    let [Node::Argmax(greedy)] = chain(graph, otherwise) else { return None };
    let [draw @ .., Node::Argmax(drawn)] = chain(graph, then) else { return None };
    let is_token = |node: &Argmax| node.out.0 == token && node.axis == -1 && !node.keepdims;
    if !is_token(greedy) || !is_token(drawn) {
        return None;
    }
    let mut bits = draw.iter().filter_map(|node| if let Node::RandomBits(bits) = node { Some(&**bits) } else { None });
    let (Some(RandomBits { shape, seed, .. }), None) = (bits.next(), bits.next()) else { return None };
    let [Int::Literal(1), Int::Literal(vocabulary)] = shape.as_slice() else { return None };
    Some((greedy.x.0, i32::try_from(*vocabulary).ok()?, seed.is_some()))
}

/// The inputs of the method from the temperature on, if they are those of a head.
fn inputs(method: &Method, graph: &Delegate, delegate: usize, temperature: Src, is_seeded: bool) -> Option<Vec<u32>> {
    let slot = |at| input_slot(method, graph, delegate, at);
    let first = (0..method.inputs.len()).find(|at| slot(*at).is_some_and(|(slot, _)| slot == temperature.0))?;
    let head = if is_seeded { Head::Plain } else { Head::Unseeded };
    let mut slots = Vec::new();
    for (at, input) in (first..).zip(head.inputs()) {
        let (slot, meta) = slot(at)?;
        let is_alike = meta.scalar_type == input.dtype && meta.shape.is_empty() && input.shape == InputShape::Scalar;
        slots.push(slot);
        is_alike.then_some(())?;
    }
    (first + slots.len() == method.inputs.len()).then_some(slots)
}

/// Returns `true` if the head writes nothing that lasts but the token, and nodes after it read nothing else of it.
fn is_apart(graph: &Delegate, chains: [usize; 2], head: [&Node; 2], after: &[Node], token: u32) -> bool {
    let (mut own, mut is_apart) = (HashSet::new(), true);
    let lasts = |slot| matches!(slot, Slot::Tensor(slot) if graph.role(slot) != Some(Role::Temporary));
    for node in chains.into_iter().flat_map(|index| chain(graph, index)).chain(head) {
        node.uses(&mut |_, used| match used {
            Use::Read(_) => {}
            Use::Write(slot) if slot == Slot::Tensor(token) => {}
            Use::Write(slot) if !lasts(slot) => drop(own.insert(slot)),
            Use::Write(_) | Use::Feed(_) | Use::Collect(_) | Use::Chain(_) => is_apart = false,
        });
    }
    for node in after {
        let mut written = Vec::new();
        node.uses(&mut |_, used| match used {
            Use::Read(slot) => is_apart &= !own.contains(&slot),
            Use::Write(slot) if slot != Slot::Tensor(token) => written.push(slot),
            Use::Write(_) | Use::Feed(_) | Use::Collect(_) | Use::Chain(_) => is_apart = false,
        });
        own.retain(|slot| !written.contains(slot));
    }
    is_apart
}

/// Returns `true` if one node runs each of these chains, and nothing else does.
fn runs_once(graph: &Delegate, chains: [usize; 2]) -> bool {
    let mut run: Vec<Option<usize>> = vec![usize::try_from(graph.main_chain_idx).ok(), graph.init_chain()];
    for node in graph.nodes() {
        node.uses(&mut |_, used| {
            if let Use::Chain(chain) = used {
                run.push(usize::try_from(chain).ok());
            }
        });
    }
    chains.into_iter().all(|chain| run.iter().filter(|index| **index == Some(chain)).count() == 1)
}

/// The tensors that nodes read.
fn tensors_read(graph: &Delegate) -> BTreeSet<u32> {
    let mut read = BTreeSet::new();
    graph.nodes().for_each(|node| add_reads(node, &mut read));
    read.extend(graph.output_map.iter().map(|slot| slot.idx));
    read
}

fn add_reads(node: &Node, read: &mut BTreeSet<u32>) {
    node.uses(&mut |_, used| {
        if let Use::Read(Slot::Tensor(slot)) = used {
            read.insert(slot);
        }
    });
}

/// Removes two chains, and numbers the others anew, also where nodes run them: those of the graph and those given.
fn remove_chains(graph: &mut Delegate, chains: [usize; 2], mut after: Vec<Node>) -> Vec<Node> {
    let renumbered = |index: u32| {
        let is_before = |removed: &&usize| u32::try_from(**removed).is_ok_and(|removed| removed < index);
        index - u32::try_from(chains.iter().filter(is_before).count()).unwrap_or(0)
    };
    let kept = std::mem::take(&mut graph.instruction_chains.0).into_iter().enumerate();
    let kept = kept.filter(|(index, _)| !chains.contains(index));
    graph.instruction_chains.0 = kept.map(|(_, nodes)| nodes).collect();
    for node in graph.instruction_chains.0.iter_mut().flatten().chain(&mut after) {
        node.rewire(&mut |used| match used {
            Use::Read(slot) | Use::Write(slot) | Use::Feed(slot) | Use::Collect(slot) => match slot {
                Slot::Tensor(index) | Slot::Value(index) => index,
            },
            Use::Chain(chain) => renumbered(chain),
        });
    }
    graph.main_chain_idx = renumbered(graph.main_chain_idx);
    let init = u32::try_from(graph.init_chain_idx).map(renumbered);
    graph.init_chain_idx = init.map_or(-1, |init| i32::try_from(init).unwrap_or(-1));
    after
}

/// Removes the data of constants that no other graph names.
fn drop_data(program: &mut Program, site: &Site, graph: &Delegate, dropped: &[u32]) {
    let names = graph.names();
    let is_dropped = |slot: &u32| names.get(&Slot::Tensor(*slot)).copied();
    let mut keys: HashSet<String> = dropped.iter().filter_map(is_dropped).map(str::to_owned).collect();
    for (index, method) in program.methods.iter().enumerate() {
        for (at, delegate) in method.delegates.iter().enumerate() {
            if let Payload::Mlx(other) = &delegate.payload
                && (index, at) != (site.method, site.delegate)
            {
                keys.retain(|key| other.named_slots.iter().all(|named| named.name != *key));
            }
        }
    }
    program.named_data.retain(|entry| !keys.contains(&entry.key));
}
