//! Constants, states, inputs and outputs of a graph.

use super::{Held, Lowerer};
use crate::dim::Dim;
use crate::error::{Fault, Result};
use crate::graph::{Input, Output};
use crate::host::HostOp;
use ptero_pte::{Bytes, Slot, SlotType, TensorMeta};
use std::collections::HashMap;

impl Lowerer<'_> {
    pub(super) fn constants(&mut self, data: &HashMap<&str, &Bytes>) {
        let delegate = self.delegate;
        let names = delegate.names();
        for tensor in 0..delegate.num_constant_tensors {
            let data = names.get(&Slot::Tensor(tensor)).and_then(|name| data.get(name));
            if let (Some(meta), Some(data)) = (delegate.meta(tensor), data) {
                let constant = self.builder.constant(meta.scalar_type, fixed_shape(meta), (*data).clone());
                self.held.insert(Slot::Tensor(tensor), Held::Tensor(constant));
            }
        }
        for state in &delegate.mutable_buffer_map {
            if let Some(meta) = delegate.meta(state.idx) {
                let state_id = self.builder.state(meta.scalar_type, fixed_shape(meta));
                self.states.insert(state.idx, state_id);
            }
        }
    }

    /// Reads states: when a block begins that may use them, and after one that wrote them.
    pub(super) fn read_states(&mut self, is_read: impl Fn(&Slot) -> bool) {
        let states: Vec<_> = self.states.iter().map(|(slot, state)| (Slot::Tensor(*slot), *state)).collect();
        for (slot, state) in states.into_iter().filter(|(slot, _)| is_read(slot)) {
            self.held.insert(slot, Held::Tensor(self.builder.read(state)));
        }
    }

    pub(super) fn inputs(&mut self) {
        let delegate = self.delegate;
        for (number, slot) in delegate.input_map.iter().enumerate() {
            let (held, input) = match (slot.slot_type, delegate.meta(slot.idx)) {
                (SlotType::Tensor, Some(meta)) => self.input(number, meta),
                (SlotType::Tensor | SlotType::Int | SlotType::Float | SlotType::Bool, _) => {
                    let var = self.builder.host(HostOp::Given { most: None });
                    (Held::Value(Dim::var(var)), Input::Int(var))
                }
            };
            self.held.insert(slot.slot(), held);
            self.builder.graph.inputs.push(input);
        }
    }

    fn input(&mut self, number: usize, meta: &TensorMeta) -> (Held, Input) {
        let size = |dim: &ptero_pte::ShapeDim| match dim.value {
            -1 => {
                let most = if dim.max_value == -1 { i32::MAX } else { dim.max_value };
                Dim::var(self.builder.host(HostOp::Given { most: Some(most.into()) }))
            }
            fixed => Dim::fixed(fixed.into()),
        };
        let shape: Vec<Dim> = meta.shape.iter().map(size).collect();
        let tensor = self.builder.input(number, meta.scalar_type, shape);
        let value = tensor.value;
        (Held::Tensor(tensor), Input::Tensor(value))
    }

    pub(super) fn output(&mut self, slot: Slot) -> Result<Output> {
        match self.held.get(&slot) {
            Some(Held::Tensor(tensor)) => Ok(Output::Tensor(tensor.value)),
            Some(Held::Value(value)) => Ok(Output::Int(value.clone())),
            None => Err(Fault::NoTensor),
        }
    }
}

fn fixed_shape(meta: &TensorMeta) -> Vec<Dim> {
    meta.shape.iter().map(|dim| Dim::fixed(dim.value.into())).collect()
}
