//! The inputs and outputs of `forward`, and which argument of its one delegate each of them is.

use crate::error::{Error, Result, Shown};
use ptero_pte::schema::{Call, DelegateCall, EValue, KernelCall, Tensor};
use ptero_pte::{Bytes, DType, Delegate, Method, Payload, Program};
use ptero_sampling::adjust::MOST_BIASES;
use ptero_sampling::inputs::{Head, InputShape, SAMPLER_OUTPUTS, SamplerInput};

/// How a call is made. Inputs and the output are indices into the delegate's own, whose order may differ from the method's.
#[derive(Clone, Debug)]
pub(crate) struct Signature {
    /// `None` if the graph does not read it.
    pub(crate) tokens: Option<usize>,
    pub(crate) positions: Option<usize>,
    /// The sampling head; `None` if the method returns logits.
    pub(crate) head: Option<Head>,
    /// The inputs of the head, in the order of `SAMPLER_INPUTS`, with their sizes.
    pub(crate) sampler: Vec<(Option<usize>, Vec<u64>)>,
    /// The further outputs of the head, in the order of [`SAMPLER_OUTPUTS`].
    pub(crate) log_probabilities: Vec<usize>,
    /// Inputs that never change.
    pub(crate) constants: Vec<(usize, Constant)>,
    pub(crate) output: usize,
    /// The declared type of the output.
    pub(crate) output_dtype: DType,
    /// Elements of the output: 1 token, or the logits.
    pub(crate) output_elements: usize,
    /// The most tokens that the method's input takes.
    pub(crate) most_tokens: usize,
    /// The index of the graph among the method's delegates.
    pub(crate) delegate: usize,
}

/// An argument that is a constant of the method.
#[derive(Clone, Debug)]
pub(crate) enum Constant {
    Int(i64),
    Tensor { dtype: DType, shape: Vec<u64>, bytes: Bytes },
}

impl Signature {
    pub(crate) fn of(program: &Program, method: &Method, samples: bool) -> Result<Self> {
        let (graph, delegate, call) = only_call(method)?;
        let (inputs, outputs) = call.args.split_at(graph.input_map.len().min(call.args.len()));
        let index = |input: usize| {
            let value = method.inputs.get(input)?;
            inputs.iter().position(|arg| arg == value)
        };
        let known = known_head(method)?;
        let most_tokens = check_model_inputs(method)?;
        let (output, tensor) = check_output(method, samples)?;
        let head = match (samples, known) {
            (true, None) => return Err(Error::NoSamplerInputs),
            (false, Some(_)) => return Err(Error::UnusedSamplerInputs),
            (true, Some(_)) | (false, None) => known,
        };
        let sampler = check_sampler_inputs(method, head)?;
        let sampler = (2..).zip(sampler).map(|(input, sizes)| (index(input), sizes)).collect();
        let output_index =
            |value: i32| outputs.iter().position(|arg| *arg == value).ok_or(Error::NoValue(inputs.len()));
        let log_probabilities = match head {
            Some(Head::Full) => check_log_probabilities(method)?.map(output_index).collect::<Result<_>>()?,
            Some(Head::Unseeded | Head::Plain) | None => Vec::new(),
        };
        let output = output_index(output)?;
        let elements: u64 = tensor.sizes()?.iter().product();
        Ok(Self {
            tokens: index(0),
            positions: index(1),
            head,
            sampler,
            log_probabilities,
            constants: constants(program, method, inputs)?,
            output,
            output_dtype: tensor.scalar_type,
            output_elements: usize::try_from(elements).unwrap_or(usize::MAX),
            most_tokens,
            delegate,
        })
    }
}

/// Returns the one graph of a method, its index and the call.
fn only_call(method: &Method) -> Result<(&Delegate, usize, &DelegateCall)> {
    let mut found = None;
    for call in method.chains.iter().flat_map(|chain| &chain.instructions) {
        match call {
            Call::Delegate(call) if found.is_none() => found = Some(call),
            Call::Free(_) => {}
            Call::Kernel(call) if is_unread_copy(method, call) => {}
            other => return Err(Error::Calls(other.kind().to_owned())),
        }
    }
    let call = found.ok_or_else(|| Error::Calls("nothing to call".to_owned()))?;
    let index = usize::try_from(call.delegate_index).unwrap_or(usize::MAX);
    match method.delegates.get(index).map(|delegate| &delegate.payload) {
        Some(Payload::Mlx(graph)) => Ok((graph, index, call)),
        Some(Payload::Foreign(_)) | None => Err(Error::Calls("delegate that is no graph".to_owned())),
    }
}

/// Returns `true` for a copy into a tensor that nothing reads, which some of upstream's exports contain.
fn is_unread_copy(method: &Method, call: &KernelCall) -> bool {
    let operator = usize::try_from(call.op_index).ok().and_then(|index| method.operators.get(index));
    let Some(to) = call.args.first() else { return false };
    let reads = |other: &Call| matches!(other, Call::Delegate(other) if other.args.contains(to));
    let is_read = method.chains.iter().flat_map(|chain| &chain.instructions).any(reads);
    operator.is_some_and(|operator| operator.name == "aten::copy_") && !is_read && !method.outputs.contains(to)
}

fn shown(value: Option<&EValue>) -> Shown {
    match value {
        Some(EValue::Tensor(tensor)) => Shown::Tensor(tensor.scalar_type, tensor.sizes.clone()),
        Some(other) => Shown::Other(other.kind()),
        None => Shown::Other("nothing"),
    }
}

fn value<'a>(method: &'a Method, index: Option<&i32>) -> Option<&'a EValue> {
    method.values.get(usize::try_from(*index?).ok()?)
}

/// Checks `tokens` and `input_pos`, and returns how many tokens they take at most.
fn check_model_inputs(method: &Method) -> Result<usize> {
    let [tokens, positions] = [0, 1].map(|input| value(method, method.inputs.get(input)));
    let wrong = |name, value, wanted| Error::Input { name, found: shown(value), wanted };
    let room = match tokens {
        Some(EValue::Tensor(Tensor { scalar_type: DType::I64, sizes, .. })) => match sizes.as_slice() {
            [1, most] => usize::try_from(*most).ok().filter(|most| *most >= 1),
            _ => None,
        },
        _ => None,
    };
    let room = room.ok_or_else(|| wrong("tokens", tokens, "i64 [1, length]"))?;
    match positions {
        Some(EValue::Tensor(Tensor { scalar_type: DType::I64, sizes, .. })) if sizes.len() == 1 => Ok(room),
        _ => Err(wrong("input_pos", positions, "i64 [length]")),
    }
}

/// Returns the sampling head that has as many inputs as the method has beside the model's own, if it has any.
fn known_head(method: &Method) -> Result<Option<Head>> {
    let count = method.inputs.len();
    let head = Head::ALL.into_iter().find(|head| 2 + head.inputs().count() == count);
    if head.is_none() && count != 2 { Err(Error::InputCount(count)) } else { Ok(head) }
}

/// Checks the inputs of the sampling head, and returns their sizes in the order of the table.
fn check_sampler_inputs(method: &Method, head: Option<Head>) -> Result<Vec<Vec<u64>>> {
    let given = method.inputs.get(2..).unwrap_or_default();
    let sizes = |(index, wanted): (&i32, &SamplerInput)| match value(method, Some(index)) {
        Some(EValue::Tensor(tensor)) if tensor.scalar_type == wanted.dtype && has_shape(tensor, wanted.shape) => {
            Ok(tensor.sizes()?)
        }
        other => {
            let wanted_shape = match (wanted.shape, wanted.dtype) {
                (InputShape::Scalar, DType::F32) => "one f32",
                (InputShape::Scalar, _) => "one i64",
                (InputShape::Biases, DType::F32) => "f32 [1024]",
                (InputShape::Biases, _) => "i32 [1024]",
                (InputShape::Mask, _) => "i32 [words]",
            };
            Err(Error::Input { name: wanted.name, found: shown(other), wanted: wanted_shape })
        }
    };
    let inputs = head.into_iter().flat_map(Head::inputs);
    given.iter().zip(inputs).map(sizes).collect()
}

fn has_shape(tensor: &Tensor, shape: InputShape) -> bool {
    match (shape, tensor.sizes.as_slice()) {
        (InputShape::Scalar, sizes) => sizes.iter().all(|size| *size == 1),
        (InputShape::Biases, [size]) => usize::try_from(*size) == Ok(MOST_BIASES),
        (InputShape::Mask, [size]) => *size >= 1,
        (InputShape::Biases | InputShape::Mask, _) => false,
    }
}

/// Checks the outputs of the full head after the token, and returns them.
fn check_log_probabilities(method: &Method) -> Result<impl Iterator<Item = i32>> {
    for (index, wanted) in (1..).zip(&SAMPLER_OUTPUTS) {
        let found = value(method, method.outputs.get(index));
        let is_it = matches!(found, Some(EValue::Tensor(tensor)) if tensor.scalar_type == wanted.dtype
            && tensor.sizes()?.iter().product::<u64>() == wanted.size.unwrap_or(1) as u64);
        if !is_it {
            return Err(Error::LogProbabilityOutput { index, name: wanted.name, found: shown(found) });
        }
    }
    Ok(method.outputs.iter().skip(1).take(SAMPLER_OUTPUTS.len()).copied())
}

/// Checks the first output: a token, or the logits of one position. Other outputs are ignored.
fn check_output(method: &Method, samples: bool) -> Result<(i32, &Tensor)> {
    let index = method.outputs.first();
    let found = value(method, index);
    let (Some(index), Some(EValue::Tensor(tensor))) = (index, found) else {
        return Err(Error::Logits { found: shown(found) });
    };
    let is_one = tensor.sizes.iter().all(|size| *size == 1);
    if samples {
        let is_token = tensor.scalar_type == DType::I64 && is_one;
        return if is_token { Ok((*index, tensor)) } else { Err(Error::SampledOutput(shown(found))) };
    }
    let is_float = tensor.scalar_type.is_float();
    match tensor.sizes.split_last() {
        Some((1.., rows)) if is_float && !rows.is_empty() && rows.iter().all(|size| *size == 1) => Ok((*index, tensor)),
        _ => Err(Error::Logits { found: shown(found) }),
    }
}

/// Collects the arguments that are not inputs of the method.
fn constants(program: &Program, method: &Method, args: &[i32]) -> Result<Vec<(usize, Constant)>> {
    let own = args.iter().enumerate().filter(|(_, arg)| !method.inputs.contains(arg));
    own.map(|(at, arg)| match value(method, Some(arg)) {
        Some(EValue::Int(int)) => Ok((at, Constant::Int(int.int_val))),
        Some(EValue::Tensor(tensor)) => {
            let bytes = program.tensor_data(tensor)?.ok_or(Error::NoValue(at))?;
            Ok((at, Constant::Tensor { dtype: tensor.scalar_type, shape: tensor.sizes()?, bytes }))
        }
        _ => Err(Error::NoValue(at)),
    })
    .collect()
}
