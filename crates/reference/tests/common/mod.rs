//! Builds small programs of one method and lowers them.

use ptero_plan::graph::Graph;
use ptero_plan::{Options, PlanError};
use ptero_pte::schema::{EValue, Tensor};
use ptero_pte::{
    Chains, DType, Delegate, Limits, Method, NamedData, NamedSlot, Node, Program, ShapeDim, SlotType, SlotVariant,
    TensorMeta, Verified,
};

/// The number of tensors of each kind, whose slots follow each other in this order, and of values.
pub(crate) struct Slots {
    pub(crate) constants: u32,
    pub(crate) inputs: u32,
    pub(crate) outputs: u32,
    pub(crate) states: u32,
    pub(crate) temporaries: u32,
    pub(crate) values: u32,
}

/// A tensor of fixed sizes.
pub(crate) fn fixed(scalar_type: DType, sizes: &[i32]) -> TensorMeta {
    let size = |&value: &i32| ShapeDim { value, min_value: 0, max_value: -1 };
    TensorMeta { shape: sizes.iter().map(size).collect(), scalar_type, dim_order: None }
}

/// Lowers a program whose first chain is the main one. `named` has a name and a type for each slot up to the temporaries.
pub(crate) fn lowered(
    chains: Vec<Vec<Node>>,
    slots: &Slots,
    named: Vec<(&str, TensorMeta)>,
    named_data: Vec<NamedData>,
    options: &Options,
) -> Result<Graph, PlanError> {
    let slot = |idx| SlotVariant { idx, slot_type: SlotType::Tensor };
    let (first_input, first_output) = (slots.constants, slots.constants + slots.inputs);
    let first_state = first_output + slots.outputs;
    let given = named.iter().skip(first_input as usize).take((slots.inputs + slots.outputs) as usize);
    let sizes = |meta: &TensorMeta| meta.shape.iter().map(|size| size.value.max(1)).collect();
    let values = given.map(|(_, meta)| EValue::Tensor(Tensor::new(meta.scalar_type, sizes(meta)))).collect();
    let [inputs, outputs] = [slots.inputs, slots.outputs].map(|count| i32::try_from(count).unwrap());
    let delegate = Delegate {
        version: None,
        num_constant_tensors: slots.constants,
        num_input_tensors: slots.inputs,
        num_output_tensors: slots.outputs,
        num_mutable_buffer_tensors: slots.states,
        num_temp_tensors: slots.temporaries,
        num_values: slots.values,
        instruction_chains: Chains(chains),
        main_chain_idx: 0,
        init_chain_idx: -1,
        input_map: (first_input..first_output).map(slot).collect(),
        output_map: (first_output..first_state).map(slot).collect(),
        mutable_buffer_map: (first_state..first_state + slots.states).map(slot).collect(),
        named_slots: (0..)
            .zip(&named)
            .map(|(idx, (name, _))| NamedSlot { name: (*name).to_owned(), slot: slot(idx) })
            .collect(),
        tensor_meta: named.into_iter().map(|(_, meta)| meta).collect(),
    };
    let method =
        Method::of_graph("forward", delegate, values, (0..inputs).collect(), (inputs..inputs + outputs).collect());
    let program = Program { methods: vec![method], named_data, ..Program::default() };
    let verified = Verified::new(program, &Limits::DEFAULT).unwrap();
    ptero_plan::lower(verified.delegate("forward", 0).unwrap(), options)
}
