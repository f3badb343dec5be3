//! The outer layer that programs (`.pte`) and tensor data (`.ptd`) share: a table of contents at the front, followed by
//! data segments that are read only when needed.

use crate::error::{Fault, Result, Step, pick};
use crate::schema::raw::{self, DataSegment};
use crate::wire::{Emit, Out};
use ptero_tensor::Bytes;
use ptero_tensor::fault::AtStep;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};

/// Every segment starts at a multiple of this.
const SEGMENT_ALIGN: u64 = 128;
const PROGRAM_HEAD: [u8; 4] = *b"eh00";
const PROGRAM_ID: [u8; 4] = *b"ET12";
const DATA_HEAD: [u8; 4] = *b"FH01";
const DATA_ID: [u8; 4] = *b"FT01";

/// A file divided into its table of contents and its segments.
pub(crate) struct Container {
    pub(crate) contents: Bytes,
    segments: Bytes,
}

/// The `N` bytes at a fixed offset.
pub(crate) fn array<const N: usize>(file: &[u8], at: usize) -> Result<[u8; N]> {
    let outside = || Fault::OutOfBounds { at: at as u64, bytes: N as u64, size: file.len() as u64 };
    Ok(*file.get(at..).and_then(<[u8]>::first_chunk).ok_or_else(outside)?)
}

/// The number at a fixed offset.
pub(crate) fn u64_at(file: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(array(file, at)?))
}

/// A window of a file, by numbers that come from the file.
pub(crate) fn window(file: &Bytes, at: u64, bytes: u64) -> Result<Bytes> {
    Ok(file.window(at, bytes).ok_or(Fault::OutOfBounds { at, bytes, size: file.len() as u64 })?)
}

impl Container {
    /// Divides a program.
    pub(crate) fn of_program(file: &Bytes) -> Result<Self> {
        match array(file, 4)? {
            PROGRAM_ID => {}
            DATA_ID => return Err(Fault::IsTensorData.into()),
            [b'E', b'T', a, b] if a.is_ascii_digit() && b.is_ascii_digit() => {
                let found = format!("ET{}{}", a as char, b as char);
                return Err(Fault::Newer { what: "file format", found, known: "ET12" }.into());
            }
            other => return Err(Fault::NotAProgram(other).into()),
        }
        match array(file, 8) {
            Ok(PROGRAM_HEAD) => Self::of_head(file).at(|| Step::Part("extended header")),
            // A file without segments may do without the header.
            _ => Ok(Self { contents: file.clone(), segments: Bytes::default() }),
        }
    }

    fn of_head(file: &Bytes) -> Result<Self> {
        let head_bytes = u64::from(u32::from_le_bytes(array(file, 12)?));
        if head_bytes < 24 {
            return Err(Fault::WrongLength { found: head_bytes, wanted: 24 }.into());
        }
        let (contents_bytes, base) = (u64_at(file, 16)?, u64_at(file, 24)?);
        let contents = window(file, 0, contents_bytes)?;
        if base != 0 && base < contents_bytes {
            return Err(Fault::Unsupported("segment data that starts inside the table of contents").into());
        }
        let rest = (file.len() as u64).saturating_sub(base);
        // Headers of 24 bytes, the first kind, end before the size; then the data runs to the end of the file.
        let bytes = if head_bytes >= 32 { u64_at(file, 32)? } else { rest };
        Ok(Self { contents, segments: window(file, base, bytes)? })
    }

    /// Divides a tensor data file.
    pub(crate) fn of_tensor_data(file: &Bytes) -> Result<Self> {
        if array(file, 4)? != DATA_ID || array(file, 8)? != DATA_HEAD {
            return Err(Fault::NotTensorData.into());
        }
        let part = |at| window(file, u64_at(file, at)?, u64_at(file, at + 8)?).at(|| Step::Part("header"));
        Ok(Self { contents: part(16)?, segments: part(32)? })
    }

    /// The segments as windows, none overlapping another.
    pub(crate) fn segments(&self, segments: &[DataSegment]) -> Result<Vec<Bytes>> {
        let mut order: Vec<_> = segments.iter().map(|segment| (segment.offset, segment.size)).zip(0..).collect();
        order.sort_unstable();
        for (((start, size), a), ((next, next_size), b)) in order.iter().zip(order.iter().skip(1)) {
            if *next_size > 0 && start.saturating_add(*size) > *next {
                return Err(Fault::SegmentsOverlap(*a, *b).into());
            }
        }
        let cut = |(index, segment): (usize, &DataSegment)| {
            window(&self.segments, segment.offset, segment.size).at(|| Step::indexed("segment", index))
        };
        segments.iter().enumerate().map(cut).collect()
    }
}

/// Segments being laid out for writing.
#[derive(Default)]
pub(crate) struct Segments {
    data: Vec<Bytes>,
    table: Vec<DataSegment>,
    /// Index by address and length of the window.
    known: HashMap<(usize, usize), u32>,
    end: u64,
}

impl Segments {
    /// Adds a segment and returns its index. The very same window is stored once.
    pub(crate) fn add(&mut self, data: Bytes) -> u32 {
        let window = (data.as_ptr() as usize, data.len());
        if let Some(index) = self.known.get(&window) {
            return *index;
        }
        let index = self.reserve(data.len() as u64);
        if !data.is_empty() {
            self.known.insert(window, index);
        }
        self.data.push(data);
        index
    }

    pub(crate) fn table(&self) -> Vec<DataSegment> {
        self.table.clone()
    }

    /// Reserves a segment for data that is written later, after all segments that were added.
    pub(crate) fn reserve(&mut self, bytes: u64) -> u32 {
        let index = u32::try_from(self.table.len()).expect("a program has fewer than 2^32 segments");
        let offset = self.end.next_multiple_of(SEGMENT_ALIGN);
        self.end = offset.saturating_add(bytes);
        self.table.push(DataSegment { offset, size: bytes });
        index
    }

    /// Writes a program: its contents (with room for the header at byte 8) and these segments, except those that were
    /// only reserved.
    pub(crate) fn write_program<W: Write>(self, program: &raw::Program, out: W) -> io::Result<SegmentWriter<W>> {
        self.write(PROGRAM_ID, (PROGRAM_HEAD, 32), program, out, |bytes, base, end| vec![bytes, base, end])
    }

    /// Writes a tensor data file.
    pub(crate) fn write_tensor_data(self, data: &raw::FlatTensor, out: &mut dyn Write) -> io::Result<()> {
        let numbers = |bytes, base, end| vec![0, bytes, base, end];
        self.write(DATA_ID, (DATA_HEAD, 40), data, out, numbers)?.finish().map(drop)
    }

    /// Writes contents whose header holds its magic, its size, and `numbers` of the size of the contents, the offset of
    /// the segments and their size.
    fn write<W: Write>(
        self,
        id: [u8; 4],
        (magic, head_bytes): ([u8; 4], u32),
        root: &dyn Emit,
        mut out: W,
        numbers: impl Fn(u64, u64, u64) -> Vec<u64>,
    ) -> io::Result<SegmentWriter<W>> {
        let head = |numbers: Vec<u64>| {
            let numbers = numbers.into_iter().flat_map(u64::to_le_bytes);
            id.into_iter().chain(magic).chain(head_bytes.to_le_bytes()).chain(numbers).collect::<Vec<u8>>()
        };
        let mut contents = Out::buffer(&head(numbers(0, 0, 0)), root);
        let bytes = contents.len() as u64;
        let base = bytes.next_multiple_of(SEGMENT_ALIGN);
        let head = head(numbers(bytes, base, self.end));
        contents.splice(4..4 + head.len(), head);
        out.write_all(&contents)?;
        io::copy(&mut io::Read::take(io::repeat(0), base - bytes), &mut out)?;
        let mut writer = SegmentWriter { out, at: 0, segments: self.table.into() };
        self.data.iter().try_for_each(|data| writer.write_all(data))?;
        Ok(writer)
    }
}

/// Writes the data of segments one after another, with the padding between them.
#[derive(Debug)]
pub struct SegmentWriter<W> {
    out: W,
    /// Bytes of the segments and their padding written so far.
    at: u64,
    /// Segments that are not complete; the first may be partly written.
    segments: VecDeque<DataSegment>,
}

impl<W: Write> SegmentWriter<W> {
    /// Returns the writer underneath.
    ///
    /// # Errors
    /// When some of the data is still missing.
    pub fn finish(mut self) -> io::Result<W> {
        let missing = self.reach()?;
        if missing == 0 {
            return Ok(self.out);
        }
        let what = format!("{missing} bytes of a program's data were not given");
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, what))
    }

    /// Writes the padding up to the next segment that is not complete, and returns how many of its bytes are missing.
    fn reach(&mut self) -> io::Result<u64> {
        while let Some(segment) = self.segments.front() {
            if let Some(padding) = segment.offset.checked_sub(self.at) {
                io::copy(&mut io::Read::take(io::repeat(0), padding), &mut self.out)?;
                self.at = segment.offset;
            }
            let missing = segment.size.saturating_sub(self.at - segment.offset);
            if missing > 0 {
                return Ok(missing);
            }
            self.segments.pop_front();
        }
        Ok(0)
    }
}

impl<W: Write> Write for SegmentWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let room = usize::try_from(self.reach()?).unwrap_or(usize::MAX);
        let written = self.out.write(data.get(..room).unwrap_or(data))?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The data of a segment, by the index a table gives.
pub(crate) fn segment(segments: &[Bytes], index: u32) -> Result<&Bytes> {
    pick(segments, index, "segments")
}
