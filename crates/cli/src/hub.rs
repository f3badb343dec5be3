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
mod part;
#[cfg(feature = "hub")]
mod select;
mod source;

pub use error::{HubError, Problem};
pub use source::{NotASource, Repository};

use anyhow::{Context, Result};
use cache::Cache;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where checkpoints come from and where they are kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server, without a slash at the end.
    pub endpoint: String,
    /// Who asks, for private and gated repositories.
    pub token: Option<Token>,
    /// The folder that holds `models--owner--name`.
    pub cache: PathBuf,
    /// Whether only the cache is looked at.
    pub is_offline: bool,
    /// Whether nothing is said on the way.
    pub is_quiet: bool,
    /// The pause before a failed request is made again; it doubles each time.
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

    /// What is sent to the server.
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
    /// What the variables say that Python's `huggingface_hub` reads too: `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`,
    /// `HF_HOME`, `HF_HUB_CACHE` and `HF_HUB_OFFLINE`.
    pub fn from_env(is_quiet: bool) -> Self {
        Self::from_variables(is_quiet, |name| std::env::var(name).ok())
    }

    fn from_variables(is_quiet: bool, get: impl Fn(&str) -> Option<String>) -> Self {
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
            is_quiet,
            pause: Duration::from_millis(500),
        }
    }
}

/// A path, where `~/` is the user's home.
pub(crate) fn expand_home(folder: &str) -> PathBuf {
    match (folder.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(folder),
    }
}

/// The path of a checkpoint: `source` itself where it exists; else the snapshot folder of the repository, or the GGUF file
/// in it, that `source` names, downloaded as far as the cache lacks it.
///
/// The server is asked which commit a name means. Where it cannot be reached, what the cache holds of the name is taken.
///
/// # Errors
/// When `source` is neither a path nor a repository, when the repository is not to be had, when it is no checkpoint, and
/// when the disk is full or fails.
pub fn resolve(source: &str, options: &Options) -> Result<PathBuf> {
    if Path::new(source).try_exists().with_context(|| source.to_owned())? {
        return Ok(PathBuf::from(source));
    }
    let repository = Repository::parse(source)?;
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
