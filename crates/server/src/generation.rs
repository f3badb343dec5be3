//! From a request to texts in the batcher, and their events.

use crate::error::ApiError;
use crate::metrics::TokenTimes;
use crate::models::LoadedModel;
use crate::request::{ResponseFormat, Shared, check_text_start, log_probabilities};
use ptero::{GeneratorBuilder, Model, TextEvent, TextSink, TokenId};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Texts that are being generated. When it is dropped, they end.
pub(crate) struct Generation {
    events: UnboundedReceiver<(usize, TextEvent)>,
    /// The number of texts: the choices of the first prompt, then those of the next.
    pub(crate) texts: usize,
    pub(crate) choices: usize,
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    pub(crate) seed: Option<i64>,
}

impl Generation {
    /// Submits the choices of every prompt.
    pub(crate) fn start(
        loaded: &LoadedModel,
        settings: &GeneratorBuilder,
        prompts: &[Vec<TokenId>],
        choices: usize,
    ) -> Result<Self, ApiError> {
        Self::start_text(loaded, settings, prompts, None, choices)
    }

    /// Does the same for prompts of which the tokens from `text_start` on are the beginning of the text.
    pub(crate) fn start_text(
        loaded: &LoadedModel,
        settings: &GeneratorBuilder,
        prompts: &[Vec<TokenId>],
        text_start: Option<usize>,
        choices: usize,
    ) -> Result<Self, ApiError> {
        let most = loaded.limits.texts;
        let texts = choices.saturating_mul(prompts.len());
        if texts == 0 || texts > most {
            let param = if choices == 0 || choices > most { "n" } else { "prompt" };
            return Err(
                ApiError::bad(format!("{texts} texts are asked for; from 1 to {most} are possible")).param(param)
            );
        }
        let (sender, events) = unbounded_channel();
        let mut generation = Self { events, texts, choices, prompt_tokens: 0, seed: None };
        for (prompt, number) in prompts.iter().zip(0..) {
            let sink = |choice: usize| {
                let (index, times) = (number * choices + choice, Arc::clone(&loaded.times));
                let sink = Sink { index, events: sender.clone(), times, last: Instant::now(), is_first: true };
                Box::new(sink) as Box<dyn TextSink>
            };
            let text_start = text_start.unwrap_or(prompt.len());
            check_text_start(text_start, prompt.len())?;
            let sinks = (0..choices).map(sink).collect();
            let submitted = loaded.batcher.submit_text(settings, prompt, text_start, sinks)?;
            generation.prompt_tokens += submitted.prompt_tokens;
            generation.seed = submitted.seed;
        }
        Ok(generation)
    }

    /// Returns texts whose events come from a test.
    #[cfg(test)]
    pub(crate) fn of_events(texts: usize) -> (UnboundedSender<(usize, TextEvent)>, Self) {
        let (sender, events) = unbounded_channel();
        (sender, Self { events, texts, choices: 1, prompt_tokens: 0, seed: None })
    }

    /// Returns the next event and the text that it belongs to; `None` if the batcher is gone.
    pub(crate) async fn next(&mut self) -> Option<(usize, TextEvent)> {
        self.events.recv().await
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, TextEvent)>> {
        self.events.poll_recv(context)
    }
}

/// Passes events on to the task that answers, and measures their times.
struct Sink {
    index: usize,
    events: UnboundedSender<(usize, TextEvent)>,
    times: Arc<TokenTimes>,
    last: Instant,
    is_first: bool,
}

impl TextSink for Sink {
    fn send(&mut self, event: TextEvent) {
        if let TextEvent::Piece(piece) = &event
            && piece.token.is_some()
        {
            let times = if self.is_first { &self.times.first } else { &self.times.next };
            times.add(self.last.elapsed());
            (self.last, self.is_first) = (Instant::now(), false);
        }
        // If nobody receives it, the text ends before the next step.
        let _ = self.events.send((self.index, event));
    }

    fn is_wanted(&self) -> bool {
        !self.events.is_closed()
    }
}

/// Returns the settings of a request's texts.
pub(crate) fn settings(
    model: &Model,
    request: &Shared,
    max_tokens: Option<usize>,
    likeliest: Option<usize>,
) -> Result<GeneratorBuilder, ApiError> {
    let settings = model.generator().host_sampling(true).ignore_eos(request.ignores_eos).stop(&request.stop);
    let settings = settings.exact_tail(request.exact_tail);
    let settings = settings.logit_bias(request.biases()?).log_probabilities(log_probabilities(likeliest));
    let settings = with(settings, max_tokens, GeneratorBuilder::max_tokens);
    let settings = with(settings, request.seed, GeneratorBuilder::seed);
    let settings = with(settings, request.temperature, GeneratorBuilder::temperature);
    let settings = with(settings, request.top_k, GeneratorBuilder::top_k);
    let settings = with(settings, request.top_p, GeneratorBuilder::top_p);
    let settings = with(settings, request.min_p, GeneratorBuilder::min_p);
    let settings = with(settings, request.repetition_penalty, GeneratorBuilder::repetition_penalty);
    let settings = with(settings, request.presence_penalty, GeneratorBuilder::presence_penalty);
    let settings = with(settings, request.frequency_penalty, GeneratorBuilder::frequency_penalty);
    Ok(match &request.format {
        ResponseFormat::Text {} => settings,
        ResponseFormat::JsonObject {} => settings.json_object(),
        ResponseFormat::JsonSchema { json_schema } => settings.json_schema(json_schema.schema.to_string()),
    })
}

/// Sets what is given.
pub(crate) fn with<T>(
    settings: GeneratorBuilder,
    value: Option<T>,
    set: impl FnOnce(GeneratorBuilder, T) -> GeneratorBuilder,
) -> GeneratorBuilder {
    match value {
        Some(value) => set(settings, value),
        None => settings,
    }
}
