//! FlatBuffers, read with a cursor and written front to back.
//!
//! A [`Table`] is a cursor: it holds no reference into the bytes, every read is bounds-checked and can fail, and every
//! read draws on a budget, so that a small file cannot describe a large amount of work. This module does not know what
//! the tables mean.
//!
//! The layout: a table starts with the distance back to its vtable; the vtable holds its own length, the table's length
//! and, per field, the field's offset in the table or 0 for "absent"; a string, vector or child table is a forward
//! distance from the field that names it.

mod out;

pub(crate) use out::{Emit, Out, WireValue};

use crate::Limits;
use crate::error::{Fault, Result, at_most};
use std::cell::Cell;

/// A finished FlatBuffers buffer, and how many more bytes may be read from it.
pub(crate) struct Buffer<'a> {
    bytes: &'a [u8],
    limits: &'a Limits,
    budget: Cell<u64>,
}

/// A table of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    buffer: &'a Buffer<'a>,
    at: usize,
    len: usize,
    vtable: usize,
    vtable_len: usize,
}

/// A field of a table or an element of a vector.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    buffer: &'a Buffer<'a>,
    at: usize,
}

/// A vector of a buffer, known to lie inside it.
#[derive(Clone, Copy)]
pub(crate) struct Vector<'a> {
    buffer: &'a Buffer<'a>,
    start: usize,
    stride: usize,
    pub(crate) len: usize,
}

impl<'a> Buffer<'a> {
    pub(crate) fn new(bytes: &'a [u8], limits: &'a Limits) -> Self {
        // Even a tiny buffer gets a budget that covers reading its few tables once each.
        let budget = Cell::new((bytes.len() as u64).saturating_mul(limits.overlap).saturating_add(1024));
        Self { bytes, limits, budget }
    }

    /// The table that byte 0 points to.
    pub(crate) fn root(&'a self) -> Result<Table<'a>> {
        Entry { buffer: self, at: 0 }.table()
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn outside(&self, at: usize, bytes: usize) -> Fault {
        Fault::OutOfBounds { at: at as u64, bytes: bytes as u64, size: self.size() }
    }

    fn spend(&self, bytes: usize) -> Result<()> {
        let left = self.budget.get().checked_sub(bytes as u64);
        self.budget.set(left.ok_or(Fault::Overlap { times: self.limits.overlap, size: self.size() })?);
        Ok(())
    }

    fn span(&self, at: usize, len: usize) -> Result<&'a [u8]> {
        let end = at.checked_add(len);
        Ok(end.and_then(|end| self.bytes.get(at..end)).ok_or_else(|| self.outside(at, len))?)
    }

    /// The `N` bytes at `at`, which must be a multiple of `N`.
    fn scalar<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        aligned(at, N)?;
        let raw = self.span(at, N)?.first_chunk::<N>();
        Ok(*raw.ok_or_else(|| self.outside(at, N))?)
    }

    fn u16(&self, at: usize) -> Result<usize> {
        Ok(u16::from_le_bytes(self.scalar(at)?).into())
    }

    fn u32(&self, at: usize) -> Result<usize> {
        let value = u32::from_le_bytes(self.scalar(at)?);
        Ok(usize::try_from(value).map_err(|_| self.outside(at, 4))?)
    }

    /// The offset that the forward distance stored at `at` points to.
    fn follow(&self, at: usize) -> Result<usize> {
        match self.u32(at)? {
            0 => Err(Fault::Null.into()),
            distance => Ok(at.checked_add(distance).ok_or_else(|| self.outside(at, distance))?),
        }
    }

    fn table(&'a self, at: usize) -> Result<Table<'a>> {
        self.spend(8)?;
        let back = i64::from(i32::from_le_bytes(self.scalar(at)?));
        let vtable = i64::try_from(at).ok().and_then(|at| usize::try_from(at - back).ok());
        let vtable = vtable.ok_or_else(|| self.outside(at, 4))?;
        let (vtable_len, len) = (self.u16(vtable)?, self.u16(vtable.saturating_add(2))?);
        self.span(vtable, vtable_len.max(4))?;
        self.span(at, len)?;
        Ok(Table { buffer: self, at, len, vtable, vtable_len })
    }

    /// The vector at `at`; the offsets of its elements must be multiples of `stride`.
    fn vector(&'a self, at: usize, stride: usize) -> Result<Vector<'a>> {
        let len = self.u32(at)?;
        if stride > 1 {
            at_most("elements", len as u64, self.limits.elements)?;
        }
        let start = at.saturating_add(4);
        aligned(start, stride)?;
        let bytes = len.checked_mul(stride).ok_or_else(|| self.outside(start, usize::MAX))?;
        self.span(start, bytes)?;
        self.spend(bytes)?;
        Ok(Vector { buffer: self, start, stride, len })
    }

    fn text(&'a self, at: usize) -> Result<&'a str> {
        let text = self.vector(at, 1)?;
        if self.bytes.get(text.range().end) != Some(&0) {
            return Err(Fault::Unterminated.into());
        }
        Ok(str::from_utf8(self.span(text.start, text.len)?).map_err(|_| Fault::NotUtf8)?)
    }
}

fn aligned(at: usize, to: usize) -> Result<()> {
    if at.is_multiple_of(to) { Ok(()) } else { Err(Fault::Misaligned { at: at as u64, to: to as u64 }.into()) }
}

impl<'a> Table<'a> {
    /// Field `slot`, which has `bytes` bytes, or `None` when the writer left it out.
    pub(crate) fn entry(&self, slot: usize, bytes: usize) -> Result<Option<Entry<'a>>> {
        let entry = slot.saturating_mul(2).saturating_add(4);
        if entry.saturating_add(2) > self.vtable_len {
            return Ok(None);
        }
        let offset = self.buffer.u16(self.vtable.saturating_add(entry))?;
        if offset == 0 {
            return Ok(None);
        }
        let at = self.at.saturating_add(offset);
        if offset.saturating_add(bytes) > self.len {
            return Err(self.buffer.outside(at, bytes).into());
        }
        Ok(Some(Entry { buffer: self.buffer, at }))
    }
}

impl<'a> Entry<'a> {
    pub(crate) fn scalar<const N: usize>(self) -> Result<[u8; N]> {
        self.buffer.scalar(self.at)
    }

    pub(crate) fn table(self) -> Result<Table<'a>> {
        self.buffer.table(self.buffer.follow(self.at)?)
    }

    pub(crate) fn text(self) -> Result<&'a str> {
        self.buffer.text(self.buffer.follow(self.at)?)
    }

    pub(crate) fn vector(self, stride: usize) -> Result<Vector<'a>> {
        self.buffer.vector(self.buffer.follow(self.at)?, stride)
    }
}

impl<'a> Vector<'a> {
    pub(crate) fn entry(&self, index: usize) -> Entry<'a> {
        Entry { buffer: self.buffer, at: self.start.saturating_add(self.stride.saturating_mul(index)) }
    }

    /// The offsets of the elements in the buffer.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.start..self.entry(self.len).at
    }
}
