//! The models of a server: the first is loaded when the server starts, each other one when it is first asked for.

use crate::config::{Config, Limits};
use crate::error::{ApiError, ServeError};
use crate::metrics::TokenTimes;
use axum::http::StatusCode;
use ptero::{BatchOptions, Batcher, Model};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch::{self, Receiver};

/// A model to serve: its name, and how it is opened.
#[derive(Clone)]
pub struct ModelSource {
    name: String,
    open: Arc<dyn Fn() -> ptero::Result<Model> + Send + Sync>,
}

impl ModelSource {
    /// A model that is opened when it is needed, on a thread of its own. It has to have this name:
    /// [`Options::name`](ptero::Options::name) gives it one.
    pub fn new(name: impl Into<String>, open: impl Fn() -> ptero::Result<Model> + Send + Sync + 'static) -> Self {
        Self { name: name.into(), open: Arc::new(open) }
    }

    /// Returns the name that requests choose it by.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl From<Model> for ModelSource {
    fn from(model: Model) -> Self {
        Self::new(model.name().to_owned(), move || Ok(model.clone()))
    }
}

/// A model that texts are generated with.
pub(crate) struct LoadedModel {
    pub(crate) model: Model,
    pub(crate) batcher: Batcher,
    pub(crate) fingerprint: String,
    pub(crate) times: Arc<TokenTimes>,
    pub(crate) limits: Limits,
}

/// What came of loading a model; clones share it.
type Loaded = Result<Arc<LoadedModel>, ApiError>;

/// A model of the server, loaded or not.
#[derive(Clone)]
pub(crate) struct ModelEntry {
    source: ModelSource,
    batch: BatchOptions,
    limits: Limits,
    pub(crate) times: Arc<TokenTimes>,
    /// The last attempt to load it: `None` while it lasts. Nobody sends before the first attempt.
    load: Arc<Mutex<Receiver<Option<Loaded>>>>,
}

impl ModelEntry {
    /// Checks the names of all models, and loads the first.
    pub(crate) fn all(config: &Config) -> Result<Vec<Self>, ServeError> {
        for (index, ModelSource { name, .. }) in config.models.iter().enumerate() {
            if name.is_empty() || name.trim() != name || name.contains(char::is_control) {
                return Err(ServeError::ModelName(name.escape_debug().to_string()));
            }
            if config.models.iter().skip(index + 1).any(|other| other.name == *name) {
                return Err(ServeError::SameName(name.clone()));
            }
        }
        // The limits of memory are those of all models together.
        let count = config.models.len().max(1) as u64;
        let (state_bytes, prefix_bytes) = (config.batch.state_bytes / count, config.batch.prefix_bytes / count);
        let batch = BatchOptions { state_bytes, prefix_bytes, ..config.batch };
        let entry = |source: &ModelSource| {
            let load = Arc::new(Mutex::new(watch::channel(None).1));
            Self { source: source.clone(), batch, limits: config.limits, times: Arc::default(), load }
        };
        let entries: Vec<_> = config.models.iter().map(entry).collect();
        let first = entries.first().ok_or(ServeError::NoModels)?;
        first.set(watch::channel(Some(Ok(first.open()?))).1);
        Ok(entries)
    }

    pub(crate) fn name(&self) -> &str {
        &self.source.name
    }

    fn open(&self) -> ptero::Result<Arc<LoadedModel>> {
        let model = (self.source.open)()?;
        let fingerprint = model.fingerprint()?.to_owned();
        let batcher = Batcher::new(&model, &self.batch);
        Ok(Arc::new(LoadedModel { model, batcher, fingerprint, times: Arc::clone(&self.times), limits: self.limits }))
    }

    fn set(&self, load: Receiver<Option<Loaded>>) {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = load;
    }

    /// Returns the model if it is loaded.
    pub(crate) fn loaded(&self) -> Option<Arc<LoadedModel>> {
        let load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = load.borrow().clone();
        loaded.and_then(Result::ok)
    }

    /// Returns `unloaded`, `loading`, `loaded` or `failed`.
    pub(crate) fn status(&self) -> &'static str {
        let load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = load.has_changed().is_err();
        match &*load.borrow() {
            None if is_over => "unloaded",
            None => "loading",
            Some(Ok(_)) => "loaded",
            Some(Err(_)) => "failed",
        }
    }

    /// Returns the model, which is loaded first if need be. All who wait at the same time wait for the same attempt; after one
    /// that failed, the next to ask tries again. If nobody waits any more, the attempt goes on.
    pub(crate) async fn get(&self) -> Loaded {
        let mut load = self.begin();
        let loaded = load.wait_for(Option::is_some).await.ok().and_then(|loaded| loaded.clone());
        // The thread panicked, or there is none.
        loaded.unwrap_or_else(|| Err(ApiError::internal()))
    }

    fn begin(&self) -> Receiver<Option<Loaded>> {
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = load.has_changed().is_err();
        let is_needed = match &*load.borrow() {
            None => is_over,
            Some(loaded) => loaded.is_err(),
        };
        if is_needed {
            let (sender, receiver) = watch::channel(None);
            let entry = self.clone();
            // Not one of the threads that read requests: loading takes much longer.
            let thread = std::thread::Builder::new().name(format!("load {}", self.name()));
            let _ = thread.spawn(move || {
                let loaded = entry.open().map_err(|error| entry.failure(&error));
                // If nobody waits, the receiver in the entry is still there.
                sender.send_replace(Some(loaded))
            });
            *load = receiver;
        }
        load.clone()
    }

    fn failure(&self, error: &ptero::Error) -> ApiError {
        let message = format!("the model `{}` could not be loaded: {error}", self.name());
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).param("model").code("model_not_loaded")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_share_the_limits_of_memory() {
        let source = |name: &str| ModelSource::new(name, Model::included);
        let mut config = Config::new(vec![source("a"), source("b")], 0);
        (config.batch.lanes, config.batch.state_bytes, config.batch.prefix_bytes) = (3, 1001, 0);
        let entries = ModelEntry::all(&config).unwrap_or_default();
        assert_eq!(entries.len(), 2);
        for entry in entries {
            assert_eq!((entry.batch.lanes, entry.batch.state_bytes, entry.batch.prefix_bytes), (3, 500, 0));
        }
    }
}
