//! Errors of the library as exceptions of the package, which `ptero/errors.py` defines.

use ptero::{Error, ErrorKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Returns the exception for an error: its class by the kind of the error, its text as the library writes it.
pub(crate) fn exception(error: &Error) -> PyErr {
    raise(class(error.kind()), error.to_string())
}

/// Returns an exception of one of the package's classes.
pub(crate) fn raise(class: &'static str, message: String) -> PyErr {
    Python::attach(|py| {
        let made = py
            .import("ptero.errors")
            .and_then(|errors| errors.getattr(class))
            .and_then(|class| class.call1((message.as_str(),)));
        // Without its own module the package is broken, but the message should not be lost.
        made.map_or_else(|_| PyRuntimeError::new_err(message), PyErr::from_value)
    })
}

/// Returns the name of the class for a kind.
fn class(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "NotFoundError",
        ErrorKind::Io => "FileError",
        ErrorKind::Model => "ModelError",
        ErrorKind::Setting => "SettingError",
        ErrorKind::Prompt => "PromptError",
        ErrorKind::Limit => "LimitError",
        ErrorKind::Call => "CallError",
        ErrorKind::Device => "DeviceError",
        ErrorKind::Stopped => "StoppedError",
        // Kinds that are newer than this package, too.
        _ => "Error",
    }
}

/// Turns results of the library into results of Python.
pub(crate) trait OrRaise<T> {
    fn or_raise(self) -> PyResult<T>;
}

impl<T, E: Into<Error>> OrRaise<T> for Result<T, E> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(|error| exception(&error.into()))
    }
}
