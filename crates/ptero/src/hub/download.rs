//! Downloads what the cache lacks of a repository.

use super::cache::Cache;
use super::client::Client;
use super::error::size;
use super::partial::PartialFile;
use super::repository::is_commit;
use super::select::{Listing, RemoteFile};
use super::{HubError, Options, Problem, Repository};
use crate::progress::{Event, Progress};
use ptero_checkpoint::{Bytes, INDEX, Limits, read_index};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Attempts of a request that fails without receiving anything.
const TRIES: u32 = 8;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Returns the path of what `repository` names, after downloading what is missing. `cached` is used if the server cannot be
/// reached.
pub(super) fn fetch(
    repository: &Repository,
    cache: &Cache,
    cached: Option<PathBuf>,
    options: &Options,
) -> Result<PathBuf, HubError> {
    fetch_all(repository, cache, cached, options).map_err(|problem| problem.of(repository))
}

fn fetch_all(
    repository: &Repository,
    cache: &Cache,
    cached: Option<PathBuf>,
    options: &Options,
) -> Result<PathBuf, Problem> {
    let client = Client::new(options, repository);
    // With a cached copy, a server that may be down is not worth waiting for.
    let tries = if cached.is_some() { 1 } else { 3 };
    let listing = match (retry(tries, options, || client.list()), cached) {
        (Err(problem), Some(cached)) if problem.is_passing() => {
            let note = format!("note: {} does not answer; {repository} is read from the cache", options.endpoint);
            options.progress.message(&note);
            return Ok(cached);
        }
        (listing, _) => listing?,
    };
    if is_commit(repository.revision()) && listing.commit != repository.revision() {
        return Err(Problem::BadAnswer("another commit than was asked for"));
    }
    let snapshot = cache.snapshot(&listing.commit);
    Download { client, cache, options, listing, snapshot }.run(repository)
}

struct Download<'a> {
    client: Client<'a>,
    cache: &'a Cache<'a>,
    options: &'a Options,
    listing: Listing,
    snapshot: PathBuf,
}

impl Download<'_> {
    fn run(&self, repository: &Repository) -> Result<PathBuf, Problem> {
        let mut names = self.listing.wanted(repository)?;
        if names.iter().any(|name| name == INDEX) {
            // The index lists the shards.
            self.bring(&[INDEX.to_owned()], &Progress::default())?;
            names.extend(self.shards()?);
        }
        self.bring(&names, &self.options.progress)?;
        self.cache.remember(&self.listing.commit)?;
        Ok(repository.file().map_or_else(|| self.snapshot.clone(), |file| self.snapshot.join(file)))
    }

    fn shards(&self) -> Result<Vec<String>, Problem> {
        let path = self.snapshot.join(INDEX);
        let index = Bytes::map(&path).map_err(Problem::disk(&path))?;
        read_index(&index, &Limits::DEFAULT).map_err(Problem::BadIndex)
    }

    /// Downloads the files that the snapshot lacks.
    fn bring(&self, names: &[String], progress: &Progress) -> Result<(), Problem> {
        let commit = &self.listing.commit;
        let mut missing = Vec::new();
        for name in names {
            let ask = || retry(TRIES, self.options, || self.client.ask(commit, name));
            let file = self.listing.file(name, ask)?;
            if !has_size(&self.snapshot.join(name), file.bytes) {
                missing.push(file);
            }
        }
        let bytes = missing.iter().map(|file| file.bytes).sum();
        let work = progress.begin(bytes);
        if !missing.is_empty() {
            let (count, size, folder) = (missing.len(), size(bytes), self.snapshot.display());
            work.message(&format!("downloading {count} files ({size}) to {folder}"));
        }
        for file in &missing {
            work.report(Event::File(&file.name));
            self.bring_one(file, &work)?;
        }
        Ok(())
    }

    fn bring_one(&self, file: &RemoteFile, progress: &Progress) -> Result<(), Problem> {
        let wait = || progress.message(&format!("another process downloads `{}`, waiting for it", file.name));
        let _lock = self.cache.lock(file.hash.text(), wait)?;
        let blob = self.cache.blob(file.hash.text());
        if has_size(&self.snapshot.join(&file.name), file.bytes) {
            // The process that held the lock has downloaded it.
            progress.report(Event::Skipped(file.bytes));
            return Ok(());
        }
        if has_size(&blob, file.bytes) {
            progress.report(Event::Skipped(file.bytes));
        } else {
            self.download(file, &blob, progress)?;
        }
        self.cache.link(&self.listing.commit, &file.name, file.hash.text())
    }

    fn download(&self, file: &RemoteFile, blob: &Path, progress: &Progress) -> Result<(), Problem> {
        let mut part = PartialFile::open(blob, file)?;
        progress.report(Event::Skipped(part.length()));
        let mut failures = 0;
        while part.length() < file.bytes {
            let before = part.length();
            match self.receive(&mut part, file, progress) {
                Ok(()) => {}
                Err(problem) if problem.is_passing() => {
                    failures = if part.length() > before { 1 } else { failures + 1 };
                    if failures >= TRIES {
                        return Err(problem);
                    }
                    pause(self.options, failures);
                }
                Err(problem @ Problem::WrongSize { .. }) => {
                    part.remove();
                    return Err(problem);
                }
                Err(problem) => return Err(problem),
            }
        }
        part.finish()
    }

    /// Continues a file until the connection ends.
    fn receive(&self, part: &mut PartialFile, file: &RemoteFile, progress: &Progress) -> Result<(), Problem> {
        let opened = self.client.open(&self.listing.commit, &file.name, part.length());
        let mut content = match opened {
            // The server has no more bytes, but there should be more.
            Err(Problem::Status { status: 416 }) => return Err(part.wrong_size()),
            opened => opened?,
        };
        if content.total.is_some_and(|total| total != file.bytes) {
            return Err(part.wrong_size());
        }
        if content.start < part.length() {
            progress.report(Event::TakenBack(part.length()));
            part.restart()?;
        }
        let mut buffer = vec![0; 1 << 18];
        loop {
            let read = self.client.read(&mut content, &mut buffer)?;
            let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { break };
            part.push(bytes)?;
            progress.report(Event::Bytes(bytes.len() as u64));
        }
        if part.length() < file.bytes { Err(self.client.ended_early()) } else { Ok(()) }
    }
}

fn has_size(path: &Path, bytes: u64) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.len() == bytes)
}

fn retry<T>(tries: u32, options: &Options, mut request: impl FnMut() -> Result<T, Problem>) -> Result<T, Problem> {
    for failures in 1..tries {
        match request() {
            Err(problem) if problem.is_passing() => pause(options, failures),
            answer => return answer,
        }
    }
    request()
}

fn pause(options: &Options, failures: u32) {
    let doubled = options.pause.saturating_mul(1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX));
    sleep(doubled.min(LONGEST_PAUSE));
}
