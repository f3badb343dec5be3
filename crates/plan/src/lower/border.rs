//! Where a graph meets the outside: constants, state, inputs and outputs.

use super::{Held, Lowerer};
use crate::dim::Dim;
use crate::error::{Fault, Result};
use crate::plan::{BufferKind, Input, Output};
use crate::prim::View;
use ptero_pte::{Bytes, Slot, SlotType, TensorMeta};
use std::collections::HashMap;

impl Lowerer<'_> {
    pub(super) fn constants(&mut self, data: &HashMap<&str, &Bytes>) {
        let names = self.graph.names();
        for tensor in 0..self.graph.num_constant_tensors {
            let data = names.get(&Slot::Tensor(tensor)).and_then(|name| data.get(name));
            if let (Some(meta), Some(data)) = (self.graph.meta(tensor), data) {
                let view = self.new_buffer(meta, BufferKind::Constant((*data).clone()));
                self.held.insert(Slot::Tensor(tensor), Held::Tensor(view));
            }
        }
        for state in &self.graph.mutable_buffer_map {
            if let Some(meta) = self.graph.meta(state.idx) {
                let view = self.new_buffer(meta, BufferKind::State);
                self.states.insert(state.idx, view.clone());
                self.held.insert(state.slot(), Held::Tensor(view));
            }
        }
    }

    fn new_buffer(&mut self, meta: &TensorMeta, kind: BufferKind) -> View {
        let shape: Vec<Dim> = meta.shape.iter().map(|dim| Dim::fixed(dim.value.into())).collect();
        let elements = shape.iter().fold(Dim::fixed(1), |product, size| &product * size);
        let buf = self.builder.buffer(meta.scalar_type, elements, kind);
        View::row_major(buf, meta.scalar_type, shape)
    }

    pub(super) fn inputs(&mut self) -> Vec<Input> {
        let graph = self.graph;
        let input = |(index, slot): (usize, &ptero_pte::SlotVariant)| {
            let (held, input) = match (slot.slot_type, graph.meta(slot.idx)) {
                (SlotType::Tensor, Some(meta)) => self.input(index, meta),
                (SlotType::Tensor | SlotType::Int | SlotType::Float | SlotType::Bool, _) => {
                    let var = self.builder.new_var();
                    (Held::Value(Dim::var(var)), Input::Int(var))
                }
            };
            self.held.insert(slot.slot(), held);
            input
        };
        graph.input_map.iter().enumerate().map(input).collect()
    }

    fn input(&mut self, index: usize, meta: &TensorMeta) -> (Held, Input) {
        let size = |dim: &ptero_pte::ShapeDim| match dim.value {
            -1 => {
                let var = self.builder.new_var();
                self.largest.push((var, if dim.max_value == -1 { i32::MAX.into() } else { dim.max_value.into() }));
                Dim::var(var)
            }
            fixed => Dim::fixed(fixed.into()),
        };
        let shape: Vec<Dim> = meta.shape.iter().map(size).collect();
        let elements = shape.iter().fold(Dim::fixed(1), |product, size| &product * size);
        let buf = self.builder.buffer(meta.scalar_type, elements, BufferKind::Input(index));
        let view = View::row_major(buf, meta.scalar_type, shape.clone());
        (Held::Tensor(view), Input::Tensor { buf, dtype: meta.scalar_type, shape })
    }

    pub(super) fn output(&mut self, slot: Slot) -> Result<Output> {
        match self.held.get(&slot) {
            Some(Held::Tensor(view)) => Ok(Output::Tensor(view.clone())),
            Some(Held::Value(value)) => Ok(Output::Int(value.clone())),
            None => Err(Fault::NoTensor),
        }
    }
}
