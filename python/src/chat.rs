//! Conversations.

use crate::errors::{OrRaise, raise};
use crate::settings::Settings;
use crate::stream::Stream;
use crate::waiting::lock;
use ptero::Text;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Where the conversation is when no reply is being generated.
#[derive(Default)]
struct Slot {
    chat: Mutex<Option<ptero::Chat>>,
    returned: Condvar,
    /// `true` while a reply has a reader.
    is_read: AtomicBool,
}

/// Tells the slot that the reader of a reply is gone.
struct Lease(Arc<Slot>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.is_read.store(false, Ordering::Release);
        self.0.returned.notify_all();
    }
}

impl Slot {
    /// Takes the conversation, once the last reply has ended; refused while somebody reads that reply.
    fn take(&self) -> PyResult<ptero::Chat> {
        let mut chat = lock(&self.chat);
        loop {
            if let Some(chat) = chat.take() {
                return Ok(chat);
            }
            if self.is_read.load(Ordering::Acquire) {
                let message = "a reply is being generated: read it to its end, or close it";
                return Err(raise("CallError", message.to_owned()));
            }
            chat = self.returned.wait(chat).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn put(&self, chat: ptero::Chat) {
        *lock(&self.chat) = Some(chat);
        self.returned.notify_all();
    }
}

/// A conversation.
#[pyclass(frozen, module = "ptero._ptero")]
pub(crate) struct Chat {
    slot: Arc<Slot>,
    likeliest: usize,
}

impl Chat {
    pub(crate) fn new(chat: ptero::Chat, settings: &Settings) -> Self {
        Self::with(chat, settings.likeliest())
    }

    fn with(chat: ptero::Chat, likeliest: usize) -> Self {
        let this = Self { slot: Arc::default(), likeliest };
        this.slot.put(chat);
        this
    }

    fn reply(
        &self,
        py: Python<'_>,
        begin: impl for<'a> FnOnce(&'a mut ptero::Chat) -> ptero::Result<Text<'a>> + Send + 'static,
    ) -> PyResult<Stream> {
        let (slot, done) = (Arc::clone(&self.slot), Arc::clone(&self.slot));
        let chat = py.detach(|| slot.take())?;
        let flag = chat.stop_flag();
        flag.clear();
        slot.is_read.store(true, Ordering::Release);
        let lease: Box<dyn Send> = Box::new(Lease(slot));
        Stream::start(py, chat, (flag, self.likeliest, Some(lease)), begin, move |chat| done.put(chat))
    }

    /// Does something with the conversation between two replies.
    fn with_chat<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut ptero::Chat) -> T + Send) -> PyResult<T> {
        py.detach(|| {
            let mut chat = self.slot.take()?;
            let done = work(&mut chat);
            self.slot.put(chat);
            Ok(done)
        })
    }
}

#[pymethods]
impl Chat {
    /// Sends a message, and returns the reply.
    fn send(&self, py: Python<'_>, message: String) -> PyResult<Stream> {
        self.reply(py, move |chat| chat.send(&message))
    }

    /// Returns another reply to the last message.
    fn retry(&self, py: Python<'_>) -> PyResult<Stream> {
        self.reply(py, ptero::Chat::retry)
    }

    /// Copies the conversation and its state.
    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        Ok(Self::with(self.with_chat(py, |chat| chat.fork())?.or_raise()?, self.likeliest))
    }

    /// Forgets the conversation, except system messages.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.with_chat(py, ptero::Chat::clear)
    }

    /// Returns the messages as JSON.
    fn messages(&self, py: Python<'_>) -> PyResult<String> {
        let json = self.with_chat(py, |chat| serde_json::to_string(chat.messages()))?;
        json.map_err(|error| raise("Error", error.to_string()))
    }

    /// Returns the number of messages that were forgotten because they did not fit the context.
    fn forgotten(&self, py: Python<'_>) -> PyResult<usize> {
        self.with_chat(py, |chat| chat.forgotten())
    }

    /// Returns the seed of the next reply.
    fn seed(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        self.with_chat(py, |chat| chat.options().seed)
    }
}
