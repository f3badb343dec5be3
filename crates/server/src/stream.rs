//! Texts in pieces, as server-sent events.

use crate::answer::{Answer, Choice, Usage};
use crate::error::ApiError;
use crate::generation::Generation;
use crate::record::Record;
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

/// The body of a streamed answer. When the client leaves it is dropped, and with it the texts.
pub(crate) struct EventStream {
    generation: Generation,
    answer: Answer,
    texts: Vec<Choice>,
    /// Texts that have not ended.
    left: usize,
    includes_usage: bool,
    /// Events that were not sent yet.
    ready: VecDeque<String>,
    is_over: bool,
    record: Arc<Record>,
}

impl EventStream {
    pub(crate) fn new(generation: Generation, answer: Answer, includes_usage: bool, record: Arc<Record>) -> Self {
        let (left, texts) = (generation.texts, vec![Choice::default(); generation.texts]);
        let mut stream =
            Self { generation, answer, texts, left, includes_usage, ready: VecDeque::new(), is_over: false, record };
        for index in 0..left {
            stream.ready.extend(stream.answer.opening(index).map(|json| event(&json)));
        }
        stream
    }

    pub(crate) fn into_response(self) -> Response {
        let mut response = Body::from_stream(self).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    fn take(&mut self, index: usize, happened: TextEvent) -> Result<(), ApiError> {
        let choice = self.texts.get_mut(index).ok_or_else(ApiError::internal)?;
        match happened {
            TextEvent::Piece(piece) => self.answer.add(choice, piece)?,
            TextEvent::End(finish) => {
                choice.end(&finish);
                self.left -= 1;
            }
            TextEvent::Failed(error) => return Err(error.into()),
        }
        self.ready.extend(self.answer.part(index, choice).map(|json| event(&json)));
        if self.left == 0 {
            let usage = Usage::of(&self.texts, self.generation.choices, self.generation.prompt_tokens);
            self.ready.extend(self.includes_usage.then(|| event(&self.answer.closing(usage))));
            self.ready.push_back(event("[DONE]"));
            self.is_over = true;
        }
        Ok(())
    }

    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(event(&error.json()));
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
