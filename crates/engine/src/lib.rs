//! Runs a language model that was exported as a program: prompts in chunks, tokens one by one, each sampled with its own seed.
//!
//! ```text
//! Verified --Engine::new(backend)--> Engine --session()--> Session --generate(prompt, options)--> tokens, Finish
//! ```
//!
//! ```no_run
//! use ptero_engine::{Engine, SampleOptions};
//!
//! let program = ptero_pte::Verified::open("model.pte".as_ref(), &ptero_pte::Limits::DEFAULT)?;
//! let engine = Engine::new(&program, &ptero_reference::Reference, &[])?;
//! let options = SampleOptions { temperature: 0.8, ..SampleOptions::default() };
//! let mut session = engine.session()?;
//! let mut tokens = session.generate(&[1, 17, 80], &options, 100)?;
//! for token in &mut tokens {
//!     println!("{}", token?);
//! }
//! let finish = tokens.finish();
//! println!("{:?}, seed {:?}", finish.reason, finish.seed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `engine` | what all sessions share: the compiled program, its metadata |
//! | `signature` | inputs and outputs of `forward`, and how its delegate is called |
//! | `facts` | metadata: vocabulary, context, chunks, special tokens |
//! | `options` | options of the sampler, what is refused, the schedule of seeds |
//! | `session` | the state of one text, its tokens, the calls |
//! | `generate` | prompt to tokens, and why they end |
//! | `together` | several sessions decoded at once |
//! | `batch` | texts that join and leave between steps, and the states of prompts that they share |
//!
//! The token of a program that samples is taken as it is; from logits, the host samples the same token.
//!
//! Invariant: this crate knows no device (the caller passes a backend) and no text, and does no I/O.
#![forbid(unsafe_code)]

mod batch;
mod engine;
mod error;
mod facts;
mod generate;
mod options;
mod session;
mod signature;
mod together;

pub use batch::{Batch, BatchEvent, BatchLimits, BatchText, TextId};
pub use engine::Engine;
pub use error::{Error, Result, Shown};
pub use generate::{FilterError, Finish, Generation, Reason, Timings, TokenFilter};
pub use options::{SampleOptions, Sampling, Schedule, TokenSettings};
pub use ptero_plan::StepBytes;
pub use ptero_sampling::log_probabilities::{LogProbabilities, MOST_LIKELIEST, RowLogProbabilities};
pub use ptero_sampling::settings::{Penalties, Refused, Settings};
pub use session::{Session, StopFlag};
pub use together::{CallLane, call_together};

/// A token of the vocabulary.
pub type TokenId = u32;
