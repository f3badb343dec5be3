//! Runs a language model that was exported as a program: prompts in chunks, tokens one by one, each drawn with its own seed.
//!
//! ```text
//! Verified --Model::new(backend)--> Model --session()--> Session --generate(prompt, options)--> tokens, Finish
//! ```
//!
//! ```no_run
//! use ptero_engine::{Model, SampleOptions};
//! use std::ops::ControlFlow;
//!
//! let program = ptero_pte::Verified::open("model.pte".as_ref(), &ptero_pte::Limits::DEFAULT)?;
//! let model = Model::new(&program, &ptero_reference::Reference, &[])?;
//! let options = SampleOptions { temperature: 0.8, ..SampleOptions::default() };
//! let finish = model.session()?.generate(&[1, 17, 80], &options, 100, |token| {
//!     println!("{token}");
//!     ControlFlow::Continue(())
//! })?;
//! println!("{:?}, seed {:?}", finish.reason, finish.seed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `model` | what all sessions share: the compiled program and what it says of itself |
//! | `signature` | what `forward` takes and gives, and how its delegate is called |
//! | `facts` | metadata: vocabulary, context, chunks, special tokens |
//! | `options` | what a user may ask of the sampler, what is refused, and the schedule of seeds |
//! | `session` | one text: its state, its position, the calls |
//! | `generate` | prompt to text, and why it ended |
//! | `transcript` | a session that gives again only what is new |
//!
//! Programs that sample give a token, which is taken as it is; from logits, the token is drawn here, with the same result.
//!
//! Invariant: this crate knows no device (the caller gives a backend) and no text, and does no I/O.
#![forbid(unsafe_code)]

mod error;
mod facts;
mod generate;
mod model;
mod options;
mod session;
mod signature;
mod transcript;

pub use error::{Error, Result, Shown};
pub use generate::{Finish, Reason, Timings};
pub use model::Model;
pub use options::{Draw, SampleOptions, Sampling, Schedule};
pub use ptero_plan::StepBytes;
pub use ptero_sampling::settings::{Refused, Settings};
pub use session::{Session, StopFlag};
pub use transcript::Transcript;
