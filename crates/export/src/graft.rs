//! Adds a sampling head to a program that returns logits: it then returns token ids and takes the parameters as further
//! inputs. The full head also replaces upstream's. Weights, state, other outputs and other methods do not change.

mod error;
mod plain_head;
mod site;
mod text;

pub use error::GraftError;

use crate::builder::{Built, GraphBuilder, outer};
use crate::metadata::{self, LEAF, USE_SAMPLING};
use crate::sampler::{DeclaredHead, Logits};
use plain_head::Removed;
use ptero_pte::nodes::Reshape;
use ptero_pte::schema::{AllocationDetails, Bool, Call, ContainerMetadata, EValue, Tensor};
use ptero_pte::{
    DType, Delegate, DelegateEntry, Limits, Method, NamedData, Payload, Program, Slot, SlotVariant, TensorMeta,
    Verified, check,
};
use ptero_sampling::inputs::Head;
use site::{Found, Site};
use text::Text;

/// Where the head is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graft {
    /// The method that returns the logits.
    pub method: String,
    /// The index of the output; `None` if it has only one, or only one token.
    pub output: Option<usize>,
    /// The head. Without a seed, it draws from the runtime's own sequence of keys.
    pub head: Head,
}

impl Default for Graft {
    fn default() -> Self {
        Self { method: "forward".to_owned(), output: None, head: Head::Plain }
    }
}

/// Returns `true` if the program's `forward` takes tokens, their positions and all inputs of the full head.
pub fn has_full_head(program: &Program) -> bool {
    program.method("forward").is_some_and(|forward| forward.inputs.len() == 2 + Head::Full.inputs().count())
}

/// Adds the head after the logits: the method then returns `[B]` token ids instead, takes the parameters after its own
/// inputs in the order of `SAMPLER_INPUTS`, and the program's metadata has `use_sampling`. With the full head, the outputs of
/// `SAMPLER_OUTPUTS` follow the token; it also replaces upstream's head in a program that has it.
pub fn graft(mut program: Program, how: &Graft, limits: &Limits) -> Result<Verified, GraftError> {
    let site = Site::find(&program, how)?;
    check(&program, limits)?;
    let is_new = matches!(site.found, Found::Logits { .. });
    if is_new && program.bool_metadata(USE_SAMPLING)? == Some(true) {
        return Err(GraftError::UsesSampling);
    }
    let text = if how.head == Head::Full { Some(Text::find(&program, &site)?) } else { None };
    let removed = match &site.found {
        Found::Token(head) => head.remove(&mut program, &site),
        Found::Logits { .. } => None,
    };
    let taken = program.all_data().map(|entry| entry.key.clone()).collect();
    if let Some(method) = program.methods.get_mut(site.method) {
        let data = rebuild(method, &site, how.head, text, removed, taken)?;
        program.named_data.extend(data);
    }
    declare_sampling(&mut program);
    Ok(Verified::new(program, limits)?)
}

/// Changes the graph and the method around it; gives the data of the new constants.
fn rebuild(
    method: &mut Method,
    site: &Site,
    head: Head,
    text: Option<Text>,
    removed: Option<Removed>,
    taken: Vec<String>,
) -> Result<Vec<NamedData>, GraftError> {
    let Some(DelegateEntry { payload: Payload::Mlx(graph), .. }) = method.delegates.get_mut(site.delegate) else {
        return Err(GraftError::NotFromGraph { output: site.output });
    };
    let (inputs_before, outputs_before) = (graph.input_map.len(), graph.output_map.len());
    let Built { graph: grafted, data } = match (&site.found, removed) {
        (Found::Token(_), Some(removed)) => replaced_head(removed, site, text, taken)?,
        _ => with_head(graph, site, head, text, taken)?,
    };
    let added = |map: &[SlotVariant], before: usize| -> Vec<Tensor> {
        let metas = map.iter().skip(before).filter_map(|slot| grafted.meta(slot.idx));
        metas.map(outer).collect()
    };
    let (inputs, outputs) = (added(&grafted.input_map, inputs_before), added(&grafted.output_map, outputs_before));
    **graph = grafted;
    if let Found::Logits { batch, .. } = &site.found {
        replace_value(method, site.value, outer(&TensorMeta::new(DType::I64, vec![batch.clone()])));
    }
    add_values(method, site, inputs_before, inputs, outputs);
    Ok(data)
}

/// Adds inputs, and outputs after the token, to a method and to the call of its graph.
fn add_values(method: &mut Method, site: &Site, inputs_before: usize, inputs: Vec<Tensor>, outputs: Vec<Tensor>) {
    let count = i32::try_from(method.values.len()).expect("a method has fewer than 2^31 values");
    let mut indices = count..;
    let new_inputs: Vec<i32> = indices.by_ref().take(inputs.len()).collect();
    let new_outputs: Vec<i32> = indices.take(outputs.len()).collect();
    method.values.extend(inputs.into_iter().map(EValue::Tensor));
    outputs.into_iter().for_each(|output| add_output(method, site.value, output));
    method.inputs.extend(&new_inputs);
    let after = site.method_output + 1;
    method.outputs.splice(after..after, new_outputs.iter().copied());
    for call in method.chains.iter_mut().flat_map(|chain| &mut chain.instructions) {
        if let Call::Delegate(call) = call
            && usize::try_from(call.delegate_index) == Ok(site.delegate)
        {
            call.args.splice(inputs_before..inputs_before, new_inputs.iter().copied());
            call.args.extend(&new_outputs);
        }
    }
    let (outputs, container) = (method.outputs.len(), &mut method.container);
    container.iter_mut().for_each(|container| {
        describe_inputs(container, new_inputs.len());
        describe_outputs(container, outputs - new_outputs.len(), new_outputs.len());
    });
}

fn with_head(
    graph: &Delegate,
    site: &Site,
    head: Head,
    text: Option<Text>,
    taken: Vec<String>,
) -> Result<Built, GraftError> {
    let mut b = GraphBuilder::resume(graph.clone(), taken);
    let lost = || GraftError::NotFromGraph { output: site.output };
    let Found::Logits { batch, vocabulary, has_position } = &site.found else { return Err(lost()) };
    let tensor = b.output_at(site.output).ok_or_else(lost)?;
    let mut logits = Logits { tensor, batch: batch.clone(), vocabulary: *vocabulary };
    let text = text.and_then(|text| text.inputs(&b));
    let head = DeclaredHead::new(&mut b, &logits, head, text, &[])?;
    let token = b.replace_output(site.output, "token", DType::I64, [batch.clone()]).ok_or_else(lost)?;
    if *has_position {
        let (x, shape) = (logits.tensor.src(), logits.shape(&mut b));
        logits.tensor = b.node(|out| Reshape { x, out, shape });
    }
    head.emit(&mut b, &logits, token);
    Ok(b.finish())
}

/// Puts the full head where upstream's was.
fn replaced_head(removed: Removed, site: &Site, text: Option<Text>, taken: Vec<String>) -> Result<Built, GraftError> {
    let Removed { graph, after, logits, inputs, dropped } = removed;
    let lost = || GraftError::NotFromGraph { output: site.output };
    let mut b = GraphBuilder::resume(graph, taken);
    dropped.into_iter().for_each(|constant| b.forget(constant));
    let given: Option<Vec<_>> = inputs.into_iter().map(|slot| b.tensor_of(Slot::Tensor(slot))).collect();
    let tensor = b.tensor_of(Slot::Tensor(logits.slot)).ok_or_else(lost)?;
    let logits = Logits { tensor, batch: logits.batch, vocabulary: logits.vocabulary };
    let text = text.and_then(|text| text.inputs(&b));
    let head = DeclaredHead::new(&mut b, &logits, Head::Full, text, &given.ok_or_else(lost)?)?;
    let token = b.output_at(site.output).ok_or_else(lost)?;
    head.emit(&mut b, &logits, token);
    after.into_iter().for_each(|node| b.emit(node));
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

/// Adds an output, in planned memory if another one is there: at the end of its buffer.
fn add_output(method: &mut Method, beside: usize, mut output: Tensor) {
    let bytes = output.byte_count().unwrap_or(0);
    if let Some(EValue::Tensor(other)) = method.values.get(beside)
        && let Some(mut place) = other.allocation_info.clone()
        && let Some(size) = usize::try_from(place.memory_id).ok().and_then(|id| method.buffer_sizes.get_mut(id))
    {
        append(&mut place, size, bytes);
        output.allocation_info = Some(place);
    }
    method.values.push(EValue::Tensor(output));
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

/// The start of upstream's description of several outputs.
const SEVERAL: &str = r#"[1, {"type": "builtins.tuple", "context": "null", "children_spec": ["#;

/// Adds leaves to Python's description of the outputs, if it has the usual form.
fn describe_outputs(container: &mut ContainerMetadata, before: usize, added: usize) {
    let leaves = |count: usize| vec![LEAF; count].join(", ");
    let described = |count: usize| match count {
        1 => format!("[1, {LEAF}]"),
        count => format!("{SEVERAL}{}]}}]", leaves(count)),
    };
    if container.encoded_out_str == described(before) {
        container.encoded_out_str = described(before + added);
    }
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
