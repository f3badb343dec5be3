//! From handles to slots: constants first, then inputs, outputs, state and temporaries, as the format numbers them.

mod recycle;

use super::GraphBuilder;
use ptero_pte::schema::{EValue, Int, Tensor, TensorShapeDynamism};
use ptero_pte::{Bytes, Chains, Delegate, Method, NamedData, Program, Role, Slot, SlotVariant, TensorMeta, Use};

/// A finished graph and the data of the constants that were declared.
#[derive(Clone, Debug, PartialEq)]
pub struct Built {
    /// The graph.
    pub graph: Delegate,
    /// The data, by the names that the graph's constants have.
    pub data: Vec<NamedData>,
}

/// The roles of tensors whose slots come before those of temporaries, in the order of their numbers.
const LASTING: [Role; 4] = [Role::Constant, Role::Input, Role::Output, Role::State];

impl GraphBuilder {
    /// Gives every slot its number.
    pub fn finish(self) -> Built {
        let mut numbers = vec![0_u32; self.tensors.len()];
        let mut next = 0_u32;
        let mut metas = Vec::new();
        let counts = LASTING.map(|role| {
            let first = next;
            for (number, declared) in
                numbers.iter_mut().zip(&self.tensors).filter(|(_, declared)| declared.role == role)
            {
                *number = next;
                metas.push(declared.meta.clone().unwrap_or_else(unknown));
                next += 1;
            }
            next - first
        });
        let is_temporary =
            |handle: u32| at(&self.tensors, handle).is_some_and(|declared| declared.role == Role::Temporary);
        let temporaries = recycle::slots(&self.chains, self.init, self.main, is_temporary);
        let used = temporaries.values().map(|slot| slot + 1).max().unwrap_or(0);
        for (handle, number) in (0..).zip(&mut numbers) {
            temporaries.get(&handle).into_iter().for_each(|slot| *number = next + slot);
        }
        self.numbered(counts, used, metas, &numbers)
    }

    fn numbered(self, counts: [u32; 4], temporaries: u32, tensor_meta: Vec<TensorMeta>, numbers: &[u32]) -> Built {
        let [num_constant_tensors, num_input_tensors, num_output_tensors, num_mutable_buffer_tensors] = counts;
        let number = |slot: Slot| match slot {
            Slot::Tensor(handle) => at(numbers, handle).copied().unwrap_or(handle),
            Slot::Value(value) => value,
        };
        let variant = |old: SlotVariant| SlotVariant { idx: number(old.slot()), ..old };
        let mut chains = self.chains;
        for node in chains.iter_mut().flatten() {
            node.rewire(&mut |used| match used {
                Use::Read(slot) | Use::Write(slot) | Use::Feed(slot) | Use::Collect(slot) => number(slot),
                Use::Chain(chain) => chain,
            });
        }
        let mut named_slots = self.names;
        named_slots.iter_mut().for_each(|named| named.slot = variant(named.slot.clone()));
        let graph = Delegate {
            version: self.version,
            num_constant_tensors,
            num_input_tensors,
            num_output_tensors,
            num_mutable_buffer_tensors,
            num_temp_tensors: temporaries,
            num_values: self.values,
            instruction_chains: Chains(chains),
            main_chain_idx: u32::try_from(self.main).expect("a graph has fewer than 2^32 chains"),
            init_chain_idx: self.init.map_or(-1, |init| i32::try_from(init).expect("a graph has fewer chains")),
            input_map: self.inputs.into_iter().map(variant).collect(),
            output_map: self.outputs.into_iter().map(variant).collect(),
            mutable_buffer_map: self.state.into_iter().map(variant).collect(),
            named_slots,
            tensor_meta,
        };
        Built { graph, data: self.data }
    }
}

fn at<T>(list: &[T], index: u32) -> Option<&T> {
    list.get(usize::try_from(index).ok()?)
}

/// Every lasting tensor is declared with its shape; one of a resumed graph that is not was refused before.
fn unknown() -> TensorMeta {
    TensorMeta::new(ptero_pte::DType::F32, Vec::new())
}

impl Built {
    /// Makes the graph a method of the program that takes the graph's inputs and gives its outputs, in their order.
    pub fn add_to(self, program: &mut Program, name: &str) {
        let value = |slot: &SlotVariant| match (slot.slot(), self.graph.meta(slot.idx)) {
            (Slot::Tensor(_), Some(meta)) => EValue::Tensor(outer(meta)),
            (Slot::Tensor(_), None) | (Slot::Value(_), _) => EValue::Int(Int { int_val: 0 }),
        };
        let values: Vec<EValue> = self.graph.input_map.iter().chain(&self.graph.output_map).map(value).collect();
        let mut indices = 0..i32::try_from(values.len()).expect("a method has fewer than 2^31 values");
        let inputs = indices.by_ref().take(self.graph.input_map.len()).collect();
        program.methods.push(Method::of_graph(name, self.graph, values, inputs, indices.collect()));
        program.named_data.extend(self.data);
        if program.constants.is_empty() {
            // Entry 0 stands for "none".
            program.constants.push(Bytes::default());
        }
    }
}

/// The tensor of a method for one of its graph: sizes that vary are their upper bounds.
pub(crate) fn outer(meta: &TensorMeta) -> Tensor {
    let varies = meta.shape.iter().any(|dim| dim.value == -1);
    let is_bounded = meta.shape.iter().all(|dim| dim.value != -1 || dim.max_value != -1);
    let bound = |dim: &ptero_pte::ShapeDim| if dim.value == -1 { dim.max_value.max(0) } else { dim.value };
    let mut tensor = Tensor::new(meta.scalar_type, meta.shape.iter().map(bound).collect());
    tensor.shape_dynamism = match (varies, is_bounded) {
        (false, _) => TensorShapeDynamism::Static,
        (true, true) => TensorShapeDynamism::DynamicBound,
        (true, false) => TensorShapeDynamism::DynamicUnbound,
    };
    tensor
}
