//! Checkpoints by name: `owner/name` of the Hugging Face hub, found in the cache that Python's tools share, or downloaded.
//!
//! Names, sizes and hashes come from a server and are checked like those of any file; see docs/SECURITY.md.

mod cache;
#[cfg(feature = "hub")]
mod client;
#[cfg(feature = "hub")]
mod download;
mod error;
#[cfg(feature = "hub")]
mod partial;
mod repository;
#[cfg(feature = "hub")]
mod select;

pub use error::{HubError, Problem};
pub use repository::{NotASource, Repository};

use crate::error::{Error, Result};
use crate::progress::Progress;
use cache::Cache;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where checkpoints come from and where they are kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server, without a slash at the end.
    pub endpoint: String,
    /// The user's token, for private and gated repositories.
    pub token: Option<Token>,
    /// The folder that holds `models--owner--name`.
    pub cache: PathBuf,
    /// `true` if only the cache may be used.
    pub is_offline: bool,
    /// Where downloads report their progress.
    pub progress: Progress,
    /// The pause before a failed request is repeated; it doubles each time.
    pub pause: Duration,
}

/// A secret that is not printed.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A token of the hub.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// Returns the token itself.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Options {
    /// Reads the environment variables of Python's `huggingface_hub`: `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`,
    /// `HF_HOME`, `HF_HUB_CACHE` and `HF_HUB_OFFLINE`.
    pub fn from_env(progress: Progress) -> Self {
        Self::from_variables(progress, |name| std::env::var(name).ok())
    }

    fn from_variables(progress: Progress, get: impl Fn(&str) -> Option<String>) -> Self {
        let get = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()))
        };
        let folder = |names: &[&str]| get(names).map(|folder| expand_home(&folder));
        let caches = || folder(&["XDG_CACHE_HOME"]).unwrap_or_else(|| expand_home("~/.cache"));
        let home = folder(&["HF_HOME"]).unwrap_or_else(|| caches().join("huggingface"));
        let token_file = || folder(&["HF_TOKEN_PATH"]).unwrap_or_else(|| home.join("token"));
        let read_token = || std::fs::read_to_string(token_file()).ok().map(|token| token.trim().to_owned());
        let token = get(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).or_else(read_token);
        let is_true = |value: String| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str());
        let endpoint = get(&["HF_ENDPOINT"]).unwrap_or_else(|| "https://huggingface.co".to_owned());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.filter(|token| !token.is_empty()).map(Token::new),
            cache: folder(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]).unwrap_or_else(|| home.join("hub")),
            is_offline: get(&["HF_HUB_OFFLINE"]).is_some_and(is_true),
            progress,
            pause: Duration::from_millis(500),
        }
    }
}

/// Replaces `~/` by the user's home.
pub(crate) fn expand_home(folder: &str) -> PathBuf {
    match (folder.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(folder),
    }
}

/// Returns the path of a checkpoint: `source` itself if it exists; otherwise the snapshot folder of the repository, or the
/// GGUF file in it, that `source` names. What the cache lacks is downloaded.
///
/// The server is asked which commit a name means. If it cannot be reached, the cached snapshot is used.
///
/// # Errors
/// When `source` is neither a path nor a repository, when the repository cannot be downloaded or is not a checkpoint, and when
/// the disk is full or fails.
pub fn resolve(source: impl AsRef<Path>, options: &Options) -> Result<PathBuf> {
    let source = source.as_ref();
    if source.try_exists().map_err(Error::read(source))? {
        return Ok(source.to_owned());
    }
    let repository = Repository::parse(&source.to_string_lossy())?;
    let cache = Cache::new(&options.cache, &repository);
    let cached = cache.find();
    if options.is_offline {
        let not_cached = || Problem::NotCached { cache: options.cache.clone() };
        return Ok(cached.ok_or_else(|| not_cached().of(&repository))?);
    }
    Ok(fetch(&repository, &cache, cached, options)?)
}

#[cfg(feature = "hub")]
use download::fetch;

#[cfg(not(feature = "hub"))]
fn fetch(
    repository: &Repository,
    _: &Cache,
    cached: Option<PathBuf>,
    options: &Options,
) -> std::result::Result<PathBuf, HubError> {
    cached.ok_or_else(|| Problem::NoNetwork { cache: options.cache.clone() }.of(repository))
}

#[cfg(test)]
mod tests;
