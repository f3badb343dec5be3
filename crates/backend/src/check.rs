//! Checks that a device can run a graph. All refusals that do not depend on a call happen here, before anything runs.

mod prim;

use crate::error::{Error, Fault, Place, Result};
use crate::lanes::Steps;
use crate::number::Element;
use ptero_plan::Capabilities;
use ptero_plan::graph::{BlockId, Graph, Input, Node, Op, Output, Type, Value, ViewOp};
use ptero_plan::host::NumberFault;
use ptero_tensor::{DType, byte_count};

/// Refuses a graph that breaks a rule, or asks for something that no device of these capabilities does.
///
/// # Errors
/// The first thing that is wrong, at the instruction that asks for it.
pub fn check_graph(graph: &Graph, capabilities: &Capabilities) -> Result<()> {
    graph.verify().map_err(|error| {
        let nodes = graph.blocks.iter().flat_map(|block| &block.nodes);
        let node = nodes.into_iter().find(|node| node.origin == error.origin);
        let fault = Fault::Contract(error.what);
        node.map_or_else(|| fault.clone().into(), |node| fault.clone().at(place_of(node)))
    })?;
    for (index, input) in graph.inputs.iter().enumerate() {
        if let Input::Tensor(value) = input {
            element(graph, *value).map_err(|fault| fault.at(Place::Input(index)))?;
        }
    }
    for (index, state) in graph.states.iter().enumerate() {
        Element::new(state.dtype).map_err(|fault| fault.at(Place::State(index)))?;
    }
    check_constants(graph)?;
    for (block, is_init) in graph.init.into_iter().map(|block| (block, true)).chain([(graph.main, false)]) {
        check_block(graph, capabilities, block, is_init)?;
    }
    for (index, output) in graph.outputs.iter().enumerate() {
        if let Output::Tensor(value) = output {
            element(graph, *value).map_err(|fault| fault.at(Place::Output(index)))?;
        }
    }
    Ok(())
}

/// Refuses steps that ask for inputs or outputs that the graph does not have, or that have other types.
///
/// # Errors
/// The first of them.
pub fn check_steps(graph: &Graph, steps: &Steps<'_>) -> Result<()> {
    let Some(follow) = steps.follow else { return Ok(()) };
    let is = |value: Value, dtypes: &[DType]| dtypes.contains(&graph.ty(value).dtype);
    let token = find(&graph.outputs, "output", follow.token)?;
    if !matches!(token, Output::Tensor(value) if is(*value, &[DType::I64, DType::I32, DType::U32])) {
        return Err(Fault::Contract("a token is an integer of 32 or 64 bits").at(Place::Output(follow.token)));
    }
    for input in follow.count_up.iter().copied().chain([follow.feed]) {
        let given = find(&graph.inputs, "input", input)?;
        if !matches!(given, Input::Tensor(value) if is(*value, &[DType::I64, DType::I32])) {
            let fault = Fault::Contract("what changes between steps is one element of type i64 or i32");
            return Err(fault.at(Place::Input(input)));
        }
    }
    Ok(())
}

fn find<'a, T>(items: &'a [T], what: &'static str, index: usize) -> Result<&'a T, Fault> {
    items.get(index).ok_or(Fault::NoSuch { what, index, count: items.len() })
}

fn element(graph: &Graph, value: Value) -> Result<Element, Fault> {
    Element::new(graph.ty(value).dtype)
}

/// A constant has fixed sizes and at least as many bytes as they need.
fn check_constants(graph: &Graph) -> Result<(), Fault> {
    for (value, bytes) in &graph.constants {
        let Type { dtype, shape } = graph.ty(*value);
        let size = |size: i64| u64::try_from(size).map_err(|_| NumberFault::NegativeSize(size).into());
        let fixed = shape.iter().map(|dim| size(dim.as_fixed().ok_or_else(|| Fault::NotFixed(dim.clone()))?));
        let sizes = fixed.collect::<Result<Vec<u64>, Fault>>()?;
        let wanted = byte_count(&sizes, *dtype).ok_or(NumberFault::TooLarge)?;
        if (bytes.len() as u64) < wanted {
            return Err(Fault::WrongLength { found: bytes.len(), wanted });
        }
    }
    Ok(())
}

/// Checks the operations of a block and of the blocks it runs. The graph is verified.
fn check_block(graph: &Graph, capabilities: &Capabilities, block: BlockId, is_init: bool) -> Result<()> {
    for node in &graph.block(block).nodes {
        let here = |fault: Fault| -> Error { fault.at(place_of(node)) };
        if is_init {
            check_init(graph, node).map_err(here)?;
        }
        check_node(graph, capabilities, node).map_err(here)?;
        node.op.blocks().into_iter().try_for_each(|block| check_block(graph, capabilities, block, is_init))?;
    }
    Ok(())
}

fn check_node(graph: &Graph, capabilities: &Capabilities, node: &Node) -> Result<(), Fault> {
    for value in node.op.ins().into_iter().chain(node.op.outs()) {
        element(graph, value)?;
    }
    match &node.op {
        Op::Prim(prim) => prim::check(graph, prim),
        Op::Host(_) => graph.reads(&node.op).into_iter().try_for_each(|value| {
            let is_float = element(graph, value)?.is_float();
            if is_float { Err(Fault::Contract("an item is an integer or a bool")) } else { Ok(()) }
        }),
        Op::Foreign(foreign) if !capabilities.foreign_kernels => {
            let [source_hash, header_hash] = foreign.hashes;
            Err(Fault::Foreign { name: foreign.kernel.name.clone(), source_hash, header_hash })
        }
        Op::Foreign(_) | Op::View { .. } | Op::Concat { .. } | Op::Update { .. } | Op::Read { .. } => Ok(()),
        Op::Write { .. } | Op::Check(_) | Op::If { .. } | Op::Loop(_) => Ok(()),
    }
}

/// The init block runs before there are inputs and states.
fn check_init(graph: &Graph, node: &Node) -> Result<(), Fault> {
    let reads = graph.reads(&node.op);
    let is_read = |input: &Input| matches!(input, Input::Tensor(value) if reads.contains(value));
    if graph.inputs.iter().any(is_read) || matches!(node.op, Op::Read { .. } | Op::Write { .. }) {
        return Err(Fault::Contract("the init block uses no input and no state"));
    }
    Ok(())
}

/// The location of an operation: the instruction it came from, and its name.
pub fn place_of(node: &Node) -> Place {
    let name = match &node.op {
        Op::Prim(prim) => prim.name(),
        Op::View { how, .. } => match how {
            ViewOp::Reshape => "reshape",
            ViewOp::Permute(_) => "permute",
            ViewOp::Broadcast => "broadcast",
            ViewOp::Slice { .. } => "slice",
            ViewOp::Strided { .. } => "strided",
        },
        Op::Concat { .. } => "concat",
        Op::Update { .. } => "update",
        Op::Read { .. } => "read",
        Op::Write { .. } => "write",
        // As in plans: reading an item is the only operation of the host that can fail.
        Op::Host(_) => "item",
        Op::Check(_) => "check",
        Op::If { .. } => "if",
        Op::Loop(_) => "loop",
        Op::Foreign(_) => "MetalKernel",
    };
    Place::Step { origin: node.origin, name }
}
