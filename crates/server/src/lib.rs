//! An HTTP server that speaks OpenAI's API: many texts at once from one set of weights, each exactly what it would be alone.
//!
//! | module | holds |
//! |---|---|
//! | `config` | address, key, limits |
//! | `server` | connections, timeouts, the end of the process |
//! | `guard` | who may ask: key, host, origin, type and size of bodies |
//! | `request` | what may be asked, and how what may not is named |
//! | `endpoints` | the paths |
//! | `generation` | from a request to texts in the batcher, and their events |
//! | `answer`, `stream` | texts as JSON, whole or in pieces |
//! | `explain` | why a token was drawn |
//! | `page` | the page in the browser, and its headers |
//! | `metrics`, `record` | what is counted, and what is logged for each request |
//!
//! Invariant: this crate names no device, prints nothing, and generates nothing itself: `ptero::Batcher` does, on its own thread.
#![forbid(unsafe_code)]

mod answer;
mod config;
mod endpoints;
mod error;
mod explain;
mod generation;
mod guard;
mod metrics;
mod page;
mod record;
mod request;
mod server;
mod stream;

pub use config::{Config, Limits};
pub use error::{ApiError, ServeError};
pub use record::RequestLog;
pub use request::{ChatRequest, CompletionRequest, parse};
pub use server::{Server, run};
