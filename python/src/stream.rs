//! A text in the making. Its thread generates a piece when one is asked for, so a text ends where its reader stops reading.

use crate::errors::exception;
use crate::waiting::{lock, receive_or_stop};
use ptero::{Piece, StopFlag, Text};
use pyo3::prelude::*;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// What a reader asks for.
enum Request {
    /// The next piece.
    Next,
    /// All pieces that are left.
    Rest,
    /// The end, here.
    End,
}

/// What a text's thread answers.
enum Answer {
    Started,
    Piece(Piece),
    /// The last pieces, and how the text ended.
    End(Vec<Piece>, ptero::Finish),
    Failed(ptero::Error),
}

/// The reader's side of a text's thread.
struct Reader {
    /// Dropped when the text is over, which ends the thread.
    requests: Option<SyncSender<Request>>,
    answers: Receiver<Answer>,
    finish: Option<Finish>,
}

/// A piece in Python: its token, its text, its log-probability, and the likeliest tokens with theirs.
pub(crate) type PieceTuple = (Option<u32>, String, Option<f32>, Option<Vec<(u32, f32)>>);

/// Returns pieces with this many of the likeliest tokens.
pub(crate) fn tuples(pieces: Vec<Piece>, likeliest: usize) -> Vec<PieceTuple> {
    let tuple = |Piece { token, text, log_probabilities }: Piece| {
        let row = log_probabilities.map(|row| (row.token, row.likeliest.into_iter().take(likeliest).collect()));
        let (logprob, likeliest) = row.unzip();
        (token, text, logprob, likeliest)
    };
    pieces.into_iter().map(tuple).collect()
}

/// A text in the making.
#[pyclass(frozen, module = "ptero._ptero")]
pub(crate) struct Stream {
    reader: Mutex<Reader>,
    flag: StopFlag,
    likeliest: usize,
    /// Dropped with the stream, and when the text is over: tells a chat that its reply has no reader any more.
    lease: Mutex<Option<Box<dyn Send>>>,
}

impl Stream {
    /// Starts a text. `source` is what generates it, and `done` gets it back after the text; `lease` is dropped when nothing
    /// more can be asked for.
    ///
    /// # Errors
    /// When the text is refused, before anything runs.
    pub(crate) fn start<S: Send + 'static>(
        py: Python<'_>,
        mut source: S,
        (flag, likeliest, lease): (StopFlag, usize, Option<Box<dyn Send>>),
        begin: impl for<'a> FnOnce(&'a mut S) -> ptero::Result<Text<'a>> + Send + 'static,
        done: impl FnOnce(S) + Send + 'static,
    ) -> PyResult<Self> {
        let (requests, requested) = sync_channel(1);
        let (answers, answered) = sync_channel(1);
        let worker = move || {
            match begin(&mut source) {
                Ok(text) => {
                    let _ = answers.send(Answer::Started);
                    answer(text, &requested, &answers);
                }
                Err(error) => drop(answers.send(Answer::Failed(error))),
            }
            done(source);
        };
        thread::Builder::new().name("ptero text".to_owned()).spawn(worker)?;
        let reader = Mutex::new(Reader { requests: Some(requests), answers: answered, finish: None });
        let this = Self { reader, flag, likeliest, lease: Mutex::new(lease) };
        match py.detach(|| receive_or_stop(&lock(&this.reader).answers, &this.flag))? {
            Answer::Failed(error) => Err(exception(&error)),
            Answer::Started | Answer::Piece(_) | Answer::End(..) => Ok(this),
        }
    }

    /// Asks for pieces, and returns them; none if the text is over.
    fn ask(&self, py: Python<'_>, request: Request) -> PyResult<Vec<PieceTuple>> {
        let pieces = py.detach(|| {
            let mut reader = lock(&self.reader);
            let Some(requests) = &reader.requests else { return Ok(Vec::new()) };
            // If the thread is gone, so is its answer.
            let _ = requests.send(request);
            let answer = receive_or_stop(&reader.answers, &self.flag).inspect_err(|_| self.close(&mut reader))?;
            match answer {
                Answer::Piece(piece) => Ok(vec![piece]),
                Answer::End(pieces, finish) => {
                    reader.finish = Some(Finish::from(finish));
                    self.close(&mut reader);
                    Ok(pieces)
                }
                Answer::Failed(error) => {
                    self.close(&mut reader);
                    Err(exception(&error))
                }
                Answer::Started => Ok(Vec::new()),
            }
        })?;
        Ok(tuples(pieces, self.likeliest))
    }

    fn close(&self, reader: &mut Reader) {
        reader.requests = None;
        *lock(&self.lease) = None;
    }
}

#[pymethods]
impl Stream {
    /// Returns the next piece, or `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<PieceTuple>> {
        Ok(self.ask(py, Request::Next)?.pop())
    }

    /// Returns all pieces that are left.
    fn rest(&self, py: Python<'_>) -> PyResult<Vec<PieceTuple>> {
        self.ask(py, Request::Rest)
    }

    /// Ends the text, if it goes on, and returns how it ended; `None` if it failed or was interrupted.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<Finish>> {
        self.ask(py, Request::End)?;
        Ok(py.detach(|| lock(&self.reader).finish.clone()))
    }

    /// Stops the text after the steps in flight, from any thread.
    fn stop(&self) {
        self.flag.stop();
    }
}

/// A reader that takes a piece after the other asks for the next within this time. A thread that sleeps until then needs as long
/// again to wake up, which is a few hundredths of a small model's step.
const SOON: Duration = Duration::from_micros(100);

/// Waits for the next request; `None` when nobody asks any more.
fn next_request(requests: &Receiver<Request>) -> Option<Request> {
    let start = Instant::now();
    while start.elapsed() < SOON {
        match requests.try_recv() {
            Ok(request) => return Some(request),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
    requests.recv().ok()
}

/// Answers requests until the text is over, or nobody asks any more: then the text ends there.
fn answer(mut text: Text<'_>, requests: &Receiver<Request>, answers: &SyncSender<Answer>) {
    while let Some(request) = next_request(requests) {
        let answer = match request {
            Request::Next => match text.next() {
                Some(Ok(piece)) => {
                    // Nobody takes it: the next request does not come either.
                    let _ = answers.send(Answer::Piece(piece));
                    continue;
                }
                Some(Err(error)) => Answer::Failed(error),
                None => Answer::End(Vec::new(), text.finish()),
            },
            Request::Rest => match text.by_ref().collect() {
                Ok(pieces) => Answer::End(pieces, text.finish()),
                Err(error) => Answer::Failed(error),
            },
            Request::End => Answer::End(Vec::new(), text.finish()),
        };
        let _ = answers.send(answer);
        return;
    }
}

/// How a text ended.
#[pyclass(frozen, get_all, skip_from_py_object, module = "ptero._ptero")]
#[derive(Clone, Debug)]
pub(crate) struct Finish {
    text: String,
    reason: &'static str,
    seed: Option<i64>,
    load_seconds: f64,
    prefill_seconds: f64,
    decode_seconds: f64,
    prompt_tokens: usize,
    new_tokens: usize,
    decode_steps: usize,
}

impl From<ptero::Finish> for Finish {
    fn from(finish: ptero::Finish) -> Self {
        let ptero::Finish { text, reason, seed, timings } = finish;
        Self {
            text,
            reason: reason.name(),
            seed,
            load_seconds: timings.load.as_secs_f64(),
            prefill_seconds: timings.prefill.as_secs_f64(),
            decode_seconds: timings.decode.as_secs_f64(),
            prompt_tokens: timings.prompt_tokens,
            new_tokens: timings.new_tokens,
            decode_steps: timings.decode_steps,
        }
    }
}
