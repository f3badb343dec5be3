//! The thread that generates the texts of a batcher.

use super::{Shared, TextEvent, TextSink, WaitingText};
use crate::error::Error;
use crate::pieces::Pieces;
use crate::text::{Finish, FinishReason, Piece};
use ptero_engine::{Batch, BatchEvent, TextId};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

pub(super) struct Worker {
    batch: Batch,
    running: Vec<RunningText>,
    shared: Arc<Shared>,
}

struct RunningText {
    id: TextId,
    prompt_tokens: usize,
    pieces: Pieces,
    sink: Box<dyn TextSink>,
}

impl Worker {
    pub(super) fn new(batch: Batch, shared: Arc<Shared>) -> Self {
        Self { batch, running: Vec::new(), shared }
    }

    /// Generates texts until the batcher is closed and all have ended.
    pub(super) fn run(mut self) {
        // A panic must not end the texts of everybody who comes later.
        while catch_unwind(AssertUnwindSafe(|| self.turn())).unwrap_or_else(|_| self.fail_all()) {}
    }

    /// Takes a step, after texts have joined and left. Returns `false` if none will come.
    fn turn(&mut self) -> bool {
        let goes_on = self.admit();
        if goes_on {
            self.remove_unwanted();
            self.step();
            self.shared.queue().running = self.running.len();
        }
        goes_on
    }

    /// Ends all texts that run, as after a panic that may have left any of them half changed.
    fn fail_all(&mut self) -> bool {
        self.batch.clear();
        self.running.drain(..).for_each(RunningText::panicked);
        self.shared.queue().running = 0;
        true
    }

    /// Lets texts join in the order in which they came, and waits for one if there are none. Returns `false` if none will come.
    fn admit(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.queue();
        while self.running.is_empty() && queue.waiting.is_empty() {
            if queue.is_closed {
                return false;
            }
            queue = shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        while let Some(waiting) = queue.waiting.pop_front_if(|text| self.batch.has_room(text.state_bytes)) {
            self.start(waiting);
        }
        queue.running = self.running.len();
        true
    }

    fn start(&mut self, waiting: WaitingText) {
        let WaitingText { text, pieces, mut sink, .. } = waiting;
        let prompt_tokens = text.prompt.len();
        match self.batch.add(text) {
            Ok(id) => self.running.push(RunningText { id, prompt_tokens, pieces, sink }),
            Err(error) => sink.send(TextEvent::Failed(error.into())),
        }
    }

    fn remove_unwanted(&mut self) {
        let Self { running, batch, .. } = self;
        running.retain(|text| {
            let is_wanted = catch_unwind(AssertUnwindSafe(|| text.sink.is_wanted())).unwrap_or(false);
            if !is_wanted {
                batch.remove(text.id);
            }
            is_wanted
        });
    }

    fn step(&mut self) {
        let events = self.batch.step();
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
        for (id, event) in events {
            let Some(at) = self.running.iter().position(|text| text.id == id) else { continue };
            let Some(text) = self.running.get_mut(at) else { continue };
            let taken = catch_unwind(AssertUnwindSafe(|| text.take(event, &mut self.batch, &self.shared)));
            if !matches!(taken, Ok(true)) {
                self.batch.remove(id);
                let text = self.running.remove(at);
                if taken.is_err() {
                    text.panicked();
                }
            }
        }
    }
}

impl RunningText {
    /// Says that it ended with a panic, which may have been that of its own sink.
    fn panicked(mut self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.sink.send(TextEvent::Failed(Error::Panicked))));
    }

    /// Passes on what happened, and returns `true` if the text goes on.
    fn take(&mut self, event: BatchEvent, batch: &mut Batch, shared: &Shared) -> bool {
        match event {
            BatchEvent::Token { token, log_probabilities } => {
                shared.new_tokens.fetch_add(1, Ordering::Relaxed);
                let text = self.pieces.push(token);
                let log_probabilities = log_probabilities.map(|row| *row);
                self.sink.send(TextEvent::Piece(Piece { token: Some(token), text, log_probabilities }));
                // If it was the last token anyway, the end follows.
                let stopped = if self.pieces.is_over() { batch.remove(self.id) } else { None };
                let goes_on = stopped.is_none();
                stopped.into_iter().for_each(|finish| self.end(finish, shared));
                goes_on
            }
            BatchEvent::Logits(logits) => {
                self.sink.send_logits(logits);
                true
            }
            BatchEvent::End(finish) => {
                let rest = self.pieces.finish();
                if !rest.is_empty() {
                    self.sink.send(TextEvent::Piece(Piece { token: None, text: rest, log_probabilities: None }));
                }
                self.end(finish, shared);
                false
            }
            BatchEvent::Failed(error) => {
                self.sink.send(TextEvent::Failed(error.into()));
                false
            }
        }
    }

    fn end(&mut self, finish: ptero_engine::Finish, shared: &Shared) {
        let ptero_engine::Finish { reason, seed, timings, .. } = finish;
        let add = |counter: &AtomicU64, count: usize| counter.fetch_add(count as u64, Ordering::Relaxed);
        add(&shared.prompt_tokens, self.prompt_tokens);
        add(&shared.reused_tokens, self.prompt_tokens - timings.prompt_tokens);
        let reason = FinishReason::new(reason, self.pieces.is_stop_string());
        self.sink.send(TextEvent::End(Finish { text: self.pieces.take_text(), reason, seed, timings }));
    }
}
