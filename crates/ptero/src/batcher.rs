//! Many texts at once, on a thread of their own.

mod worker;

use crate::error::{Error, Result};
use crate::generator::{GeneratorBuilder, checked_options};
use crate::model::Model;
use crate::pieces::Pieces;
use crate::text::{Finish, Piece};
use ptero_engine::{Batch, BatchLimits, BatchText, TokenFilter, TokenId};
use ptero_sampling::noise::mix;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use worker::Worker;

/// How much a [`Batcher`] does at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// The most texts that are generated at the same time.
    pub lanes: usize,
    /// The most texts that wait when all lanes are taken.
    pub queue: usize,
    /// The tokens of prompts that are processed between two decode steps.
    pub chunk: usize,
    /// The most bytes of state that the texts may need, at the lengths they may reach; a text that is alone may need more.
    pub state_bytes: u64,
    /// The most bytes of state that are kept for prompts that begin like an earlier text; 0 keeps none.
    pub prefix_bytes: u64,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self { lanes: 16, queue: 64, chunk: 128, state_bytes: 4 << 30, prefix_bytes: 1 << 30 }
    }
}

/// Takes a text, piece by piece. Its methods are called on the batcher's thread, and must not block.
pub trait TextSink: Send {
    /// Takes what comes next.
    fn send(&mut self, event: TextEvent);

    /// Takes the logits that [`Batcher::logits`] asks for; texts have none.
    fn send_logits(&mut self, _logits: Vec<f32>) {}

    /// Returns `false` if nobody waits for the text any more; it then ends.
    fn is_wanted(&self) -> bool {
        true
    }
}

impl TextSink for std::sync::mpsc::Sender<TextEvent> {
    fn send(&mut self, event: TextEvent) {
        // Nobody receives it: the text goes on to its end.
        let _ = std::sync::mpsc::Sender::send(self, event);
    }
}

/// What a [`TextSink`] gets: pieces, and then how the text ended.
#[derive(Debug)]
pub enum TextEvent {
    /// The next piece.
    Piece(Piece),
    /// The text has ended.
    End(Finish),
    /// The text has failed.
    Failed(Error),
}

/// What is known about texts when they are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// The seed of the first token of the first text; `None` if the program takes no seed.
    pub seed: Option<i64>,
}

/// Counts of a [`Batcher`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStats {
    /// Texts that wait.
    pub waiting: usize,
    /// Texts that are generated.
    pub running: usize,
    /// Steps so far.
    pub steps: u64,
    /// Tokens of prompts so far.
    pub prompt_tokens: u64,
    /// Those that were not processed again, because an earlier text began with them.
    pub reused_tokens: u64,
    /// Tokens generated so far.
    pub new_tokens: u64,
}

/// Generates many texts at once with one set of weights. Texts start and end at any time, and each is what it would be alone.
///
/// ```
/// use ptero::{BatchOptions, Batcher, Model, TextEvent};
///
/// let model = Model::included()?;
/// let batcher = Batcher::new(&model, &BatchOptions::default());
/// let settings = model.generator().seed(7).max_tokens(4);
/// let (sender, texts) = std::sync::mpsc::channel();
/// for prompt in ["The king", "Once upon a time"] {
///     batcher.submit(&settings, &model.encode(prompt)?, vec![Box::new(sender.clone())])?;
/// }
/// drop(sender);
/// for event in texts {
///     if let TextEvent::End(finish) = event {
///         println!("{}", finish.text);
///     }
/// }
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Debug)]
pub struct Batcher {
    shared: Arc<Shared>,
    /// The most texts at once, waiting or running.
    text_limit: usize,
    thread: Option<JoinHandle<()>>,
}

/// What the batcher's thread shares with its callers.
#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signalled when a text is added, or the batcher is closed.
    changed: Condvar,
    steps: AtomicU64,
    prompt_tokens: AtomicU64,
    reused_tokens: AtomicU64,
    new_tokens: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<WaitingText>,
    running: usize,
    is_closed: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Whoever panicked left the queue as it is between two texts.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A text that has not joined the batch.
struct WaitingText {
    text: BatchText,
    state_bytes: u64,
    pieces: Pieces,
    sink: Box<dyn TextSink>,
}

impl std::fmt::Debug for WaitingText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingText").field("text", &self.text).finish_non_exhaustive()
    }
}

fn waiting(model: &Model, text: BatchText, pieces: Pieces, sink: Box<dyn TextSink>) -> Result<WaitingText> {
    text.check(model.engine())?;
    let state_bytes = text.state_bytes(model.engine());
    Ok(WaitingText { text, state_bytes, pieces, sink })
}

impl Batcher {
    /// Starts a thread that generates texts with a model.
    pub fn new(model: &Model, options: &BatchOptions) -> Self {
        let BatchOptions { lanes, queue, chunk, state_bytes, prefix_bytes } = *options;
        let limits = BatchLimits { lanes, chunk, state_bytes, prefix_bytes };
        let shared = Arc::new(Shared::default());
        let worker = Worker::new(Batch::new(model.engine().clone(), limits), Arc::clone(&shared));
        let thread = Some(std::thread::spawn(move || worker.run()));
        Self { shared, text_limit: lanes.saturating_add(queue), thread }
    }

    /// Submits texts that continue one prompt, one for each sink. The first gets the seed of the settings, the others seeds that
    /// follow from it, as [`Generator::choice`](crate::Generator::choice) does. Without `max_tokens`, a text may fill the
    /// context.
    ///
    /// # Errors
    /// When a setting or the prompt is refused, [`Error::QueueFull`] when there is no room for all of them, and
    /// [`Error::Closed`].
    pub fn submit(
        &self,
        settings: &GeneratorBuilder,
        prompt: &[TokenId],
        sinks: Vec<Box<dyn TextSink>>,
    ) -> Result<Submitted> {
        self.submit_text(settings, prompt, prompt.len(), sinks)
    }

    /// Submits texts whose first tokens are known: those of the prompt from `text_start` on. Penalties count them as tokens of the
    /// text, so a text continues as it did when it was generated at once, if its seed is that of its next token.
    ///
    /// # Errors
    /// Same as [`Batcher::submit`].
    pub fn submit_text(
        &self,
        settings: &GeneratorBuilder,
        prompt: &[TokenId],
        text_start: usize,
        sinks: Vec<Box<dyn TextSink>>,
    ) -> Result<Submitted> {
        let GeneratorBuilder { model, settings } = settings;
        let options = checked_options(model, settings)?;
        let grammar = settings.grammar.as_ref().map(|grammar| grammar.filter(model)).transpose()?;
        let pieces = Pieces::new(model, prompt, &settings.stops(&model.format().generation), &settings.shown)?;
        let mut texts = VecDeque::new();
        for (sink, number) in sinks.into_iter().zip(0..) {
            let filter = grammar.clone().map(|filter| Box::new(filter) as Box<dyn TokenFilter + Send>);
            let text = BatchText {
                prompt: prompt.to_vec(),
                options: ptero_engine::SampleOptions { seed: options.seed.map(|seed| mix(seed, number)), ..options },
                max_new_tokens: settings.max_tokens.unwrap_or(usize::MAX),
                more_ends: model.format().ends.clone(),
                ignores_ends: settings.ignore_eos,
                logit_bias: settings.logit_bias.clone(),
                filter,
                text_start: Some(text_start),
                asks_logits: false,
            };
            texts.push_back(waiting(model, text, pieces.clone(), sink)?);
        }
        self.enqueue(texts)?;
        Ok(Submitted { prompt_tokens: prompt.len(), seed: options.seed })
    }

    /// Asks for the logits after a prompt. The sink gets them, and then the end of a text that has no tokens.
    ///
    /// # Errors
    /// When the prompt is refused, the program does not keep logits, or as [`Batcher::submit`].
    pub fn logits(&self, model: &Model, prompt: &[TokenId], sink: Box<dyn TextSink>) -> Result<()> {
        let text = BatchText {
            prompt: prompt.to_vec(),
            options: ptero_engine::SampleOptions::default(),
            max_new_tokens: 1,
            more_ends: Vec::new(),
            ignores_ends: true,
            logit_bias: Vec::new(),
            filter: None,
            text_start: None,
            asks_logits: true,
        };
        let pieces = Pieces::new(model, &[], &[], &[])?;
        self.enqueue([waiting(model, text, pieces, sink)?].into())
    }

    fn enqueue(&self, mut texts: VecDeque<WaitingText>) -> Result<()> {
        let mut queue = self.shared.queue();
        if queue.is_closed {
            return Err(Error::Closed);
        }
        let has_room = |queue: &Queue| queue.running + queue.waiting.len() + texts.len() <= self.text_limit;
        if !has_room(&queue) {
            queue.waiting.retain(|text| text.sink.is_wanted());
        }
        if !has_room(&queue) {
            return Err(Error::QueueFull { waiting: queue.waiting.len() });
        }
        queue.waiting.append(&mut texts);
        drop(queue);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Returns counts.
    pub fn stats(&self) -> BatchStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { steps, prompt_tokens, reused_tokens, new_tokens, .. } = &*self.shared;
        let (waiting, running) = {
            let queue = self.shared.queue();
            (queue.waiting.len(), queue.running)
        };
        BatchStats {
            waiting,
            running,
            steps: count(steps),
            prompt_tokens: count(prompt_tokens),
            reused_tokens: count(reused_tokens),
            new_tokens: count(new_tokens),
        }
    }

    /// Takes no more texts; those that wait or are generated go on.
    pub fn close(&self) {
        self.shared.queue().is_closed = true;
        self.shared.changed.notify_one();
    }
}

impl Drop for Batcher {
    /// Waits until all texts have ended.
    fn drop(&mut self) {
        self.close();
        self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests;
