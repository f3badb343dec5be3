//! Programs that checkpoints became, kept on disk, so that a checkpoint is exported once.
//!
//! A program's name is that of the checkpoint and a digest of all that decides what the export writes. It appears when it is
//! whole; what is not whole has a name that nobody looks for. One lock lets one process at a time export and clean up.

mod limit;
mod room;

use crate::{export, hub};
use anyhow::{Context, Result};
use limit::Limit;
use ptero_checkpoint::{Checkpoint, INDEX, Limits, SIDE_FILES};
use ptero_export::{Recipe, Storage};
use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File, FileTimes, Metadata, TryLockError};
use std::hash::{Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The program that a checkpoint becomes: from the cache, or exported into it now, with a progress bar.
///
/// The cache is `$PTERO_CACHE/programs`, where that is not set a folder of the
/// user's caches; beyond `PTERO_CACHE_LIMIT` (50 GB) the programs that were not used for longest are removed.
///
/// # Errors
/// When there is no such checkpoint, it cannot be exported, or the disk is full or fails.
pub fn program_of(origin: Origin<'_>, recipe: &Recipe, is_quiet: bool) -> Result<PathBuf> {
    Cache::from_variables(|name| std::env::var(name).ok())?.program_of(origin, recipe, is_quiet)
}

/// What a program is made of.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// A checkpoint.
    Checkpoint(&'a Path),
    /// A configuration alone, and weights that are made up, for at most this many layers.
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

    /// What people call it, as far as a file can be called so.
    pub(super) fn name(&self) -> String {
        let Origin::Config(path, layers) = self else { return readable_name(self.path()) };
        // Where it is called as all of them are, its folder tells more.
        let stem = path.with_extension("");
        let folder = path.parent().filter(|folder| stem.ends_with("config") && !folder.as_os_str().is_empty());
        let name = readable_name(folder.unwrap_or(&stem));
        layers.map_or_else(|| format!("{name}-random"), |layers| format!("{name}-random-{layers}-layers"))
    }
}

/// What a configuration is measured as: four bits a weight, eight of the embeddings.
pub fn recipe_to_measure() -> Recipe {
    Recipe { linear: Storage::Int4, embedding: Storage::Int8, sample: true, ..Recipe::default() }
}

/// What a checkpoint is exported as where nobody says how: GGUF's blocks as they are, all else with eight bits a weight, which
/// costs next to nothing in quality. The program draws its own tokens and has its tokenizer in it.
pub fn default_recipe(checkpoint: &Path) -> Recipe {
    let storage = if is_gguf(checkpoint) { Storage::Kept } else { Storage::Int8 };
    Recipe { linear: storage, embedding: storage, sample: true, ..Recipe::default() }
}

fn is_gguf(checkpoint: &Path) -> bool {
    let mut magic = [0; 4];
    let begin = File::open(checkpoint).and_then(|mut file| file.read_exact(&mut magic));
    let has_magic = begin.is_ok() && magic == *b"GGUF";
    has_magic || checkpoint.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// A folder of programs, and how much it may hold.
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
            .context("no folder is known to keep programs in\nhint: set `PTERO_CACHE` to one")?;
        let limit = get("PTERO_CACHE_LIMIT").map_or(Ok(Limit::DEFAULT), |limit| limit.parse())?;
        Ok(Self { folder: root.join("programs"), limit })
    }

    fn program_of(&self, origin: Origin<'_>, recipe: &Recipe, is_quiet: bool) -> Result<PathBuf> {
        let at_path = || origin.path().display().to_string();
        let program = self.folder.join(file_name(origin, recipe).with_context(at_path)?);
        if is_hit(&program) {
            return Ok(program);
        }
        let export = ptero_export::export(&origin.open()?, recipe).with_context(at_path)?;
        let say = |text: String| {
            if !is_quiet {
                anstream::eprintln!("{text}");
            }
        };
        // Held until the end.
        let _lock = self.lock(|| say("waiting for another export into the cache".to_owned()))?;
        if is_hit(&program) {
            return Ok(program);
        }
        let (name, kept) = (origin.name(), program.display());
        say(format!("exporting {name} to {kept} (kept; `PTERO_CACHE` says where)"));
        crate::output::remove_all_leftovers(&self.folder);
        export::write(&export, &program, &[], is_quiet)?;
        for removed in room::make(&self.folder, self.limit, &program) {
            let limit = self.limit;
            say(format!("removed {} (not used for longest; `PTERO_CACHE_LIMIT` is {limit})", removed.display()));
        }
        Ok(program)
    }

    /// Keeps others from exporting for as long as the file is open.
    fn lock(&self, on_wait: impl FnOnce()) -> Result<File> {
        let path = self.folder.join(".lock");
        let open = || {
            fs::create_dir_all(&self.folder)?;
            File::options().create(true).truncate(false).write(true).open(&path)
        };
        let file = open().with_context(|| format!("could not write {}", path.display()))?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            on_wait();
            // Not every file system has locks. Without one, two may write the same program, each whole.
            let _ = file.lock();
        }
        Ok(file)
    }
}

/// Whether the program is there; if so, it was now used.
fn is_hit(program: &Path) -> bool {
    let Ok(file) = File::options().write(true).open(program) else { return program.is_file() };
    // Only the order of removal depends on it.
    let _ = file.set_times(FileTimes::new().set_accessed(SystemTime::now()));
    true
}

/// The name of the program: readable, and another one whenever the program would be another.
fn file_name(origin: Origin<'_>, recipe: &Recipe) -> Result<String> {
    let checkpoint = origin.path();
    let mut digest = DefaultHasher::new();
    fs::canonicalize(checkpoint)?.hash(&mut digest);
    for (name, metadata) in files(checkpoint)? {
        // Not the content, which may be many gigabytes.
        (name, metadata.len(), metadata.modified()?).hash(&mut digest);
    }
    format!("{recipe:?}").hash(&mut digest);
    // The name says how many layers, and whether the weights are made up.
    (origin.name(), env!("CARGO_PKG_VERSION"), env!("PTERO_EXPORTER")).hash(&mut digest);
    Ok(format!("{}-{:016x}.pte", origin.name(), digest.finish()))
}

/// The files that a checkpoint may be read from, by name.
fn files(checkpoint: &Path) -> Result<Vec<(String, Metadata)>> {
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
            // Of what a link leads to: the hub's cache is made of links. One that leads nowhere is for the export to tell.
            files.extend(fs::metadata(folder.join(&name)).ok().map(|metadata| (name, metadata)));
        }
    }
    files.sort_by(|left, right| left.0.cmp(&right.0));
    Ok(files)
}

/// What people call a checkpoint, as far as a file can be called so.
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
