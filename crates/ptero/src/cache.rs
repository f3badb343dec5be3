//! Programs made from checkpoints, cached on disk, so that a checkpoint is exported once.
//!
//! The file name of a program is that of the checkpoint and a digest of everything that decides what the export writes. It
//! appears when it is complete. A lock lets one process at a time export and clean up.

mod evict;
mod limit;

pub use limit::NotALimit;

use crate::error::{Context, Error, Result};
use crate::hub;
use crate::output::{self, OutputFile};
use crate::progress::{Event, Progress};
use limit::Limit;
use ptero_checkpoint::{Checkpoint, INDEX, Limits, SIDE_FILES};
use ptero_export::{Recipe, Storage};
use ptero_sampling::inputs::Head;
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File, FileTimes, Metadata, TryLockError};
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Returns the program of a checkpoint: from the cache, or exported into it now.
///
/// The cache is `$PTERO_CACHE/programs`, or a folder in the user's cache directory. Above `PTERO_CACHE_LIMIT` (50 GB) the least
/// recently used programs are removed.
///
/// # Errors
/// When there is no such checkpoint, it cannot be exported, or the disk is full or fails.
pub(crate) fn program_of(origin: Origin<'_>, recipe: &Recipe, progress: &Progress) -> Result<PathBuf> {
    Cache::from_variables(|name| std::env::var(name).ok())?.program_of(origin, recipe, progress)
}

/// What a program is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin<'a> {
    /// A checkpoint.
    Checkpoint(&'a Path),
    /// A configuration with random weights, with at most this many layers.
    Config(&'a Path, Option<u32>),
}

impl Origin<'_> {
    fn path(&self) -> &Path {
        match self {
            Origin::Checkpoint(path) | Origin::Config(path, _) => path,
        }
    }

    fn open(&self) -> Result<Checkpoint> {
        Ok(match *self {
            Origin::Checkpoint(path) => Checkpoint::open(path, &Limits::default())?,
            Origin::Config(path, layers) => Checkpoint::random(path, 0, layers, &Limits::default())?,
        })
    }

    /// Returns the recipe that an export uses. Opens the model only if the recipe depends on it.
    fn resolve(&self, recipe: &Recipe) -> Result<Recipe> {
        let in_source = || self.path().display().to_string();
        recipe.resolve(|| ptero_export::model_weights(&self.open()?).context(in_source))
    }

    /// Returns a readable name that is safe as a file name.
    pub(crate) fn name(&self) -> String {
        let Origin::Config(path, layers) = self else { return readable_name(self.path()) };
        // `config.json` says nothing; the name of its folder does.
        let stem = path.with_extension("");
        let folder = path.parent().filter(|folder| stem.ends_with("config") && !folder.as_os_str().is_empty());
        let name = readable_name(folder.unwrap_or(&stem));
        layers.map_or_else(|| format!("{name}-random"), |layers| format!("{name}-random-{layers}-layers"))
    }
}

/// The recipe for a configuration with random weights: int4, with embeddings in int8, and the groups that the exporter
/// chooses for a model of its size.
pub(crate) fn random_recipe() -> Recipe {
    Recipe { linear: Storage::Int4, embedding: Storage::Int8, sample: Some(Head::Plain), ..Recipe::default() }
}

/// The recipe for a checkpoint if none is given: GGUF's blocks as they are, everything else in int8, which costs next to nothing
/// in quality. The program samples and contains its tokenizer.
pub(crate) fn default_recipe(checkpoint: &Path) -> Recipe {
    let storage = if is_gguf(checkpoint) { Storage::AsInCheckpoint } else { Storage::Int8 };
    Recipe { linear: storage, embedding: storage, sample: Some(Head::Plain), ..Recipe::default() }
}

fn is_gguf(checkpoint: &Path) -> bool {
    let mut magic = [0; 4];
    let begin = File::open(checkpoint).and_then(|mut file| file.read_exact(&mut magic));
    let has_magic = begin.is_ok() && magic == *b"GGUF";
    has_magic || checkpoint.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// A folder of programs and its limit.
#[derive(Debug)]
struct Cache {
    folder: PathBuf,
    limit: Limit,
}

impl Cache {
    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let get = |name: &str| get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let folder = |name: &str| get(name).map(|folder| hub::expand_home(&folder));
        let home = |below: &str| std::env::home_dir().map(|home| home.join(below));
        let of_system = if cfg!(target_os = "macos") {
            home("Library/Caches")
        } else if cfg!(windows) {
            folder("LOCALAPPDATA")
        } else {
            home(".cache")
        };
        let root = folder("PTERO_CACHE")
            .or_else(|| folder("XDG_CACHE_HOME").or(of_system).map(|caches| caches.join("ptero")))
            .ok_or(Error::NoCacheFolder)?;
        let limit = get("PTERO_CACHE_LIMIT").map_or(Ok(Limit::DEFAULT), |limit| limit.parse())?;
        Ok(Self { folder: root.join("programs"), limit })
    }

    fn program_of(&self, origin: Origin<'_>, recipe: &Recipe, progress: &Progress) -> Result<PathBuf> {
        let source = || origin.path().display().to_string();
        let recipe = &origin.resolve(recipe)?;
        let program = self.folder.join(file_name(origin, recipe)?);
        if is_hit(&program) {
            return Ok(program);
        }
        let export = ptero_export::export(&origin.open()?, recipe).context(source)?;
        // Held until the end.
        let _lock = self.lock(|| progress.message("waiting for another export into the cache"))?;
        if is_hit(&program) {
            return Ok(program);
        }
        let (name, kept) = (origin.name(), program.display());
        progress.message(&format!("exporting {name} to {kept} (kept; `PTERO_CACHE` says where)"));
        output::remove_all_leftovers(&self.folder);
        write_program(&export, &program, &[], progress)?;
        for removed in evict::least_recently_used(&self.folder, self.limit, &program) {
            let (path, limit) = (removed.display(), self.limit);
            progress.message(&format!("removed {path} (least recently used; `PTERO_CACHE_LIMIT` is {limit})"));
        }
        Ok(program)
    }

    /// Keeps other processes from exporting until the file is closed.
    fn lock(&self, on_wait: impl FnOnce()) -> Result<File> {
        let path = self.folder.join(".lock");
        let open = || {
            fs::create_dir_all(&self.folder)?;
            File::options().create(true).truncate(false).write(true).open(&path)
        };
        let file = open().map_err(|error| Error::Write { path: path.clone(), fault: error.into() })?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            on_wait();
            // Not every file system has locks. Without one, two processes may write the same program, each completely.
            let _ = file.lock();
        }
        Ok(file)
    }
}

/// Writes an exported program and reports progress. Returns the size of the file.
///
/// # Errors
/// When `path` is one of `inputs`, when the checkpoint cannot be read, and when the disk is full or fails.
#[doc(hidden)]
pub fn write_program(
    export: &ptero_export::Export,
    path: &Path,
    inputs: &[PathBuf],
    progress: &Progress,
) -> Result<u64> {
    let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
    let mut out = OutputFile::create(path, &inputs)?;
    let work = progress.begin(export.weight_bytes());
    work.report(Event::File(&path.file_name().unwrap_or_default().to_string_lossy()));
    export.write(&mut out, &mut |bytes| work.report(Event::Bytes(bytes))).context(|| path.display().to_string())?;
    drop(work);
    out.finish()?;
    Ok(fs::metadata(path).map_err(Error::read(path))?.len())
}

/// Returns `true` if the program exists, and marks it as used.
fn is_hit(program: &Path) -> bool {
    let Ok(file) = File::options().write(true).open(program) else { return program.is_file() };
    // Only the order of removal depends on it, so a failure is ignored.
    let _ = file.set_times(FileTimes::new().set_accessed(SystemTime::now()));
    true
}

/// Returns the file name of the program: readable, and different whenever the program would be.
fn file_name(origin: Origin<'_>, recipe: &Recipe) -> Result<String> {
    let checkpoint = origin.path();
    let mut digest = DefaultHasher::new();
    hash_files(checkpoint, &mut digest).map_err(Error::read(checkpoint))?;
    format!("{recipe:?}").hash(&mut digest);
    // The name says how many layers there are, and whether the weights are random.
    (origin.name(), env!("CARGO_PKG_VERSION"), env!("PTERO_EXPORTER")).hash(&mut digest);
    Ok(format!("{}-{:016x}.pte", origin.name(), digest.finish()))
}

fn hash_files(checkpoint: &Path, digest: &mut DefaultHasher) -> io::Result<()> {
    fs::canonicalize(checkpoint)?.hash(digest);
    for (name, metadata) in files(checkpoint)? {
        // Not the content, which may be many gigabytes.
        (name, metadata.len(), metadata.modified()?).hash(digest);
    }
    Ok(())
}

/// Lists the files that a checkpoint may be read from, by name.
fn files(checkpoint: &Path) -> io::Result<Vec<(String, Metadata)>> {
    let metadata = fs::metadata(checkpoint)?;
    let is_folder = metadata.is_dir();
    let mut files = if is_folder { Vec::new() } else { vec![(String::new(), metadata)] };
    if is_gguf(checkpoint) {
        return Ok(files);
    }
    let is_weights = |name: &str| name == INDEX || name.ends_with(".safetensors");
    let is_read = |name: &str| SIDE_FILES.contains(&name) || is_folder && is_weights(name);
    let parent = checkpoint.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = if is_folder { checkpoint } else { parent };
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if is_read(&name) {
            // Of the target of a link: the hub's cache consists of links. The export reports those that lead nowhere.
            files.extend(fs::metadata(folder.join(&name)).ok().map(|metadata| (name, metadata)));
        }
    }
    files.sort_by(|left, right| left.0.cmp(&right.0));
    Ok(files)
}

/// Returns the name of a checkpoint, with only characters that are safe in a file name.
fn readable_name(checkpoint: &Path) -> String {
    let named = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    // Snapshots of the hub: `models--owner--name/snapshots/commit`.
    let repository = checkpoint.ancestors().nth(2).and_then(named);
    let repository = repository.as_deref().and_then(|name| name.strip_prefix("models--")?.split_once("--"));
    let name = match repository {
        Some((_, name)) if checkpoint.is_dir() => Some(name.to_owned()),
        _ => named(checkpoint).or_else(|| named(&fs::canonicalize(checkpoint).ok()?)),
    };
    let plain = |letter: char| if letter.is_alphanumeric() || "-_.".contains(letter) { letter } else { '-' };
    let name: String = name.unwrap_or_default().trim_start_matches('.').chars().take(60).map(plain).collect();
    if name.is_empty() { "checkpoint".to_owned() } else { name }
}

#[cfg(test)]
mod tests;
