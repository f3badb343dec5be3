//! Texts in pieces, as server-sent events.

use crate::answer::{Answer, Choice, Usage};
use crate::error::ApiError;
use crate::generation::Generation;
use crate::record::Record;
use crate::reply::ReplyReader;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use ptero::TextEvent;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Writes the events of a stream.
pub(crate) trait EventWriter: Send {
    /// Returns what reads the pieces of texts.
    fn answer(&self) -> &Answer;
    /// Returns what comes before all pieces.
    fn opening(&mut self, texts: usize) -> Vec<String>;
    /// Returns what is new in a text.
    fn parts(&mut self, index: usize, choice: &mut Choice) -> Vec<String>;
    /// Returns what comes after all pieces.
    fn closing(&mut self, usage: Usage) -> Vec<String>;
    /// Returns what comes instead of more pieces.
    fn failure(&mut self, error: &ApiError) -> Vec<String>;
}

/// Writes the chunks of completions, with or without conversations.
pub(crate) struct Chunks {
    pub(crate) answer: Answer,
    pub(crate) includes_usage: bool,
}

impl EventWriter for Chunks {
    fn answer(&self) -> &Answer {
        &self.answer
    }

    fn opening(&mut self, texts: usize) -> Vec<String> {
        (0..texts).filter_map(|index| self.answer.opening(index)).map(|json| event(&json)).collect()
    }

    fn parts(&mut self, index: usize, choice: &mut Choice) -> Vec<String> {
        self.answer.parts(index, choice).iter().map(|json| event(json)).collect()
    }

    fn closing(&mut self, usage: Usage) -> Vec<String> {
        let usage = self.includes_usage.then(|| self.answer.closing(usage));
        usage.iter().map(String::as_str).chain(["[DONE]"]).map(event).collect()
    }

    fn failure(&mut self, error: &ApiError) -> Vec<String> {
        vec![event(&error.json())]
    }
}

/// The body of a streamed answer. When the client leaves it is dropped, and with it the texts.
pub(crate) struct EventStream {
    generation: Generation,
    writer: Box<dyn EventWriter>,
    texts: Vec<Choice>,
    /// Texts that have not ended.
    left: usize,
    /// Events that were not sent yet.
    ready: VecDeque<String>,
    is_over: bool,
    record: Arc<Record>,
}

impl EventStream {
    pub(crate) fn new(
        generation: Generation,
        mut writer: Box<dyn EventWriter>,
        reader: Option<ReplyReader>,
        record: Arc<Record>,
    ) -> Self {
        let (left, texts) = (generation.texts, vec![Choice::new(reader); generation.texts]);
        let ready = writer.opening(left).into();
        Self { generation, writer, texts, left, ready, is_over: false, record }
    }

    pub(crate) fn into_response(self) -> Response {
        let mut response = Body::from_stream(self).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    fn take(&mut self, index: usize, happened: TextEvent) -> Result<(), ApiError> {
        let has_ended = self.writer.answer().take(self.texts.get_mut(index), happened)?;
        self.left -= usize::from(has_ended);
        let choice = self.texts.get_mut(index).ok_or_else(ApiError::internal)?;
        self.ready.extend(self.writer.parts(index, choice));
        if self.left == 0 {
            let usage = Usage::of(&self.texts, self.generation.choices, self.generation.prompt_tokens);
            self.ready.extend(self.writer.closing(usage));
            self.is_over = true;
        }
        Ok(())
    }

    fn fail(&mut self, error: &ApiError) {
        self.ready.extend(self.writer.failure(error));
        self.is_over = true;
        self.record.note(|log| log.trouble = Some(error.message.clone()));
    }
}

/// An event of a stream. JSON has no line breaks.
fn event(data: &str) -> String {
    format!("data: {data}\n\n")
}

impl Stream for EventStream {
    type Item = Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(ready)));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            let taken = match self.generation.poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some((index, happened))) => self.take(index, happened),
                Poll::Ready(None) => Err(ApiError::internal()),
            };
            if let Err(error) = taken {
                self.fail(&error);
            }
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        let (prompt_tokens, new_tokens) = (self.generation.prompt_tokens, Usage::new_tokens(&self.texts));
        let is_over = self.is_over;
        self.record.note(|log| {
            (log.prompt_tokens, log.new_tokens) = (prompt_tokens, new_tokens);
            if !is_over {
                log.trouble = Some("the client left".to_owned());
            }
        });
    }
}
