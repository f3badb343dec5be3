//! How a server is set up.

use crate::models::ModelSource;
use crate::origins::Origin;
use crate::record::RequestLog;
use ptero::BatchOptions;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A server's set-up.
#[derive(Clone)]
pub struct Config {
    /// The models that it serves. The first is loaded at the start and answers requests that name none; each other one is loaded
    /// when it is first asked for.
    pub models: Vec<ModelSource>,
    /// The address that it listens on; port 0 takes any free one.
    pub address: SocketAddr,
    /// The key that requests have to carry. Addresses other than loopback need one.
    pub api_key: Option<String>,
    /// Where the web pages come from that may ask, besides the server's own page. Any page may only ask with a key.
    pub origins: Vec<Origin>,
    /// Texts at once and in the queue, of each model. The models share the memory for states equally.
    pub batch: BatchOptions,
    /// Limits of requests.
    pub limits: Limits,
    /// Called at the end of every request.
    pub log: Arc<dyn Fn(&RequestLog) + Send + Sync>,
}

/// Limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Texts per request: choices times prompts.
    pub texts: usize,
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// The time for the headers of a request, also between two requests of a connection.
    pub header_time: Duration,
    /// The time for the body of a request.
    pub body_time: Duration,
    /// The time for a whole request, from its headers to the end of its texts.
    pub request_time: Duration,
    /// The time for which a client may take nothing of an answer.
    pub write_time: Duration,
    /// The time that requests have to finish when the server ends.
    pub drain_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 4 << 20,
            texts: 16,
            connections: 1024,
            header_time: Duration::from_secs(10),
            body_time: Duration::from_secs(30),
            request_time: Duration::from_secs(3600),
            write_time: Duration::from_secs(30),
            drain_time: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// Listens on loopback, with defaults for everything else, and logs nothing.
    pub fn new(models: Vec<ModelSource>, port: u16) -> Self {
        let (batch, limits) = (BatchOptions::default(), Limits::default());
        let address = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port);
        Self { models, address, api_key: None, origins: Vec::new(), batch, limits, log: Arc::new(|_| ()) }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the key.
        let models: Vec<&str> = self.models.iter().map(ModelSource::name).collect();
        let mut shown = f.debug_struct("Config");
        shown.field("models", &models).field("address", &self.address).finish_non_exhaustive()
    }
}
