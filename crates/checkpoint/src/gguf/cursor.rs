//! Reads numbers and texts one after the other, and never past the end.

use crate::{Fault, Result};
use ptero_tensor::Bytes;

/// A place in the bytes.
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

    /// Bytes from the start.
    pub(crate) fn at(&self) -> u64 {
        self.at as u64
    }

    /// Passes over so many bytes and gives where they lie.
    pub(crate) fn pass(&mut self, count: u64) -> Result<Bytes> {
        let (at, size) = (self.at(), self.bytes.len() as u64);
        let out_of_bounds = Fault::OutOfBounds { at, bytes: count, size };
        let Some(end) = at.checked_add(count).filter(|end| *end <= size) else { return Err(out_of_bounds.into()) };
        if end > self.limit {
            return Err(Fault::TooMany { what: "bytes of header", count: end, limit: self.limit }.into());
        }
        let window = usize::try_from(end).ok().and_then(|end| self.bytes.slice(self.at..end));
        let window = window.ok_or(out_of_bounds)?;
        self.at = self.at.saturating_add(window.len());
        Ok(window)
    }

    /// Whether so many things of at least so many bytes can follow: asked before anything is done for each.
    pub(crate) fn fits(&self, count: u64, least_bytes: u64) -> Result<()> {
        let (at, size) = (self.at(), self.bytes.len() as u64);
        let bytes = count.saturating_mul(least_bytes);
        if bytes > size.saturating_sub(at) { Err(Fault::OutOfBounds { at, bytes, size }.into()) } else { Ok(()) }
    }

    /// So many bytes, copied.
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

    /// A text of at most so many bytes.
    pub(crate) fn text(&mut self, most_bytes: u64) -> Result<String> {
        let count = self.u64()?;
        crate::error::at_most("bytes of a name", count, most_bytes)?;
        let bytes = self.pass(count)?.to_vec();
        String::from_utf8(bytes).map_err(|_| Fault::NotUtf8.into())
    }

    /// Passes over a text and checks it.
    pub(crate) fn pass_text(&mut self) -> Result<()> {
        let count = self.u64()?;
        std::str::from_utf8(&self.pass(count)?).map(drop).map_err(|_| Fault::NotUtf8.into())
    }

    /// What was passed over since the cursor was at `start`.
    pub(crate) fn since(&self, start: u64) -> Result<Bytes> {
        crate::entry::window(&self.bytes, start, self.at())
    }
}
