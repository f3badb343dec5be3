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
    session: Mutex<ptero::Session>,
    flag: StopFlag,
}

impl Session {
    pub(crate) fn new(session: ptero::Session) -> Self {
        let flag = session.stop_flag();
        Self { session: Mutex::new(session), flag }
    }

    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut ptero::Session) -> T + Send) -> T {
        py.detach(|| work(&mut lock(&self.session)))
    }
}

#[pymethods]
impl Session {
    /// Processes tokens, and samples the next one.
    fn prefill(&self, py: Python<'_>, tokens: Vec<TokenId>, settings: &Bound<'_, PyDict>) -> PyResult<TokenId> {
        let settings = Settings::read(settings)?.token()?;
        interruptible(py, &self.flag, || lock(&self.session).prefill(&tokens, &settings))?.or_raise()
    }

    /// Processes a token, and samples the next one.
    fn decode(&self, py: Python<'_>, token: TokenId, settings: &Bound<'_, PyDict>) -> PyResult<TokenId> {
        let settings = Settings::read(settings)?.token()?;
        self.with(py, |session| session.decode(token, &settings)).or_raise()
    }

    /// The logits of the last call, as the bytes of 32-bit floats.
    fn logits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.with(py, |session| {
            let logits = session.logits()?;
            Some(logits.iter().flat_map(|logit| logit.to_ne_bytes()).collect::<Vec<u8>>())
        });
        let Some(bytes) = bytes else {
            let samples = self.with(py, |session| session.engine().samples_itself());
            let message = if samples {
                "this program samples its tokens and returns no logits\nhint: export it without `sample`, and open it with \
                 `Model(path, full_sampler=False)`"
            } else {
                "there are no logits before the first call"
            };
            return Err(raise("CallError", message.to_owned()));
        };
        Ok(PyBytes::new(py, &bytes))
    }

    /// The log-probability of the last token and the likeliest tokens with theirs, if they were asked for.
    fn logprobs(&self, py: Python<'_>) -> Option<(f32, Vec<(u32, f32)>)> {
        self.with(py, |session| session.log_probabilities().map(|row| (row.token, row.likeliest.to_vec())))
    }

    /// The tokens processed so far.
    fn tokens(&self, py: Python<'_>) -> Vec<TokenId> {
        self.with(py, |session| session.tokens().to_vec())
    }

    /// The number of tokens processed so far.
    fn position(&self, py: Python<'_>) -> usize {
        self.with(py, |session| session.position())
    }

    /// The number of tokens that still fit the context.
    fn room(&self, py: Python<'_>) -> usize {
        self.with(py, |session| session.room())
    }

    /// Goes back to an earlier position.
    fn rewind(&self, py: Python<'_>, to: usize) -> PyResult<()> {
        self.with(py, |session| session.rewind(to)).or_raise()
    }

    /// Starts over.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, ptero::Session::reset).or_raise()
    }

    /// Copies the session.
    fn fork(&self, py: Python<'_>) -> PyResult<Self> {
        Ok(Self::new(self.with(py, |session| session.fork()).or_raise()?))
    }
}
