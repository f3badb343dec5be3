//! Progress of downloads and exports, reported to a Python function.

use ptero::{Event, Progress};
use pyo3::prelude::*;

/// Calls `report(kind, text, bytes)` for every event; what it raises is shown, and ignored.
pub(crate) fn progress(report: Option<Py<PyAny>>) -> Progress {
    let Some(report) = report else { return Progress::default() };
    Progress::new(move |event| {
        let (kind, text, bytes) = match event {
            Event::Message(text) => ("message", text, 0),
            Event::Begin(bytes) => ("begin", "", bytes),
            Event::File(name) => ("file", name, 0),
            Event::Bytes(bytes) => ("bytes", "", bytes),
            Event::Skipped(bytes) => ("skipped", "", bytes),
            Event::TakenBack(bytes) => ("taken_back", "", bytes),
            Event::End => ("end", "", 0),
        };
        Python::attach(|py| {
            if let Err(error) = report.call1(py, (kind, text, bytes)) {
                error.write_unraisable(py, None);
            }
        });
    })
}
