//! Ctrl-C: the first stops the text between two tokens, the next ends the process.

use anyhow::{Context, Result};
use ptero::StopFlag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit status that shells expect after Ctrl-C.
pub(crate) const EXIT_CODE: u8 = 130;

/// Listens for Ctrl-C.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt {
    flag: StopFlag,
    /// `true` while a text is being made.
    is_busy: Arc<AtomicBool>,
}

impl Interrupt {
    /// Listens from now on. Before, Ctrl-C ends the process, which is safe too.
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

    /// Runs work that Ctrl-C stops.
    pub(crate) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.flag.clear();
        self.is_busy.store(true, Ordering::Relaxed);
        let done = work();
        self.is_busy.store(false, Ordering::Relaxed);
        done
    }
}
