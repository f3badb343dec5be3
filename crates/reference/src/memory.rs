//! The values, states and host values of one call.

use crate::tensor::{StridedLayout, Tensor, evaluate_shape, zeros};
use ptero_backend::Fault;
use ptero_backend::number::{Element, Number};
use ptero_plan::dim::Var;
use ptero_plan::graph::{Graph, StateId, Value};
use ptero_sampling::threefry::KeySequence;
use ptero_tensor::Bytes;

const OTHER_SHAPE: Fault = Fault::Contract("a result has the shape that is declared");

/// The values, states and host values of one call.
#[derive(Debug)]
pub(crate) struct Memory<'a> {
    pub(crate) graph: &'a Graph,
    /// The values that are computed, by number.
    pub(crate) values: Vec<Option<Tensor>>,
    /// The host values, by number.
    pub(crate) host: Vec<i64>,
    /// The state tensors, by number.
    pub(crate) states: &'a mut [Tensor],
    /// The keys of unseeded random bits.
    pub(crate) keys: &'a mut KeySequence,
}

impl Memory<'_> {
    /// A value.
    pub(crate) fn tensor(&self, value: Value) -> Result<&Tensor, Fault> {
        let tensor = self.values.get(value.0 as usize).and_then(Option::as_ref);
        tensor.ok_or(Fault::Contract("a value is made before it is read"))
    }

    /// A value that may be absent.
    pub(crate) fn optional(&self, value: Option<Value>) -> Result<Option<&Tensor>, Fault> {
        value.map(|value| self.tensor(value)).transpose()
    }

    /// The declared sizes of a value.
    pub(crate) fn shape(&self, value: Value) -> Result<Vec<usize>, Fault> {
        evaluate_shape(self.graph.ty(value), &self.host)
    }

    /// Refuses a result whose shape is not the declared one, before it is computed.
    pub(crate) fn expect_shape(&self, value: Value, shape: &[usize]) -> Result<(), Fault> {
        if self.shape(value)? == shape { Ok(()) } else { Err(OTHER_SHAPE) }
    }

    /// The declared type of a value.
    pub(crate) fn element(&self, value: Value) -> Result<Element, Fault> {
        Element::new(self.graph.ty(value).dtype)
    }

    /// Allocates memory for a value.
    pub(crate) fn room(&self, value: Value) -> Result<Vec<u8>, Fault> {
        // The number of bytes of a shape fits 63 bits.
        zeros(self.shape(value)?.iter().product::<usize>() * self.element(value)?.bytes())
    }

    /// Defines a value, which must have its declared type and shape.
    pub(crate) fn define(&mut self, value: Value, tensor: Tensor) -> Result<(), Fault> {
        if tensor.shape() != self.shape(value)? || tensor.element != self.element(value)? {
            return Err(OTHER_SHAPE);
        }
        if let Some(slot) = self.values.get_mut(value.0 as usize) {
            *slot = Some(tensor);
        }
        Ok(())
    }

    /// Defines a value by its elements, in row-major order.
    pub(crate) fn store(&mut self, value: Value, numbers: Vec<Number>) -> Result<(), Fault> {
        self.store_with_last(value, &[], numbers)
    }

    /// Defines a value by its elements, in row-major order after these axes are moved to the end.
    pub(crate) fn store_with_last(&mut self, value: Value, axes: &[usize], numbers: Vec<Number>) -> Result<(), Fault> {
        let (element, layout) = (self.element(value)?, StridedLayout::row_major(self.shape(value)?));
        let order = layout.with_last(axes)?;
        if order.count() != numbers.len() {
            return Err(Fault::Contract("the result has the shape of the operands"));
        }
        let mut bytes = zeros(numbers.len() * element.bytes())?;
        for (offset, number) in order.offsets().zip(numbers) {
            element.store(&mut bytes, offset, number);
        }
        self.define(value, Tensor { element, layout, bytes: Bytes::from(bytes) })
    }

    /// A state tensor.
    pub(crate) fn state(&mut self, state: StateId) -> Result<&mut Tensor, Fault> {
        let count = self.states.len();
        let missing = Fault::NoSuch { what: "state", index: state.0 as usize, count };
        self.states.get_mut(state.0 as usize).ok_or(missing)
    }

    /// Sets a host value.
    pub(crate) fn set(&mut self, var: Var, number: i64) {
        if let Some(slot) = self.host.get_mut(var.0 as usize) {
            *slot = number;
        }
    }
}
