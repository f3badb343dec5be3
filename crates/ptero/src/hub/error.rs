//! What can go wrong with a checkpoint by name.

use super::Repository;
use std::io;
use std::path::{Path, PathBuf};

/// A [`Problem`] and the repository it is about.
#[derive(Debug, thiserror::Error)]
#[error("{repository}: {problem}")]
pub struct HubError {
    repository: String,
    // Not `#[source]`: the text contains it already.
    problem: Box<Problem>,
}

impl HubError {
    /// What went wrong.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Offline, and not in the cache.
    #[error("not in the cache ({}), or not all of it, and HF_HUB_OFFLINE forbids to download it", cache.display())]
    NotCached {
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// Built without the feature `hub`, and not in the cache.
    #[error(
        "not in the cache ({}), and this ptero was built without downloads (feature `hub`); download it with another tool \
         and give its path",
        cache.display()
    )]
    NoNetwork {
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// The server does not answer, or the connection breaks repeatedly.
    #[error("could not reach {endpoint}: {cause}; run again to go on from where it stopped")]
    Network {
        /// The server.
        endpoint: String,
        /// What happened.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server answers, but not as a hub does: no trusted certificate, endless redirects, not HTTP.
    #[error("{endpoint} does not answer as a hub does: {cause}")]
    Protocol {
        /// The server.
        endpoint: String,
        /// What happened.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Status 401.
    #[error("the server wants to know who asks (401): {}", advice_401(*has_token))]
    Unauthorized {
        /// Whether a token was sent.
        has_token: bool,
    },
    /// Status 403.
    #[error("access is restricted (403): accept the conditions on its page, with the account that your token is of, {}",
        if *has_token { "and give the token the right to read it" } else { "and set HF_TOKEN" })]
    Forbidden {
        /// Whether a token was sent.
        has_token: bool,
    },
    /// Status 404.
    #[error("no such {what} (404): check the spelling; for a private repository set HF_TOKEN")]
    NotFound {
        /// What was not found.
        what: &'static str,
    },
    /// Status 408, 429 and all of 5xx.
    #[error("the server is busy or broken (status {status}); run again later to go on from where it stopped")]
    Busy {
        /// Its status.
        status: u16,
    },
    /// Any other status.
    #[error("the server answers with status {status}, which makes no sense here; is HF_ENDPOINT right?")]
    Status {
        /// Its status.
        status: u16,
    },
    /// An answer that is not what the hub sends.
    #[error("the server's answer is not that of a hub ({0}); is HF_ENDPOINT right?")]
    BadAnswer(&'static str),
    /// A file name that leads out of the folder or contains invisible characters.
    #[error("the repository names a file {0:?}, which is not safe to write; nothing was downloaded")]
    UnsafeName(String),
    /// Larger than any checkpoint.
    #[error("`{file}` has {bytes} bytes, more than the {most} that are accepted")]
    TooLarge {
        /// Which file.
        file: String,
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        most: u64,
    },
    /// Another size than the server announced.
    #[error("`{file}` came with another size than the {bytes} bytes it should have; it was removed, run again")]
    WrongSize {
        /// Which file.
        file: String,
        /// How large it should be.
        bytes: u64,
    },
    /// Another hash than the server announced.
    #[error("`{file}` was damaged on its way: its hash is not {hash}; it was removed, run again")]
    WrongHash {
        /// Which file.
        file: String,
        /// What it should be.
        hash: String,
    },
    /// Only GGUF files.
    #[error("holds no safetensors but GGUF files; name one of them as `{repository}:FILE`:{}", lines(files))]
    ChooseGguf {
        /// The repository, as it was named.
        repository: String,
        /// Names and sizes.
        files: Vec<(String, Option<u64>)>,
    },
    /// A GGUF file that the repository lacks.
    #[error("has no file `{file}`; its GGUF files are:{}", lines(files))]
    NoSuchFile {
        /// Which file.
        file: String,
        /// Names and sizes of those there are.
        files: Vec<(String, Option<u64>)>,
    },
    /// Weights as pickles, which contain code.
    #[error(
        "holds its weights as pickles, which can run code and are not read; look for a repository with safetensors"
    )]
    OnlyPickles,
    /// No weights in a known format.
    #[error("holds no weights that ptero reads: neither `model.safetensors`, nor shards with an index, nor GGUF")]
    NoWeights,
    /// An index that names a shard that the repository lacks.
    #[error("`{0}` belongs to the weights, but the repository does not have it")]
    MissingShard(String),
    /// An invalid index.
    #[error("its index of shards: {0}")]
    BadIndex(ptero_checkpoint::Error),
    /// The disk.
    #[error("could not write {}: {cause}{}", path.display(), if is_full(cause) { "; what came so far is kept" } else { "" })]
    Disk {
        /// Which file.
        path: PathBuf,
        /// What happened.
        cause: io::Error,
    },
}

impl Problem {
    /// Names the repository.
    pub fn of(self, repository: &Repository) -> HubError {
        HubError { repository: repository.to_string(), problem: Box::new(self) }
    }

    /// Returns `true` if a later attempt may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Network { .. } | Self::Busy { .. })
    }

    /// Makes an error of the disk, with its path.
    pub fn disk(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |cause| Self::Disk { path: path.to_owned(), cause }
    }
}

fn advice_401(has_token: bool) -> &'static str {
    if has_token {
        "it does not accept your token (HF_TOKEN, or the file that `hf auth login` wrote)"
    } else {
        "check the spelling; for a private or gated repository set HF_TOKEN (https://huggingface.co/settings/tokens)"
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Formats one file per line; there may be hundreds.
fn lines(files: &[(String, Option<u64>)]) -> String {
    const MOST: usize = 40;
    let line = |(name, bytes): &(String, Option<u64>)| match bytes {
        Some(bytes) => format!("\n  {name}  ({})", size(*bytes)),
        None => format!("\n  {name}"),
    };
    let more = files.len().saturating_sub(MOST);
    let rest = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    files.iter().take(MOST).map(line).collect::<String>() + &rest
}

/// Formats a size with one decimal, in powers of a thousand as the hub's pages do.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut tenths, mut unit) = (u128::from(bytes) * 10, 0);
    while tenths >= 10_000 && unit + 1 < UNITS.len() {
        (tenths, unit) = (tenths.div_ceil(1000), unit + 1);
    }
    let unit = UNITS.get(unit).copied().unwrap_or("TB");
    if unit == "B" { format!("{bytes} B") } else { format!("{}.{} {unit}", tenths / 10, tenths % 10) }
}
