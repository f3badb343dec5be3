//! What makes tokens of a text and text of tokens, for one model: tokenizer, chat template, what its makers sample with.

use super::Opened;
use anyhow::{Context, Result, bail};
use ptero_export::FILES;
use ptero_pte::Bytes;
use ptero_text::{ChatTemplate, Conversation, Limits, Message, Tokenizer};
use serde::Deserialize;
use std::path::{Path, PathBuf};

// The files, by Hugging Face's names.
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const GENERATION: &str = "generation_config.json";

/// Files that were named instead of the model's own.
#[derive(Clone, Debug, Default)]
pub struct VoiceFiles {
    /// `tokenizer.json`, or a folder with it.
    pub tokenizer: Option<PathBuf>,
    /// A chat template.
    pub template: Option<PathBuf>,
}

/// Text for a model. What a model has no file for, it has not.
#[derive(Debug, Default)]
pub struct Voice {
    /// Text to tokens and back.
    pub tokenizer: Option<Tokenizer>,
    /// Conversations to text.
    pub template: Option<ChatTemplate>,
    /// What the model's makers sample with.
    pub generation: GenerationConfig,
}

/// What `generation_config.json` says of drawing tokens.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct GenerationConfig {
    /// Whether tokens are drawn at all.
    #[serde(default)]
    pub do_sample: Option<bool>,
    /// Divides the logits.
    #[serde(default)]
    pub temperature: Option<f32>,
    /// 0 keeps all.
    #[serde(default)]
    pub top_k: Option<i64>,
    /// 1 keeps all.
    #[serde(default)]
    pub top_p: Option<f32>,
    /// What ends texts.
    #[serde(default)]
    eos_token_id: Option<OneOrMany>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
enum OneOrMany {
    One(i64),
    Many(Vec<i64>),
}

impl GenerationConfig {
    fn read(json: &[u8]) -> Result<Self> {
        serde_json::from_slice(json).with_context(|| format!("`{GENERATION}`"))
    }

    fn ends(&self) -> Vec<i64> {
        match &self.eos_token_id {
            None => Vec::new(),
            Some(OneOrMany::One(id)) => vec![*id],
            Some(OneOrMany::Many(ids)) => ids.clone(),
        }
    }
}

impl Voice {
    /// Reads what came with a model: files that were named, else those inside the program, else those beside it.
    ///
    /// # Errors
    /// When a file is there but not sound, or was named and is not there.
    pub fn of(opened: &Opened, named: &VoiceFiles) -> Result<Self> {
        let limits = Limits::default();
        let files = Found::new(opened, named)?;
        let config = files.get(TOKENIZER_CONFIG)?;
        let tokenizer = files.get(TOKENIZER)?;
        let tokenizer = tokenizer.map(|json| Tokenizer::from_json(&json, config.as_deref(), &limits)).transpose()?;
        let special = tokenizer.as_ref().map(|tokenizer| tokenizer.special_tokens().clone()).unwrap_or_default();
        let template = match &named.template {
            Some(path) => Some(read_file(path)?),
            None => files.get(TEMPLATE)?.or(config.as_deref().map(template_in).transpose()?.flatten()),
        };
        let template = template.map(|source| {
            let source = std::str::from_utf8(&source).context("the chat template is not UTF-8")?;
            anyhow::Ok(ChatTemplate::new(source, &special, &limits)?)
        });
        let generation = files.get(GENERATION)?.map(|json| GenerationConfig::read(&json)).transpose()?;
        Ok(Self { tokenizer, template: template.transpose()?, generation: generation.unwrap_or_default() })
    }

    /// The tokenizer, or what to do about its absence.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        let missing = "the model has no tokenizer\nhint: give one with `--tokenizer FILE`, or a prompt of token ids with `--tokens`";
        self.tokenizer.as_ref().context(missing)
    }

    /// The tokens that end texts, beside those that the program names: of the generation config, the tokenizer, and what
    /// the template puts behind a reply.
    pub fn ends(&self) -> Vec<i64> {
        let mut ends = self.generation.ends();
        if let Some(tokenizer) = &self.tokenizer {
            ends.extend(tokenizer.eos().map(i64::from));
            ends.extend(self.template.as_ref().and_then(|template| end_of_turn(template, tokenizer)));
        }
        ends.sort_unstable();
        ends.dedup();
        ends
    }
}

/// The special token that a template ends an assistant's turn with.
fn end_of_turn(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<i64> {
    const REPLY: &str = "reply-of-nobody";
    let messages = [Message::new("user", "question"), Message::new("assistant", REPLY)];
    // A template that refuses such a conversation tells nothing.
    let text = template.render(&Conversation { messages: &messages, ..Conversation::default() }).ok()?;
    let (_, behind) = text.rsplit_once(REPLY)?;
    let id = *tokenizer.encode(behind.trim_start(), false).ok()?.first()?;
    tokenizer.id_to_token(id).filter(|token| tokenizer.is_special(token)).map(|_| id.into())
}

/// The template inside `tokenizer_config.json`, where older models have it: one, or several by name.
fn template_in(config: &[u8]) -> Result<Option<Bytes>> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(default)]
        chat_template: Option<Templates>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Templates {
        One(String),
        Named(Vec<Named>),
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
        template: String,
    }
    let config: Config = serde_json::from_slice(config).with_context(|| format!("`{TOKENIZER_CONFIG}`"))?;
    let source = match config.chat_template {
        None => None,
        Some(Templates::One(source)) => Some(source),
        Some(Templates::Named(all)) => {
            all.into_iter().find(|named| named.name == "default").map(|named| named.template)
        }
    };
    Ok(source.map(|source| source.into_bytes().into()))
}

/// Where the files of a model are.
struct Found<'a> {
    opened: &'a Opened,
    /// A tokenizer that was named, which comes first with what lies beside it.
    tokenizer: Option<PathBuf>,
    has_files_inside: bool,
}

impl<'a> Found<'a> {
    fn new(opened: &'a Opened, named: &VoiceFiles) -> Result<Self> {
        let tokenizer =
            named.tokenizer.as_ref().map(|path| if path.is_dir() { path.join(TOKENIZER) } else { path.clone() });
        if let Some(path) = tokenizer.as_ref().filter(|path| !path.is_file()) {
            bail!("{}: no such file", path.display());
        }
        let has_files_inside = opened.program.data_by_name().keys().any(|key| key.starts_with(FILES));
        Ok(Self { opened, tokenizer, has_files_inside })
    }

    fn get(&self, name: &str) -> Result<Option<Bytes>> {
        if let Some(tokenizer) = &self.tokenizer {
            let path = if name == TOKENIZER { tokenizer.clone() } else { tokenizer.with_file_name(name) };
            // Another tokenizer's config is not asked for in the model: it would name tokens that this one has not.
            if path.is_file() || name == TOKENIZER_CONFIG {
                return read_if_there(&path);
            }
        }
        if self.has_files_inside {
            let key = format!("{FILES}{name}");
            return Ok(self.opened.program.data_by_name().get(key.as_str()).map(|bytes| (*bytes).clone()));
        }
        self.opened.folder.as_ref().map_or(Ok(None), |folder| read_if_there(&folder.join(name)))
    }
}

fn read_if_there(path: &Path) -> Result<Option<Bytes>> {
    if path.is_file() { read_file(path).map(Some) } else { Ok(None) }
}

/// Limits on what is read are those of whoever reads it; mapping takes no memory.
fn read_file(path: &Path) -> Result<Bytes> {
    Bytes::map(path).with_context(|| format!("could not read {}", path.display()))
}
