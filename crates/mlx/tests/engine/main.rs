//! The engine's own tests, on MLX: sessions, forks, rewinds, chunks, seeds and ends (S1.3, S1.8).
#![cfg(feature = "link")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../../engine/tests/engine/breaking.rs"]
#[allow(dead_code, reason = "shared with tests that do not run here")]
mod breaking;
#[path = "../../../engine/tests/engine/chunks.rs"]
mod chunks;
#[path = "../../../engine/tests/engine/corpus.rs"]
mod corpus;
#[path = "../../../engine/tests/engine/forks.rs"]
mod forks;
mod mlx;
#[path = "../../../engine/tests/engine/sessions.rs"]
mod sessions;

#[path = "../../../engine/tests/engine/tiny.rs"]
#[allow(dead_code, reason = "shared with tests that do not run here")]
mod original;

/// The engine's helpers, with MLX in place of its devices.
mod tiny {
    #[allow(unused_imports, reason = "shared with tests that do not run here")]
    pub(crate) use crate::original::*;
    use ptero_backend::Backend;

    pub(crate) fn backends() -> [Box<dyn Backend>; 1] {
        [Box::new(ptero_mlx::Mlx)]
    }
}
