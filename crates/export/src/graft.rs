//! Adds the sampling head to a program that returns logits: it then returns token ids and takes the parameters as further
//! inputs. Weights, state, other outputs and other methods do not change.

mod error;

pub use error::GraftError;

use crate::builder::{Built, GraphBuilder, outer};
use crate::metadata::{self, LEAF, USE_SAMPLING};
use crate::sampler::{DeclaredHead, Logits};
use error::{ShownOutput, ShownShape};
use ptero_pte::nodes::Reshape;
use ptero_pte::schema::{AllocationDetails, Bool, Call, ContainerMetadata, EValue, Tensor};
use ptero_pte::{
    DType, Delegate, DelegateEntry, Limits, Method, Payload, Program, ShapeDim, SlotType, TensorMeta, Verified, check,
};
use ptero_sampling::inputs::Head;

/// Where the head is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graft {
    /// The method that returns the logits.
    pub method: String,
    /// The index of the output; `None` if it has only one.
    pub output: Option<usize>,
    /// The head. Without a seed, it draws from the runtime's own sequence of keys.
    pub head: Head,
}

impl Default for Graft {
    fn default() -> Self {
        Self { method: "forward".to_owned(), output: None, head: Head::Plain }
    }
}

/// Adds the head after the logits: the method then returns `[B]` token ids instead, takes the parameters after its own
/// inputs in the order of `SAMPLER_INPUTS`, and the program's metadata has `use_sampling`.
pub fn graft(mut program: Program, how: &Graft, limits: &Limits) -> Result<Verified, GraftError> {
    let (index, site) = Site::find(&program, how)?;
    check(&program, limits)?;
    if program.bool_metadata(USE_SAMPLING)? == Some(true) {
        return Err(GraftError::UsesSampling);
    }
    let taken = program.all_data().map(|entry| entry.key.clone()).collect();
    if let Some(method) = program.methods.get_mut(index) {
        let data = rebuild(method, &site, how, taken)?;
        program.named_data.extend(data);
    }
    declare_sampling(&mut program);
    Ok(Verified::new(program, limits)?)
}

/// Where the logits come from.
struct Site {
    /// The value of the method that holds them.
    value: usize,
    /// The delegate that computes them.
    delegate: usize,
    /// Which output of its graph they are.
    output: usize,
    batch: ShapeDim,
    vocabulary: i32,
    /// `true` if there is a dimension of one position between batch and vocabulary.
    has_position: bool,
}

impl Site {
    /// Works on programs that are not verified.
    fn find(program: &Program, how: &Graft) -> Result<(usize, Self), GraftError> {
        let name = || how.method.clone();
        let found = program.methods.iter().enumerate().find(|(_, method)| method.name == how.method);
        let Some((index, method)) = found else {
            let computes = program.methods.iter().filter(|method| method.constant().is_none());
            let methods = computes.map(|method| method.name.clone()).collect();
            return Err(GraftError::NoMethod { method: name(), methods });
        };
        if method.mlx_delegates().next().is_none() {
            let found = method.delegates.iter().map(|delegate| delegate.id.clone()).collect();
            return Err(GraftError::NoMlxDelegate { method: name(), found });
        }
        let output = chosen(method, how)?;
        let value = method.outputs.get(output).copied().unwrap_or(-1);
        let EValue::Tensor(tensor) = value_at(method, value).ok_or(GraftError::NoTensor { output })? else {
            return Err(GraftError::NoTensor { output });
        };
        let shown = ShownOutput { output, dtype: tensor.scalar_type, shape: tensor.sizes.clone() };
        match tensor.scalar_type {
            DType::F32 | DType::F16 | DType::Bf16 => {}
            DType::I64 if tensor.sizes.len() <= 1 => return Err(GraftError::ReturnsTokens(shown)),
            _ => return Err(GraftError::NotFloat(shown)),
        }
        let (delegate, at, meta) = source(method, value, output)?;
        Ok((index, Self::of(value, delegate, at, meta, shown)?))
    }

    /// The logits must be `(B, V)`, or `(B, 1, V)`, which is the same.
    fn of(
        value: i32,
        delegate: usize,
        output: usize,
        meta: &TensorMeta,
        shown: ShownOutput,
    ) -> Result<Self, GraftError> {
        let shape = ShownShape(meta.shape.clone());
        let (batch, has_position, vocabulary) = match meta.shape.as_slice() {
            [batch, vocabulary] => (batch, false, vocabulary),
            [batch, position, vocabulary] if position.value == 1 => (batch, true, vocabulary),
            _ => return Err(GraftError::Shape { output: shown.output, shape }),
        };
        match vocabulary.value {
            -1 => Err(GraftError::VocabularyVaries { output: shown.output, shape }),
            0 => Err(GraftError::Shape { output: shown.output, shape }),
            size => {
                let value = usize::try_from(value).unwrap_or(usize::MAX);
                Ok(Self { value, delegate, output, batch: batch.clone(), vocabulary: size, has_position })
            }
        }
    }
}

fn value_at(method: &Method, index: i32) -> Option<&EValue> {
    method.values.get(usize::try_from(index).ok()?)
}

/// Which output the logits are.
fn chosen(method: &Method, how: &Graft) -> Result<usize, GraftError> {
    let count = method.outputs.len();
    match (how.output, count) {
        (Some(output), _) if output < count => Ok(output),
        (Some(output), _) => Err(GraftError::NoOutput { method: how.method.clone(), output, count }),
        (None, 1) => Ok(0),
        (None, 0) => Err(GraftError::NoOutput { method: how.method.clone(), output: 0, count }),
        (None, _) => {
            let shown = |(output, value): (usize, &i32)| match value_at(method, *value) {
                Some(EValue::Tensor(tensor)) => {
                    ShownOutput { output, dtype: tensor.scalar_type, shape: tensor.sizes.clone() }.to_string()
                }
                other => format!("{output}: {}", other.map_or("missing", EValue::kind)),
            };
            let outputs = method.outputs.iter().enumerate().map(shown).collect();
            Err(GraftError::SeveralOutputs { method: how.method.clone(), outputs })
        }
    }
}

/// The delegate and the output of its graph that write a value of the method, which nothing else may use.
fn source(method: &Method, value: i32, output: usize) -> Result<(usize, usize, &TensorMeta), GraftError> {
    let (mut found, mut calls) = (None, Vec::new());
    let listed = method.values.iter().flat_map(items);
    let mut touches =
        method.outputs.iter().chain(&method.inputs).chain(listed).filter(|other| **other == value).count();
    for call in method.chains.iter().flat_map(|chain| &chain.instructions) {
        touches += args(call).iter().filter(|arg| **arg == value).count();
        let Call::Delegate(call) = call else { continue };
        let delegate = usize::try_from(call.delegate_index).unwrap_or(usize::MAX);
        let Some(Payload::Mlx(graph)) = method.delegates.get(delegate).map(|delegate| &delegate.payload) else {
            continue;
        };
        calls.push(delegate);
        let written = call.args.iter().skip(graph.input_map.len()).position(|arg| *arg == value);
        let slot = written.and_then(|at| Some((at, graph.output_map.get(at)?)));
        if let Some((at, slot)) = slot.filter(|(_, slot)| slot.slot_type == SlotType::Tensor) {
            found = graph.meta(slot.idx).map(|meta| (delegate, at, meta));
        }
    }
    match (found, touches) {
        // Once as an output of the graph, once as an output of the method; and the graph is called once.
        (Some(found), 2) if calls.iter().filter(|call| **call == found.0).count() == 1 => Ok(found),
        (Some(_), _) => Err(GraftError::UsedElsewhere { output }),
        (None, _) => Err(GraftError::NotFromGraph { output }),
    }
}

/// The values that a list of tensors holds.
fn items(value: &EValue) -> &[i32] {
    match value {
        EValue::TensorList(list) => &list.items,
        EValue::OptionalTensorList(list) => &list.items,
        EValue::Null(_) | EValue::Int(_) | EValue::Bool(_) | EValue::Double(_) | EValue::Text(_) => &[],
        EValue::DoubleList(_) | EValue::BoolList(_) | EValue::IntList(_) | EValue::Tensor(_) => &[],
    }
}

fn args(call: &Call) -> Vec<i32> {
    match call {
        Call::Kernel(call) => call.args.clone(),
        Call::Delegate(call) => call.args.clone(),
        Call::Move(call) => vec![call.move_from, call.move_to],
        Call::JumpFalse(call) => vec![call.cond_value_index],
        // What is freed at the end may hold something else by then.
        Call::Free(_) => Vec::new(),
    }
}

/// Changes the graph and the method around it; gives the data of the new constants.
fn rebuild(
    method: &mut Method,
    site: &Site,
    how: &Graft,
    taken: Vec<String>,
) -> Result<Vec<ptero_pte::NamedData>, GraftError> {
    let Some(DelegateEntry { payload: Payload::Mlx(graph), .. }) = method.delegates.get_mut(site.delegate) else {
        return Err(GraftError::NotFromGraph { output: site.output });
    };
    let (inputs_before, at) = (graph.input_map.len(), site.delegate);
    let Built { graph: grafted, data } = with_head(graph, site, how.head, taken)?;
    let added = grafted.input_map.len() - inputs_before;
    **graph = grafted;
    let token = outer(&TensorMeta::new(DType::I64, vec![site.batch.clone()]));
    replace_value(method, site.value, token);
    let first = i32::try_from(method.values.len()).expect("a method has fewer than 2^31 values");
    method.values.extend(how.head.inputs().map(|input| EValue::Tensor(Tensor::new(input.dtype, Vec::new()))));
    let new: Vec<i32> = (first..).take(added).collect();
    method.inputs.extend(&new);
    for call in method.chains.iter_mut().flat_map(|chain| &mut chain.instructions) {
        if let Call::Delegate(call) = call
            && usize::try_from(call.delegate_index) == Ok(at)
        {
            call.args.splice(inputs_before..inputs_before, new.iter().copied());
        }
    }
    method.container.iter_mut().for_each(|container| describe_inputs(container, added));
    Ok(data)
}

fn with_head(graph: &Delegate, site: &Site, head: Head, taken: Vec<String>) -> Result<Built, GraftError> {
    let mut b = GraphBuilder::resume(graph.clone(), taken);
    let lost = || GraftError::NotFromGraph { output: site.output };
    let tensor = b.output_at(site.output).ok_or_else(lost)?;
    let mut logits = Logits { tensor, batch: site.batch.clone(), vocabulary: site.vocabulary };
    let head = DeclaredHead::new(&mut b, &logits, head, None, &[])?;
    let token = b.replace_output(site.output, "token", DType::I64, [site.batch.clone()]).ok_or_else(lost)?;
    if site.has_position {
        let (x, shape) = (logits.tensor.src(), logits.shape(&mut b));
        logits.tensor = b.node(|out| Reshape { x, out, shape });
    }
    head.emit(&mut b, &logits, token);
    Ok(b.finish())
}

/// Replaces the logits by the token ids, also in planned memory; if they need more, at the end of the buffer.
fn replace_value(method: &mut Method, index: usize, mut token: Tensor) {
    let Some(EValue::Tensor(logits)) = method.values.get_mut(index) else { return };
    let (before, after) = (logits.byte_count().unwrap_or(0), token.byte_count().unwrap_or(0));
    token.allocation_info = logits.allocation_info.clone();
    if let Some(place) = token.allocation_info.as_mut().filter(|_| after > before) {
        let buffer = usize::try_from(place.memory_id).ok().and_then(|id| method.buffer_sizes.get_mut(id));
        buffer.into_iter().for_each(|size| append(place, size, after));
    }
    *logits = token;
}

/// Entries of a planned buffer start at multiples of this.
const PLANNED_ALIGN: u64 = 16;

#[allow(clippy::cast_possible_truncation, reason = "the offset is kept in two halves")]
fn append(place: &mut AllocationDetails, size: &mut i64, bytes: u64) {
    let start = u64::try_from(*size).unwrap_or(0).next_multiple_of(PLANNED_ALIGN);
    let end = (start + bytes).next_multiple_of(PLANNED_ALIGN);
    place.memory_offset_low = start as u32;
    place.memory_offset_high = (start >> 32) as u32;
    *size = i64::try_from(end).unwrap_or(i64::MAX);
}

/// The end of upstream's description of inputs that are all positional.
const NO_KEYWORDS: &str = r#"]}, {"type": "builtins.dict", "context": "[]", "children_spec": []}]}]"#;

/// Adds leaves to Python's description of the inputs, if it has the usual form.
fn describe_inputs(container: &mut ContainerMetadata, added: usize) {
    let Some(start) = container.encoded_inp_str.strip_suffix(NO_KEYWORDS) else { return };
    let separator = if start.ends_with('[') { "" } else { ", " };
    let leaves = vec![LEAF; added].join(", ");
    container.encoded_inp_str = format!("{start}{separator}{leaves}{NO_KEYWORDS}");
}

/// Sets `use_sampling`, which upstream's exporter may have written as `false`.
fn declare_sampling(program: &mut Program) {
    let existing = program.methods.iter_mut().find(|method| method.name == USE_SAMPLING);
    match existing {
        None => program.methods.push(metadata::flag(USE_SAMPLING, true)),
        Some(method) => {
            let output = method.outputs.first().and_then(|output| usize::try_from(*output).ok());
            let value = output.and_then(|output| method.values.get_mut(output));
            value.into_iter().for_each(|value| *value = EValue::Bool(Bool { bool_val: true }));
        }
    }
}
