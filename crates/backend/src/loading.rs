//! Reports of weights that a device copies while it compiles a program.

use std::fmt;
use std::sync::Arc;

/// A report of weights that are being loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// This many bytes are to be loaded.
    Begin(u64),
    /// Bytes were loaded.
    Bytes(u64),
    /// Everything is loaded, or loading failed.
    End,
}

/// Receives the reports of a device that copies weights; the default ignores them. A device that uses weights where they are
/// mapped reports nothing.
#[derive(Clone, Default)]
pub struct Loading(Option<Arc<Report>>);

type Report = dyn Fn(Load) + Send + Sync;

impl Loading {
    /// Ignores reports.
    pub const IGNORED: Self = Self(None);

    /// Calls `report` for every report.
    pub fn new(report: impl Fn(Load) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }

    /// Begins to load this many bytes, which ends when the result is dropped.
    pub fn begin(&self, bytes: u64) -> LoadingBytes<'_> {
        self.report(Load::Begin(bytes));
        LoadingBytes(self)
    }

    fn report(&self, load: Load) {
        if let Some(report) = &self.0 {
            report(load);
        }
    }
}

impl fmt::Debug for Loading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Loading(…)" } else { "Loading(ignored)" })
    }
}

/// Weights that are being loaded.
#[derive(Debug)]
pub struct LoadingBytes<'a>(&'a Loading);

impl LoadingBytes<'_> {
    /// Reports bytes that were loaded.
    pub fn loaded(&self, bytes: usize) {
        self.0.report(Load::Bytes(bytes as u64));
    }

    /// Returns the parts in pieces of at most `piece` bytes, each with its first byte; a piece counts as loaded when the next one
    /// is asked for.
    pub fn pieces<'b>(
        &self,
        parts: impl Iterator<Item = (usize, &'b [u8])>,
        piece: usize,
    ) -> impl Iterator<Item = (usize, &'b [u8])> {
        let pieces = parts.flat_map(move |(start, bytes)| {
            bytes.chunks(piece).enumerate().map(move |(index, bytes)| (start + index * piece, bytes))
        });
        let mut earlier = 0;
        pieces.map(Some).chain([None]).map_while(move |found| {
            let now = found.map_or(0, |(_, bytes)| bytes.len());
            self.loaded(std::mem::replace(&mut earlier, now));
            found
        })
    }
}

impl Drop for LoadingBytes<'_> {
    fn drop(&mut self) {
        self.0.report(Load::End);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn pieces_are_counted_when_the_next_one_is_asked_for() {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&reports);
        let loading = Loading::new(move |load| kept.lock().unwrap().push(load));
        let work = loading.begin(7);
        let parts = [(0, &[1_u8, 2, 3, 4, 5][..]), (8, &[6, 7][..]), (16, &[][..])];
        let pieces: Vec<_> = work.pieces(parts.into_iter(), 2).collect();
        drop(work);
        assert_eq!(pieces, [(0, &[1, 2][..]), (2, &[3, 4]), (4, &[5]), (8, &[6, 7])]);
        let wanted = [0, 2, 2, 1, 2].map(Load::Bytes);
        assert_eq!(*reports.lock().unwrap(), [&[Load::Begin(7)][..], &wanted, &[Load::End]].concat());
    }

    #[test]
    fn reports_can_be_ignored() {
        Loading::IGNORED.begin(1).loaded(1);
        assert_eq!(format!("{:?}", Loading::default()), "Loading(ignored)");
    }
}
