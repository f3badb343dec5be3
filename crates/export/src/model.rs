//! From a checkpoint to a program: the family's graph, the head, the metadata that runners read, and the files that belong
//! to the model.

use crate::builder::GraphBuilder;
use crate::config;
use crate::error::{ExportError, Result};
use crate::families::{Family, Model, family_of};
use crate::metadata::{self, USE_SAMPLING};
use crate::net::Net;
use crate::recipe::{ModelWeights, Recipe};
use crate::sampler::{Logits, TextInputs, sampled_output};
use crate::weights::{FormCount, Weight, count, write_all};
use ptero_checkpoint::{Checkpoint, Format, Limits};
use ptero_pte::nodes::IdCopy;
use ptero_pte::{Method, NamedData, Pending, Program, ShapeDim};
use serde_json::Value;
use std::io::Write;

/// The prefix of the names of files that a program carries.
pub const FILES: &str = "files/";

/// Files of a checkpoint that become part of the program.
const CARRIED: &[&str] = &["tokenizer.json", "tokenizer_config.json", "generation_config.json"];

/// A program that is ready to be written. Its weights are still in the checkpoint.
#[derive(Debug)]
pub struct Export {
    program: Program,
    weights: Vec<Weight>,
    /// The recipe, with the size of groups that was chosen.
    pub recipe: Recipe,
    /// The family of the model.
    pub family: &'static Family,
    /// Positions that the state has room for.
    pub max_context: u32,
    /// Tokens that one call takes.
    pub max_prefill: u32,
}

/// Builds the program that the recipe asks for. No weight is read.
///
/// # Errors
/// When the model is of no known family, its configuration makes no sense, or the tensors are not those it asks for.
pub fn export(checkpoint: &Checkpoint, recipe: &Recipe) -> Result<Export> {
    let config = checkpoint.config().ok_or(ExportError::NoConfig)?;
    let family = family_of(config)?;
    check_not_quantized(config)?;
    let (max_context, max_prefill) = room(recipe, config::text(config))?;
    let recipe = recipe.resolve(|| model_weights(checkpoint))?;
    let small = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let room = [max_context, max_prefill].map(small);
    let mut net = Net::new(checkpoint, &recipe, recipe.group.unwrap_or(Recipe::GROUP), room);
    let model = (family.build)(&mut net, config)?;
    let length = ShapeDim::between(1, small(max_prefill));
    net.check()?;
    let text = TextInputs { tokens: net.tokens, positions: net.positions, context: net.context };
    let Net { mut graph, weights, taps, .. } = net;
    let head = recipe.sample.filter(|_| !recipe.every_position);
    match head {
        Some(head) => {
            let logits = Logits { tensor: model.logits, batch: ShapeDim::fixed(1), vocabulary: model.vocabulary.get() };
            sampled_output(&mut graph, &logits, head, Some(text))?;
        }
        None => return_logits(&mut graph, &model, recipe.every_position.then_some(&length)),
    }
    for (name, tensor, width) in taps {
        let shape = [ShapeDim::fixed(1), length.clone(), ShapeDim::fixed(width)];
        let out = graph.output(&name, recipe.dtype.dtype(), shape);
        graph.emit(IdCopy { x: tensor.src(), out: out.dst() });
    }
    let mut program = Program::default();
    graph.finish().add_to(&mut program, "forward");
    program.methods.extend(metadata(checkpoint, &model, head.is_some(), max_context, max_prefill)?);
    if recipe.embed_files {
        program.named_data.extend(files(checkpoint)?);
    }
    Ok(Export { program, weights, recipe, family, max_context, max_prefill })
}

/// Counts the parameters of the model, from its configuration, and looks at how the checkpoint stores them. Of a model that was
/// shortened, all layers count, so that the ones that are left are stored as they are in the whole model.
///
/// # Errors
/// When the model is of no known family, or its configuration makes no sense.
pub fn model_weights(checkpoint: &Checkpoint) -> Result<ModelWeights> {
    let config = checkpoint.whole_config().ok_or(ExportError::NoConfig)?;
    let recipe = Recipe::default();
    // How many positions there are, and how weights are stored, does not matter.
    let mut net = Net::new(checkpoint, &recipe, Recipe::GROUP, [1, 1]);
    (family_of(config)?.build)(&mut net, config)?;
    let group = |format: Format| match format {
        Format::Plain(_) => None,
        Format::Gguf(kind) => kind.affine(),
        Format::GgufLegacy(kind) => Some(kind.affine()),
    };
    let mut groups = checkpoint.tensors().filter_map(|(_, entry)| group(entry.format()));
    let are_in_groups = groups.any(|affine| affine.group() == Recipe::GROUP);
    Ok(ModelWeights { parameters: net.parameters(), are_in_groups })
}

/// Refuses weights quantized for other programs: their form is not visible in the names of the tensors.
fn check_not_quantized(config: &Value) -> Result<()> {
    let found = [config, config::text(config)].into_iter().find_map(|config| config.get("quantization_config"));
    let Some(found) = found.filter(|found| !found.is_null()) else { return Ok(()) };
    let method = found.get("quant_method").and_then(Value::as_str).unwrap_or("there");
    Err(ExportError::Unsupported { key: "quantization_config", found: format!("`{}`", method.escape_debug()) })
}

/// How many positions the state has room for, and how many tokens a call takes.
fn room(recipe: &Recipe, config: &Value) -> Result<(u32, u32)> {
    let made_for = config.get("max_position_embeddings").and_then(Value::as_u64);
    let limit = made_for.and_then(|made_for| u32::try_from(made_for).ok()).unwrap_or(Recipe::CONTEXT).min(1 << 24);
    let context = recipe.max_context.unwrap_or(limit.min(Recipe::CONTEXT));
    if context == 0 || context > limit {
        return Err(ExportError::Context { found: context, limit });
    }
    let prefill = recipe.max_prefill.unwrap_or(context.min(Recipe::PREFILL));
    if prefill == 0 || prefill > context {
        return Err(ExportError::Prefill { found: prefill, limit: context });
    }
    Ok((context, prefill))
}

/// Makes the logits an output: of one position, or of as many as the call has.
fn return_logits(graph: &mut GraphBuilder, model: &Model, positions: Option<&ShapeDim>) {
    let (batch, vocabulary) = (ShapeDim::fixed(1), ShapeDim::fixed(model.vocabulary.get()));
    let shape = [batch].into_iter().chain(positions.cloned()).chain([vocabulary]);
    let out = graph.output("logits", model.dtype, shape);
    graph.emit(IdCopy { x: model.logits.src(), out: out.dst() });
}

/// The metadata that upstream's runners read.
fn metadata(
    checkpoint: &Checkpoint,
    model: &Model,
    samples: bool,
    max_context: u32,
    max_prefill: u32,
) -> Result<Vec<Method>> {
    let mut methods = vec![
        metadata::int("get_max_seq_len", max_context.into()),
        metadata::int("get_max_context_len", max_context.into()),
        metadata::int("get_max_prefill_chunk", max_prefill.into()),
        metadata::int("get_vocab_size", model.vocabulary.get().into()),
        metadata::int("get_n_layers", model.layers.get().into()),
        metadata::flag("use_kv_cache", true),
        metadata::flag("use_sdpa_with_kv_cache", false),
        metadata::flag("enable_dynamic_shape", true),
        metadata::flag(USE_SAMPLING, samples),
    ];
    methods.extend(token_ids(checkpoint, "bos_token_id")?.first().map(|id| metadata::int("get_bos_id", *id)));
    let ends = token_ids(checkpoint, "eos_token_id")?;
    methods.extend((!ends.is_empty()).then(|| metadata::ints("get_eos_ids", &ends)));
    Ok(methods)
}

/// Ids of special tokens: one, several or none, from `generation_config.json` or else from the configuration.
fn token_ids(checkpoint: &Checkpoint, key: &'static str) -> Result<Vec<i64>> {
    let generation = checkpoint.json("generation_config.json", &Limits::default())?;
    let config = checkpoint.config();
    let of = |config: &Value| config.get(key).filter(|ids| !ids.is_null()).cloned();
    let found = generation.as_ref().and_then(of).or_else(|| config.and_then(of));
    let found = found.or_else(|| config.map(config::text).and_then(of));
    let ids = match &found {
        None => Some(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(Value::as_i64).collect(),
        Some(id) => id.as_i64().map(|id| vec![id]),
    };
    let wrong =
        || config::setting(key, found.as_ref().map(Value::to_string).unwrap_or_default(), "a token id, or several");
    ids.ok_or_else(wrong)
}

/// Tokenizer, chat template and the like, so that one file is the whole model.
fn files(checkpoint: &Checkpoint) -> Result<Vec<NamedData>> {
    let named = |name: &str, data: ptero_pte::Bytes| NamedData { key: format!("{FILES}{name}"), data };
    let mut files = Vec::new();
    for name in CARRIED {
        files.extend(checkpoint.file(name)?.map(|data| named(name, data)));
    }
    let template = checkpoint.chat_template(&Limits::default())?;
    files.extend(template.map(|text| named("chat_template.jinja", text.into_bytes().into())));
    Ok(files)
}

impl Export {
    /// The program, without its weights.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// How large the weights are, together.
    pub fn weight_bytes(&self) -> u64 {
        self.pending().iter().map(|pending| pending.bytes).sum()
    }

    /// How many weights are stored in which form, the most frequent form first.
    pub fn forms(&self) -> Vec<FormCount> {
        count(&self.weights)
    }

    fn pending(&self) -> Vec<Pending> {
        self.weights.iter().flat_map(|weight| weight.data.clone()).collect()
    }

    /// Writes the program, reading its weights from the checkpoint on the way. `wrote` is called with the number of bytes
    /// after each run of weights.
    ///
    /// # Errors
    /// When a weight cannot be read or stored, or writing fails.
    pub fn write(&self, out: &mut dyn Write, wrote: &mut dyn FnMut(u64)) -> Result<()> {
        let mut rest = self.program.write_before(&self.pending(), out)?;
        write_all(&self.weights, &mut rest, wrote)?;
        rest.finish()?.flush()?;
        Ok(())
    }
}
