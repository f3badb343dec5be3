//! Progress bars on the terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ptero::{Event, Progress};
use std::sync::Mutex;

/// Shows the progress of downloads and exports on standard error: bars if it is a terminal, messages in any case.
pub(crate) fn terminal(is_quiet: bool) -> Progress {
    if is_quiet {
        return Progress::default();
    }
    let shown = Mutex::new(ProgressBar::hidden());
    Progress::new(move |event| {
        let Ok(mut shown) = shown.lock() else { return };
        match event {
            Event::Message(text) => shown.suspend(|| anstream::eprintln!("{text}")),
            Event::Begin(bytes) => {
                *shown = bar(bytes, false, "{msg} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
            }
            Event::File(name) => shown.set_message(name.to_owned()),
            Event::Bytes(bytes) => shown.inc(bytes),
            Event::Skipped(bytes) => {
                shown.inc(bytes);
                shown.reset_eta();
            }
            Event::TakenBack(bytes) => shown.dec(bytes),
            Event::End => shown.finish_and_clear(),
        }
    })
}

/// Shows how many of `count` rounds are done.
pub(crate) fn counted(count: u64, is_quiet: bool) -> ProgressBar {
    bar(count, is_quiet, "{msg} {bar:24} {pos}/{len} {eta}")
}

/// A bar that is hidden if standard error is not a terminal.
fn bar(total: u64, is_quiet: bool, template: &str) -> ProgressBar {
    let target = if is_quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(total), target).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_progress_is_hidden() {
        let bar = counted(10, true);
        bar.inc(4);
        assert!(bar.is_hidden());
        assert_eq!(bar.position(), 4);
    }

    #[test]
    fn progress_is_hidden_without_a_terminal() {
        use std::io::IsTerminal;
        assert!(std::io::stderr().is_terminal() || counted(10, false).is_hidden());
    }
}
