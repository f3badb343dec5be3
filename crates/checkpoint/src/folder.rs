//! A Hugging Face folder: weights in one file or in shards, and the small files beside them.

use crate::entry::{Tensors, insert};
use crate::error::at_most;
use crate::safetensors::{self, Object, Pairs};
use crate::{Checkpoint, Error, Fault, Limits, Metadata, Result, Step};
use ptero_tensor::Bytes;
use ptero_tensor::fault::AtStep;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// The files beside the weights that are read. All others in a folder are ignored.
pub const SIDE_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// The weights of a folder, where they are one file.
pub const WHOLE: &str = "model.safetensors";
/// The file that says which shard holds which tensor, where they are several.
pub const INDEX: &str = "model.safetensors.index.json";

/// The part of an index that is read: which shard holds which tensor.
#[derive(serde::Deserialize)]
struct Index {
    weight_map: Pairs<String>,
}

pub(crate) fn open(folder: &Path, limits: &Limits) -> Result<Checkpoint> {
    let (tensors, metadata) = weights(folder, limits)?;
    with_side_files(Checkpoint { tensors, metadata, ..Checkpoint::default() }, folder, limits)
}

/// Adds the files beside the weights.
pub(crate) fn with_side_files(mut checkpoint: Checkpoint, folder: &Path, limits: &Limits) -> Result<Checkpoint> {
    for name in SIDE_FILES {
        if let Some(bytes) = map_if_there(folder, name)? {
            checkpoint.files.insert((*name).to_owned(), bytes);
        }
    }
    checkpoint.config = checkpoint.json("config.json", limits).at(|| Step::File(folder.to_owned()))?;
    Ok(checkpoint)
}

/// One file is preferred to shards, as in other readers of such folders.
fn weights(folder: &Path, limits: &Limits) -> Result<(Tensors, Metadata)> {
    if let Some(file) = map_if_there(folder, WHOLE)? {
        return safetensors::read(&file, limits).at(|| Step::File(folder.join(WHOLE)));
    }
    if let Some(index) = map_if_there(folder, INDEX)? {
        let shards = read_index(&index, limits).at(|| Step::File(folder.join(INDEX)))?;
        return read_shards(folder, shards, limits);
    }
    let pickle = ["pytorch_model.bin", "pytorch_model.bin.index.json"].iter().any(|name| folder.join(name).exists());
    Err(if pickle { Fault::Pickle } else { Fault::NoWeights }).at(|| Step::File(folder.to_owned()))
}

/// The names of an index, by shard.
pub(crate) fn read_index(index: &Bytes, limits: &Limits) -> Result<BTreeMap<String, Vec<String>>> {
    at_most("bytes of an index", index.len() as u64, limits.header_bytes)?;
    let Index { weight_map: Object(pairs) } = serde_json::from_slice(index).map_err(Fault::from)?;
    at_most("tensors", pairs.len() as u64, limits.tensors)?;
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for (name, shard) in pairs {
        at_most("bytes of a name", name.len() as u64, limits.name_bytes)?;
        if !is_plain_name(&shard) {
            return Err(Fault::BadShardName(shard)).at(|| Step::named("tensor", name));
        }
        if !seen.insert(name.clone()) {
            return Err(Fault::Duplicate(name).into());
        }
        shards.entry(shard).or_default().push(name);
    }
    at_most("shards", shards.len() as u64, limits.shards)?;
    Ok(shards)
}

/// Returns `true` if the name is a file in the same folder on every system.
fn is_plain_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= 255 && !name.starts_with('.') && name.ends_with(".safetensors") && name.bytes().all(plain)
}

/// The tensors that the index names; other tensors of a shard are ignored.
fn read_shards(folder: &Path, shards: BTreeMap<String, Vec<String>>, limits: &Limits) -> Result<(Tensors, Metadata)> {
    let (mut tensors, mut metadata) = (Tensors::new(), Metadata::new());
    for (shard, names) in shards {
        let in_shard = || Step::File(folder.join(&shard));
        let file = Bytes::map(&folder.join(&shard)).map_err(Fault::from).at(in_shard)?;
        let (mut held, pairs) = safetensors::read(&file, limits).at(in_shard)?;
        for name in names {
            let not_there = || Error::from(Fault::NotInShard(shard.clone())).at(Step::named("tensor", &name));
            let tensor = held.remove(&name).ok_or_else(|| not_there().at(Step::File(folder.join(INDEX))))?;
            insert(&mut tensors, name, tensor)?;
        }
        for (key, value) in pairs {
            metadata.entry(key).or_insert(value);
        }
    }
    Ok((tensors, metadata))
}

fn map_if_there(folder: &Path, name: &str) -> Result<Option<Bytes>> {
    let path = folder.join(name);
    match Bytes::map(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        mapped => mapped.map(Some).map_err(Fault::from).at(|| Step::File(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(text: &str) -> Result<BTreeMap<String, Vec<String>>> {
        read_index(&Bytes::from(text.as_bytes().to_vec()), &Limits::DEFAULT)
    }

    #[test]
    fn shard_names_that_lead_elsewhere_are_refused() {
        let names =
            ["../w.safetensors", "a/w.safetensors", "a\\\\w.safetensors", "..", "/w.safetensors", "C:w.safetensors"];
        for name in names.into_iter().chain(["w.bin", ".safetensors", "w\\u0000.safetensors", "w.safetensors/", ""]) {
            let error = index(&format!(r#"{{"weight_map": {{"t": "{name}"}}}}"#)).unwrap_err();
            assert!(matches!(error.fault(), Fault::BadShardName(_)), "{name}: {error}");
            assert!(error.to_string().starts_with("tensor `t`: "), "{error}");
        }
        assert!(index(r#"{"weight_map": {"t": "model-00001-of-00002.safetensors"}}"#).is_ok());
    }

    #[test]
    fn an_index_that_says_twice_where_a_tensor_is_is_refused() {
        let error = index(r#"{"weight_map": {"t": "a.safetensors", "t": "b.safetensors"}}"#).unwrap_err();
        assert_eq!(error.to_string(), "duplicate `t`");
    }

    #[test]
    fn an_index_over_its_limits_is_refused() {
        let text = br#"{"weight_map": {"t": "a.safetensors", "u": "b.safetensors"}}"#;
        let read = |limits: Limits| read_index(&Bytes::from(text.to_vec()), &limits);
        for limits in [
            Limits { tensors: 1, ..Limits::DEFAULT },
            Limits { shards: 1, ..Limits::DEFAULT },
            Limits { header_bytes: 10, ..Limits::DEFAULT },
            Limits { name_bytes: 0, ..Limits::DEFAULT },
        ] {
            assert_eq!(read(limits).unwrap_err().kind(), crate::Kind::Limit);
        }
        assert_eq!(read(Limits::DEFAULT).unwrap().len(), 2);
    }
}
