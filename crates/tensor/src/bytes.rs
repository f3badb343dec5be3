//! Shared bytes: a window on a memory-mapped file, or on owned memory.
#![allow(unsafe_code, reason = "the calls that map a file into memory and give its pages back")]

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::path::Path;
use std::sync::Arc;

/// A window on a memory-mapped file or on owned memory. Cloning and slicing share the same memory.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<Owner>,
    range: Range<usize>,
}

enum Owner {
    Vector(Vec<u8>),
    Map(memmap2::Mmap),
    /// Memory of the process, not of a file.
    Anonymous(memmap2::Mmap),
}

impl Bytes {
    /// Maps a file. Pages are read when they are first accessed.
    ///
    /// Whoever shortens the file while it is mapped ends this process with a bus error, as with every memory-mapped
    /// file; `docs/SECURITY.md` says what follows from that.
    pub fn map(path: &Path) -> io::Result<Self> {
        // Checked before opening: opening a pipe would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is read-only, and all access goes through the `&[u8]` of `Deref`. Another process
        // that writes the file can change what a later read sees; every reader of these bytes copies a number out before
        // it checks and uses it, so a change is at worst a wrong number that was checked, and a truncation is the
        // documented bus error.
        let map = unsafe { memmap2::MmapOptions::new().map(&file)? };
        // A page fault would otherwise read megabytes ahead, mostly weights that are not needed; `prefetch` reads a whole range.
        // It does not matter if the system ignores the advice.
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::Random);
        let range = 0..map.len();
        Ok(Self { owner: Arc::new(Owner::Map(map)), range })
    }

    /// Copies windows into new memory of huge pages, if the system has them to give, else of normal ones: reading large windows then
    /// takes fewer translations of addresses. Copies start at multiples of `align`, which is a power of two of at most 4096.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn copy_to_huge_pages(windows: &[Self], align: usize) -> io::Result<Vec<Self>> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let (mut starts, mut total) = (Vec::with_capacity(windows.len()), 0_usize);
        for window in windows {
            starts.push(total);
            let padded = window.len().checked_next_multiple_of(align.clamp(1, 4096)).ok_or_else(too_large)?;
            total = total.checked_add(padded).ok_or_else(too_large)?;
        }
        let mut map = memmap2::MmapOptions::new().len(total.max(1)).map_anon()?;
        // Advice only: without huge pages, normal ones do.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        for (window, start) in windows.iter().zip(&starts) {
            if let Some(to) = map.get_mut(*start..start + window.len()) {
                to.copy_from_slice(window);
            }
        }
        let owner = Arc::new(Owner::Anonymous(map.make_read_only()?));
        let copy =
            |(window, start): (&Self, usize)| Self { owner: Arc::clone(&owner), range: start..start + window.len() };
        Ok(windows.iter().zip(starts).map(copy).collect())
    }

    /// Asks the system to read the whole window now, in the background. Does nothing for memory that is not a file.
    pub fn prefetch(&self) {
        #[cfg(unix)]
        if let Owner::Map(map) = &*self.owner {
            // Advice only: if it is refused, pages are read one by one when they are accessed.
            let _ = map.advise_range(memmap2::Advice::WillNeed, self.range.start, self.range.len());
        }
    }

    /// Lets the system free the memory of the window's pages of a file; they are read again when they are accessed. Does nothing
    /// for memory that is not a file.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Owner::Map(map) = &*self.owner {
            // SAFETY: the map is of a file and read-only, so what is dropped is a copy of the file: whoever reads
            // these pages, also at this moment and through another window, waits for them to be read again and sees the same
            // bytes, as far as the file is the same (see `map`). Systems where the advice frees nothing do nothing.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, self.range.start, self.range.len())
            };
        }
    }

    /// A window on part of this window, or `None` when it reaches outside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        self.get(range.clone())?;
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        Some(Self { owner: Arc::clone(&self.owner), range: start..end })
    }

    /// Returns the `len` bytes at offset `at`, or `None` if they reach outside.
    pub fn window(&self, at: u64, len: u64) -> Option<Self> {
        let end = usize::try_from(at.checked_add(len)?).ok()?;
        self.slice(usize::try_from(at).ok()?..end)
    }

    /// The offset of the window in its memory: for a mapped file, the offset in the file.
    pub fn offset(&self) -> usize {
        self.range.start
    }

    /// Returns `true` if both are the same window, not merely equal bytes.
    pub fn is_same_window(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.owner, &other.owner) && self.range == other.range
    }
}

/// Memory that starts as zeros, for one owner to write.
pub struct Zeroed(Space);

enum Space {
    Heap(Vec<u8>),
    Pages(memmap2::MmapMut),
}

/// Memory from this size on is pages of the system, which cost nothing before they are written, and are given back when they are
/// dropped. An allocator may keep them instead, and would have to fill them with zeros for the next owner.
const PAGES_FROM: usize = 1 << 20;

impl Zeroed {
    /// Returns so many zeros.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new(length: usize) -> io::Result<Self> {
        if length >= PAGES_FROM {
            return Ok(Self(Space::Pages(memmap2::MmapOptions::new().len(length).map_anon()?)));
        }
        // Reserved first: where there is no memory, `vec!` would abort the process.
        Vec::<u8>::new().try_reserve_exact(length).map_err(io::Error::other)?;
        Ok(Self(Space::Heap(vec![0; length])))
    }

    /// Makes all bytes zero again.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn clear(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Space::Heap(bytes) => bytes.fill(0),
            Space::Pages(pages) => *self = Self::new(pages.len())?,
        }
        Ok(())
    }

    /// Ends writing.
    ///
    /// # Errors
    /// When the system fails.
    pub fn into_bytes(self) -> io::Result<Bytes> {
        let pages = match self.0 {
            Space::Heap(bytes) => return Ok(Bytes::from(bytes)),
            Space::Pages(pages) => pages.make_read_only()?,
        };
        let range = 0..pages.len();
        Ok(Bytes { owner: Arc::new(Owner::Anonymous(pages)), range })
    }
}

impl Default for Zeroed {
    fn default() -> Self {
        Self(Space::Heap(Vec::new()))
    }
}

impl Deref for Zeroed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Space::Heap(bytes) => bytes,
            Space::Pages(pages) => pages,
        }
    }
}

impl DerefMut for Zeroed {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Space::Heap(bytes) => bytes,
            Space::Pages(pages) => pages,
        }
    }
}

impl fmt::Debug for Zeroed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zeroed({})", self.len())
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.owner {
            Owner::Vector(bytes) => bytes,
            Owner::Map(map) | Owner::Anonymous(map) => map,
        };
        // `slice` is the only way to narrow a window, and it checks.
        all.get(self.range.clone()).unwrap_or_default()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Arc::new(Owner::Vector(bytes)), range }
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.is_same_window(other) || **self == **other
    }
}

impl Eq for Bytes {}

impl fmt::Debug for Bytes {
    /// Prints the length only: the bytes may be all weights of a model.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn copies_in_huge_pages_are_equal_and_aligned() {
        let whole = Bytes::from((0..=255).cycle().take(5000).collect::<Vec<u8>>());
        let windows: Vec<Bytes> =
            [0..1, 7..4500, 100..100, 4999..5000].into_iter().filter_map(|range| whole.slice(range)).collect();
        let copies = Bytes::copy_to_huge_pages(&windows, 64).expect("there is memory");
        assert_eq!(copies, windows);
        assert!(copies.iter().all(|copy| copy.as_ptr().addr() % 64 == 0));
        // What holds for files does nothing to them.
        copies.iter().for_each(Bytes::prefetch);
        copies.iter().for_each(Bytes::release);
        assert_eq!(copies, windows);
        assert!(Bytes::copy_to_huge_pages(&[], 64).is_ok_and(|copies| copies.is_empty()));
    }

    #[test]
    fn zeros_are_written_cleared_and_shared_whatever_they_are_made_of() {
        for length in [0, 1, PAGES_FROM - 1, PAGES_FROM, PAGES_FROM + 5] {
            let mut zeroed = Zeroed::new(length).expect("there is memory");
            assert_eq!(zeroed.len(), length);
            for _ in 0..2 {
                assert!(zeroed.iter().all(|byte| *byte == 0));
                zeroed.fill(7);
                zeroed.clear().expect("there is memory");
            }
            zeroed.fill(9);
            let bytes = zeroed.into_bytes().expect("there is memory");
            assert!(bytes.len() == length && bytes.iter().all(|byte| *byte == 9));
        }
        assert!(Zeroed::new(usize::MAX / 2).is_err());
    }

    proptest! {
        #[test]
        fn slices_of_slices_are_the_slices_of_the_whole(
            data in prop::collection::vec(any::<u8>(), 0..40), a in 0_usize..50, b in 0_usize..50, c in 0_usize..50, d in 0_usize..50
        ) {
            let expected = data.get(a..b).and_then(|inner| inner.get(c..d)).map(<[u8]>::to_vec);
            let bytes = Bytes::from(data);
            let got = bytes.slice(a..b).and_then(|inner| inner.slice(c..d)).map(|slice| slice.to_vec());
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn a_window_outlives_the_value_it_was_cut_from() {
        let window = Bytes::from(vec![1, 2, 3]).slice(1..3).unwrap();
        assert_eq!(&*window, &[2, 3]);
        assert!(window.is_same_window(&window.clone()));
        assert!(!window.is_same_window(&Bytes::from(vec![2, 3])));
        assert_eq!(window, Bytes::from(vec![2, 3]));
    }

    #[test]
    fn what_was_released_is_read_again() {
        let path = std::env::temp_dir().join(format!("ptero-release-{}", std::process::id()));
        let data: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, &data).unwrap();
        let map = Bytes::map(&path).unwrap();
        let window = map.slice(5..70_000).unwrap();
        assert_eq!(&*window, &data[5..70_000]);
        window.release();
        assert_eq!(&*map, &*data);
        Bytes::from(data).release();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_mapped_file_reads_like_the_file_and_a_folder_is_refused() {
        let path = std::env::temp_dir().join(format!("ptero-bytes-{}", std::process::id()));
        std::fs::write(&path, b"hello").unwrap();
        assert_eq!(&*Bytes::map(&path).unwrap().slice(1..4).unwrap(), b"ell");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(&*Bytes::map(&path).unwrap(), b"");
        std::fs::remove_file(&path).unwrap();
        assert!(Bytes::map(&path).is_err());
        assert_eq!(Bytes::map(&std::env::temp_dir()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
