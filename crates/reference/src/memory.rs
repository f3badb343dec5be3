//! The values, states and host values of one call.

use crate::tensor::{Held, Tensor, Window, evaluate_shape, zeros};
use ptero_backend::Fault;
use ptero_backend::number::{Element, Number};
use ptero_plan::graph::{Graph, StateId, Value};
use ptero_sampling::threefry::KeySequence;
use ptero_tensor::Bytes;

const OTHER_SHAPE: Fault = Fault::Contract("a result has the shape that is declared");

/// The values, states and host values of one call.
#[derive(Debug)]
pub(crate) struct Memory<'a> {
    pub(crate) graph: &'a Graph,
    /// The values that are made, by number.
    pub(crate) values: Vec<Option<Held>>,
    /// The host values, by number.
    pub(crate) host: Vec<i64>,
    /// The state tensors, by number.
    pub(crate) states: &'a mut [Held],
    /// Where unseeded random bits get their keys.
    pub(crate) keys: &'a mut KeySequence,
}

impl Memory<'_> {
    /// A value, to be shared.
    pub(crate) fn held(&self, value: Value) -> Result<&Held, Fault> {
        let held = self.values.get(value.0 as usize).and_then(Option::as_ref);
        held.ok_or(Fault::Contract("a value is made before it is read"))
    }

    /// A value, to be read.
    pub(crate) fn tensor(&self, value: Value) -> Result<Tensor<'_>, Fault> {
        self.held(value).map(Held::tensor)
    }

    /// A value that may be absent.
    pub(crate) fn optional(&self, value: Option<Value>) -> Result<Option<Tensor<'_>>, Fault> {
        value.map(|value| self.tensor(value)).transpose()
    }

    /// The sizes that a value is declared to have.
    pub(crate) fn shape(&self, value: Value) -> Result<Vec<usize>, Fault> {
        evaluate_shape(self.graph.ty(value), &self.host)
    }

    /// Refuses a result of another shape than is declared, before it is computed.
    pub(crate) fn expect_shape(&self, value: Value, shape: &[usize]) -> Result<(), Fault> {
        if self.shape(value)? == shape { Ok(()) } else { Err(OTHER_SHAPE) }
    }

    /// The type that a value is declared to have.
    pub(crate) fn element(&self, value: Value) -> Result<Element, Fault> {
        Element::new(self.graph.ty(value).dtype)
    }

    /// Memory for a value.
    pub(crate) fn room(&self, value: Value) -> Result<Vec<u8>, Fault> {
        // A shape has no more bytes than fit 63 bits.
        zeros(self.shape(value)?.iter().product::<usize>() * self.element(value)?.bytes())
    }

    /// Makes a value of something of its shape.
    pub(crate) fn define(&mut self, value: Value, held: Held) -> Result<(), Fault> {
        if held.window.shape != self.shape(value)? || held.element != self.element(value)? {
            return Err(OTHER_SHAPE);
        }
        if let Some(slot) = self.values.get_mut(value.0 as usize) {
            *slot = Some(held);
        }
        Ok(())
    }

    /// Makes a value of its elements, in row-major order.
    pub(crate) fn store(&mut self, value: Value, shape: &[usize], numbers: Vec<Number>) -> Result<(), Fault> {
        self.store_with_last(value, shape, &[], numbers)
    }

    /// Makes a value of its elements, in the row-major order that it has with these axes moved to the end.
    pub(crate) fn store_with_last(
        &mut self,
        value: Value,
        shape: &[usize],
        axes: &[usize],
        numbers: Vec<Number>,
    ) -> Result<(), Fault> {
        let (element, window) = (self.element(value)?, Window::row_major(shape.to_vec()));
        let order = window.with_last(axes)?;
        if order.count() != numbers.len() {
            return Err(Fault::Contract("the result has the shape of the operands"));
        }
        let mut bytes = zeros(numbers.len() * element.bytes())?;
        for (index, number) in order.offsets().zip(numbers) {
            element.store(&mut bytes, index, number);
        }
        self.define(value, Held { element, window, bytes: Bytes::from(bytes) })
    }

    /// A state tensor.
    pub(crate) fn state(&mut self, state: StateId) -> Result<&mut Held, Fault> {
        let count = self.states.len();
        let missing = Fault::NoSuch { what: "state", index: state.0 as usize, count };
        self.states.get_mut(state.0 as usize).ok_or(missing)
    }
}
