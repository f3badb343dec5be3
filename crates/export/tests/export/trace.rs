//! What a graph computes, whatever its slots are called: each node with the origin of all it reads.

use ptero_pte::{Datum, Delegate, Node, Program, Role, Slot, Use};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Where what a slot holds comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// A constant with its type, shape and data, an input by its place, or state by its name.
    Given(String),
    /// An output of a node.
    Node(u64),
}

/// A node: its name and its fields apart from slots, and where what it reads comes from.
pub(crate) type Line = (String, Vec<Option<Origin>>);

/// The nodes in an order in which they could run. Two graphs with the same trace compute the same.
pub(crate) fn trace(program: &Program, graph: &Delegate) -> Vec<Line> {
    let (data, names) = (program.data_by_name(), graph.names());
    let mut origins = BTreeMap::new();
    for (slot, meta) in (0..).zip(&graph.tensor_meta) {
        let slot = Slot::Tensor(slot);
        let name = names.get(&slot).copied().unwrap_or_default();
        let role = if let Slot::Tensor(index) = slot { graph.role(index) } else { None };
        let origin = match role {
            Some(Role::Constant) => format!("{meta:?} {:?}", data.get(name).map(|data| data.to_vec())),
            Some(Role::Input) => {
                format!("input {:?}", graph.input_map.iter().position(|input| input.slot() == slot))
            }
            Some(Role::State) => format!("state {name}"),
            Some(Role::Output | Role::Temporary) | None => continue,
        };
        origins.insert(slot, Origin::Given(origin));
    }
    let mut trace = Trace { graph, origins, lines: Vec::new() };
    graph.init_chain().into_iter().for_each(|chain| trace.chain(chain));
    trace.chain(graph.main_chain_idx as usize);
    for output in &graph.output_map {
        let origin = trace.origins.get(&output.slot()).cloned();
        trace.lines.push(("output".to_owned(), vec![origin]));
    }
    trace.lines
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

struct Trace<'a> {
    graph: &'a Delegate,
    origins: BTreeMap<Slot, Origin>,
    lines: Vec<Line>,
}

impl Trace<'_> {
    fn chain(&mut self, chain: usize) {
        let graph = self.graph;
        for node in graph.instruction_chains.get(chain).into_iter().flatten() {
            self.node(node);
        }
    }

    fn node(&mut self, node: &Node) {
        let (mut read, mut written, mut chains) = (Vec::new(), Vec::new(), Vec::new());
        node.uses(&mut |_, used| match used {
            Use::Read(slot) => read.push(self.origins.get(&slot).cloned()),
            Use::Write(slot) | Use::Feed(slot) | Use::Collect(slot) => written.push(slot),
            Use::Chain(chain) => chains.push(chain as usize),
        });
        let fields: Vec<_> = node.fields().into_iter().map(|(name, datum)| (name, literal(datum))).collect();
        for (index, slot) in written.iter().enumerate() {
            self.origins.insert(*slot, Origin::Node(hash(&(self.lines.len(), index))));
        }
        self.lines.push((format!("{} {fields:?}", node.name()), read));
        match node {
            Node::If(_) => self.branches(&chains),
            // Twice: what one turn leaves, the next may read.
            _ => chains.iter().chain(&chains).for_each(|chain| self.chain(*chain)),
        }
    }

    /// Afterwards a slot comes from both branches, or from nowhere that may be read.
    fn branches(&mut self, chains: &[usize]) {
        let before = self.origins.clone();
        let mut after: Vec<BTreeMap<Slot, Origin>> = Vec::new();
        for chain in chains {
            self.origins = before.clone();
            self.lines.push(("branch".to_owned(), Vec::new()));
            self.chain(*chain);
            after.push(self.origins.clone());
        }
        let (one, two) = (&after[0], &after[1]);
        let both = one.iter().filter_map(|(slot, one)| Some((*slot, one, two.get(slot)?)));
        let joined = |one: &Origin, two: &Origin| {
            if one == two { one.clone() } else { Origin::Node(hash(&(one, two))) }
        };
        self.origins = both.map(|(slot, one, two)| (slot, joined(one, two))).collect();
        self.lines.push(("joined".to_owned(), Vec::new()));
    }
}

/// The field without the slots it names.
fn literal(datum: Datum) -> Datum {
    match datum {
        Datum::Slot(_) | Datum::Chain(_) => Datum::Word("slot"),
        Datum::List(items) => Datum::List(items.into_iter().map(literal).collect()),
        other => other,
    }
}

/// The part of a trace from the comparison with the temperature on, with its nodes numbered as they are first read.
pub(crate) fn head(program: &Program, graph: &Delegate) -> Vec<Line> {
    let lines = trace(program, graph);
    let start = lines.iter().rposition(|(node, _)| node.starts_with("If ")).unwrap() - 2;
    let end = lines.iter().rposition(|(node, _)| node == "joined").unwrap();
    let mut numbers = HashMap::new();
    let mut number = |origin: &Option<Origin>| match origin {
        Some(Origin::Node(node)) => {
            let next = numbers.len() as u64;
            Some(Origin::Node(*numbers.entry(*node).or_insert(next)))
        }
        other => other.clone(),
    };
    lines[start..end].iter().map(|(node, read)| (node.clone(), read.iter().map(&mut number).collect())).collect()
}
