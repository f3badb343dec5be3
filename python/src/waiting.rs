//! Waiting for work on other threads without holding Python's lock, and without missing signals.

use crate::errors::raise;
use ptero::StopFlag;
use pyo3::prelude::*;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often signals are looked for. Only Python's main thread gets any.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// Locks a mutex. Call it without Python's lock: whoever holds the mutex may be waiting for that.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic left is still usable: the library marks what is not.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a message, or until a signal handler raises, as that of Ctrl-C does. Call it without Python's lock.
pub(crate) fn receive<T>(receiver: &Receiver<T>) -> PyResult<T> {
    loop {
        match receiver.recv_timeout(POLL) {
            Ok(message) => return Ok(message),
            Err(RecvTimeoutError::Disconnected) => return Err(broken()),
            Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
        }
    }
}

/// Same as [`receive`], but stops the sender, and then waits for its answer: the steps in flight.
pub(crate) fn receive_or_stop<T>(receiver: &Receiver<T>, stop: &StopFlag) -> PyResult<T> {
    receive(receiver).inspect_err(|_| {
        stop.stop();
        // An error here says the same as the exception.
        let _ = receiver.recv();
    })
}

/// The exception for a thread that ended without an answer, which only a panic does.
fn broken() -> PyErr {
    raise("Error", "an internal error ended the text".to_owned())
}

/// Does work that `stop` stops on a thread of its own, while this one looks for signals.
pub(crate) fn interruptible<T: Send>(py: Python<'_>, stop: &StopFlag, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| {
        let (sender, receiver) = sync_channel(1);
        thread::scope(|scope| {
            scope.spawn(move || {
                let _ = sender.send(work());
            });
            let done = receive_or_stop(&receiver, stop);
            stop.clear();
            done
        })
    })
}
