//! Models.

use crate::batch::Batch;
use crate::chat::Chat;
use crate::errors::{OrRaise, raise};
use crate::progress::progress;
use crate::session::Session;
use crate::settings::Settings;
use crate::stream::Stream;
use ptero::{Error, Message, Options, TokenId};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Options for opening models and programs.
pub(crate) fn options(device: &str, threads: Option<usize>) -> PyResult<Options> {
    let options = Options::new().device(device.parse().or_raise()?);
    Ok(match threads {
        Some(threads) => options.threads(threads),
        None => options,
    })
}

/// A language model.
#[pyclass(frozen, module = "ptero._ptero")]
pub(crate) struct Model {
    model: ptero::Model,
    /// Threads do not survive a fork of the process, and a model has some.
    process: u32,
}

impl Model {
    /// Returns the model, in the process that opened it.
    fn model(&self) -> PyResult<&ptero::Model> {
        if self.process == std::process::id() {
            return Ok(&self.model);
        }
        let message = "the model was opened before this process was forked\nhint: open it in this process";
        Err(raise("CallError", message.to_owned()))
    }
}

#[pymethods]
impl Model {
    /// Opens a model; without a source, the included one.
    #[new]
    #[pyo3(signature = (source, device, threads, full_sampler, huge_pages, tokenizer, chat_template, report))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of Python's class")]
    fn new(
        py: Python<'_>,
        source: Option<PathBuf>,
        device: &str,
        threads: Option<usize>,
        full_sampler: bool,
        huge_pages: bool,
        tokenizer: Option<PathBuf>,
        chat_template: Option<PathBuf>,
        report: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let mut options = options(device, threads)?.huge_pages(huge_pages).progress(progress(report));
        if let Some(path) = tokenizer {
            options = options.tokenizer(path);
        }
        if let Some(path) = chat_template {
            options = options.chat_template(path);
        }
        let open = |full_sampler: bool| {
            let options = options.clone().full_sampler(full_sampler);
            match &source {
                Some(source) => options.open_model(source),
                None => options.included_model(),
            }
        };
        let opened = py.detach(|| match open(full_sampler) {
            // A head that fits no program of this kind: settings that need it are refused when they are given.
            Err(error) if matches!(error.innermost(), Error::Graft(_)) => open(false),
            opened => opened,
        });
        Ok(Self { model: opened.or_raise()?, process: std::process::id() })
    }

    /// Its name: that of the file or checkpoint.
    #[getter]
    fn name(&self) -> &str {
        self.model.name()
    }

    /// The device that it runs on.
    #[getter]
    fn device(&self) -> &'static str {
        self.model.device().name()
    }

    /// The number of positions of a text: prompt and new tokens together.
    #[getter]
    fn context(&self) -> usize {
        self.model.context()
    }

    /// The number of tokens in the vocabulary.
    #[getter]
    fn vocabulary(&self) -> usize {
        self.model.vocabulary()
    }

    /// `True` if the program samples its own tokens.
    #[getter]
    fn samples_itself(&self) -> bool {
        self.model.samples_itself()
    }

    /// `True` if all settings are supported.
    #[getter]
    fn has_full_sampler(&self) -> bool {
        self.model.has_full_sampler()
    }

    /// `True` if the model has a chat template.
    #[getter]
    fn has_chat_template(&self) -> bool {
        self.model.has_chat_template()
    }

    /// The tokens that end a text.
    #[getter]
    fn end_tokens(&self) -> Vec<TokenId> {
        self.model.end_tokens()
    }

    /// A digest of the program and the version of the arithmetic.
    fn fingerprint(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.model.fingerprint().map(str::to_owned)).or_raise()
    }

    /// The tokens of a text.
    fn encode(&self, py: Python<'_>, text: &str) -> PyResult<Vec<TokenId>> {
        py.detach(|| self.model.encode(text)).or_raise()
    }

    /// The text of tokens, without special tokens.
    fn decode(&self, py: Python<'_>, tokens: Vec<TokenId>) -> PyResult<String> {
        py.detach(|| self.model.decode(&tokens)).or_raise()
    }

    /// The bytes that a token adds to a text; of a special token, its name.
    fn token_bytes(&self, token: TokenId) -> PyResult<Vec<u8>> {
        self.model.token_bytes(token).or_raise()
    }

    /// The tokens of a conversation, up to where the model replies.
    fn encode_chat(&self, py: Python<'_>, messages: &str, variables: &str) -> PyResult<Vec<TokenId>> {
        let (messages, variables) = (read_messages(messages)?, read_variables(variables)?);
        py.detach(|| self.model.encode_chat(&messages, &variables)).or_raise()
    }

    /// The tokens that a text begins with if there is no prompt.
    fn beginning(&self) -> PyResult<Vec<TokenId>> {
        self.model.beginning().or_raise()
    }

    /// Starts a text that continues tokens. A reply may fill the context; other texts have a length.
    fn stream(
        &self,
        py: Python<'_>,
        prompt: Vec<TokenId>,
        is_reply: bool,
        settings: &Bound<'_, PyDict>,
    ) -> PyResult<Stream> {
        let model = self.model()?;
        let settings = Settings::read(settings)?;
        let mut builder = settings.generator(model.generator());
        if is_reply && settings.max_tokens.is_none() {
            builder = builder.max_tokens(usize::MAX);
        }
        let generator = py.detach(|| builder.start()).or_raise()?;
        let flag = generator.stop_flag();
        let context = (flag, settings.likeliest(), None);
        Stream::start(py, generator, context, move |generator| generator.generate_tokens(&prompt), drop)
    }

    /// Starts a conversation.
    fn chat(&self, py: Python<'_>, messages: &str, variables: &str, settings: &Bound<'_, PyDict>) -> PyResult<Chat> {
        let settings = Settings::read(settings)?;
        let builder = self.model()?.chat().messages(read_messages(messages)?);
        let with =
            |builder: ptero::ChatBuilder, (name, value): (String, Value)| builder.template_variable(&name, value);
        let builder = read_variables(variables)?.into_iter().fold(builder, with);
        let builder = settings.chat(builder);
        Ok(Chat::new(py.detach(|| builder.start()).or_raise()?, &settings))
    }

    /// Starts a batch of texts with the same settings, but for their seeds.
    fn batch(&self, lanes: usize, settings: &Bound<'_, PyDict>) -> PyResult<Batch> {
        Batch::new(self.model()?.clone(), lanes, Settings::read(settings)?)
    }

    /// Starts a session.
    fn session(&self, py: Python<'_>) -> PyResult<Session> {
        let model = self.model()?;
        Ok(Session::new(py.detach(|| model.session()).or_raise()?))
    }
}

fn read_messages(json: &str) -> PyResult<Vec<Message>> {
    serde_json::from_str(json).map_err(|error| raise("PromptError", format!("not a list of messages: {error}")))
}

fn read_variables(json: &str) -> PyResult<Map<String, Value>> {
    serde_json::from_str(json).map_err(|error| raise("PromptError", format!("not variables of a template: {error}")))
}

/// Returns the seed of row `index` of a batch: the seed itself for row 0, random words for the others.
#[pyfunction]
pub(crate) fn mix(seed: i64, index: u32) -> i64 {
    ptero::mix(seed, index)
}

/// Returns what each device is on this machine, or why it is missing.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> Vec<(&'static str, bool, String)> {
    let devices = py.detach(ptero::devices);
    let cpu = format!("{} threads, {}", devices.cpu.threads, devices.cpu.instructions);
    let mut found = vec![("cpu", true, cpu)];
    match devices.cuda {
        Ok(cuda) => found.extend(cuda.into_iter().map(|device| match device.missing {
            Some(missing) => ("cuda", false, format!("{}: {missing}", device.name)),
            None => ("cuda", true, device.name),
        })),
        Err(reason) => found.push(("cuda", false, reason)),
    }
    found.push(match devices.mlx {
        Ok(mlx) => ("mlx", true, mlx.name),
        Err(reason) => ("mlx", false, reason),
    });
    found
}
