//! What a graph computes, whatever its slots are called: each node with the origin of all it reads.

use ptero_pte::{Datum, Graph, Node, Program, Role, Slot, Use};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The nodes in an order in which they could run. Two graphs with the same trace compute the same.
pub(crate) fn trace(program: &Program, graph: &Graph) -> Vec<String> {
    let data = program.data_by_name();
    let names = graph.names();
    let mut origins = BTreeMap::new();
    let mut inputs = 0;
    for (slot, meta) in (0..).zip(&graph.tensor_meta) {
        let name = names.get(&Slot::Tensor(slot)).copied().unwrap_or_default();
        let short = name.rsplit('/').next().unwrap_or_default();
        let origin = match graph.role(slot) {
            Some(Role::Constant) => format!("{:?} {:?}", meta, data.get(name).map(|data| data.to_vec())),
            Some(Role::Input) => {
                inputs += 1;
                // Upstream's programs of the models call theirs by number.
                if short.starts_with("args_") { format!("input {}", inputs - 1) } else { short.to_owned() }
            }
            Some(Role::State) => format!("state {short}"),
            Some(Role::Output | Role::Temporary) | None => continue,
        };
        origins.insert(Slot::Tensor(slot), hash(&origin));
    }
    let mut trace = Trace { graph, origins, lines: Vec::new() };
    graph.init_chain().into_iter().for_each(|chain| trace.chain(chain));
    trace.chain(graph.main_chain_idx as usize);
    trace.lines
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

struct Trace<'a> {
    graph: &'a Graph,
    /// Where what a slot holds comes from.
    origins: BTreeMap<Slot, u64>,
    lines: Vec<String>,
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
            Use::Read(slot) => read.push(self.origins.get(&slot).copied()),
            Use::Write(slot) | Use::Feed(slot) | Use::Collect(slot) => written.push(slot),
            Use::Chain(chain) => chains.push(chain as usize),
        });
        let fields: Vec<_> = node.fields().into_iter().map(|(name, datum)| (name, literal(datum))).collect();
        let line = format!("{} {fields:?} {read:?}", node.name());
        for (index, slot) in written.iter().enumerate() {
            self.origins.insert(*slot, hash(&(self.lines.len(), index)));
        }
        self.lines.push(line);
        match node {
            Node::If(_) => self.branches(&chains),
            // Twice: what one turn leaves, the next may read.
            _ => chains.iter().chain(&chains).for_each(|chain| self.chain(*chain)),
        }
    }

    /// Afterwards a slot comes from both branches, or from nowhere that may be read.
    fn branches(&mut self, chains: &[usize]) {
        let before = self.origins.clone();
        let mut after: Vec<BTreeMap<Slot, u64>> = Vec::new();
        for chain in chains {
            self.origins = before.clone();
            self.lines.push("branch".to_owned());
            self.chain(*chain);
            after.push(self.origins.clone());
        }
        let (one, two) = (&after[0], &after[1]);
        let both = one.iter().filter_map(|(slot, one)| Some((*slot, *one, *two.get(slot)?)));
        self.origins = both.map(|(slot, one, two)| (slot, if one == two { one } else { hash(&(one, two)) })).collect();
        self.lines.push("joined".to_owned());
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

/// The part of a trace from the comparison with the temperature on, its origins numbered as they appear.
pub(crate) fn head(program: &Program, graph: &Graph) -> Vec<String> {
    let lines = trace(program, graph);
    let start = lines.iter().rposition(|line| line.starts_with("If ")).unwrap() - 2;
    let end = lines.iter().rposition(|line| line == "joined").unwrap();
    let mut numbers = HashMap::new();
    let mut renumber = |line: &String| {
        let words = line.split_inclusive(|c: char| !c.is_ascii_digit());
        let word = |word: &str| {
            let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
            if digits.len() < 15 || line.contains("branch") {
                return word.to_owned();
            }
            let next = numbers.len();
            word.replace(digits, &format!("#{}", numbers.entry(digits.to_owned()).or_insert(next)))
        };
        words.map(word).collect::<String>()
    };
    lines[start..end].iter().map(&mut renumber).collect()
}
