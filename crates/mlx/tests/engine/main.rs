//! The engine's own tests, on MLX (S1.3, S1.8).
#![cfg(feature = "link")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../../engine/tests/engine/batch.rs"]
mod batch;
#[path = "../../../engine/tests/engine/boxed.rs"]
mod boxed;
#[path = "../../../engine/tests/engine/breaking.rs"]
mod breaking;
#[path = "../../../engine/tests/engine/bursts.rs"]
mod bursts;
#[path = "../../../engine/tests/engine/chunks.rs"]
mod chunks;
#[path = "../../../engine/tests/engine/corpus.rs"]
mod corpus;
#[path = "../../../engine/tests/engine/ends.rs"]
mod ends;
#[path = "../../../engine/tests/engine/forks.rs"]
mod forks;
#[path = "../../../engine/tests/engine/full.rs"]
mod full;
#[path = "../../../engine/tests/engine/guards.rs"]
mod guards;
mod mlx;
#[path = "../../../engine/tests/engine/prefixes.rs"]
mod prefixes;
#[path = "../../../engine/tests/engine/programs.rs"]
mod programs;
#[path = "../../../engine/tests/engine/seeds.rs"]
mod seeds;
#[path = "../../../engine/tests/engine/sessions.rs"]
mod sessions;
#[path = "../../../engine/tests/engine/together.rs"]
mod together;

#[path = "../../../engine/tests/engine/tiny.rs"]
#[allow(dead_code, reason = "its devices are replaced")]
mod original;

/// The engine's helpers, with MLX in place of its devices.
mod tiny {
    pub(crate) use crate::original::*;
    use ptero_backend::Backend;
    use ptero_engine::Session;
    use ptero_export::Recipe;
    use ptero_mlx::Mlx;

    pub(crate) fn backends() -> [Box<dyn Backend>; 1] {
        [device()]
    }

    pub(crate) fn device() -> Box<dyn Backend> {
        Box::new(Mlx::new())
    }

    /// MLX has threads of its own.
    pub(crate) fn threaded(_threads: usize) -> Box<dyn Backend> {
        device()
    }

    pub(crate) fn session(name: &str, recipe: &Recipe) -> Session {
        model(name, recipe, &Mlx::new()).session().unwrap()
    }
}
