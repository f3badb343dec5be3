//! Reads consecutive numbers and texts, never past the end.

use crate::error::at_most;
use crate::{Fault, Result};
use ptero_tensor::Bytes;

/// A position in the bytes.
pub(crate) struct Cursor {
    bytes: Bytes,
    at: usize,
    /// No byte from here on is read.
    limit: u64,
}

impl Cursor {
    /// At the start.
    pub(crate) fn new(bytes: Bytes, limit: u64) -> Self {
        Self { bytes, at: 0, limit }
    }

    /// The offset from the start.
    pub(crate) fn at(&self) -> u64 {
        self.at as u64
    }

    /// Skips `count` bytes and returns them.
    pub(crate) fn pass(&mut self, count: u64) -> Result<Bytes> {
        let (at, size) = (self.at(), self.bytes.len() as u64);
        let window = self.bytes.window(at, count).ok_or(Fault::OutOfBounds { at, bytes: count, size })?;
        at_most("bytes of header", at.saturating_add(count), self.limit)?;
        self.at = self.at.saturating_add(window.len());
        Ok(window)
    }

    /// Checks that `count` items of at least `least_bytes` bytes can follow, before any work is done for each.
    pub(crate) fn fits(&self, count: u64, least_bytes: u64) -> Result<()> {
        let (at, size) = (self.at(), self.bytes.len() as u64);
        let bytes = count.saturating_mul(least_bytes);
        if bytes > size.saturating_sub(at) { Err(Fault::OutOfBounds { at, bytes, size }.into()) } else { Ok(()) }
    }

    /// Copies the next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let window = self.pass(N as u64)?;
        let out_of_bounds = Fault::OutOfBounds { at: self.at(), bytes: N as u64, size: self.bytes.len() as u64 };
        window.first_chunk().copied().ok_or_else(|| out_of_bounds.into())
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A text of at most `most_bytes` bytes.
    pub(crate) fn text(&mut self, most_bytes: u64) -> Result<String> {
        let count = self.u64()?;
        at_most("bytes of a name", count, most_bytes)?;
        let bytes = self.pass(count)?.to_vec();
        String::from_utf8(bytes).map_err(|_| Fault::NotUtf8.into())
    }

    /// Skips a text and checks it.
    pub(crate) fn pass_text(&mut self) -> Result<()> {
        let count = self.u64()?;
        std::str::from_utf8(&self.pass(count)?).map(drop).map_err(|_| Fault::NotUtf8.into())
    }

    /// The bytes from `start` to the cursor.
    pub(crate) fn since(&self, start: u64) -> Result<Bytes> {
        crate::entry::window(&self.bytes, start, self.at().saturating_sub(start))
    }
}
