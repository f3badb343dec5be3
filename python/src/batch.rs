//! Many texts at once.

use crate::errors::{OrRaise, exception};
use crate::settings::Settings;
use crate::stream::{Finish, PieceTuple, tuples};
use crate::waiting::{lock, receive};
use ptero::{BatchOptions, Batcher, Piece, StopFlag, TextEvent, TextSink, TokenId};
use pyo3::prelude::*;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A text that has ended: its number, its pieces, and how it ended.
type Done = (u64, Vec<Piece>, Result<ptero::Finish, ptero::Error>);

/// Collects the pieces of a text.
struct Collector {
    number: u64,
    pieces: Vec<Piece>,
    done: Sender<Done>,
    stop: StopFlag,
}

impl TextSink for Collector {
    fn send(&mut self, event: TextEvent) {
        let finish = match event {
            TextEvent::Piece(piece) => return self.pieces.push(piece),
            TextEvent::End(finish) => Ok(finish),
            TextEvent::Failed(error) => Err(error),
        };
        // Nobody waits for it any more.
        let _ = self.done.send((self.number, std::mem::take(&mut self.pieces), finish));
    }

    fn is_wanted(&self) -> bool {
        !self.stop.is_set()
    }
}

/// Texts that are generated together. Those that go on when it is dropped end after the steps in flight.
#[pyclass(frozen, module = "ptero._ptero")]
pub(crate) struct Batch {
    model: ptero::Model,
    settings: Settings,
    batcher: Batcher,
    sender: Sender<Done>,
    done: Mutex<Receiver<Done>>,
    stop: StopFlag,
}

impl Batch {
    pub(crate) fn new(model: ptero::Model, lanes: usize, settings: Settings) -> PyResult<Self> {
        settings.generator(model.generator()).check().or_raise()?;
        // As many wait as run, so that a lane that becomes free is taken at once. A text that has ended counts as running until
        // its step is over, so there is room for more.
        let lanes = lanes.max(1);
        let batcher =
            Batcher::new(&model, &BatchOptions { lanes, queue: lanes.saturating_mul(3), ..BatchOptions::default() });
        let (sender, done) = channel();
        Ok(Self { model, settings, batcher, sender, done: Mutex::new(done), stop: StopFlag::default() })
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

#[pymethods]
impl Batch {
    /// Adds a text that continues tokens, with a seed of its own. `number` comes back with it.
    fn submit(&self, py: Python<'_>, number: u64, prompt: Vec<TokenId>, is_reply: bool, seed: i64) -> PyResult<()> {
        let mut settings = self.settings.generator(self.model.generator());
        if self.model.samples_itself() || self.settings.host_sampling == Some(true) {
            settings = settings.seed(seed);
        }
        // As for a text alone: a reply may fill the context.
        if self.settings.max_tokens.is_none() && !is_reply {
            settings = settings.max_tokens(ptero::DEFAULT_MAX_TOKENS);
        }
        let (done, stop) = (self.sender.clone(), self.stop.clone());
        let sink = Collector { number, pieces: Vec::new(), done, stop };
        py.detach(|| self.batcher.submit(&settings, &prompt, vec![Box::new(sink)])).or_raise()?;
        Ok(())
    }

    /// Waits for a text that was submitted, and returns it.
    fn next(&self, py: Python<'_>) -> PyResult<(u64, Vec<PieceTuple>, Finish)> {
        let (number, pieces, finish) = py.detach(|| receive(&lock(&self.done)))?;
        let finish = finish.map_err(|error| exception(&error))?;
        Ok((number, tuples(pieces, self.settings.likeliest()), Finish::from(finish)))
    }

    /// Ends all texts after the steps in flight.
    fn stop(&self) {
        self.stop.stop();
    }
}
