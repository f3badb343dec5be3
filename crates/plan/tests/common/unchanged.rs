//! Graphs that a pass declines.

use expect_test::Expect;
use ptero_plan::graph::Graph;
use ptero_plan::passes;

/// Checks that a pass leaves a graph as it is, and the reason it gives, without its name and the words `not fused`.
#[track_caller]
pub(crate) fn declined(mut graph: Graph, pass: fn(&mut Graph) -> Vec<String>, name: &str, wanted: Expect) {
    passes::drop_unused(&mut graph);
    let before = graph.to_string();
    let notes = pass(&mut graph).join("\n");
    let (at, why) = notes.split_once(": not fused: ").unwrap_or_else(|| panic!("{notes}"));
    wanted.assert_eq(&format!("{}: {why}", at.strip_prefix(&format!("{name}: ")).unwrap_or(at)));
    assert_eq!(graph.to_string(), before, "what is declined stays as it is");
}
