//! Checkpoints: Hugging Face folders, safetensors files and GGUF files as named tensors that are read on demand.
//!
//! [`Checkpoint::open`] reads tables of contents only. Weights stay in the mapped file until a row of them is asked for.
//!
//! A GGUF file of an architecture that is known here looks like a Hugging Face folder: its tensors have Hugging Face's
//! names, and there are a config and a tokenizer.
//!
//! Invariant: this crate knows the names in files, but no graph and no device. Files are untrusted: whatever they contain,
//! reading them returns a value or an [`Error`], never panics, and takes memory in proportion to the table of contents.
#![forbid(unsafe_code)]

mod differences;
mod entry;
mod error;
mod folder;
mod format;
mod gguf;
mod limits;
mod random;
mod safetensors;

pub use differences::{Difference, Differences};
pub use entry::TensorEntry;
pub use error::{Error, Fault, Kind, Result, Step};
pub use folder::{INDEX, SIDE_FILES, WHOLE};
pub use format::Format;
pub use gguf::{Array, Value, ValueType};
pub use limits::Limits;
pub use ptero_tensor::Bytes;

use error::at_most;
use ptero_tensor::fault::AtStep;
use random::RandomWeights;
use std::collections::BTreeMap;
use std::path::Path;

/// The metadata of a file: all of GGUF's key-value pairs, or the texts of safetensors' `__metadata__`.
pub type Metadata = BTreeMap<String, Value>;

/// The small files of a folder by name, mapped.
pub type Files = BTreeMap<String, Bytes>;

/// An opened checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    tensors: entry::Tensors,
    metadata: Metadata,
    files: Files,
    config: Option<serde_json::Value>,
    /// The configuration before it lost layers, if it did.
    whole_config: Option<serde_json::Value>,
    /// `true` if the metadata are GGUF's and side files are made from them.
    is_gguf: bool,
    /// The seed of a checkpoint whose tensors are random.
    seed: Option<u64>,
}

impl Checkpoint {
    /// Opens a Hugging Face folder, a `.safetensors` file or a GGUF file.
    ///
    /// # Errors
    /// When it is neither, or not sound; see [`Fault`].
    pub fn open(path: &Path, limits: &Limits) -> Result<Self> {
        let at_path = || Step::File(path.to_owned());
        if std::fs::metadata(path).map_err(Fault::from).at(at_path)?.is_dir() {
            return folder::open(path, limits);
        }
        let file = Bytes::map(path).map_err(Fault::from).at(at_path)?;
        let has_extension = |wanted: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(wanted));
        if file.starts_with(gguf::MAGIC) || has_extension("gguf") {
            return Self::from_gguf(&file, limits).at(at_path);
        }
        if !has_extension("safetensors") {
            return Err(Fault::NotACheckpoint).at(at_path);
        }
        let weights = Self::from_safetensors(&file, limits).at(at_path)?;
        folder::with_side_files(weights, path.parent().unwrap_or(path), limits)
    }

    /// Reads the bytes of a safetensors file.
    ///
    /// # Errors
    /// When they are not sound.
    pub fn from_safetensors(file: &Bytes, limits: &Limits) -> Result<Self> {
        let (tensors, metadata) = safetensors::read(file, limits)?;
        Ok(Self { tensors, metadata, ..Self::default() })
    }

    /// Reads the bytes of a GGUF file, version 2 or 3, little-endian.
    ///
    /// Where `general.architecture` is known, the tensors have Hugging Face's names and [`Checkpoint::config`] is what
    /// a `config.json` would say, with two keys of our own: `rope_interleaved` (a rotary pair is two neighbours in a
    /// head, not an element of each half) and `rope_freqs` (the name of a tensor whose elements divide the frequencies
    /// of the pairs).
    ///
    /// # Errors
    /// When they are not sound, hold a type of tensor that ptero does not read, or lack a key that the architecture
    /// must have.
    pub fn from_gguf(file: &Bytes, limits: &Limits) -> Result<Self> {
        let (tensors, metadata) = gguf::read(file, limits)?;
        let (tensors, config) = gguf::translate(tensors, &metadata, limits)?;
        Ok(Self { tensors, metadata, config, is_gguf: true, ..Self::default() })
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn tensor(&self, name: &str) -> Result<&TensorEntry> {
        self.tensors.get(name).ok_or(Fault::NoSuchTensor).at(|| Step::named("tensor", name))
    }

    /// The tensor of this name, if it has this shape. A random checkpoint has every tensor in every shape.
    pub fn find(&self, name: &str, shape: &[u64]) -> Option<TensorEntry> {
        match self.seed {
            Some(seed) => TensorEntry::random(shape, RandomWeights::new(seed, name, shape)).ok(),
            None => self.tensors.get(name).filter(|entry| entry.shape() == shape).cloned(),
        }
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &TensorEntry)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// `config.json`, if there is one; for a GGUF file of a known architecture, the equivalent made from its metadata.
    pub fn config(&self) -> Option<&serde_json::Value> {
        self.config.as_ref()
    }

    /// The configuration with all layers: not the same as [`Checkpoint::config`] for a random checkpoint with a limit.
    pub fn whole_config(&self) -> Option<&serde_json::Value> {
        self.whole_config.as_ref().or(self.config.as_ref())
    }

    /// The metadata of the file; empty for most safetensors.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The bytes of a file beside the weights, one of [`SIDE_FILES`], if it exists. For a GGUF file `tokenizer.json` and
    /// `tokenizer_config.json` are made from its metadata on every call.
    ///
    /// # Errors
    /// When GGUF's tokenizer is of a kind that ptero does not know, or its parts do not fit each other.
    pub fn file(&self, name: &str) -> Result<Option<Bytes>> {
        match self.files.get(name) {
            None if self.is_gguf => gguf::side_file(name, &self.metadata),
            mapped => Ok(mapped.cloned()),
        }
    }

    /// A file beside the weights as JSON, if it exists.
    ///
    /// # Errors
    /// When it is larger than the limit, or not a JSON object.
    pub fn json(&self, name: &str, limits: &Limits) -> Result<Option<serde_json::Value>> {
        let Some(bytes) = self.file(name)? else { return Ok(None) };
        read_json(&bytes, limits).map(Some).at(|| Step::File(name.into()))
    }

    /// The template that turns a conversation into a prompt: `chat_template.jinja`, the one in `tokenizer_config.json` (of
    /// several the one named `default`), or GGUF's `tokenizer.chat_template`.
    ///
    /// # Errors
    /// When a file that should hold it cannot be read.
    pub fn chat_template(&self, limits: &Limits) -> Result<Option<String>> {
        if let Some(bytes) = self.files.get("chat_template.jinja") {
            let text = at_most("bytes of a template", bytes.len() as u64, limits.json_bytes)
                .and_then(|()| String::from_utf8(bytes.to_vec()).map_err(|_| Fault::NotUtf8.into()));
            return text.map(Some).at(|| Step::File("chat_template.jinja".into()));
        }
        // Not those made from GGUF's metadata: the metadata itself holds the template.
        let there = |file: &&str| self.files.contains_key(*file);
        for file in ["chat_template.json", "tokenizer_config.json"].into_iter().filter(there) {
            let config = self.json(file, limits)?;
            if let Some(text) = config.as_ref().and_then(|config| template_text(config.get("chat_template")?)) {
                return Ok(Some(text.to_owned()));
            }
        }
        Ok(self.metadata.get("tokenizer.chat_template").and_then(Value::as_str).map(str::to_owned))
    }

    /// All differences between the tensors and those that are wanted.
    pub fn compare<'a>(&self, wanted: impl IntoIterator<Item = (&'a str, &'a [u64])>) -> Differences {
        if self.seed.is_some() { Differences::default() } else { Differences::between(&self.tensors, wanted) }
    }
}

/// Reads a JSON object.
fn read_json(bytes: &Bytes, limits: &Limits) -> Result<serde_json::Value> {
    at_most("bytes of JSON", bytes.len() as u64, limits.json_bytes)?;
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(Fault::from)?;
    if value.is_object() { Ok(value) } else { Err(Fault::NotOfType("a JSON object").into()) }
}

/// A template is a text, or one of several by name.
fn template_text(template: &serde_json::Value) -> Option<&str> {
    let Some(several) = template.as_array() else { return template.as_str() };
    let name = |one: &&serde_json::Value| one.get("name").and_then(|name| name.as_str()) == Some("default");
    several.iter().find(name)?.get("template")?.as_str()
}

/// The shards that an index names, each a plain file name beside it.
///
/// # Errors
/// When it is not sound.
pub fn read_index(index: &Bytes, limits: &Limits) -> Result<Vec<String>> {
    folder::read_index(index, limits).map(|shards| shards.into_keys().collect())
}
