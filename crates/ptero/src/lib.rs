//! Runs exported language models that sample their own next token on the device: text in, text out, and the same seed gives
//! the same text, bit for bit, on every device.
//!
//! ```no_run
//! let model = ptero::Model::open("smol.pte")?; // or a checkpoint; `owner/name` with the feature `hub`
//! let mut chat = model.chat().system("Be brief.").temperature(0.7).seed(42).start()?;
//! for piece in chat.send("Why is the sky blue?")? {
//!     print!("{}", piece?);
//! }
//! # Ok::<(), ptero::Error>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | open a model, or choose device and threads | [`Model::open`], [`Options`] |
//! | hold a conversation | [`Model::chat`], [`Chat`] |
//! | continue a text | [`Model::generator`], [`Generator`] |
//! | generate many texts at once | [`Batcher`] |
//! | work with tokens and logits, rewind and fork | [`Model::session`], [`Session`] |
//! | stop from another thread | [`StopFlag`] |
//! | make a program from a checkpoint | [`export::export`] |
//! | run any method of any program on tensors | [`Program::open`], [`Method::run`] |
//!
//! The features of this crate add what a build may do, and never change results: `hub` downloads checkpoints by name.
//!
//! Invariant: this crate names the devices and opens files and sockets; it prints nothing.
#![forbid(unsafe_code)]

mod batcher;
#[doc(hidden)]
pub mod cache;
mod chat;
mod device;
mod devices;
mod error;
pub mod export;
mod fingerprint;
mod format;
mod generator;
mod grammar;
#[doc(hidden)]
pub mod hub;
mod kv_cache;
mod model;
mod options;
#[doc(hidden)]
pub mod output;
mod pieces;
mod program;
mod progress;
mod settings;
mod source;
mod tensor;
mod text;

pub use batcher::{BatchOptions, BatchStats, Batcher, Submitted, TextEvent, TextSink};
pub use chat::{Chat, ChatBuilder};
pub use device::Device;
pub use devices::{CpuInfo, CudaInfo, Devices, MlxInfo, devices};
pub use error::{Error, ErrorKind, Result};
pub use generator::{DEFAULT_MAX_TOKENS, Generator, GeneratorBuilder};
pub use kv_cache::KvCacheSpec;
pub use model::Model;
pub use options::Options;
#[doc(hidden)]
pub use program::short_name;
pub use program::{Method, Program, TensorInfo};
pub use progress::{Event, Progress};
pub use ptero_engine::{
    LogProbabilities, Penalties, RowLogProbabilities, SampleOptions, Sampling, Session, Settings, StopFlag, Timings,
    TokenId, TokenSettings,
};
pub use ptero_pte::DType;
pub use ptero_sampling::explain::{Candidate, Explanation, Filter};
pub use ptero_sampling::noise::mix;
pub use ptero_text::Message;
#[doc(hidden)]
pub use source::{INCLUDED, name_of, open_unverified};
pub use tensor::{Element, Tensor};
pub use text::{Finish, FinishReason, Piece, Text};

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
