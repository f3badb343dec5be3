//! From requests to prompts, readers of replies, and texts in the batcher.

use crate::answer::Kind;
use crate::error::ApiError;
use crate::generation::{Generation, settings};
use crate::models::LoadedModel;
use crate::reply::{ReplyReader, Thoughts};
use crate::request::{ChatRequest, CompletionRequest, OnePrompt, ResponseFormat, Shared};
use crate::tools::{Tools, unknown_tools};
use ptero::{GeneratorBuilder, Message, Model, TokenId};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Tokens of a completion, if nothing else is asked for: OpenAI's default.
const COMPLETION_TOKENS: usize = 16;
/// The variable of chat templates that says whether the model is to think.
const THINKING: &str = "enable_thinking";

/// A request for texts.
pub(crate) trait TextRequest: DeserializeOwned + Send + 'static {
    /// Returns the name of the model that it asks for.
    fn model(&self) -> Option<&str>;
    /// Checks the request and submits its texts.
    fn prepare(self, loaded: &LoadedModel) -> Result<Prepared, ApiError>;
}

/// A request whose texts wait in the batcher.
pub(crate) struct Prepared {
    pub(crate) kind: Kind,
    pub(crate) generation: Generation,
    pub(crate) shared: Shared,
    pub(crate) likeliest: Option<usize>,
    /// Reads each reply.
    pub(crate) reader: Option<ReplyReader>,
    /// The tokens of each prompt, if they are asked for.
    pub(crate) prompts: Option<Vec<Vec<TokenId>>>,
}

impl TextRequest for CompletionRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn prepare(mut self, loaded: &LoadedModel) -> Result<Prepared, ApiError> {
        let shared = self.shared();
        let likeliest = self.logprobs()?;
        let prompts = self.prompt.0.into_iter().map(|prompt| tokens(&loaded.model, prompt));
        let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
        let most = shared.max_tokens.or(Some(COMPLETION_TOKENS));
        let settings = settings(&loaded.model, &shared, most, likeliest)?;
        let generation = Generation::start_text(loaded, &settings, &prompts, self.text_start, shared.choices)?;
        let prompts = shared.returns_token_ids.then_some(prompts);
        Ok(Prepared { kind: Kind::Completion, generation, shared, likeliest, reader: None, prompts })
    }
}

fn tokens(model: &Model, prompt: OnePrompt) -> Result<Vec<TokenId>, ApiError> {
    Ok(match prompt {
        OnePrompt::Text(text) if text.is_empty() => model.beginning()?,
        OnePrompt::Text(text) => model.encode(&text)?,
        OnePrompt::Tokens(tokens) => tokens,
    })
}

impl TextRequest for ChatRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn prepare(mut self, loaded: &LoadedModel) -> Result<Prepared, ApiError> {
        let shared = self.shared();
        let model = &loaded.model;
        let (likeliest, most) = (self.logprobs()?, self.most_tokens()?);
        let chat = ChatPrompt {
            is_thinking: self.is_thinking(),
            variables: self.chat_template_kwargs.take().unwrap_or_default(),
            tools: Tools::new(model, self.tools.take(), self.tool_choice.take(), self.parallel_tool_calls)?,
            messages: self.messages(shows_calls(model))?,
        };
        chat.prepare(loaded, shared, most, likeliest)
    }
}

/// Returns `true` if the chat template of a model shows calls of earlier messages.
pub(crate) fn shows_calls(model: &Model) -> bool {
    model.chat_template().is_some_and(|template| template.contains("tool_calls"))
}

/// A conversation to continue.
pub(crate) struct ChatPrompt {
    pub(crate) messages: Vec<Message>,
    pub(crate) variables: Map<String, Value>,
    pub(crate) is_thinking: Option<bool>,
    pub(crate) tools: Option<Tools>,
}

impl ChatPrompt {
    /// Submits the replies.
    pub(crate) fn prepare(
        self,
        loaded: &LoadedModel,
        shared: Shared,
        most_tokens: Option<usize>,
        likeliest: Option<usize>,
    ) -> Result<Prepared, ApiError> {
        let model = &loaded.model;
        let settings = settings(model, &shared, most_tokens, likeliest)?;
        let has_format = !matches!(shared.format, ResponseFormat::Text {});
        if has_format && self.tools.is_some() {
            let message = "`response_format` and `tools` exclude each other, unless `tool_choice` is `none`";
            return Err(ApiError::bad(message).param("response_format"));
        }
        let (prompt, reader, settings) = self.render(model, settings, has_format)?;
        let prompts = vec![model.encode_rendered(&prompt)?];
        let generation = Generation::start(loaded, &settings, &prompts, shared.choices)?;
        let prompts = shared.returns_token_ids.then_some(prompts);
        Ok(Prepared { kind: Kind::Chat, generation, shared, likeliest, reader, prompts })
    }

    fn render(
        self,
        model: &Model,
        mut settings: GeneratorBuilder,
        has_format: bool,
    ) -> Result<(String, Option<ReplyReader>, GeneratorBuilder), ApiError> {
        let Self { messages, mut variables, is_thinking, tools } = self;
        let template = model.chat_template().unwrap_or_default();
        let thoughts = Thoughts::of(template);
        if let Some(is_thinking) = is_thinking {
            if !template.contains(THINKING) {
                let message = format!("`{THINKING}`: the chat template of `{}` does not know it", model.name());
                return Err(ApiError::bad(message).param(THINKING));
            }
            if variables.insert(THINKING.to_owned(), is_thinking.into()).is_some_and(|other| other != is_thinking) {
                let message = format!("`{THINKING}` and `chat_template_kwargs` differ");
                return Err(ApiError::bad(message).param(THINKING));
            }
        }
        let without_tools = tools.as_ref().map(|_| model.render_chat(&messages, &variables)).transpose()?;
        tools.iter().for_each(|tools| tools.show(template, &mut variables));
        let mut prompt = model.render_chat(&messages, &variables)?;
        if without_tools.is_some_and(|without| without == prompt) {
            return Err(unknown_tools(model));
        }
        let is_forced = tools.as_ref().is_some_and(Tools::is_forced);
        let mut is_open = thoughts.is_some_and(|thoughts| thoughts.are_open_after(&prompt));
        if let Some(thoughts) = thoughts.filter(|_| is_open && (is_forced || has_format)) {
            // The grammar is that of what comes after thoughts.
            prompt.push_str(&thoughts.closing());
            is_open = false;
        }
        let special = thoughts.iter().flat_map(|thoughts| thoughts.special).copied();
        settings = settings.show_tokens(special);
        let tools = tools.map(Arc::new);
        let has_parts = thoughts.is_some() || tools.is_some();
        let mut reader = has_parts.then(|| ReplyReader::new(thoughts, tools.clone(), is_open));
        if let Some(tools) = tools {
            settings = settings.show_tokens(tools.special_tokens().iter().copied());
            if let Some(grammar) = tools.grammar()? {
                settings = settings.lark_grammar(grammar);
                let opening = tools.forced_opening();
                prompt.push_str(&opening);
                reader.iter_mut().for_each(|reader| reader.push(&opening, &mut Vec::new()));
            }
        }
        Ok((prompt, reader, settings))
    }
}
