//! Translates GGUF's metadata to a `config.json`, and the names of its tensors to Hugging Face's.
//!
//! The weights stay as GGUF stores them. Where their order differs from Hugging Face's, the config has keys of our own:
//!
//! - `rope_interleaved`: `true` if a rotary pair is two neighbours in a head (rows of query and key were reordered when the
//!   GGUF file was made), `false` if it is an element of the first and one of the second half, as in Hugging Face.
//! - `rope_freqs`: the name of a tensor; each rotary pair's frequency is divided by its element (how GGUF stores Llama 3's
//!   scaling of frequencies).

mod gemma4;
mod llama;

use super::keys::Keys;
use crate::entry::{Tensors, insert};
use crate::{Limits, Metadata, Result, TensorEntry, Value};
use serde_json::{Map, Value as Json};

/// The key that says how all others are named.
const ARCHITECTURE: &str = "general.architecture";

/// What a config is made of.
struct Source<'a> {
    keys: Keys<'a>,
    /// Under GGUF's names.
    tensors: &'a Tensors,
    limits: &'a Limits,
}

impl Source<'_> {
    /// A tensor, under GGUF's name.
    fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.get(name)
    }
}

/// Names of tensors: GGUF's, then Hugging Face's. Either the whole name, or the part before the last dot.
type Names = [(&'static str, &'static str)];

/// An architecture of GGUF that is translated to Hugging Face's names.
struct Architecture {
    /// The value of `general.architecture`.
    name: &'static str,
    /// Makes the `config.json` of such a model.
    config: fn(&Source<'_>) -> Result<Map<String, Json>>,
    /// Names outside the layers, in addition to [`WHOLE`].
    whole: &'static Names,
    /// Names after `blk.N.` and `model.layers.N.`, in addition to [`IN_LAYER`].
    in_layer: &'static Names,
}

const fn llama_like(name: &'static str, config: fn(&Source<'_>) -> Result<Map<String, Json>>) -> Architecture {
    Architecture { name, config, whole: &[], in_layer: llama::IN_LAYER }
}

/// Every architecture that is known. Files of any other keep their own names and have no config.
const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "gemma4", config: gemma4::gemma4, whole: gemma4::WHOLE, in_layer: gemma4::IN_LAYER },
    llama_like("llama", llama::llama),
    llama_like("mistral3", llama::mistral3),
    llama_like("qwen2", |source| llama::common(source, "qwen2", false)),
    llama_like("qwen3", |source| llama::common(source, "qwen3", false)),
    llama_like("smollm3", llama::smollm3),
];

/// Names outside the layers that all architectures share.
const WHOLE: &Names = &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Names within a layer that all architectures share.
const IN_LAYER: &Names = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The tensors under Hugging Face's names, and the config, where the architecture is known.
pub(crate) fn translate(tensors: Tensors, metadata: &Metadata, limits: &Limits) -> Result<(Tensors, Option<Json>)> {
    let name = metadata.get(ARCHITECTURE).and_then(Value::as_str);
    let Some(architecture) = name.and_then(|name| ARCHITECTURES.iter().find(|known| known.name == name)) else {
        return Ok((tensors, None));
    };
    let keys = Keys { metadata, what: "architecture", name: architecture.name };
    let source = Source { keys, tensors: &tensors, limits };
    let config = (architecture.config)(&source)?;
    let mut renamed = Tensors::new();
    for (name, tensor) in tensors {
        insert(&mut renamed, architecture.rename(&name).unwrap_or(name), tensor)?;
    }
    Ok((renamed, Some(Json::Object(config))))
}

impl Architecture {
    /// Hugging Face's name, or `None` if it has none of its own.
    fn rename(&self, name: &str) -> Option<String> {
        let Some((number, rest)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
            return find([self.whole, WHOLE], name);
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let found = is_number.then(|| find([self.in_layer, IN_LAYER], rest)).flatten()?;
        Some(format!("model.layers.{number}.{found}"))
    }
}

/// Looks up the whole name, or else the part before the last dot, to which the rest is appended.
fn find(tables: [&Names; 2], name: &str) -> Option<String> {
    let row = |wanted: &str| tables.into_iter().flatten().find(|(gguf, _)| *gguf == wanted).map(|(_, found)| *found);
    row(name).map(str::to_owned).or_else(|| {
        let (stem, kind) = name.rsplit_once('.')?;
        row(stem).map(|found| format!("{found}.{kind}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hugging_faces_where_it_has_one_and_otherwise_ggufs() {
        let renamed = |name: &str| ARCHITECTURES[1].rename(name);
        for (name, wanted) in [
            ("token_embd.weight", Some("model.embed_tokens.weight")),
            ("output.weight", Some("lm_head.weight")),
            ("blk.0.attn_q.weight", Some("model.layers.0.self_attn.q_proj.weight")),
            ("blk.17.attn_output.bias", Some("model.layers.17.self_attn.o_proj.bias")),
            ("blk.3.ffn_norm.weight", Some("model.layers.3.post_attention_layernorm.weight")),
            ("rope_freqs.weight", None),
            ("blk.x.attn_q.weight", None),
            ("blk..attn_q.weight", None),
            ("blk.0", None),
            ("blk.0.", None),
            ("blk.0.attn_q", Some("model.layers.0.self_attn.q_proj")),
            ("output.weight.weight", None),
            ("", None),
        ] {
            assert_eq!(renamed(name).as_deref(), wanted, "{name}");
        }
    }

    #[test]
    fn no_table_of_names_has_a_name_twice() {
        for Architecture { name, whole, in_layer, .. } in ARCHITECTURES {
            for rows in [[*whole, WHOLE].concat(), [*in_layer, IN_LAYER].concat()] {
                for side in [|row: &(&'static str, &'static str)| row.0, |row: &(&'static str, &'static str)| row.1] {
                    let mut all: Vec<_> = rows.iter().map(side).collect();
                    all.sort_unstable();
                    let count = all.len();
                    all.dedup();
                    assert_eq!(all.len(), count, "{name}");
                }
            }
        }
    }
}
