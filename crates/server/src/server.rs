//! Connections, and the end of the process.

use crate::config::{Config, Limits};
use crate::connection::TimedConnection;
use crate::endpoints::router;
use crate::error::{ApiError, ServeError};
use crate::metrics::Metrics;
use crate::models::{LoadedModel, ModelEntry};
use crate::origins::Origin;
use crate::record::Record;
use axum::Router;
use axum::http::{Method, StatusCode};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use ptero::Model;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Threads that read requests: tokenizers and grammars.
const READING_THREADS: usize = 4;
/// The longest headers of a request, in bytes.
const HEADER_BYTES: usize = 64 << 10;
/// The time to wait when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all requests share.
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) models: Vec<ModelEntry>,
    pub(crate) metrics: Arc<Metrics>,
    /// Seconds since 1970.
    pub(crate) started: u64,
    pub(crate) is_ending: AtomicBool,
    /// The first part of the ids of requests, which no other process has.
    id_prefix: u64,
    next_id: AtomicU64,
}

impl App {
    pub(crate) fn record(&self, method: Method, path: &str) -> Record {
        let id = format!("{:012x}-{:x}", self.id_prefix, self.next_id.fetch_add(1, Ordering::Relaxed));
        Record::new(id, method, path.to_owned(), Arc::clone(&self.metrics), &self.config)
    }

    /// Returns the model of a name, or the first.
    pub(crate) fn entry(&self, asked: Option<&str>) -> Result<&ModelEntry, ApiError> {
        let is_asked = |entry: &&ModelEntry| asked.is_none_or(|asked| entry.name() == asked);
        self.models.iter().find(is_asked).ok_or_else(|| {
            let names: Vec<String> = self.models.iter().map(|entry| format!("`{}`", entry.name())).collect();
            let (asked, names) = (asked.unwrap_or_default(), names.join(", "));
            let message = format!("there is no model `{asked}`; this server has {names}");
            ApiError::new(StatusCode::NOT_FOUND, message).param("model").code("model_not_found")
        })
    }

    /// Returns the model that a request asks for, which is loaded first if need be.
    pub(crate) async fn model(&self, asked: Option<&str>, record: &Record) -> Result<Arc<LoadedModel>, ApiError> {
        let entry = self.entry(asked)?;
        record.note(|log| log.model = Some(entry.name().to_owned()));
        let loaded = entry.get().await;
        loaded.inspect_err(|error| record.note(|log| log.trouble = Some(error.message.clone())))
    }
}

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Loads the first model and starts to listen; connections are accepted by [`Server::serve`].
    ///
    /// # Errors
    /// When the address can be reached by others, or any web page may ask, and there is no key; when the address is taken; when the names of the models are not
    /// those of different models, or the first cannot be loaded.
    pub fn bind(config: Config) -> Result<Self, ServeError> {
        match &config.api_key {
            None if !config.address.ip().is_loopback() => return Err(ServeError::NeedsKey(config.address)),
            None if config.origins.iter().any(Origin::is_any) => return Err(ServeError::AnyOrigin),
            Some(key) if key.is_empty() => return Err(ServeError::EmptyKey),
            Some(_) | None => {}
        }
        let models = ModelEntry::all(&config)?;
        let cannot_listen = |error| ServeError::Listen(config.address, error);
        let listener = TcpListener::bind(config.address).map_err(cannot_listen)?;
        listener.set_nonblocking(true).map_err(cannot_listen)?;
        let address = listener.local_addr().map_err(cannot_listen)?;
        let app = App {
            models,
            config,
            metrics: Arc::default(),
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            is_ending: AtomicBool::new(false),
            id_prefix: RandomState::new().build_hasher().finish() >> 16,
            next_id: AtomicU64::new(0),
        };
        Ok(Self { app: Arc::new(app), listener, address })
    }

    #[cfg(test)]
    pub(crate) fn into_app(self) -> Arc<App> {
        self.app
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `end` is ready, then no longer accepts any and waits for those that have begun: at most the time
    /// to drain, and not longer than until `abort` is ready.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub async fn serve(self, end: impl Future<Output = ()>, abort: impl Future<Output = ()>) -> Result<(), ServeError> {
        let listener = tokio::net::TcpListener::from_std(self.listener).map_err(ServeError::Start)?;
        let (router, limits) = (router(&self.app), self.app.config.limits);
        let (graceful, permits) = (GracefulShutdown::new(), Arc::new(Semaphore::new(limits.connections.max(1))));
        let mut end = pin!(end);
        loop {
            // Connections beyond the limit wait to be accepted.
            let accepted = async {
                let permit = Arc::clone(&permits).acquire_owned().await;
                (permit, listener.accept().await)
            };
            tokio::select! {
                () = &mut end => break,
                (permit, accepted) = accepted => match (permit, accepted) {
                    (Ok(permit), Ok((stream, _))) => {
                        connect(stream, router.clone(), &limits, &graceful, permit);
                    }
                    // Too many open files, for example.
                    (Ok(_) | Err(_), _) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
            }
        }
        self.app.is_ending.store(true, Ordering::Relaxed);
        drop(listener);
        tokio::select! {
            () = graceful.shutdown() => {}
            () = tokio::time::sleep(limits.drain_time) => {}
            () = abort => {}
        }
        Ok(())
    }
}

/// Serves a connection in a task of its own.
fn connect(
    stream: TcpStream,
    router: Router,
    limits: &Limits,
    graceful: &GracefulShutdown,
    permit: OwnedSemaphorePermit,
) {
    // Pieces of a text are small, and should leave at once.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_time).max_buf_size(HEADER_BYTES);
    let connection = http.serve_connection(
        TokioIo::new(TimedConnection::new(stream, limits.write_time)),
        TowerToHyperService::new(router),
    );
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        // A connection that breaks concerns nobody else.
        let _ = connection.await;
        drop(permit);
    });
}

/// Serves until the process is told to end (Ctrl-C, or SIGTERM); told twice, it ends at once. `on_ready` gets the address and the first model.
///
/// # Errors
/// Same as [`Server::bind`] and [`Server::serve`].
pub fn run(config: Config, on_ready: impl FnOnce(SocketAddr, &Model)) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(READING_THREADS)
        .build()
        .map_err(ServeError::Start)?;
    let server = Server::bind(config)?;
    let served = runtime.block_on(async {
        if let Some(first) = server.app.models.first().and_then(ModelEntry::loaded) {
            on_ready(server.address(), &first.model);
        }
        server.serve(told_to_end(), told_to_end()).await
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

#[cfg(unix)]
async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

#[cfg(not(unix))]
async fn told_to_end() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}
