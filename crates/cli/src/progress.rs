//! How far something long is, for whoever looks at a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) struct Progress {
    bar: ProgressBar,
    is_quiet: bool,
}

impl Progress {
    /// Of bytes. Shown on stderr, unless that is no terminal.
    pub(crate) fn new(bytes: u64, is_quiet: bool) -> Self {
        Self::with(bytes, is_quiet, "{msg} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    }

    /// Of anything that is counted.
    pub(crate) fn counted(count: u64, is_quiet: bool) -> Self {
        Self::with(count, is_quiet, "{msg} {bar:24} {pos}/{len} {eta}")
    }

    fn with(bytes: u64, is_quiet: bool, template: &str) -> Self {
        // Hidden by itself where nobody looks.
        let target = if is_quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { bar: ProgressBar::with_draw_target(Some(bytes), target).with_style(style), is_quiet }
    }

    /// Names the file that comes next.
    pub(crate) fn begin(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// Counts bytes that came.
    pub(crate) fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Counts bytes that were there before, which say nothing about the rate.
    pub(crate) fn skip(&self, bytes: u64) {
        self.bar.inc(bytes);
        self.bar.reset_eta();
    }

    /// Takes back bytes that must come again.
    pub(crate) fn take_back(&self, bytes: u64) {
        self.bar.dec(bytes);
    }

    /// Says something above the bar.
    pub(crate) fn say(&self, text: &str) {
        if !self.is_quiet {
            self.bar.suspend(|| anstream::eprintln!("{text}"));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_progress_is_hidden() {
        let progress = Progress::new(10, true);
        progress.begin("a");
        progress.add(4);
        assert!(progress.bar.is_hidden());
        assert_eq!(progress.bar.position(), 4);
    }

    #[test]
    fn progress_is_hidden_where_nobody_looks() {
        use std::io::IsTerminal;
        assert!(std::io::stderr().is_terminal() || Progress::new(10, false).bar.is_hidden());
    }
}
