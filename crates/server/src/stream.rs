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
use tokio::time::Sleep;

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
    deadline: Pin<Box<Sleep>>,
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
        let deadline = Box::pin(record.deadline());
        Self { generation, writer, texts, left, ready, is_over: false, deadline, record }
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
            let is_late = self.deadline.as_mut().poll(context).is_ready();
            let taken = match self.generation.poll_next(context) {
                _ if is_late => Err(self.record.timeout()),
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
                log.trouble = Some("the client left or stopped reading".to_owned());
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Kind;
    use crate::config::Config;
    use crate::models::ModelEntry;
    use axum::http::Method;
    use ptero::Model;
    use std::sync::Mutex;

    #[tokio::test(start_paused = true)]
    async fn issue_19_a_stream_that_takes_too_long_ends_with_an_error() {
        let log = Arc::<Mutex<Option<String>>>::default();
        let (kept, model) = (Arc::clone(&log), Model::included());
        let mut config = Config::new(model.into_iter().map(Into::into).collect(), 0);
        config.log = Arc::new(move |log| *kept.lock().unwrap() = log.trouble.clone());
        let entries = ModelEntry::all(&config).unwrap();
        let loaded = entries.first().and_then(ModelEntry::loaded).unwrap();
        // A text of which nothing comes.
        let (_sender, generation) = Generation::of_events(1);
        let record = Record::new("1".to_owned(), Method::POST, "/".to_owned(), Arc::default(), &config);
        let answer = Answer::new(&loaded, Kind::Completion, "1", None, None);
        let writer = Box::new(Chunks { answer, includes_usage: false });
        let mut stream = EventStream::new(generation, writer, None, Arc::new(record));
        let mut next = async || std::future::poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await;
        let start = tokio::time::Instant::now();
        let event = next().await.unwrap().unwrap();
        assert!(event.contains("the request took longer than 3600 s") && event.contains("\"timeout\""), "{event}");
        assert!(next().await.is_none());
        assert_eq!(start.elapsed().as_secs().div_ceil(3600), 1);
        drop(stream);
        assert_eq!(log.lock().unwrap().as_deref(), Some("the request took longer than 3600 s"));
    }
}
