//! The outer layer that programs (`.pte`) and tensor data (`.ptd`) share: a table of contents at the front, and data
//! segments behind it that nobody reads until they are needed.

use crate::error::{Fault, Result, Step, pick};
use crate::schema::raw::{self, DataSegment};
use ptero_tensor::Bytes;
use ptero_tensor::fault::AtStep;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};

/// Every segment starts at a multiple of this.
const SEGMENT_ALIGN: u32 = 128;
/// Bytes of the header that follows identifier and root offset in a program.
pub(crate) const PROGRAM_HEAD_BYTES: usize = 32;
const PROGRAM_HEAD: [u8; 4] = *b"eh00";
const PROGRAM_ID: [u8; 4] = *b"ET12";
const DATA_HEAD: [u8; 4] = *b"FH01";
const DATA_ID: [u8; 4] = *b"FT01";

/// Where things lie in a file: table of contents and segments.
pub(crate) struct Layout {
    pub(crate) contents: Bytes,
    segments: Bytes,
}

/// The `N` bytes at a fixed place.
pub(crate) fn array<const N: usize>(file: &[u8], at: usize) -> Result<[u8; N]> {
    let outside = || Fault::OutOfBounds { at: at as u64, bytes: N as u64, size: file.len() as u64 };
    Ok(*file.get(at..).and_then(<[u8]>::first_chunk).ok_or_else(outside)?)
}

/// The number at a fixed place.
pub(crate) fn u64_at(file: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(array(file, at)?))
}

/// A window of a file, by numbers that come from the file.
fn window(file: &Bytes, at: u64, bytes: u64) -> Result<Bytes> {
    let range = || {
        let end = usize::try_from(at.checked_add(bytes)?).ok()?;
        file.slice(usize::try_from(at).ok()?..end)
    };
    Ok(range().ok_or(Fault::OutOfBounds { at, bytes, size: file.len() as u64 })?)
}

impl Layout {
    /// The layout of a program.
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

    /// The layout of a tensor data file.
    pub(crate) fn of_tensor_data(file: &Bytes) -> Result<Self> {
        if array(file, 4)? != DATA_ID || array(file, 8)? != DATA_HEAD {
            return Err(Fault::NotTensorData.into());
        }
        let part = |at| window(file, u64_at(file, at)?, u64_at(file, at + 8)?).at(|| Step::Part("header"));
        Ok(Self { contents: part(16)?, segments: part(32)? })
    }

    /// The segments as windows, none overlapping another.
    pub(crate) fn segments(&self, segments: &[DataSegment]) -> Result<Vec<Bytes>> {
        let mut order: Vec<usize> = (0..segments.len()).collect();
        let place = |index: usize| segments.get(index).map_or((0, 0), |segment| (segment.offset, segment.size));
        order.sort_by_key(|&index| place(index));
        for pair in order.windows(2) {
            if let [a, b] = *pair {
                let ((start, size), (next, next_size)) = (place(a), place(b));
                if next_size > 0 && start.saturating_add(size) > next {
                    return Err(Fault::SegmentsOverlap(a, b).into());
                }
            }
        }
        let cut = |(index, segment): (usize, &DataSegment)| {
            window(&self.segments, segment.offset, segment.size).at(|| Step::Segment(index))
        };
        segments.iter().enumerate().map(cut).collect()
    }
}

/// Segments being laid out for writing.
#[derive(Default)]
pub(crate) struct Segments {
    data: Vec<Bytes>,
    places: Vec<DataSegment>,
    /// Index by address and length of the window.
    known: HashMap<(usize, usize), u32>,
    end: u64,
}

impl Segments {
    /// Adds a segment and gives its index. The very same window is stored once.
    pub(crate) fn add(&mut self, data: Bytes) -> u32 {
        let window = (data.as_ptr() as usize, data.len());
        if let Some(index) = self.known.get(&window) {
            return *index;
        }
        let index = u32::try_from(self.data.len()).expect("a program has fewer than 2^32 segments");
        if !data.is_empty() {
            self.known.insert(window, index);
        }
        let offset = self.end.next_multiple_of(SEGMENT_ALIGN.into());
        self.end = offset + data.len() as u64;
        self.places.push(DataSegment { offset, size: data.len() as u64 });
        self.data.push(data);
        index
    }

    pub(crate) fn table(&self) -> Vec<DataSegment> {
        self.places.clone()
    }

    /// Room for data that is written later, behind everything that is here now.
    pub(crate) fn reserve(&mut self, bytes: u64) -> u32 {
        let index = u32::try_from(self.places.len()).expect("a program has fewer than 2^32 segments");
        let offset = self.end.next_multiple_of(SEGMENT_ALIGN.into());
        self.end = offset.saturating_add(bytes);
        self.places.push(DataSegment { offset, size: bytes });
        index
    }

    /// Writes a program: its contents (with room for the header at byte 8) and these segments, but for those that were
    /// only reserved.
    pub(crate) fn write_program<W: Write>(self, program: &raw::Program, out: W) -> io::Result<Rest<W>> {
        let mut contents = contents(PROGRAM_ID, PROGRAM_HEAD_BYTES, program);
        let (bytes, base) = (contents.len() as u64, (contents.len() as u64).next_multiple_of(SEGMENT_ALIGN.into()));
        let head = [&PROGRAM_HEAD[..], &32_u32.to_le_bytes(), &bytes.to_le_bytes(), &base.to_le_bytes()];
        fill_head(&mut contents, &[&head[..], &[&self.end.to_le_bytes()[..]]].concat().concat());
        self.write_behind(contents, out)
    }

    /// Writes a tensor data file.
    pub(crate) fn write_tensor_data(self, data: &raw::FlatTensor, out: &mut dyn Write) -> io::Result<()> {
        let mut contents = contents(DATA_ID, 40, data);
        let (bytes, base) = (contents.len() as u64, (contents.len() as u64).next_multiple_of(SEGMENT_ALIGN.into()));
        let numbers = [0, bytes, base, self.end].map(u64::to_le_bytes).concat();
        fill_head(&mut contents, &[&DATA_HEAD[..], &40_u32.to_le_bytes(), &numbers].concat());
        self.write_behind(contents, out)?.finish().map(drop)
    }

    fn write_behind<W: Write>(self, mut contents: Vec<u8>, mut out: W) -> io::Result<Rest<W>> {
        contents.resize(contents.len().next_multiple_of(SEGMENT_ALIGN as usize), 0);
        out.write_all(&contents)?;
        let mut rest = Rest { out, at: 0, places: self.places.into() };
        self.data.iter().try_for_each(|data| rest.write_all(data))?;
        Ok(rest)
    }
}

/// Takes the data of segments, one behind the other, and puts what lies between them.
#[derive(Debug)]
pub struct Rest<W> {
    out: W,
    /// How much of the segments' region is written.
    at: u64,
    /// Segments that are not complete; the first may have begun.
    places: VecDeque<DataSegment>,
}

impl<W: Write> Rest<W> {
    /// Gives back where everything was written to.
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

    /// Goes to the next segment that is not complete, and says how much of it is missing.
    fn reach(&mut self) -> io::Result<u64> {
        while let Some(place) = self.places.front() {
            if let Some(padding) = place.offset.checked_sub(self.at) {
                io::copy(&mut io::Read::take(io::repeat(0), padding), &mut self.out)?;
                self.at = place.offset;
            }
            let missing = place.size.saturating_sub(self.at - place.offset);
            if missing > 0 {
                return Ok(missing);
            }
            self.places.pop_front();
        }
        Ok(0)
    }
}

impl<W: Write> Write for Rest<W> {
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

fn contents(id: [u8; 4], head_bytes: usize, root: &dyn crate::wire::Emit) -> Vec<u8> {
    let mut head = id.to_vec();
    head.resize(4 + head_bytes, 0);
    crate::wire::Out::buffer(&head, root)
}

fn fill_head(contents: &mut [u8], head: &[u8]) {
    for (to, from) in contents.iter_mut().skip(8).zip(head) {
        *to = *from;
    }
}

/// The data of a segment, by the index a table gives.
pub(crate) fn segment(segments: &[Bytes], index: u32) -> Result<&Bytes> {
    pick(segments, index, "segments")
}
