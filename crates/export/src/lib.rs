//! Makes programs that ExecuTorch's own tools open: a builder of graphs, layers on the blocks of GGUF files, the head that
//! samples, and the graft that gives this head to a program that returns logits.
//!
//! ```
//! use ptero_export::{GraphBuilder, Logits, sampled_output};
//! use ptero_pte::{DType, Limits, Program, ShapeDim, Verified};
//! use ptero_sampling::inputs::Head;
//!
//! let mut b = GraphBuilder::new("demo");
//! let logits = b.input("logits", DType::F32, [ShapeDim::fixed(1), ShapeDim::fixed(256)]);
//! let logits = Logits { tensor: logits, batch: ShapeDim::fixed(1), vocabulary: 256 };
//! sampled_output(&mut b, &logits, Head::Plain, None)?;
//! let mut program = Program::default();
//! b.finish().add_to(&mut program, "forward");
//! Verified::new(program, &Limits::DEFAULT)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Invariant: this crate knows no device, runs nothing and does no I/O.
#![forbid(unsafe_code)]

mod builder;
mod config;
mod error;
mod families;
mod gguf_kernels;
mod graft;
pub mod metadata;
mod model;
mod net;
mod recipe;
mod sampler;
mod weights;

pub use builder::{Built, GraphBuilder, Tensor, Value};
pub use error::ExportError;
pub use families::{FAMILIES, Family};
pub use gguf_kernels::GgufMatrix;
pub use graft::{Graft, GraftError, graft, has_full_head};
pub use model::{Export, FILES, export, model_weights};
pub use ptero_tensor::ScaleType;
pub use recipe::{ModelWeights, Recipe, Storage};
pub use sampler::{HeadError, Logits, SamplerSlots, TextInputs, sampled_output, sampling_head};
pub use weights::{FormCount, bits_per_weight};
