//! Sessions: tokens in, tokens or logits out.

use crate::errors::{OrRaise, raise};
use crate::settings::Settings;
use crate::waiting::{interruptible, lock};
use ptero::{StopFlag, TokenId};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::Mutex;

/// A session.
#[pyclass(frozen, module = "ptero._ptero")]
pub(crate) struct Session {
    held: Mutex<Held>,
    flag: StopFlag,
}

/// A session of the library, and the logits of its last call.
struct Held {
    session: ptero::Session,
    logits: Logits,
}

/// Logits stay on the device until somebody asks for them.
#[derive(Clone)]
enum Logits {
    None,
    OnDevice,
    Here(Vec<f32>),
}

impl Held {
    /// Notes what a call of the model left.
    fn called<T, E>(&mut self, result: Result<T, E>) -> Result<T, E> {
        self.logits = if result.is_ok() { Logits::OnDevice } else { Logits::None };
        result
    }

    /// Returns the logits of the last call, if there are any.
    fn logits(&mut self) -> ptero::Result<Option<&[f32]>> {
        if matches!(self.logits, Logits::OnDevice) {
            self.logits = self.session.fetch_logits()?.map_or(Logits::None, Logits::Here);
        }
        Ok(match &self.logits {
            Logits::Here(logits) => Some(logits),
            Logits::None | Logits::OnDevice => None,
        })
    }

    /// Copies the session with its logits, which a copy of the device's state does not have.
    fn fork(&mut self) -> ptero::Result<Self> {
        self.logits()?;
        Ok(Self { session: self.session.fork()?, logits: self.logits.clone() })
    }
}

impl Session {
    pub(crate) fn new(session: ptero::Session) -> Self {
        Self::with_held(Held { session, logits: Logits::None })
    }

    fn with_held(held: Held) -> Self {
        let flag = held.session.stop_flag();
        Self { held: Mutex::new(held), flag }
    }

    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Held) -> T + Send) -> T {
        py.detach(|| work(&mut lock(&self.held)))
    }
}

#[pymethods]
impl Session {
    /// Processes tokens, and samples the next one.
    fn prefill(&self, py: Python<'_>, tokens: Vec<TokenId>, settings: &Bound<'_, PyDict>) -> PyResult<TokenId> {
        let settings = Settings::read(settings)?.token()?;
        let call = |held: &mut Held| {
            let result = held.session.prefill(&tokens, &settings);
            held.called(result)
        };
        interruptible(py, &self.flag, || call(&mut lock(&self.held)))?.or_raise()
    }

    /// Processes a token, and samples the next one.
    fn decode(&self, py: Python<'_>, token: TokenId, settings: &Bound<'_, PyDict>) -> PyResult<TokenId> {
        let settings = Settings::read(settings)?.token()?;
        let call = |held: &mut Held| {
            let result = held.session.decode(token, &settings);
            held.called(result)
        };
        self.with(py, call).or_raise()
    }

    /// The logits of the last call, as the bytes of 32-bit floats.
    fn logits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.with(py, |held| {
            let logits = held.logits()?;
            let bytes = |logits: &[f32]| logits.iter().flat_map(|logit| logit.to_ne_bytes()).collect::<Vec<u8>>();
            Ok::<_, ptero::Error>(logits.map(bytes))
        });
        if let Some(bytes) = bytes.or_raise()? {
            return Ok(PyBytes::new(py, &bytes));
        }
        let message = if self.with(py, |held| held.session.engine().keeps_logits()) {
            "there are no logits before the first call"
        } else {
            "this program samples its tokens and keeps no logits\nhint: open it with the full sampling head, without \
             `full_sampler=False`, on a device other than MLX"
        };
        Err(raise("CallError", message.to_owned()))
    }

    /// The log-probability of the last token and the likeliest tokens with theirs, if they were asked for.
    fn logprobs(&self, py: Python<'_>) -> Option<(f32, Vec<(u32, f32)>)> {
        self.with(py, |held| held.session.log_probabilities().map(|row| (row.token, row.likeliest.to_vec())))
    }

    /// The tokens processed so far.
    fn tokens(&self, py: Python<'_>) -> Vec<TokenId> {
        self.with(py, |held| held.session.tokens().to_vec())
    }

    /// The number of tokens processed so far.
    fn position(&self, py: Python<'_>) -> usize {
        self.with(py, |held| held.session.position())
    }

    /// The number of tokens that still fit the context.
    fn room(&self, py: Python<'_>) -> usize {
        self.with(py, |held| held.session.room())
    }

    /// Goes back to an earlier position.
    fn rewind(&self, py: Python<'_>, to: usize) -> PyResult<()> {
        let rewind = |held: &mut Held| {
            let before = held.session.position();
            held.session.rewind(to)?;
            if to < before {
                held.logits = Logits::None;
            }
            Ok::<_, ptero::Error>(())
        };
        self.with(py, rewind).or_raise()
    }

    /// Starts over.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let reset = |held: &mut Held| {
            held.logits = Logits::None;
            held.session.reset()
        };
        self.with(py, reset).or_raise()
    }

    /// Copies the session.
    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        Ok(Self::with_held(self.with(py, Held::fork).or_raise()?))
    }
}
