//! GGUF in Hugging Face's words: the same facts and tensors under the names that a `config.json` and its weights use.
//!
//! Only names and places change. Numbers stay as GGUF has them, and where that means something else than Hugging Face's
//! order, the config says so in keys of our own:
//!
//! - `rope_interleaved`: whether a rotary pair is two neighbours in a head (rows of query and key were reordered when the
//!   GGUF file was made) or, as Hugging Face has it, an element of the first and one of the second half.
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

/// What GGUF puts before the number of a layer.
const LAYER: &str = "blk.";

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

/// An architecture of GGUF that is told in Hugging Face's words.
struct Architecture {
    /// What `general.architecture` says.
    name: &'static str,
    /// The `config.json` of such a model.
    config: fn(&Source<'_>) -> Result<Map<String, Json>>,
    names: &'static Names,
}

/// Names of tensors: GGUF's, then Hugging Face's. Either the whole name stands there, or what comes before the last dot.
struct Names {
    /// Outside the layers.
    whole: &'static [(&'static str, &'static str)],
    /// What Hugging Face puts before the number of a layer.
    layer: &'static str,
    /// Behind `blk.N.` and `model.layers.N.`.
    in_layer: &'static [(&'static str, &'static str)],
}

/// Every architecture that is known. Files of any other keep their own names and have no config.
const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "gemma4", config: gemma4::gemma4, names: &gemma4::NAMES },
    Architecture { name: "llama", config: llama::llama, names: &llama::NAMES },
    Architecture { name: "mistral3", config: llama::mistral3, names: &llama::NAMES },
    Architecture { name: "qwen2", config: llama::qwen2, names: &llama::NAMES },
    Architecture { name: "qwen3", config: llama::qwen3, names: &llama::NAMES },
    Architecture { name: "smollm3", config: llama::smollm3, names: &llama::NAMES },
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
        insert(&mut renamed, architecture.names.rename(&name).unwrap_or(name), tensor)?;
    }
    Ok((renamed, Some(Json::Object(config))))
}

impl Names {
    /// Hugging Face's name; none where it has none of its own.
    fn rename(&self, name: &str) -> Option<String> {
        let Some((number, rest)) = name.strip_prefix(LAYER).and_then(|rest| rest.split_once('.')) else {
            return find(self.whole, name);
        };
        let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let found = plain.then(|| find(self.in_layer, rest)).flatten()?;
        Some(format!("{}{number}.{found}", self.layer))
    }
}

/// The name of a row; of one that has only what comes before the last dot, with the rest behind it.
fn find(rows: &[(&str, &str)], name: &str) -> Option<String> {
    let row = |wanted: &str| rows.iter().find(|(gguf, _)| *gguf == wanted).map(|(_, found)| *found);
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
        let renamed = |name: &str| llama::NAMES.rename(name);
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
        for Architecture { name, names, .. } in ARCHITECTURES {
            for rows in [names.whole, names.in_layer] {
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
