//! Names of repositories, and which names are safe.

use std::fmt;

/// A repository of the hub, or one GGUF file of it. All names are safe in paths and URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    owner: String,
    name: String,
    revision: String,
    file: Option<String>,
}

/// Neither a path nor a repository.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no file and no folder here, and not the name of a repository; give a path, or `owner/name` of the Hugging \
     Face hub, `owner/name@revision`, or `owner/name:file.gguf` for one GGUF file"
)]
pub struct NotASource(String);

impl Repository {
    /// Parses `owner/name`, `owner/name@revision`, and with a file `owner/name:file.gguf`, `owner/name@revision:file.gguf`
    /// or `owner/name/file.gguf`.
    ///
    /// # Errors
    /// When the text has none of these forms.
    pub fn parse(source: &str) -> Result<Self, NotASource> {
        Self::read(source).ok_or_else(|| NotASource(source.escape_debug().to_string()))
    }

    fn read(source: &str) -> Option<Self> {
        let (source, file) = source.split_once(':').map_or((source, None), |(head, file)| (head, Some(file)));
        let (id, revision) = source.split_once('@').unwrap_or((source, "main"));
        let (owner, rest) = id.split_once('/')?;
        let (name, file) = match (rest.split_once('/'), file) {
            (Some((name, file)), None) => (name, Some(file)),
            (None, file) => (rest, file),
            (Some(_), Some(_)) => return None,
        };
        // More likely a file that does not exist than a repository of that name.
        let looks_like_a_file = [".gguf", ".pte", ".safetensors"].iter().any(|end| name.ends_with(end));
        let sound = is_identifier(owner) && is_identifier(name) && is_revision(revision) && !looks_like_a_file;
        let sound = sound && file.is_none_or(|file| is_gguf(file) && is_safe_name(file));
        let (owner, name, revision) = (owner.to_owned(), name.to_owned(), revision.to_owned());
        sound.then(|| Self { owner, name, revision, file: file.map(str::to_owned) })
    }

    /// Returns `owner/name`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// Returns the name of its model: that of the file, if one is named.
    pub fn model_name(&self) -> String {
        self.file.as_ref().unwrap_or(&self.name).clone()
    }

    /// Returns the branch, tag or commit.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Returns the file, if one is named.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Returns the name of its folder in the cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

/// The hub's own rule for owners and names.
fn is_identifier(text: &str) -> bool {
    let sound = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    sound
        && (1..=96).contains(&text.len())
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
        && !text.contains("--")
        && !text.contains("..")
}

/// A branch, a tag, a commit or a reference such as `refs/pr/1`.
fn is_revision(text: &str) -> bool {
    let sound = |part: &str| {
        !part.starts_with(['.', '-'])
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte))
    };
    text.len() <= 255 && text.split('/').all(|part| !part.is_empty() && sound(part))
}

/// Returns `true` for a full commit id, which names a snapshot.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

pub(super) fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

pub(super) fn is_gguf(name: &str) -> bool {
    name.len() > 5 && name.get(name.len() - 5..).is_some_and(|end| end.eq_ignore_ascii_case(".gguf"))
}

/// Returns `true` for a name that stays below the folder it is joined to, on any system, and has no invisible characters.
pub(super) fn is_safe_name(name: &str) -> bool {
    let sound = |part: &str| {
        let plain = |letter: char| {
            !letter.is_control()
                && !matches!(letter, '\\' | ':' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        };
        !matches!(part, "" | "." | "..") && part.len() <= 255 && part.chars().all(plain)
    };
    name.len() <= 1024 && name.split('/').all(sound)
}
