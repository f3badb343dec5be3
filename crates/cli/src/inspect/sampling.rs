//! Describes how a graph samples, by looking at its nodes.

use ptero::short_name;
use ptero_pte::field::{Int, IntOrSrc};
use ptero_pte::nodes::RandomBits;
use ptero_pte::{Delegate, Node, Slot, Use};

/// Describes the first source of random bits and the argmax after it; `None` for a graph without random bits.
pub(super) fn describe(graph: &Delegate) -> Option<String> {
    let (chain, bits) = graph.instruction_chains.iter().enumerate().find_map(|(chain, nodes)| {
        nodes.iter().find_map(|node| if let Node::RandomBits(bits) = node { Some((chain, &**bits)) } else { None })
    })?;
    // Where noise is chosen, the bits are those of the arm without an exact tail, which is the other one.
    let (chain, bits, has_exact_tail) = match choice(graph, chain) {
        Some((chain, bits)) => (chain, bits, true),
        None => (chain, bits, false),
    };
    let nodes = graph.instruction_chains.get(chain)?;
    if !nodes.iter().any(|node| matches!(node, Node::Argmax(_))) {
        return Some(format!("none, but draws random bits of shape {}", shape(bits)));
    }
    let mut filters = vec!["temperature"];
    let sorts = nodes.iter().any(|node| matches!(node, Node::Sort(_)));
    if sorts && nodes.iter().any(|node| matches!(node, Node::Take(take) if !matches!(take.index, IntOrSrc::Tensor(_))))
    {
        filters.push("top-k");
    }
    if sorts && nodes.iter().any(|node| matches!(node, Node::Cumsum(_))) {
        filters.push("top-p");
    }
    // After top-p there is one exponential more, for min-p; what changes logits, and log-probabilities, are outside the branch.
    if nodes.iter().any(|node| matches!(node, Node::Exp(_))) {
        filters.push("min-p");
    }
    let input = |name: &str| graph.named_slots.iter().any(|named| short_name(&named.name) == name);
    if input("repetition_penalty") && input("token_mask") {
        filters.push("penalties, logit biases, a token mask and log-probabilities");
    }
    filters.extend(has_exact_tail.then_some("an exact tail by name"));
    let greedy = if runs_as_branch(graph, chain) { "; greedy where the temperature is 0" } else { "" };
    Some(format!("Gumbel-max over {} with {}; {}{greedy}", shape(bits), filters.join(", "), seed(graph, nodes, bits)))
}

/// The chain that chooses between the noise of a chain and that of another, and the bits of the other.
fn choice(graph: &Delegate, arm: usize) -> Option<(usize, &RandomBits)> {
    let (chain, other) = graph.instruction_chains.iter().enumerate().find_map(|(chain, nodes)| {
        let other = nodes.iter().find_map(|node| match node {
            Node::If(run) if run.then_chain_idx.0 as usize == arm => Some(run.else_chain_idx.0 as usize),
            _ => None,
        });
        Some((chain, other?))
    })?;
    let nodes = graph.instruction_chains.get(other)?;
    let bits = nodes.iter().find_map(|node| if let Node::RandomBits(bits) = node { Some(&**bits) } else { None })?;
    Some((chain, bits))
}

fn shape(bits: &RandomBits) -> String {
    let sizes = bits.shape.iter().map(|size| match size {
        Int::Literal(size) => size.to_string(),
        Int::Value(value) => Slot::Value(value.0).to_string(),
    });
    format!("[{}]", sizes.collect::<Vec<_>>().join(", "))
}

/// Describes where the seed comes from: the tensor that an `ItemInt` before the bits reads.
fn seed(graph: &Delegate, nodes: &[Node], bits: &RandomBits) -> String {
    let Some(seed) = bits.seed else {
        return "no seed: the runtime's own key sequence".to_owned();
    };
    let read = nodes.iter().chain(graph.nodes()).find_map(|node| match node {
        Node::ItemInt(item) if item.out.0 == seed.0 => Some(Slot::Tensor(item.x.0)),
        _ => None,
    });
    let slot = read.unwrap_or(Slot::Value(seed.0));
    match graph.names().get(&slot).filter(|_| read.is_some()) {
        Some(name) => format!("seed from `{}`", short_name(name).escape_debug()),
        None => format!("seed from {slot}"),
    }
}

fn runs_as_branch(graph: &Delegate, chain: usize) -> bool {
    let mut found = false;
    for node in graph.nodes().filter(|node| matches!(node, Node::If(_))) {
        node.uses(&mut |_, used| found |= matches!(used, Use::Chain(target) if u64::from(target) == chain as u64));
    }
    found
}
