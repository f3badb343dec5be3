//! The report for people. Names come from the file, so control characters in them are escaped.

use super::report::{Dim, GraphReport, Holdings, MethodReport, Report, ValueReport};
use crate::print::{counted, size};
use std::io::{self, Write};

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";
/// The only escape sequences that this module writes.
pub const STYLES: [&str; 3] = [BOLD, RED, PLAIN];

fn clean(text: &str) -> String {
    text.escape_debug().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

/// Writes the summary.
pub fn summary(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let verdict = if report.problem.is_none() { "structure verified" } else { "NOT SOUND, see below" };
    writeln!(out, "{BOLD}{}{PLAIN}  {}, {verdict}", clean(&report.file), size(report.file_bytes))?;
    for method in &report.methods {
        writeln!(out, "\n{BOLD}{}{PLAIN}", clean(&method.name))?;
        values("inputs", &method.inputs, out)?;
        values("outputs", &method.outputs, out)?;
        for delegate in &method.delegates {
            writeln!(out, "  runs     delegate {}", clean(delegate))?;
        }
        for kernel in &method.kernels {
            writeln!(out, "  runs     kernel {}", clean(kernel))?;
        }
        for graph in method.graph.iter().chain(&method.more_graphs) {
            self::graph(graph, out)?;
        }
    }
    let metadata = report.metadata.iter().map(|(key, value)| (clean(key), clean(&value.to_string())));
    list("metadata", metadata.collect(), out)?;
    list("files", report.files.iter().map(|(name, bytes)| (clean(name), size(*bytes))).collect(), out)?;
    if let Some(problem) = &report.problem {
        writeln!(out, "\n{RED}problem{PLAIN}  {}", clean(problem).replace("\\n", "\n"))?;
    }
    Ok(())
}

fn values(title: &str, values: &[ValueReport], out: &mut dyn Write) -> io::Result<()> {
    let name = |value: &ValueReport| clean(value.name.as_deref().unwrap_or("-"));
    let width = values.iter().map(|value| name(value).chars().count()).max().unwrap_or(0);
    for (index, value) in values.iter().enumerate() {
        let title = if index == 0 { title } else { "" };
        let dims = value.dims.as_deref().map(dims).unwrap_or_default();
        let kind = value.dtype.unwrap_or(value.kind);
        writeln!(out, "  {title:9}{:width$}  {}", name(value), format!("{kind:5} {dims}").trim_end())?;
    }
    if values.is_empty() {
        writeln!(out, "  {title:9}none")?;
    }
    Ok(())
}

fn dims(dims: &[Dim]) -> String {
    let dim = |dim: &Dim| match dim {
        Dim::Fixed(size) => size.to_string(),
        Dim::Range { min, max: Some(max) } => format!("{min}..{max}"),
        Dim::Range { min, max: None } => format!("{min}.."),
    };
    format!("[{}]", dims.iter().map(dim).collect::<Vec<_>>().join(", "))
}

/// Writes names and values below a heading, unless there are none.
fn list(title: &str, entries: Vec<(String, String)>, out: &mut dyn Write) -> io::Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{BOLD}{title}{PLAIN}")?;
    let width = entries.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    entries.iter().try_for_each(|(name, value)| writeln!(out, "  {name:width$}  {value}"))
}

fn graph(graph: &GraphReport, out: &mut dyn Write) -> io::Result<()> {
    let mut kinds: Vec<(&String, &usize)> = graph.nodes.iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let kinds = kinds.iter().map(|(name, count)| format!("{count} {}", name.trim_end_matches("Node")));
    writeln!(out, "  sampling {}", graph.sampling.as_deref().map_or("none in the program".to_owned(), clean))?;
    holdings("weights", &graph.weights, out)?;
    holdings("state", &graph.state, out)?;
    for kernel in &graph.foreign_kernels {
        writeln!(out, "  foreign  {} (Metal source)", clean(kernel))?;
    }
    writeln!(out, "  nodes    {} in {}", graph.node_count, counted(graph.chains.len(), "chain"))?;
    wrapped(kinds.collect::<Vec<_>>(), out)
}

/// Writes words with commas, in lines of limited length.
fn wrapped(words: Vec<String>, out: &mut dyn Write) -> io::Result<()> {
    let mut line = String::new();
    for (index, word) in words.iter().enumerate() {
        let word = if index + 1 == words.len() { word.clone() } else { format!("{word},") };
        if line.len() + word.len() > 88 {
            writeln!(out, "          {line}")?;
            line.clear();
        }
        line = format!("{line} {word}");
    }
    if line.is_empty() { Ok(()) } else { writeln!(out, "          {line}") }
}

fn holdings(title: &str, held: &Holdings, out: &mut dyn Write) -> io::Result<()> {
    if held.tensors == 0 {
        return writeln!(out, "  {title:9}none");
    }
    let mut types: Vec<_> = held.by_dtype.iter().collect();
    types.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
    let types = types.iter().map(|(dtype, bytes)| format!("{} {dtype}", size(**bytes))).collect::<Vec<_>>().join(", ");
    writeln!(out, "  {title:9}{} in {}: {types}", size(held.bytes), counted(held.tensors, "tensor"))
}

fn graphs(report: &Report) -> impl Iterator<Item = (&MethodReport, &GraphReport)> {
    report
        .methods
        .iter()
        .flat_map(|method| method.graph.iter().chain(&method.more_graphs).map(move |graph| (method, graph)))
}

/// Writes every instruction, chain by chain.
pub fn nodes(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    for (method, graph) in graphs(report) {
        for (chain, nodes) in graph.chains.iter().enumerate() {
            let role = match chain {
                chain if Some(chain) == graph.init_chain => ", runs once at load",
                chain if chain as u64 == u64::from(graph.main_chain) => ", runs at every call",
                _ => "",
            };
            writeln!(out, "\n{BOLD}{}, chain {chain}{PLAIN}{role}", clean(&method.name))?;
            for (index, node) in nodes.iter().enumerate() {
                writeln!(out, "  {:8} {}", format!("{chain}.{index}"), node.text)?;
            }
        }
    }
    Ok(())
}

/// Writes every constant.
pub fn weights(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    for (method, graph) in graphs(report) {
        let weights: Vec<_> = graph.tensors.iter().filter(|tensor| tensor.role == "constant").collect();
        writeln!(out, "\n{BOLD}{}, {} constants{PLAIN}", clean(&method.name), weights.len())?;
        for weight in weights {
            let bytes = weight.bytes.map_or("?".to_owned(), size);
            let offset = weight.offset.map_or("no data".to_owned(), |offset| format!("@{offset}"));
            let (name, shape) = (clean(weight.name.as_deref().unwrap_or("-")), format!("{:?}", weight.shape));
            writeln!(out, "  {:6} {:5} {shape:18} {bytes:>8} {offset:>12}  {name}", weight.slot, weight.dtype)?;
        }
    }
    Ok(())
}
