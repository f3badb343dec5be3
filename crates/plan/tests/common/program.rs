//! From a delegate to its graph.

use ptero_plan::graph::Graph;
use ptero_plan::{Options, PlanError, lower};
use ptero_pte::{Delegate, Limits, Method, NamedData, Program, Verified};

/// A program whose method `forward` is this delegate.
pub(crate) fn verified(delegate: Delegate, named_data: Vec<NamedData>) -> Verified {
    let mut method = Method::of_graph("forward", delegate, vec![], vec![], vec![]);
    // What a call would pass is not looked at.
    method.chains.iter_mut().for_each(|chain| chain.instructions.clear());
    Verified::new(Program { methods: vec![method], named_data, ..Program::default() }, &Limits::DEFAULT)
        .expect("the structure of the program is sound")
}

/// Lowers the first delegate of `forward`, and checks the graph.
pub(crate) fn lowered(program: &Verified, options: &Options) -> Result<Graph, PlanError> {
    let (_, delegate) = program.delegates("forward").next().expect("the method has a delegate");
    let graph = lower(delegate, options)?;
    graph.verify().unwrap_or_else(|error| panic!("{error}\n{graph}"));
    Ok(graph)
}

/// The operations of a graph, without its constants, states and inputs.
#[allow(dead_code, reason = "not every test prints")]
pub(crate) fn operations(graph: &Graph) -> String {
    let is_shown = |line: &&str| !["constant", "state", "input"].iter().any(|start| line.starts_with(start));
    graph.to_string().lines().filter(is_shown).map(|line| format!("{line}\n")).collect()
}
