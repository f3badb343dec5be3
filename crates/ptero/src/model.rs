//! A language model: text in, text out.

use crate::chat::ChatBuilder;
use crate::device::Device;
use crate::error::{Context, Error, Result};
use crate::fingerprint::Fingerprint;
use crate::format::{ChatFormat, GenerationConfig};
use crate::generator::GeneratorBuilder;
use crate::options::Options;
use crate::program::Program;
use crate::source::{Contents, Source};
use ptero_engine::{Engine, Session, TokenId};
use ptero_export::{Graft, graft, has_full_head};
use ptero_pte::{Limits, Verified};
use ptero_sampling::inputs::Head;
use ptero_text::{Message, Vocabulary};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A language model, compiled for a device, with its tokenizer and chat template. Clones share everything, and it can be used
/// from several threads at once.
///
/// ```
/// // For a file, a checkpoint folder or a GGUF file: `ptero::Model::open("smol.pte")`.
/// let model = ptero::Model::included()?;
/// let mut generator = model.generator().temperature(0.0).max_tokens(8).start()?;
/// let text = generator.generate("Once upon a time")?.text()?;
/// println!("{text}");
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    name: String,
    device: Device,
    engine: Engine,
    format: ChatFormat,
    contents: Contents,
    fingerprint: Fingerprint,
    /// The tokens as grammars see them, once a grammar was asked for.
    vocabulary: OnceLock<Vocabulary>,
}

impl Model {
    /// Opens a model: a program (`.pte`); a checkpoint (a Hugging Face folder, a `.safetensors` or `.gguf` file), which is
    /// exported into a cache first; or with the feature `hub`, `owner/name` of the Hugging Face hub, which is downloaded.
    ///
    /// # Errors
    /// When there is no such model, it cannot be exported, or the program is not a language model.
    pub fn open(source: impl AsRef<Path>) -> Result<Self> {
        Options::new().open_model(source)
    }

    /// Opens the small model that is included in this crate: a Qwen3.5-MoE of 11 MB that tells stories.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn included() -> Result<Self> {
        Options::new().included_model()
    }

    /// Compiles a program and reads its tokenizer at the same time: large vocabularies take as long as the program.
    pub(crate) fn load(program: Program) -> Result<Self> {
        let (source, options) = (program.source(), program.options());
        let backend = options.backend()?;
        let loaded: Result<_> = std::thread::scope(|scope| {
            let generation = GenerationConfig::of(source, options)?;
            let is_recommended = generation.needs_full_sampler();
            let format = scope.spawn(|| ChatFormat::of(source, options, generation));
            let grafted = with_full_sampler(source, options, is_recommended)?;
            let program = grafted.as_ref().unwrap_or(&source.program);
            let engine = Engine::new(program, backend.as_ref(), &options.without)?;
            // A panic there is a panic here.
            Ok((engine, format.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?))
        });
        let (engine, format) = loaded.context(|| source.shown.clone())?;
        let fingerprint = Fingerprint::of(options, &engine, &format);
        Ok(Self(Arc::new(Shared {
            name: options.name.clone().unwrap_or_else(|| source.name.clone()),
            device: options.device.resolve(),
            engine,
            format,
            contents: source.contents.clone(),
            fingerprint,
            vocabulary: OnceLock::new(),
        })))
    }

    /// Returns the name: that of the file or checkpoint, unless [`Options::name`] gave it another.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the device that it runs on.
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// Returns the number of positions of a text: prompt and new tokens together.
    pub fn context(&self) -> usize {
        self.0.engine.context()
    }

    /// Returns the number of tokens in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.0.engine.vocabulary()
    }

    /// Returns `true` if the program samples its own tokens, so that no logits reach the host.
    pub fn samples_itself(&self) -> bool {
        self.0.engine.samples_itself()
    }

    /// Returns `true` if all options of the sampler are supported; see [`Options::full_sampler`].
    pub fn has_full_sampler(&self) -> bool {
        self.0.engine.has_full_sampler()
    }

    /// Returns what the model's `generation_config.json` recommends that cannot be followed, as `name value`.
    pub fn unfollowed(&self) -> Vec<String> {
        self.0.format.generation.unfollowed(self.samples_itself() && self.has_full_sampler())
    }

    /// Returns `true` if the model has a chat template, so that [`Model::chat`] works.
    pub fn has_chat_template(&self) -> bool {
        self.0.format.template.is_some()
    }

    /// Begins a conversation.
    ///
    /// ```no_run
    /// let model = ptero::Model::open("smol.pte")?;
    /// let mut chat = model.chat().system("Be brief.").temperature(0.7).seed(42).start()?;
    /// for piece in chat.send("Why is the sky blue?")? {
    ///     print!("{}", piece?);
    /// }
    /// # Ok::<(), ptero::Error>(())
    /// ```
    pub fn chat(&self) -> ChatBuilder {
        ChatBuilder::new(self.clone())
    }

    /// Begins texts that continue a prompt as it is, without the chat template.
    pub fn generator(&self) -> GeneratorBuilder {
        GeneratorBuilder::new(self.clone())
    }

    /// Starts a session: tokens in, tokens or logits out. It ends texts at the tokens of [`Model::end_tokens`].
    ///
    /// ```
    /// use ptero::TokenSettings;
    ///
    /// let model = ptero::Model::included()?;
    /// let mut session = model.session()?;
    /// let prompt = model.encode("Once upon a time")?;
    /// let mut token = session.prefill(&prompt, &TokenSettings::GREEDY)?;
    /// let mut fork = session.fork()?; // shares the prompt, then goes its own way
    /// token = session.decode(token, &TokenSettings::GREEDY)?;
    /// fork.decode(token, &TokenSettings::GREEDY)?;
    /// println!("{}", model.decode(&[token])?);
    /// # Ok::<(), ptero::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no memory for its state.
    pub fn session(&self) -> Result<Session> {
        let mut session = self.0.engine.session()?;
        session.end_also_at(&self.0.format.ends);
        Ok(session)
    }

    /// Returns the tokens that end a text: the program's, the tokenizer's and the chat template's.
    pub fn end_tokens(&self) -> Vec<TokenId> {
        let mut ends = [self.0.engine.eos_ids(), &self.0.format.ends].concat();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    /// Returns the tokens of a text, with the special tokens that the tokenizer puts before it.
    ///
    /// # Errors
    /// When the model has no tokenizer, or the text is too long for it.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>> {
        self.0.format.encode(text, true)
    }

    /// Returns the text of tokens, without special tokens.
    ///
    /// # Errors
    /// When the model has no tokenizer.
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String> {
        Ok(self.0.format.tokenizer()?.decode(tokens, true))
    }

    /// Returns the tokens of a conversation, up to where the model replies. `variables` are variables of the chat template.
    ///
    /// # Errors
    /// When the model has no chat template, or the template refuses the conversation.
    pub fn encode_chat(&self, messages: &[Message], variables: &Map<String, Value>) -> Result<Vec<TokenId>> {
        self.0.format.render(messages, variables)
    }

    /// Returns the prompt of a conversation as text, special tokens included, up to where the model replies.
    ///
    /// # Errors
    /// Same as [`Model::encode_chat`].
    pub fn render_chat(&self, messages: &[Message], variables: &Map<String, Value>) -> Result<String> {
        self.0.format.render_text(messages, variables)
    }

    /// Returns the tokens of a prompt that has all its special tokens, as that of [`Model::render_chat`].
    ///
    /// # Errors
    /// When the model has no tokenizer, or the prompt is too long for it.
    pub fn encode_rendered(&self, prompt: &str) -> Result<Vec<TokenId>> {
        self.0.format.encode(prompt, false)
    }

    /// Returns the source of the chat template, if the model has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.0.format.template.as_ref().map(ptero_text::ChatTemplate::source)
    }

    /// Returns the bytes that a token adds to a text, which may be a part of a character; of a special token, its name.
    ///
    /// # Errors
    /// When the model has no tokenizer.
    pub fn token_bytes(&self, token: TokenId) -> Result<Vec<u8>> {
        let tokenizer = self.0.format.tokenizer()?;
        let name = || tokenizer.id_to_token(token).unwrap_or_default().into_bytes();
        Ok(tokenizer.bytes(token).unwrap_or_else(name))
    }

    /// Returns a name for everything that texts follow from but prompts, settings and seeds: a digest of the program, tokenizer, chat
    /// template and recommended settings, and the version of the arithmetic, or `mlx`. Where it is the same, so are the texts, but
    /// for what MLX rounds otherwise and for templates that write the date. The program's files are read for it, once.
    ///
    /// # Errors
    /// When a file cannot be read any more.
    pub fn fingerprint(&self) -> Result<&str> {
        self.0.fingerprint.name(&self.0.contents)
    }

    /// Returns the tokens that a text begins with if there is no prompt.
    ///
    /// # Errors
    /// When the model names none.
    pub fn beginning(&self) -> Result<Vec<TokenId>> {
        let mut start = self.encode("")?;
        if start.is_empty() {
            start.extend(self.0.engine.bos_id());
        }
        Some(start).filter(|start| !start.is_empty()).ok_or(Error::NoBeginning)
    }

    /// Returns the engine.
    #[doc(hidden)]
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Returns the tokens as grammars see them.
    pub(crate) fn grammar_vocabulary(&self) -> Result<Vocabulary> {
        if let Some(vocabulary) = self.0.vocabulary.get() {
            return Ok(vocabulary.clone());
        }
        let vocabulary = Vocabulary::new(self.0.format.tokenizer()?, self.vocabulary())?;
        Ok(self.0.vocabulary.get_or_init(|| vocabulary).clone())
    }

    pub(crate) fn format(&self) -> &ChatFormat {
        &self.0.format
    }
}

/// Puts the full sampling head into a program that has another, if the caller asks for it, or the model's makers recommend what
/// only that head can do. Returns `None` if the program stays as it is.
fn with_full_sampler(source: &Source, options: &Options, is_recommended: bool) -> Result<Option<Verified>> {
    let is_wanted = options.full_sampler || is_recommended;
    if !is_wanted || has_full_head(&source.program) {
        return Ok(None);
    }
    let how = Graft { head: Head::Full, ..Graft::default() };
    match graft(ptero_pte::Program::clone(&source.program), &how, &Limits::DEFAULT) {
        Ok(grafted) => Ok(Some(grafted)),
        Err(error) if options.full_sampler => Err(error.into()),
        // A recommendation that cannot be followed is reported by `Model::unfollowed`.
        Err(_) => Ok(None),
    }
}
