//! Small programs for tests: nodes, a delegate of them, and its graph.
#![allow(dead_code, reason = "each test uses some")]

use ptero_plan::graph::Graph;
use ptero_plan::{Options, PlanError, lower};
use ptero_pte::field::{Chain, Collected, Dst, DstValue, Fed, Float, GeluForm, Int, Src, Value};
use ptero_pte::nodes::*;
use ptero_pte::{
    Chains, DType, Delegate, Limits, Method, NamedData, NamedSlot, Node, Program, ShapeDim, SlotType, SlotVariant,
    TensorMeta, Verified,
};

/// The type of a tensor. A size of -1 varies.
pub(crate) fn meta(scalar_type: DType, sizes: &[i32]) -> TensorMeta {
    let dim = |&value: &i32| ShapeDim { value, min_value: 0, max_value: if value == -1 { 64 } else { -1 } };
    TensorMeta { shape: sizes.iter().map(dim).collect(), scalar_type, dim_order: None }
}

/// A program whose method `forward` runs these chains. The tensors t0, t1, … are constants with this data, then inputs, an
/// output and a state, which have types, then temporaries.
pub(crate) fn program(data: Vec<Vec<u8>>, outputs: &[u32], metas: Vec<TensorMeta>, chains: Vec<Vec<Node>>) -> Verified {
    let slot = |idx| SlotVariant { idx, slot_type: SlotType::Tensor };
    let [constants, state] = [data.len(), metas.len() - 1].map(|count| u32::try_from(count).expect("few tensors"));
    let name = |idx: u32| format!("t{idx}");
    let delegate = Delegate {
        version: None,
        num_constant_tensors: constants,
        num_input_tensors: state - 1 - constants,
        num_output_tensors: 1,
        num_mutable_buffer_tensors: 1,
        num_temp_tensors: 40,
        num_values: 12,
        instruction_chains: Chains(chains),
        main_chain_idx: 0,
        init_chain_idx: -1,
        input_map: (constants..state - 1).map(slot).collect(),
        output_map: outputs.iter().copied().map(slot).collect(),
        mutable_buffer_map: vec![slot(state)],
        named_slots: (0..=state).map(|idx| NamedSlot { name: name(idx), slot: slot(idx) }).collect(),
        tensor_meta: metas,
    };
    let named_data = (0..).zip(data).map(|(idx, data)| NamedData { key: name(idx), data: data.into() }).collect();
    let mut method = Method::of_graph("forward", delegate, vec![], vec![], vec![]);
    // The arguments of a call are not used.
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
pub(crate) fn operations(graph: &Graph) -> String {
    let is_shown = |line: &&str| !["constant", "state", "input"].iter().any(|start| line.starts_with(start));
    graph.to_string().lines().filter(is_shown).map(|line| format!("{line}\n")).collect()
}

pub(crate) fn add(a: u32, b: u32, out: u32) -> Node {
    Add { a: Src(a), b: Src(b), out: Dst(out) }.into()
}

pub(crate) fn subtract(a: u32, b: u32, out: u32) -> Node {
    Subtract { a: Src(a), b: Src(b), out: Dst(out) }.into()
}

pub(crate) fn multiply(a: u32, b: u32, out: u32) -> Node {
    Multiply { a: Src(a), b: Src(b), out: Dst(out) }.into()
}

pub(crate) fn exp(x: u32, out: u32) -> Node {
    Exp { x: Src(x), out: Dst(out) }.into()
}

pub(crate) fn neg(x: u32, out: u32) -> Node {
    Neg { x: Src(x), out: Dst(out) }.into()
}

pub(crate) fn silu(x: u32, out: u32) -> Node {
    Silu { x: Src(x), out: Dst(out) }.into()
}

pub(crate) fn gelu(x: u32, out: u32) -> Node {
    Gelu { x: Src(x), out: Dst(out), approximate: GeluForm::Tanh }.into()
}

pub(crate) fn cast(x: u32, scalar_type: DType, out: u32) -> Node {
    AsType { x: Src(x), out: Dst(out), scalar_type }.into()
}

pub(crate) fn copy(x: u32, out: u32) -> Node {
    IdCopy { x: Src(x), out: Dst(out) }.into()
}

pub(crate) fn expand(x: u32, axis: i32, out: u32) -> Node {
    ExpandDims { x: Src(x), out: Dst(out), axis }.into()
}

pub(crate) fn reshape(x: u32, sizes: &[i64], out: u32) -> Node {
    Reshape { x: Src(x), out: Dst(out), shape: sizes.iter().copied().map(Int::Literal).collect() }.into()
}

pub(crate) fn repeat(x: u32, times: i32, out: u32) -> Node {
    Repeat { x: Src(x), out: Dst(out), repeats: Int::Literal(times.into()), axis: 2 }.into()
}

pub(crate) fn sum(x: u32, axis: i32, keepdims: bool, out: u32) -> Node {
    Sum { x: Src(x), out: Dst(out), axes: Some(vec![axis]), keepdims }.into()
}

/// Sorts along the first axis.
pub(crate) fn sort(x: u32, out: u32) -> Node {
    Sort { x: Src(x), out: Dst(out), axis: 0 }.into()
}

pub(crate) fn full(shape: Vec<Int>, value: f64, out: u32) -> Node {
    Full { out: Dst(out), shape, v: Float::Literal(value), scalar_type: DType::F32 }.into()
}

/// The integers from `start` up to but excluding `stop`.
pub(crate) fn arange(start: Int, stop: Int, out: u32) -> Node {
    ARange { out: Dst(out), start, stop, step: Int::Literal(1), scalar_type: None }.into()
}

/// The integer of a slot.
pub(crate) fn value(slot: u32) -> Int {
    Int::Value(Value(slot))
}

/// Reads the one element of a tensor into an integer slot.
pub(crate) fn item(x: u32, out: u32) -> Node {
    ItemInt { x: Src(x), out: DstValue(out) }.into()
}

/// Runs chain 1 if the integer in slot 0 is not zero, else chain 2.
pub(crate) fn branch() -> Node {
    If { cond: value(0), then_chain_idx: Chain(1), else_chain_idx: Chain(2) }.into()
}

/// Runs chain 1 for each row of t1, which is fed into t5.
pub(crate) fn scan(carry: Vec<Src>, outputs: Vec<Collected>) -> Node {
    let (originals, sliced) = (vec![Src(1)], vec![Fed(5)]);
    Scan { originals, sliced, outputs, carry, body_chain_idx: Chain(1), scan_axis: 0 }.into()
}
