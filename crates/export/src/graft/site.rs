//! Where a head is added, and what is there.

use super::error::{ShownOutput, ShownShape};
use super::plain_head::PlainHead;
use super::{Graft, GraftError};
use crate::metadata::USE_SAMPLING;
use ptero_pte::schema::{Call, EValue};
use ptero_pte::{DType, Method, Payload, Program, ShapeDim, SlotType, TensorMeta};
use ptero_sampling::inputs::Head;

/// Where the head is added.
pub(super) struct Site {
    /// The index of the method.
    pub(super) method: usize,
    /// Which output of the method becomes the token, or is it already.
    pub(super) method_output: usize,
    /// The value of the method that holds it.
    pub(super) value: usize,
    /// The delegate that computes it.
    pub(super) delegate: usize,
    /// Which output of its graph it is.
    pub(super) output: usize,
    pub(super) found: Found,
}

/// What a program returns before the graft.
pub(super) enum Found {
    /// Logits.
    Logits {
        batch: ShapeDim,
        vocabulary: i32,
        /// `true` if there is a dimension of one position between batch and vocabulary.
        has_position: bool,
    },
    /// The token of upstream's head, which the full one replaces.
    Token(PlainHead),
}

impl Site {
    /// Works on programs that are not verified.
    pub(super) fn find(program: &Program, how: &Graft) -> Result<Self, GraftError> {
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
        // A program that samples has one output that is a token.
        let is_sampling = program.bool_metadata(USE_SAMPLING).is_ok_and(|samples| samples == Some(true));
        let output = match token_output(method).filter(|_| is_sampling && how.output.is_none()) {
            Some(output) => output,
            None => chosen(method, how)?,
        };
        let value = method.outputs.get(output).copied().unwrap_or(-1);
        let EValue::Tensor(tensor) = value_at(method, value).ok_or(GraftError::NoTensor { output })? else {
            return Err(GraftError::NoTensor { output });
        };
        let shown = ShownOutput { output, dtype: tensor.scalar_type, shape: tensor.sizes.clone() };
        let is_token = match tensor.scalar_type {
            DType::F32 | DType::F16 | DType::Bf16 => false,
            DType::I64 if tensor.sizes.len() <= 1 && how.head == Head::Full => true,
            DType::I64 if tensor.sizes.len() <= 1 => return Err(GraftError::ReturnsTokens(shown)),
            _ => return Err(GraftError::NotFloat(shown)),
        };
        let (delegate, at, meta) = source(method, value, output)?;
        let found = if is_token {
            let head = PlainHead::find(method, delegate, at);
            Found::Token(head.ok_or(GraftError::OtherHead(shown))?)
        } else {
            Found::logits(meta, output)?
        };
        let value = usize::try_from(value).unwrap_or(usize::MAX);
        Ok(Self { method: index, method_output: output, value, delegate, output: at, found })
    }
}

impl Found {
    /// Logits must be `(B, V)`, or `(B, 1, V)`, which is the same.
    fn logits(meta: &TensorMeta, output: usize) -> Result<Self, GraftError> {
        let shape = ShownShape(meta.shape.clone());
        let (batch, has_position, vocabulary) = match meta.shape.as_slice() {
            [batch, vocabulary] => (batch, false, vocabulary),
            [batch, position, vocabulary] if position.value == 1 => (batch, true, vocabulary),
            _ => return Err(GraftError::Shape { output, shape }),
        };
        match vocabulary.value {
            -1 => Err(GraftError::VocabularyVaries { output, shape }),
            0 => Err(GraftError::Shape { output, shape }),
            vocabulary => Ok(Self::Logits { batch: batch.clone(), vocabulary, has_position }),
        }
    }
}

fn value_at(method: &Method, index: i32) -> Option<&EValue> {
    method.values.get(usize::try_from(index).ok()?)
}

/// The output that is a token for each row, if there is one such.
fn token_output(method: &Method) -> Option<usize> {
    let is_token = |value: &i32| match value_at(method, *value) {
        Some(EValue::Tensor(tensor)) => tensor.scalar_type == DType::I64 && tensor.sizes.len() == 1,
        _ => false,
    };
    let mut found = method.outputs.iter().enumerate().filter(|(_, value)| is_token(value));
    found.next().filter(|_| found.next().is_none()).map(|(output, _)| output)
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
