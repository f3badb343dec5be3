//! What a repository holds, and which of it a checkpoint needs.

use super::repository::{is_commit, is_gguf, is_hex, is_safe_name};
use super::{Problem, Repository};
use ptero_checkpoint::{INDEX, SIDE_FILES, WHOLE};
use serde::Deserialize;
use std::collections::BTreeMap;

/// No file that is not weights is larger: the largest vocabularies have tens of megabytes, the largest indices fewer.
const SMALL_BYTES: u64 = 256 << 20;
/// Larger than any file that the hub takes.
const WEIGHT_BYTES: u64 = 1 << 40;

/// What a repository held at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    /// Size and hash by name, where the server told them.
    files: BTreeMap<String, (Option<u64>, Option<Hash>)>,
}

/// A file to have.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) hash: Hash,
}

/// What content is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    /// Of large files: the SHA-256 of the content.
    Sha256(String),
    /// Of small files: the SHA-1 of git's object.
    Git(String),
}

impl Hash {
    pub(super) fn read(text: &str) -> Option<Self> {
        match text.len() {
            64 if is_hex(text) => Some(Self::Sha256(text.to_owned())),
            40 if is_hex(text) => Some(Self::Git(text.to_owned())),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Sha256(text) | Self::Git(text) => text,
        }
    }
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

impl Sibling {
    fn hash(&self) -> Option<Hash> {
        let text = self.lfs.as_ref().map(|lfs| lfs.sha256.as_str()).or(self.blob_id.as_deref());
        text.and_then(Hash::read)
    }
}

impl Listing {
    /// Reads the answer of the server.
    pub(super) fn read(json: &[u8]) -> Result<Self, Problem> {
        let answer: Answer = serde_json::from_slice(json).map_err(|_| Problem::BadAnswer("not a list of files"))?;
        if !is_commit(&answer.sha) {
            return Err(Problem::BadAnswer("not a commit"));
        }
        if let Some(bad) = answer.siblings.iter().find(|file| !is_safe_name(&file.rfilename)) {
            return Err(Problem::UnsafeName(bad.rfilename.clone()));
        }
        let files = answer.siblings.into_iter().map(|file| {
            let known = (file.size, file.hash());
            (file.rfilename, known)
        });
        Ok(Self { commit: answer.sha, files: files.collect() })
    }

    /// What is asked for: one GGUF file; or what lies beside the weights, and the weights or their index.
    pub(super) fn wanted(&self, repository: &Repository) -> Result<Vec<String>, Problem> {
        if let Some(file) = repository.file() {
            let missing = || Problem::NoSuchFile { file: file.to_owned(), files: self.gguf_files() };
            return self.files.contains_key(file).then(|| vec![file.to_owned()]).ok_or_else(missing);
        }
        let is_there = |name: &&&str| self.files.contains_key(**name);
        // One file is preferred to shards, as the reader prefers it.
        let Some(weights) = [WHOLE, INDEX].iter().find(is_there) else { return Err(self.no_weights(repository)) };
        let side_files = SIDE_FILES.iter().filter(is_there);
        Ok(side_files.chain([weights]).map(|name| (*name).to_owned()).collect())
    }

    fn no_weights(&self, repository: &Repository) -> Problem {
        let files = self.gguf_files();
        let is_pickle = |name: &String| [".bin", ".pt", ".pth"].iter().any(|end| name.ends_with(end));
        if !files.is_empty() {
            Problem::ChooseGguf { repository: repository.to_string(), files }
        } else if self.files.keys().any(is_pickle) {
            Problem::OnlyPickles
        } else {
            Problem::NoWeights
        }
    }

    fn gguf_files(&self) -> Vec<(String, Option<u64>)> {
        let files = self.files.iter().filter(|(name, _)| is_gguf(name));
        files.map(|(name, (bytes, _))| (name.clone(), *bytes)).collect()
    }

    /// A file with its size and hash; `ask` is for servers that do not list them.
    pub(super) fn file(
        &self,
        name: &str,
        ask: impl FnOnce() -> Result<(u64, Hash), Problem>,
    ) -> Result<RemoteFile, Problem> {
        let (bytes, hash) = match self.files.get(name) {
            Some((Some(bytes), Some(hash))) => (*bytes, hash.clone()),
            Some(_) => ask()?,
            None => return Err(Problem::MissingShard(name.to_owned())),
        };
        let is_weights = is_gguf(name) || name.ends_with(".safetensors");
        let most = if is_weights { WEIGHT_BYTES } else { SMALL_BYTES };
        if bytes > most {
            return Err(Problem::TooLarge { file: name.to_owned(), bytes, most });
        }
        Ok(RemoteFile { name: name.to_owned(), bytes, hash })
    }
}
