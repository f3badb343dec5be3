//! The three requests: what a repository holds, what one file is, and its content from some byte on.

use super::select::{Hash, Listing};
use super::{Options, Problem, Repository};
use std::io::{self, Read};
use std::time::Duration;
use ureq::config::RedirectAuthHeaders;
use ureq::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, RANGE};
use ureq::http::{HeaderMap, HeaderName, Response, StatusCode};
use ureq::{Agent, Body, Error, Proxy};

const CONNECT: Duration = Duration::from_secs(15);
/// How long a server may say nothing, in the midst of a file too.
const SILENCE: Duration = Duration::from_secs(30);
/// The largest repositories have some ten thousand files of a few hundred bytes of JSON each.
const LISTING_BYTES: u64 = 64 << 20;

pub(super) struct Client<'a> {
    agent: Agent,
    options: &'a Options,
    repository: &'a Repository,
}

/// Content from some byte on.
pub(super) struct Content {
    /// Where it begins: where it was asked to, or at the start when the server does not know ranges.
    pub(super) start: u64,
    /// The size of the whole file, where the server says it.
    pub(super) total: Option<u64>,
    body: Box<dyn Read>,
}

impl<'a> Client<'a> {
    pub(super) fn new(options: &'a Options, repository: &'a Repository) -> Self {
        let is_here = ["http://127.0.0.1", "http://localhost"].iter().any(|here| options.endpoint.starts_with(here));
        let config = Agent::config_builder()
            // Whoever runs a server on this machine does not mean to reach it through another.
            .proxy(if is_here { None } else { Proxy::try_from_env() })
            .user_agent(concat!("ptero/", env!("CARGO_PKG_VERSION")))
            // Sizes and ranges are those of the file, not of a compressed copy.
            .accept_encoding("identity")
            .http_status_as_error(false)
            // Who begins encrypted stays encrypted, and the token stays with the host it was meant for.
            .https_only(options.endpoint.starts_with("https://"))
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .build();
        Self { agent: config.into(), options, repository }
    }

    pub(super) fn list(&self) -> Result<Listing, Problem> {
        let revision = self.repository.revision().replace('/', "%2F");
        let id = self.repository.id();
        let url = format!("{}/api/models/{id}/revision/{revision}?blobs=true", self.options.endpoint);
        let answer = self.get(&url, None)?;
        let mut json = Vec::new();
        let mut body = answer.into_body().into_with_config().limit(u64::MAX).reader().take(LISTING_BYTES + 1);
        body.read_to_end(&mut json).map_err(|error| self.broken(error))?;
        if json.len() as u64 > LISTING_BYTES {
            return Err(Problem::BadAnswer("a list of files without end"));
        }
        Listing::read(&json)
    }

    /// Size and hash of a file, for servers that do not list them. Large files answer with a redirect that says both.
    pub(super) fn ask(&self, commit: &str, name: &str) -> Result<(u64, Hash), Problem> {
        let request = self.agent.head(self.address(commit, name));
        let request = request.config().max_redirects(0).max_redirects_will_error(false).build();
        let request = self.bearer().into_iter().fold(request, |request, bearer| request.header(AUTHORIZATION, bearer));
        let answer = request.call().map_err(|error| self.failed(error))?;
        if !answer.status().is_redirection() {
            self.check(&answer)?;
        }
        let linked = |name: &'static str| header(answer.headers(), HeaderName::from_static(name));
        let hash = linked("x-linked-etag").or_else(|| header(answer.headers(), ETAG));
        let hash = hash.and_then(|hash| Hash::read(hash.trim_start_matches("W/").trim_matches('"')));
        let bytes = linked("x-linked-size").or_else(|| header(answer.headers(), CONTENT_LENGTH));
        let bytes = bytes.and_then(|bytes| bytes.parse().ok());
        bytes.zip(hash).ok_or(Problem::BadAnswer("a file without size or hash"))
    }

    pub(super) fn open(&self, commit: &str, name: &str, from: u64) -> Result<Content, Problem> {
        let answer = self.get(&self.address(commit, name), Some(from).filter(|from| *from > 0))?;
        let (start, total) = if answer.status() == StatusCode::PARTIAL_CONTENT {
            let range = header(answer.headers(), CONTENT_RANGE).and_then(content_range);
            range.ok_or(Problem::BadAnswer("a range without its place"))?
        } else {
            (0, answer.body().content_length())
        };
        if start != 0 && start != from {
            return Err(Problem::BadAnswer("another range than was asked for"));
        }
        let body = answer.into_body().into_with_config().limit(u64::MAX).reader();
        Ok(Content { start, total, body: Box::new(body) })
    }

    /// The next bytes of some content; none at its end.
    pub(super) fn read(&self, content: &mut Content, buffer: &mut [u8]) -> Result<usize, Problem> {
        content.body.read(buffer).map_err(|error| self.broken(error))
    }

    /// What it is when a connection ends before its content.
    pub(super) fn ended_early(&self) -> Problem {
        self.broken(io::ErrorKind::UnexpectedEof.into())
    }

    fn get(&self, url: &str, from: Option<u64>) -> Result<Response<Body>, Problem> {
        let request = self.agent.get(url);
        let request = self.bearer().into_iter().fold(request, |request, bearer| request.header(AUTHORIZATION, bearer));
        let range = from.map(|from| format!("bytes={from}-"));
        let request = range.into_iter().fold(request, |request, range| request.header(RANGE, range));
        let answer = request.call().map_err(|error| self.failed(error))?;
        self.check(&answer)?;
        Ok(answer)
    }

    fn bearer(&self) -> Option<String> {
        self.options.token.as_ref().map(|token| format!("Bearer {}", token.secret()))
    }

    fn address(&self, commit: &str, name: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.options.endpoint, self.repository.id(), escape(name))
    }

    fn check(&self, answer: &Response<Body>) -> Result<(), Problem> {
        let has_token = self.options.token.is_some();
        Err(match answer.status().as_u16() {
            200 | 206 => return Ok(()),
            401 => Problem::Unauthorized { has_token },
            403 => Problem::Forbidden { has_token },
            404 => Problem::NotFound { what: what_is_missing(answer.headers()) },
            status @ (408 | 429 | 500..=599) => Problem::Busy { status },
            status => Problem::Status { status },
        })
    }

    fn failed(&self, error: Error) -> Problem {
        let endpoint = self.options.endpoint.clone();
        match error {
            Error::Io(_) | Error::Timeout(_) | Error::HostNotFound | Error::ConnectionFailed | Error::BodyStalled => {
                Problem::Network { endpoint, cause: error.into() }
            }
            _ => Problem::Protocol { endpoint, cause: error.into() },
        }
    }

    fn broken(&self, error: io::Error) -> Problem {
        Problem::Network { endpoint: self.options.endpoint.clone(), cause: error.into() }
    }
}

fn header(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn what_is_missing(headers: &HeaderMap) -> &'static str {
    match header(headers, HeaderName::from_static("x-error-code")) {
        Some("RevisionNotFound") => "revision of this repository",
        Some("EntryNotFound") => "file in this repository",
        _ => "repository",
    }
}

/// `bytes START-END/TOTAL`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, total.parse().ok()))
}

/// A name as part of an address.
fn escape(name: &str) -> String {
    let letter = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(letter).collect()
}
