//! What is logged for each request.

use crate::config::Config;
use crate::error::ApiError;
use crate::metrics::Metrics;
use axum::http::{Method, StatusCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLog {
    /// Its id, which the response has in `x-request-id`.
    pub id: String,
    /// Its method.
    pub method: Method,
    /// Its path.
    pub path: String,
    /// The name of the model that it chose, if it chose one.
    pub model: Option<String>,
    /// The status of the response; `None` if the client left before there was one.
    pub status: Option<StatusCode>,
    /// Tokens of its prompts.
    pub prompt_tokens: usize,
    /// Tokens generated for it.
    pub new_tokens: usize,
    /// Why its texts ended early: an error, or a client that left.
    pub trouble: Option<String>,
    /// From its headers to the end of the response.
    pub time: Duration,
}

/// A request in progress. Whoever works on it holds it; when nobody does, it has ended and is logged.
pub(crate) struct Record {
    log: Mutex<RequestLog>,
    start: Instant,
    /// The time that it may take.
    limit: Duration,
    metrics: Arc<Metrics>,
    sink: Arc<dyn Fn(&RequestLog) + Send + Sync>,
}

impl Record {
    pub(crate) fn new(id: String, method: Method, path: String, metrics: Arc<Metrics>, config: &Config) -> Self {
        let (limit, sink) = (config.limits.request_time, Arc::clone(&config.log));
        let (model, status, trouble, time) = (None, None, None, Duration::ZERO);
        let log = RequestLog { id, method, path, model, status, prompt_tokens: 0, new_tokens: 0, trouble, time };
        Self { log: Mutex::new(log), start: Instant::now(), limit, metrics, sink }
    }

    /// Changes what will be logged.
    pub(crate) fn note(&self, change: impl FnOnce(&mut RequestLog)) {
        change(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns a timer for the end of its time.
    pub(crate) fn deadline(&self) -> Sleep {
        tokio::time::sleep(self.limit.saturating_sub(self.start.elapsed()))
    }

    /// Returns what it is answered with when its time is over.
    pub(crate) fn timeout(&self) -> ApiError {
        let message = format!("the request took longer than {} s", self.limit.as_secs_f64());
        self.note(|log| log.trouble = Some(message.clone()));
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("timeout")
    }

    pub(crate) fn id(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).id.clone()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let log = self.log.get_mut().unwrap_or_else(PoisonError::into_inner);
        log.time = self.start.elapsed();
        self.metrics.request(log.model.as_deref(), log.status);
        (self.sink)(log);
    }
}
