//! An HTTP server that speaks OpenAI's API: many texts at once from one set of weights, each exactly what it would be alone.
//!
//! | module | holds |
//! |---|---|
//! | `config` | address, key, limits |
//! | `models` | the models, which are loaded when they are first asked for |
//! | `server` | the process: what requests share, accepting connections, the end |
//! | `connection` | clients that stop reading |
//! | `guard` | who may ask: key, host, origin, type and size of bodies |
//! | `origins` | which other web pages may ask |
//! | `request` | what may be asked, and how what may not is named |
//! | `endpoints` | the paths |
//! | `prepare` | from a request to a prompt, settings and a reader of the reply |
//! | `tools` | functions, how each family of models writes calls, grammars of calls |
//! | `reply` | thoughts, content and calls in a text that comes in pieces |
//! | `responses` | OpenAI's Responses |
//! | `generation` | texts in the batcher, and their events |
//! | `answer`, `stream` | texts as JSON, whole or in pieces |
//! | `explain` | why a token was drawn |
//! | `page` | the page in the browser, and its headers |
//! | `metrics`, `record` | what is counted, and what is logged for each request |
//!
//! Invariant: this crate names no device, prints nothing, and generates nothing itself: `ptero::Batcher` does, on its own thread.
#![forbid(unsafe_code)]

mod answer;
mod config;
mod connection;
mod endpoints;
mod error;
mod explain;
mod generation;
mod guard;
mod metrics;
mod models;
mod origins;
mod page;
mod prepare;
mod record;
mod reply;
mod request;
mod responses;
mod server;
mod stream;
mod tools;

pub use config::{Config, Limits};
pub use error::{ApiError, ServeError};
pub use models::ModelSource;
pub use origins::Origin;
pub use record::RequestLog;
pub use request::{ChatRequest, CompletionRequest, parse};
pub use responses::ResponsesRequest;
pub use server::{Server, run};
