//! The text side of a model: tokenizer, chat template, and the sampling settings that its makers recommend.

mod generation;

pub(crate) use generation::GenerationConfig;

use crate::error::{Error, Result};
use crate::options::Options;
use crate::source::Source;
use ptero_engine::TokenId;
use ptero_export::FILES;
use ptero_pte::Bytes;
use ptero_text::{ChatTemplate, Conversation, Limits, Message, Tokenizer};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

// The files, by Hugging Face's names.
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const GENERATION: &str = "generation_config.json";

/// How a model reads and writes text. Each part may be missing.
#[derive(Debug, Default)]
pub(crate) struct ChatFormat {
    pub(crate) tokenizer: Option<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) generation: GenerationConfig,
    /// The tokens that end a text, in addition to those that the program names.
    pub(crate) ends: Vec<TokenId>,
    /// A digest of each file that it was read from.
    pub(crate) digest: [Option<blake3::Hash>; 3],
}

impl ChatFormat {
    /// Reads the files of a model: those named in the options, else those inside the program, else those beside it.
    pub(crate) fn of(source: &Source, options: &Options, generation: GenerationConfig) -> Result<Self> {
        let limits = Limits::default();
        let files = Files::new(source, options.tokenizer.as_deref())?;
        let config = files.get(TOKENIZER_CONFIG)?;
        let tokenizer = files.get(TOKENIZER)?;
        let digests = [&tokenizer, &config].map(|file| file.as_deref().map(blake3::hash));
        let tokenizer = tokenizer.map(|json| Tokenizer::from_json(&json, config.as_deref(), &limits)).transpose()?;
        let special = tokenizer.as_ref().map(|tokenizer| tokenizer.special_tokens().clone()).unwrap_or_default();
        let template = match &options.chat_template {
            Some(path) => Some(map(path)?),
            None => files.get(TEMPLATE)?.or(config.as_deref().map(template_in).transpose()?.flatten()),
        };
        let [of_tokenizer, of_config] = digests;
        let digest = [of_tokenizer, of_config, template.as_deref().map(blake3::hash)];
        let template = template.map(|source| {
            let source = std::str::from_utf8(&source).map_err(|_| Error::TemplateNotUtf8)?;
            Ok::<_, Error>(ChatTemplate::new(source, &special, &limits)?)
        });
        let template = template.transpose()?;
        let mut format = Self { tokenizer, template, generation, ends: Vec::new(), digest };
        format.ends = format.find_ends();
        Ok(format)
    }

    /// Collects the ends of the generation config, of the tokenizer, and what the template writes after a reply.
    fn find_ends(&self) -> Vec<TokenId> {
        let mut ends = self.generation.ends();
        if let Some(tokenizer) = &self.tokenizer {
            ends.extend(tokenizer.eos());
            ends.extend(self.template.as_ref().and_then(|template| end_of_turn(template, tokenizer)));
        }
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or(Error::NoTokenizer)
    }

    pub(crate) fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>> {
        Ok(self.tokenizer()?.encode(text, add_special)?)
    }

    /// Returns the tokens of a conversation, up to where the model replies.
    pub(crate) fn render(&self, messages: &[Message], variables: &Map<String, Value>) -> Result<Vec<TokenId>> {
        // The template has written all special tokens.
        self.encode(&self.render_text(messages, variables)?, false)
    }

    /// Returns a conversation as text, up to where the model replies.
    pub(crate) fn render_text(&self, messages: &[Message], variables: &Map<String, Value>) -> Result<String> {
        let template = self.template.as_ref().ok_or(Error::NoChatTemplate)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let now = now.and_then(|now| i64::try_from(now.as_secs()).ok());
        let variables = variables.clone();
        Ok(template.render(&Conversation { messages, add_generation_prompt: true, variables, now })?)
    }
}

/// Returns the special token that a template ends an assistant's turn with.
fn end_of_turn(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<TokenId> {
    const REPLY: &str = "reply-of-nobody";
    let messages = [Message::new("user", "question"), Message::new("assistant", REPLY)];
    // A template may refuse such a conversation.
    let text = template.render(&Conversation { messages: &messages, ..Conversation::default() }).ok()?;
    let (_, after) = text.rsplit_once(REPLY)?;
    let id = *tokenizer.encode(after.trim_start(), false).ok()?.first()?;
    tokenizer.id_to_token(id).filter(|token| tokenizer.is_special(token)).map(|_| id)
}

/// Returns the template inside `tokenizer_config.json`, where older models have it: one, or several by name.
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
    let config: Config = json(TOKENIZER_CONFIG, config)?;
    let source = match config.chat_template {
        None => None,
        Some(Templates::One(source)) => Some(source),
        Some(Templates::Named(all)) => {
            all.into_iter().find(|named| named.name == "default").map(|named| named.template)
        }
    };
    Ok(source.map(|source| source.into_bytes().into()))
}

fn json<T: serde::de::DeserializeOwned>(file: &'static str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|cause| Error::Json { file, cause })
}

/// Where the files of a model are.
struct Files<'a> {
    source: &'a Source,
    /// A tokenizer given by the user. It and the files beside it come first.
    tokenizer: Option<PathBuf>,
    has_files_inside: bool,
}

impl<'a> Files<'a> {
    fn new(source: &'a Source, tokenizer: Option<&Path>) -> Result<Self> {
        let tokenizer = tokenizer.map(|path| if path.is_dir() { path.join(TOKENIZER) } else { path.to_owned() });
        if let Some(path) = tokenizer.as_ref().filter(|path| !path.is_file()) {
            return Err(Error::NoSuchFile(path.clone()));
        }
        let has_files_inside = source.program.data_by_name().keys().any(|key| key.starts_with(FILES));
        Ok(Self { source, tokenizer, has_files_inside })
    }

    fn get(&self, name: &str) -> Result<Option<Bytes>> {
        if let Some(tokenizer) = &self.tokenizer {
            let path = if name == TOKENIZER { tokenizer.clone() } else { tokenizer.with_file_name(name) };
            // The model's own config would name tokens that another tokenizer does not have.
            if path.is_file() || name == TOKENIZER_CONFIG {
                return map_if_exists(&path);
            }
        }
        if self.has_files_inside {
            let key = format!("{FILES}{name}");
            return Ok(self.source.program.data_by_name().get(key.as_str()).map(|bytes| (*bytes).clone()));
        }
        self.source.folder.as_ref().map_or(Ok(None), |folder| map_if_exists(&folder.join(name)))
    }
}

fn map_if_exists(path: &Path) -> Result<Option<Bytes>> {
    if path.is_file() { map(path).map(Some) } else { Ok(None) }
}

/// Maps a file. Its reader limits its size; mapping takes no memory.
fn map(path: &Path) -> Result<Bytes> {
    Bytes::map(path).map_err(Error::read(path))
}
