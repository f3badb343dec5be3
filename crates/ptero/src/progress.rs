//! What long work reports on its way: downloads, exports, and the loading of weights.

use ptero_backend::{Load, Loading};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A report of long work. Bytes count towards the total of the last [`Event::Begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Something to tell the user.
    Message(&'a str),
    /// Work on this many bytes begins.
    Begin(u64),
    /// The next file has this name.
    File(&'a str),
    /// Bytes were processed.
    Bytes(u64),
    /// Bytes were there already and say nothing about the rate.
    Skipped(u64),
    /// Bytes must be processed again.
    TakenBack(u64),
    /// The work that began last has ended, or failed.
    End,
}

/// Receives the events of long work; the default ignores them.
///
/// ```
/// use ptero::{Event, Progress};
///
/// let progress = Progress::new(|event| {
///     if let Event::Message(text) = event {
///         eprintln!("{text}");
///     }
/// });
/// let model = ptero::Options::new().progress(progress).included_model()?;
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<Report>>);

/// Fewer bytes of weights are loaded before somebody could read that they are.
const LONG_LOADING_BYTES: u64 = 64 << 20;

type Report = dyn Fn(Event<'_>) + Send + Sync;

impl Progress {
    /// Calls `report` for every event.
    pub fn new(report: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    pub(crate) fn report(&self, event: Event<'_>) {
        if let Some(report) = &self.0 {
            report(event);
        }
    }

    pub(crate) fn message(&self, text: &str) {
        self.report(Event::Message(text));
    }

    /// Returns what a device reports the loading of weights to.
    pub(crate) fn loading(&self) -> Loading {
        if self.0.is_none() {
            return Loading::IGNORED;
        }
        let (progress, is_long) = (self.clone(), AtomicBool::new(false));
        Loading::new(move |load| {
            if let Load::Begin(bytes) = load {
                is_long.store(bytes >= LONG_LOADING_BYTES, Ordering::Relaxed);
            }
            if !is_long.load(Ordering::Relaxed) {
                return;
            }
            match load {
                Load::Begin(bytes) => {
                    progress.report(Event::Begin(bytes));
                    progress.report(Event::File("loading weights"));
                }
                Load::Bytes(bytes) => progress.report(Event::Bytes(bytes)),
                Load::End => progress.report(Event::End),
            }
        })
    }

    /// Begins work on this many bytes, which ends when the result is dropped.
    pub(crate) fn begin(&self, bytes: u64) -> Work<'_> {
        self.report(Event::Begin(bytes));
        Work(self)
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Progress(…)" } else { "Progress(ignored)" })
    }
}

/// Work that has begun.
pub(crate) struct Work<'a>(&'a Progress);

impl std::ops::Deref for Work<'_> {
    type Target = Progress;

    fn deref(&self) -> &Progress {
        self.0
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.report(Event::End);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn long_loading_of_weights_is_reported_and_short_is_not() {
        let events = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&events);
        let progress = Progress::new(move |event| kept.lock().unwrap().push(format!("{event:?}")));
        let loading = progress.loading();
        loading.begin(1 << 20).loaded(1 << 20);
        assert!(events.lock().unwrap().is_empty());
        loading.begin(1 << 30).loaded(5);
        assert_eq!(*events.lock().unwrap(), ["Begin(1073741824)", "File(\"loading weights\")", "Bytes(5)", "End"]);
    }
}
