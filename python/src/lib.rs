//! The extension module `_ptero` of the Python package `ptero`: models, texts, batches, sessions and programs of the library
//! as Python classes. The package's own modules, in Python, make them comfortable: result objects, NumPy arrays, asyncio, Ray.
//!
//! Python's lock is released while a model works. Whoever waits for a model does not hold it, and looks for signals every
//! [`waiting::POLL`].
//!
//! Invariant: this crate computes nothing and has no settings or defaults of its own; those are the library's.

mod batch;
mod chat;
mod errors;
mod export;
mod model;
mod program;
mod progress;
mod session;
mod settings;
mod stream;
mod waiting;

#[pyo3::pymodule]
mod _ptero {
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::chat::Chat;
    #[pymodule_export]
    use crate::export::{choices, export};
    #[pymodule_export]
    use crate::model::{Model, devices, mix};
    #[pymodule_export]
    use crate::program::{Method, Program};
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::settings::settings;
    #[pymodule_export]
    use crate::stream::{Finish, Stream};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
