//! Ctrl-C: the first ends the text in an orderly way, the next the process.

use anyhow::{Context, Result};
use ptero_engine::StopFlag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What shells expect of a process that ended by Ctrl-C.
pub(crate) const EXIT_CODE: u8 = 130;

/// Listens for Ctrl-C.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    flag: StopFlag,
    /// Whether a text is being written, which can end in an orderly way.
    is_busy: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on. Before, the system ends the process, which damages nothing either.
    pub(crate) fn listen(flag: StopFlag) -> Result<Self> {
        let this = Self { flag, is_busy: Arc::default() };
        let heard = this.clone();
        ctrlc::set_handler(move || {
            if !heard.is_busy.load(Ordering::Relaxed) || heard.flag.is_set() {
                std::process::exit(EXIT_CODE.into());
            }
            heard.flag.stop();
        })
        .context("could not listen for Ctrl-C")?;
        Ok(this)
    }

    /// Does something that Ctrl-C ends early.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.flag.clear();
        self.is_busy.store(true, Ordering::Relaxed);
        let done = work();
        self.is_busy.store(false, Ordering::Relaxed);
        done
    }
}
