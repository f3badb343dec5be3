//! What the full head needs to know of a method: how long a text may be, and which inputs are the tokens and their positions.

use super::GraftError;
use super::site::Site;
use crate::builder::GraphBuilder;
use crate::sampler::TextInputs;
use ptero_pte::schema::Call;
use ptero_pte::{DType, Delegate, Method, Payload, Program, Slot, SlotType, TensorMeta};

/// Names for the number of positions; the first that exists counts, as in the engine.
const CONTEXT: [&str; 3] = ["get_max_context_len", "get_max_ctx_len", "get_max_seq_len"];

/// The most positions that are counted exactly in f32.
const MOST_POSITIONS: i32 = 1 << 24;

/// Slots of a graph, and the number of positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    tokens: u32,
    positions: u32,
    context: i32,
}

impl Text {
    pub(super) fn find(program: &Program, site: &Site) -> Result<Self, GraftError> {
        let method = program.methods.get(site.method);
        let no_text = || GraftError::NoText { method: method.map(|method| method.name.clone()).unwrap_or_default() };
        let inputs = method.and_then(|method| Some((method, graph(method, site.delegate)?)));
        let slot = |at: usize| inputs.and_then(|(method, graph)| input_slot(method, graph, site.delegate, at));
        let is_length = |size: i32| size == -1 || size >= 1;
        let ((tokens, shown), (positions, places)) = slot(0).zip(slot(1)).ok_or_else(no_text)?;
        let sizes = |meta: &TensorMeta| meta.shape.iter().map(|dim| dim.value).collect::<Vec<i32>>();
        let is_text = matches!(sizes(shown).as_slice(), [1, length] if is_length(*length))
            && matches!(sizes(places).as_slice(), [length] if is_length(*length));
        if !is_text || [shown, places].into_iter().any(|meta| meta.scalar_type != DType::I64) {
            return Err(no_text());
        }
        Ok(Self { tokens, positions, context: context(program)? })
    }

    /// As handles of the graph that is continued.
    pub(super) fn inputs(self, b: &GraphBuilder) -> Option<TextInputs> {
        let tensor = |slot| b.tensor_of(Slot::Tensor(slot));
        let (tokens, positions) = tensor(self.tokens).zip(tensor(self.positions))?;
        Some(TextInputs { tokens, positions, context: self.context })
    }
}

fn context(program: &Program) -> Result<i32, GraftError> {
    for name in CONTEXT {
        if let Some(value) = program.int_metadata(name)? {
            let context = i32::try_from(value).ok().filter(|context| (1..=MOST_POSITIONS).contains(context));
            return context.ok_or(GraftError::Context { name, value });
        }
    }
    Err(GraftError::NoContext)
}

pub(super) fn graph(method: &Method, delegate: usize) -> Option<&Delegate> {
    match &method.delegates.get(delegate)?.payload {
        Payload::Mlx(graph) => Some(graph),
        Payload::Foreign(_) => None,
    }
}

/// The slot of a graph that holds an input of the method, with its type and shape.
pub(super) fn input_slot<'a>(
    method: &Method,
    graph: &'a Delegate,
    delegate: usize,
    at: usize,
) -> Option<(u32, &'a TensorMeta)> {
    let value = method.inputs.get(at)?;
    let calls = method.chains.iter().flat_map(|chain| &chain.instructions);
    let args = calls.into_iter().find_map(|call| match call {
        Call::Delegate(call) if usize::try_from(call.delegate_index) == Ok(delegate) => Some(&call.args),
        _ => None,
    })?;
    let index = args.iter().take(graph.input_map.len()).position(|arg| arg == value)?;
    let slot = graph.input_map.get(index).filter(|slot| slot.slot_type == SlotType::Tensor)?;
    Some((slot.idx, graph.meta(slot.idx)?))
}
