//! Conversations.

use crate::error::{Error, Result};
use crate::generator::Generator;
use crate::model::Model;
use crate::settings::{Settings, setters};
use crate::text::{Text, Turn};
use ptero_engine::{SampleOptions, StopFlag, TokenId};
use ptero_text::Message;
use serde_json::{Map, Value};

/// Settings of a [`Chat`]; [`Model::chat`] makes one.
#[derive(Clone, Debug)]
pub struct ChatBuilder {
    model: Model,
    messages: Vec<Message>,
    variables: Map<String, Value>,
    pub(crate) settings: Settings,
}

setters!(ChatBuilder);

impl ChatBuilder {
    pub(crate) fn new(model: Model) -> Self {
        Self { model, messages: Vec::new(), variables: Map::new(), settings: Settings::default() }
    }

    /// Tells the model something before the conversation begins.
    pub fn system(mut self, text: &str) -> Self {
        self.messages.push(Message::new("system", text));
        self
    }

    /// Adds messages of an earlier conversation.
    pub fn messages(mut self, messages: impl IntoIterator<Item = Message>) -> Self {
        self.messages.extend(messages);
        self
    }

    /// Sets a variable of the chat template, such as `enable_thinking`.
    pub fn template_variable(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.variables.insert(name.to_owned(), value.into());
        self
    }

    /// Checks the settings and starts a session.
    ///
    /// # Errors
    /// When the model has no chat template or tokenizer, a setting is invalid or the program does not support it, or there is
    /// no memory for the state.
    pub fn start(self) -> Result<Chat> {
        if !self.model.has_chat_template() {
            return Err(Error::NoChatTemplate);
        }
        self.model.format().tokenizer()?;
        let generator = Generator::new(self.model, &self.settings, usize::MAX)?;
        Ok(Chat { generator, messages: self.messages, variables: self.variables, forgotten: 0 })
    }
}

/// A conversation. Each reply continues the state of the last one, so that only what is new is processed.
///
/// ```no_run
/// let model = ptero::Model::open("smol.pte")?;
/// let mut chat = model.chat().seed(42).start()?;
/// let reply = chat.send("Name a colour.")?.text()?;
/// let other = chat.retry()?.text()?; // another reply to the same message
/// let mut fork = chat.fork()?; // a second conversation with the same beginning
/// fork.send("And a number?")?.text()?;
/// assert_eq!((chat.messages().len(), fork.messages().len()), (2, 4));
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Debug)]
pub struct Chat {
    generator: Generator,
    messages: Vec<Message>,
    variables: Map<String, Value>,
    forgotten: usize,
}

impl Chat {
    /// Sends a message and returns the reply, piece by piece. Message and reply are part of the conversation once the first
    /// piece was asked for; dropping the reply ends it. When the conversation outgrows three quarters of the context, its oldest turns are forgotten.
    ///
    /// # Errors
    /// When the template refuses the conversation, or the message does not fit the context; it is then not part of the
    /// conversation.
    pub fn send(&mut self, message: &str) -> Result<Text<'_>> {
        self.messages.push(Message::new("user", message));
        let prompt = self.prompt().inspect_err(|_| drop(self.messages.pop()))?;
        self.generator.text(&prompt, Some(Turn { messages: &mut self.messages, is_new: true }))
    }

    /// Returns a conversation for one of several replies to a message: number 0 gives the reply that [`Chat::send`] would give,
    /// the others have seeds of their own. Send the message there; what comes before the reply is processed once, here.
    ///
    /// # Errors
    /// Same as [`Chat::send`] and [`Chat::fork`].
    pub fn choice(&mut self, message: &str, number: u32) -> Result<Self> {
        self.messages.push(Message::new("user", message));
        let prompt = self.prompt();
        self.messages.pop();
        let generator = self.generator.choice(&prompt?, number)?;
        let (messages, variables) = (self.messages.clone(), self.variables.clone());
        Ok(Self { generator, messages, variables, forgotten: self.forgotten })
    }

    /// Replaces the last reply by another one, with the seeds that follow.
    ///
    /// # Errors
    /// When there is no message to reply to, and same as [`Chat::send`].
    pub fn retry(&mut self) -> Result<Text<'_>> {
        self.messages.pop_if(|last| last.role == "assistant");
        if self.messages.last().is_none_or(|last| last.role != "user") {
            return Err(Error::NothingToReplyTo);
        }
        let prompt = self.prompt()?;
        self.generator.text(&prompt, Some(Turn { messages: &mut self.messages, is_new: false }))
    }

    /// Forgets the conversation, except what the model was told before it began.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }

    /// Starts over with another system message; an empty one is none.
    pub fn restart(&mut self, system: &str) {
        self.messages.clear();
        self.messages.extend((!system.is_empty()).then(|| Message::new("system", system)));
    }

    /// Copies the conversation and its state. From then on the two share nothing that changes.
    ///
    /// # Errors
    /// When there is no memory for the state, or the device cannot copy states.
    pub fn fork(&self) -> Result<Self> {
        let (messages, variables) = (self.messages.clone(), self.variables.clone());
        Ok(Self { generator: self.generator.fork()?, messages, variables, forgotten: self.forgotten })
    }

    /// Returns the messages so far, without forgotten ones.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the number of messages that were forgotten because they did not fit the context.
    pub fn forgotten(&self) -> usize {
        self.forgotten
    }

    /// Returns the flag that stops a reply from another thread. Clear it before the next message.
    pub fn stop_flag(&self) -> StopFlag {
        self.generator.stop_flag()
    }

    /// Returns the settings of the next reply: defaults filled in, and the seed of its first token.
    pub fn options(&self) -> &SampleOptions {
        self.generator.options()
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        self.generator.model()
    }

    /// Returns the tokens of the conversation, after forgetting its oldest turns if it has outgrown the context.
    fn prompt(&mut self) -> Result<Vec<TokenId>> {
        let context = self.model().context();
        let room = context.saturating_mul(3) / 4;
        // Changed only once it is known to fit.
        let mut messages = self.messages.clone();
        loop {
            let tokens = self.model().format().render(&messages, &self.variables)?;
            let oldest = messages.iter().position(|message| message.role != "system").unwrap_or(0);
            let next = messages.iter().skip(oldest + 1).position(|message| message.role == "user");
            match next {
                Some(next) if tokens.len() > room => drop(messages.drain(oldest..=oldest + next)),
                _ if tokens.len() >= context => return Ok(tokens),
                _ => {
                    self.forgotten += self.messages.len() - messages.len();
                    self.messages = messages;
                    return Ok(tokens);
                }
            }
        }
    }
}
