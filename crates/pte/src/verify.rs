//! Checks the structure of a program: every index, length and order that later stages rely on. Shapes and types of nodes are
//! checked where they are lowered.

mod delegate;
mod flow;

use crate::Limits;
use crate::delegate::{Delegate, SlotType, TensorMeta};
use crate::error::{Fault, Result, Step, at_most, in_file, pick};
use crate::program::{Method, Payload, Program, no_duplicates};
use crate::schema::{AllocationDetails, Call, EValue, Tensor, TensorShapeDynamism};
use ptero_tensor::fault::AtStep;
use ptero_tensor::{Bytes, MAX_RANK};
use std::collections::HashMap;
use std::ops::Deref;
use std::path::Path;

/// A program whose structure is sound.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified(Program);

impl Verified {
    /// Maps, reads and checks a program file.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self> {
        in_file(path, |file| Self::new(Program::read(file, limits)?, limits))
    }

    /// Checks a program; there is no other way to a `Verified`.
    pub fn new(program: Program, limits: &Limits) -> Result<Self> {
        check(&program, limits)?;
        Ok(Self(program))
    }

    /// The program, to be changed and checked again.
    pub fn into_program(self) -> Program {
        self.0
    }
}

/// A delegate of a verified program.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedDelegate<'a> {
    program: &'a Program,
    delegate: &'a Delegate,
}

impl<'a> VerifiedDelegate<'a> {
    /// The program it is part of.
    pub fn program(self) -> &'a Program {
        self.program
    }

    /// The delegate.
    pub fn delegate(self) -> &'a Delegate {
        self.delegate
    }
}

impl Verified {
    /// The delegates of a method that ptero runs, with their index; none, if there is no such method.
    pub fn delegates(&self, method: &str) -> impl Iterator<Item = (usize, VerifiedDelegate<'_>)> {
        let delegates = self.0.method(method).into_iter().flat_map(Method::mlx_delegates);
        delegates.map(|(index, delegate)| (index, VerifiedDelegate { program: &self.0, delegate }))
    }

    /// The delegate of that index.
    pub fn delegate(&self, method: &str, index: usize) -> Option<VerifiedDelegate<'_>> {
        self.delegates(method).find(|(found, _)| *found == index).map(|(_, delegate)| delegate)
    }
}

impl Deref for Verified {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.0
    }
}

/// Checks the structure of a program and returns the first fault.
pub fn check(program: &Program, limits: &Limits) -> Result<()> {
    no_duplicates(program.methods.iter().map(|method| &method.name)).at(|| Step::Part("methods"))?;
    let data = program.data_by_name();
    for method in &program.methods {
        let check = || {
            for (index, delegate) in method.delegates.iter().enumerate() {
                let check = || match &delegate.payload {
                    Payload::Mlx(graph) => delegate::check(graph, &data, limits),
                    Payload::Foreign(_) => Err(Fault::ForeignDelegate(delegate.id.clone()).into()),
                };
                check().at(|| Step::indexed("delegate", index))?;
            }
            check_method(program, method, &data)
        };
        check().at(|| Step::named("method", &method.name))?;
    }
    Ok(())
}

/// Named data by its name.
type DataByName<'a> = HashMap<&'a str, &'a Bytes>;

fn check_method(program: &Program, method: &Method, data: &DataByName<'_>) -> Result<()> {
    for (index, value) in method.values.iter().enumerate() {
        check_value(program, method, data, value).at(|| Step::indexed("value", index))?;
    }
    check_indices(method, &method.inputs).at(|| Step::named("field", "inputs"))?;
    check_indices(method, &method.outputs).at(|| Step::named("field", "outputs"))?;
    for chain in &method.chains {
        check_indices(method, &chain.inputs).at(|| Step::named("field", "inputs"))?;
        check_indices(method, &chain.outputs).at(|| Step::named("field", "outputs"))?;
        for (index, call) in chain.instructions.iter().enumerate() {
            check_call(method, call, chain.instructions.len()).at(|| Step::indexed("call", index))?;
        }
    }
    Ok(())
}

fn value(method: &Method, index: impl Into<i64>) -> Result<&EValue> {
    pick(&method.values, index, "values")
}

fn check_kind(value: &EValue, wanted: &'static str) -> Result<()> {
    let found = value.kind();
    if found == wanted { Ok(()) } else { Err(Fault::WrongKind { found, wanted }.into()) }
}

fn check_indices(method: &Method, indices: &[i32]) -> Result<()> {
    indices.iter().try_for_each(|&index| value(method, index).map(drop))
}

fn check_value(program: &Program, method: &Method, data: &DataByName<'_>, checked: &EValue) -> Result<()> {
    let is_kind = |index: i64, wanted| check_kind(value(method, index)?, wanted);
    match checked {
        EValue::Null(_) | EValue::Int(_) | EValue::Bool(_) | EValue::Double(_) | EValue::Text(_) => Ok(()),
        EValue::DoubleList(_) | EValue::BoolList(_) => Ok(()),
        EValue::IntList(list) => list.items.iter().try_for_each(|&index| is_kind(index, "integer")),
        EValue::TensorList(list) => list.items.iter().try_for_each(|&index| is_kind(index.into(), "tensor")),
        EValue::OptionalTensorList(list) => {
            list.items.iter().filter(|index| **index != -1).try_for_each(|&index| match value(method, index)? {
                EValue::Null(_) => Ok(()),
                _ => is_kind(index.into(), "tensor"),
            })
        }
        EValue::Tensor(tensor) => check_tensor(program, method, data, tensor),
    }
}

fn check_tensor(program: &Program, method: &Method, data: &DataByName<'_>, tensor: &Tensor) -> Result<()> {
    check_dims(&tensor.dim_order, tensor.sizes.len())?;
    if tensor.storage_offset != 0 {
        return Err(Fault::Unsupported("a tensor that starts inside its storage").into());
    }
    let bytes = tensor.byte_count()?;
    program.tensor_data_by(tensor, |key| data.get(key).copied()).at(|| Step::named("field", "data_buffer_idx"))?;
    if tensor.shape_dynamism != TensorShapeDynamism::DynamicUnbound
        && let Some(place) = &tensor.allocation_info
    {
        check_allocation(method, place, bytes).at(|| Step::named("field", "allocation_info"))?;
    }
    Ok(())
}

fn check_allocation(method: &Method, place: &AllocationDetails, bytes: u64) -> Result<()> {
    let buffer = *pick(&method.buffer_sizes, place.memory_id, "planned buffers")?;
    let size = u64::try_from(buffer).map_err(|_| Fault::NegativeSize(buffer))?;
    if place.offset().checked_add(bytes).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(Fault::OutOfBounds { at: place.offset(), bytes, size }.into())
}

/// The rank is within the limit and the order is row-major, spelt out or left empty. Other permutations are legal but
/// nobody writes them.
fn check_dims(order: &[u8], rank: usize) -> Result<()> {
    at_most("dimensions", rank as u64, MAX_RANK as u64)?;
    if order.is_empty() || (order.len() == rank && (0_u8..).zip(order).all(|(wanted, found)| wanted == *found)) {
        return Ok(());
    }
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    let is_permutation = sorted.len() == rank && (0_u8..).zip(&sorted).all(|(wanted, found)| wanted == *found);
    Err(match is_permutation {
        true => Fault::Unsupported("a dimension order other than row-major").into(),
        false => Fault::BadDimOrder { order: order.to_vec(), rank }.into(),
    })
}

fn check_call(method: &Method, call: &Call, calls: usize) -> Result<()> {
    match call {
        Call::Kernel(call) => {
            pick(&method.operators, call.op_index, "operators")?;
            check_indices(method, &call.args)
        }
        Call::Delegate(call) => {
            let delegate = pick(&method.delegates, call.delegate_index, "delegates")?;
            check_indices(method, &call.args)?;
            match &delegate.payload {
                Payload::Mlx(graph) => check_args(method, graph, &call.args),
                Payload::Foreign(_) => Ok(()),
            }
        }
        Call::Move(call) => check_indices(method, &[call.move_from, call.move_to]),
        Call::JumpFalse(call) => {
            let (index, count) = (i64::from(call.destination_instruction), calls);
            if usize::try_from(index).is_ok_and(|index| index <= count) {
                return check_indices(method, &[call.cond_value_index]);
            }
            Err(Fault::NoSuch { what: "calls", index, count }.into())
        }
        Call::Free(call) => check_indices(method, &[call.value_index]),
    }
}

/// The arguments of a graph: its inputs in its own order, then its outputs, each of the kind the graph says.
fn check_args(method: &Method, graph: &Delegate, args: &[i32]) -> Result<()> {
    let (inputs, outputs) = (graph.input_map.len(), graph.output_map.len());
    if args.len() != inputs + outputs {
        return Err(Fault::WrongArgs { found: args.len(), inputs, outputs }.into());
    }
    let slots = graph.input_map.iter().chain(&graph.output_map);
    for (at, (&arg, slot)) in args.iter().zip(slots).enumerate() {
        // Inputs are taken as they are; outputs are cast to what the method declares.
        let meta = if at < inputs { graph.meta(slot.idx) } else { None };
        let checked = value(method, arg).and_then(|value| check_arg(slot.slot_type, value, meta));
        checked.at(|| Step::indexed("element", at)).at(|| Step::named("field", "args"))?;
    }
    Ok(())
}

fn check_arg(slot: SlotType, value: &EValue, meta: Option<&TensorMeta>) -> Result<()> {
    match slot {
        SlotType::Int => check_kind(value, "integer"),
        SlotType::Tensor => match (value, meta) {
            (EValue::Tensor(tensor), Some(meta)) if meta.scalar_type != tensor.scalar_type => {
                let (found, wanted) = (tensor.scalar_type.name(), meta.scalar_type.name());
                Err(Fault::WrongDType { found, wanted }.into())
            }
            _ => check_kind(value, "tensor"),
        },
        SlotType::Float | SlotType::Bool => {
            Err(Fault::Unsupported("floats and bools that enter or leave a graph outside a tensor").into())
        }
    }
}
