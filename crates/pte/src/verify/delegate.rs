//! The tables of a graph: counts, maps, shapes, and that every constant has the data it needs.

use super::{DataByName, check_dims, flow};
use crate::Limits;
use crate::delegate::{Delegate, Role, SlotType, SlotVariant, TensorMeta};
use crate::error::{Fault, Result, Step, at_most, pick};
use crate::field::{Slot, Use};
use crate::nodes::Node;
use ptero_tensor::DType;
use ptero_tensor::fault::AtStep;

/// The element types that MLX arrays of such a program have.
const GRAPH_DTYPES: [DType; 10] = {
    use DType::{Bf16, Bool, F16, F32, I8, I16, I32, I64, U8, U32};
    [U8, I8, I16, I32, I64, F16, F32, Bool, Bf16, U32]
};

pub(super) fn check(graph: &Delegate, data: &DataByName<'_>, limits: &Limits) -> Result<()> {
    if let Some(found) = graph.version.as_ref().filter(|version| *version != "1") {
        return Err(Fault::Newer { what: "graph version", found: found.clone(), known: "1" }.into());
    }
    check_counts(graph, limits)?;
    for (index, meta) in graph.tensor_meta.iter().enumerate() {
        check_meta(meta).at(|| Step::Tensor(u32::try_from(index).unwrap_or(u32::MAX)))?;
    }
    check_map(graph, &graph.input_map, "input_map")?;
    check_map(graph, &graph.output_map, "output_map")?;
    check_state(graph)?;
    for named in &graph.named_slots {
        in_range(graph, named.slot.slot()).at(|| Step::named("field", "named_slots"))?;
    }
    check_constants(graph, data)?;
    check_nodes(graph)?;
    flow::check(graph, limits)
}

fn check_counts(graph: &Delegate, limits: &Limits) -> Result<()> {
    for (what, count) in [("tensor slots", graph.tensor_count()), ("values", graph.num_values.into())] {
        at_most(what, count, limits.elements)?;
    }
    let chains = &graph.instruction_chains;
    pick(chains, graph.main_chain_idx, "chains").at(|| Step::named("field", "main_chain_idx"))?;
    if graph.init_chain_idx != -1 {
        pick(chains, graph.init_chain_idx, "chains").at(|| Step::named("field", "init_chain_idx"))?;
    }
    let lasting = graph.tensor_count() - u64::from(graph.num_temp_tensors);
    if (graph.tensor_meta.len() as u64) < lasting {
        let first = u32::try_from(graph.tensor_meta.len()).unwrap_or(u32::MAX);
        return Err(Fault::NoMeta).at(|| Step::Tensor(first));
    }
    Ok(())
}

fn check_meta(meta: &TensorMeta) -> Result<()> {
    check_dims(meta.dim_order.as_deref().unwrap_or_default(), meta.shape.len())?;
    if !GRAPH_DTYPES.contains(&meta.scalar_type) {
        return Err(Fault::GraphDType(meta.scalar_type.name()).into());
    }
    for dim in &meta.shape {
        let (min, max) = (dim.min_value, dim.max_value);
        match dim.value {
            ..=-2 => return Err(Fault::NegativeSize(dim.value.into()).into()),
            -1 if min < 0 || (max != -1 && max < min) => return Err(Fault::BadBounds { min, max }.into()),
            _ => {}
        }
    }
    // Sizes that are all fixed must make a tensor that can be counted.
    if meta.fixed_sizes().is_some() { meta.byte_count().map(drop) } else { Ok(()) }
}

/// That the slot exists.
pub(super) fn in_range(graph: &Delegate, slot: Slot) -> Result<()> {
    let (index, count, what) = match slot {
        Slot::Tensor(index) => (index, graph.tensor_count(), "tensor slots"),
        Slot::Value(index) => (index, graph.num_values.into(), "values"),
    };
    if u64::from(index) < count {
        return Ok(());
    }
    Err(Fault::NoSuch { what, index: index.into(), count: usize::try_from(count).unwrap_or(usize::MAX) }.into())
}

fn check_map(graph: &Delegate, map: &[SlotVariant], field: &'static str) -> Result<()> {
    for (index, variant) in map.iter().enumerate() {
        in_range(graph, variant.slot()).at(|| Step::indexed("element", index)).at(|| Step::named("field", field))?;
    }
    Ok(())
}

/// State is made of tensors whose size is known before anything runs.
fn check_state(graph: &Delegate) -> Result<()> {
    for (index, variant) in graph.mutable_buffer_map.iter().enumerate() {
        let check = || {
            in_range(graph, variant.slot())?;
            if variant.slot_type != SlotType::Tensor || graph.role(variant.idx) != Some(Role::State) {
                return Err(Fault::WrongKind { found: "slot of another role", wanted: "mutable buffer" }.into());
            }
            graph.meta(variant.idx).ok_or(Fault::NoMeta)?.byte_count()
        };
        check().at(|| Step::indexed("element", index)).at(|| Step::named("field", "mutable_buffer_map"))?;
    }
    Ok(())
}

/// Every constant has a name, the name has data, and the data is as long and as aligned as the tensor needs.
fn check_constants(graph: &Delegate, data: &DataByName<'_>) -> Result<()> {
    let names = graph.names();
    for tensor in 0..graph.num_constant_tensors {
        let check = || {
            let meta = graph.meta(tensor).ok_or(Fault::NoMeta)?;
            let name = *names.get(&Slot::Tensor(tensor)).ok_or(Fault::NoName)?;
            let data = data.get(name).ok_or_else(|| Fault::NoData(name.to_owned()))?;
            let (found, wanted) = (data.len() as u64, meta.byte_count()?);
            let (at, to) = (data.offset() as u64, meta.scalar_type.bytes());
            let checked = match found == wanted {
                true if wanted > 0 && !at.is_multiple_of(to) => Err(Fault::Misaligned { at, to }),
                true => Ok(()),
                false => Err(Fault::WrongLength { found, wanted }),
            };
            checked.at(|| Step::named("named data", name))
        };
        check().at(|| Step::Tensor(tensor))?;
    }
    Ok(())
}

/// Every slot and chain that a node names exists, in chains that nothing runs too; and lists that go together do.
fn check_nodes(graph: &Delegate) -> Result<()> {
    for (chain, nodes) in graph.instruction_chains.iter().enumerate() {
        for (index, node) in nodes.iter().enumerate() {
            check_node(graph, node).at(|| Step::Instruction(chain, index, node.name()))?;
        }
    }
    Ok(())
}

fn check_node(graph: &Delegate, node: &Node) -> Result<()> {
    let mut result = Ok(());
    node.uses(&mut |field, used| {
        let checked = match used {
            Use::Read(slot) | Use::Feed(slot) | Use::Collect(slot) | Use::Write(slot) => in_range(graph, slot),
            Use::Chain(chain) => pick(&graph.instruction_chains, chain, "chains").map(drop),
        };
        if result.is_ok() {
            result = checked.at(|| Step::named("field", field));
        }
    });
    result?;
    if let Node::Scan(scan) = node {
        let (left, right) = (scan.originals.len(), scan.sliced.len());
        if left != right {
            return Err(Fault::Unpaired { left_name: "originals", left, right_name: "sliced", right }.into());
        }
        if scan.originals.is_empty() {
            return Err(Fault::Unsupported("a scan over nothing")).at(|| Step::named("field", "originals"));
        }
    }
    if let Node::RandomBits(bits) = node
        && ![1, 2, 4].contains(&bits.width)
    {
        return Err(Fault::BadWidth(bits.width)).at(|| Step::named("field", "width"));
    }
    Ok(())
}
