//! Stop strings, which may span pieces of text.

use crate::{Error, Result};

/// The result of scanning a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Text that is certainly not part of a stop string.
    pub text: String,
    /// The index of the stop string that was found; everything from its start on is dropped.
    pub stop: Option<usize>,
}

/// Looks for stop strings in a text that comes in pieces.
///
/// The stop string that is complete first ends the text; of those complete at the same byte, the longest. So the
/// result depends on the text alone, not on how it is cut. Held back is the longest end of the text that is the start
/// of a stop string, nothing more.
#[derive(Clone, Debug)]
pub struct StopScanner {
    stops: Vec<Stop>,
    held: String,
    stopped: Option<usize>,
}

/// A stop string, followed byte by byte (Knuth, Morris, Pratt).
#[derive(Clone, Debug)]
struct Stop {
    text: Vec<u8>,
    /// For every length of a matched start, the length of the next shorter start that ends it.
    shorter: Vec<usize>,
    /// How much of the stop string the text ends with.
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Self {
        let mut stop = Self { text: text.as_bytes().to_vec(), shorter: vec![0, 0], matched: 0 };
        for byte in text.bytes().skip(1) {
            stop.step(byte);
            stop.shorter.push(stop.matched);
        }
        stop.matched = 0;
        stop
    }

    /// Takes a byte and returns `true` if the stop string is complete.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text.get(self.matched) != Some(&byte) {
            self.matched = self.shorter.get(self.matched).copied().unwrap_or(0);
        }
        if self.text.get(self.matched) == Some(&byte) {
            self.matched += 1;
        }
        self.matched == self.text.len()
    }
}

impl StopScanner {
    /// A scanner for these stop strings; none is fine.
    ///
    /// # Errors
    /// When one is empty.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self> {
        if stops.iter().any(|stop| stop.as_ref().is_empty()) {
            return Err(Error::EmptyStop);
        }
        let stops = stops.iter().map(|stop| Stop::new(stop.as_ref())).collect();
        Ok(Self { stops, held: String::new(), stopped: None })
    }

    /// Takes the next piece. After a stop string it takes and gives nothing more.
    pub fn push(&mut self, piece: &str) -> Scanned {
        if self.stopped.is_some() {
            return Scanned { text: String::new(), stop: self.stopped };
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (at, byte) in piece.bytes().enumerate() {
            if let Some((index, length)) = self.step(byte) {
                self.stopped = Some(index);
                let mut text = std::mem::take(&mut self.held);
                text.truncate(before + at + 1 - length);
                return Scanned { text, stop: self.stopped };
            }
        }
        let kept = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        // A stop string starts with a whole character, so its start in the text does too.
        let rest = self.held.split_off(self.held.len() - kept);
        Scanned { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// The longest stop string that this byte completes, and its length.
    fn step(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut longest: Option<(usize, usize)> = None;
        for (index, stop) in self.stops.iter_mut().enumerate() {
            if stop.step(byte) && longest.is_none_or(|(_, length)| stop.matched > length) {
                longest = Some((index, stop.matched));
            }
        }
        longest
    }

    /// Ends the text and returns what was held back.
    pub fn finish(self) -> String {
        self.held
    }
}

#[cfg(test)]
mod tests;
