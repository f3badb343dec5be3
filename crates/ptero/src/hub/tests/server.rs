//! A hub of one repository, in memory: enough of HTTP/1.1 for a client that means well.

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Changes content on its way.
pub(super) type Corrupt = fn(&mut Vec<u8>);

/// What the server holds and how it misbehaves.
pub(super) struct Hub {
    pub(super) files: BTreeMap<String, Vec<u8>>,
    pub(super) commit: String,
    /// Answers everything with this status and these headers.
    pub(super) status: Option<(u16, &'static str)>,
    /// Drops the connection after this many bytes of a file's content: one entry per request.
    pub(super) cuts: Mutex<Vec<usize>>,
    /// Sends other content than it has.
    pub(super) corrupt: Option<Corrupt>,
    /// Sends whole files to whoever asks for a part.
    pub(super) ignores_ranges: bool,
    /// Does not list sizes and hashes.
    pub(super) lists_only_names: bool,
    pub(super) pause_ms: u64,
    /// Where large files are, when not on the same host.
    pub(super) storage: String,
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) range: Option<String>,
    pub(super) has_token: bool,
    /// Bytes of content that were sent in answer.
    pub(super) sent: usize,
}

pub(super) struct Server {
    pub(super) endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

pub(super) fn hex(algorithm: &'static ring::digest::Algorithm, bytes: &[u8]) -> String {
    digest(algorithm, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".gguf")
}

pub(super) fn hash(name: &str, content: &[u8]) -> String {
    let object = [format!("blob {}\0", content.len()).as_bytes(), content].concat();
    if is_large(name) { hex(&SHA256, content) } else { hex(&SHA1_FOR_LEGACY_USE_ONLY, &object) }
}

impl Hub {
    pub(super) fn new(files: &[(&str, &[u8])]) -> Self {
        Self {
            files: files.iter().map(|(name, content)| ((*name).to_owned(), content.to_vec())).collect(),
            commit: COMMIT.to_owned(),
            status: None,
            cuts: Mutex::default(),
            corrupt: None,
            ignores_ranges: false,
            lists_only_names: false,
            pause_ms: 0,
            storage: String::new(),
        }
    }

    /// Serves for as long as the process lives.
    pub(super) fn serve(self) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (hub, log) = (Arc::new(self), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (hub, log) = (Arc::clone(&hub), Arc::clone(&log));
                thread::spawn(move || hub.answer(stream, &log));
            }
        });
        Server { endpoint, requests }
    }

    fn answer(&self, stream: TcpStream, log: &Mutex<Vec<Request>>) {
        let mut reader = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_owned());
        }
        let Some(first) = lines.first() else { return };
        let header = |name: &str| {
            let value = |line: &String| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            };
            lines.iter().skip(1).find_map(value)
        };
        let mut words = first.split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let has_token = header("authorization").is_some_and(|value| value == "Bearer secret");
        let mut request = Request { method, path, range: header("range"), has_token, sent: 0 };
        let (head, mut body, cut) = self.choose(&request);
        if request.method == "HEAD" {
            body.clear();
        }
        body.truncate(cut.unwrap_or(usize::MAX));
        request.sent = body.len();
        log.lock().unwrap().push(request);
        thread::sleep(std::time::Duration::from_millis(self.pause_ms));
        let stream = reader.get_mut();
        // The client may be gone, which is what some tests are about.
        let _ = stream.write_all(format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n").as_bytes());
        let _ = stream.write_all(&body);
    }

    /// Status line and headers, content, and where to cut it.
    fn choose(&self, request: &Request) -> (String, Vec<u8>, Option<usize>) {
        let plain = |head: &str, body: Vec<u8>| (format!("{head}\r\ncontent-length: {}", body.len()), body, None);
        if let Some((status, headers)) = self.status {
            return plain(&format!("{status} Bad{headers}"), b"<html>no</html>".to_vec());
        }
        if request.path.starts_with("/api/models/owner/name/revision/") {
            return plain("200 OK", self.listing().into_bytes());
        }
        let resolve = format!("/owner/name/resolve/{}/", self.commit);
        let (is_moved, name) = match (request.path.strip_prefix(&resolve), request.path.strip_prefix("/cdn/")) {
            (Some(name), _) => (false, name),
            (_, Some(name)) => (true, name),
            _ => return plain("404 Not Found\r\nx-error-code: RepoNotFound", Vec::new()),
        };
        let Some(content) = self.files.get(name) else { return plain("404 Not Found", Vec::new()) };
        let (etag, size) = (hash(name, content), content.len());
        if is_large(name) && !is_moved {
            let head = format!(
                "302 Found\r\nlocation: {}/cdn/{name}\r\nx-linked-etag: \"{etag}\"\r\nx-linked-size: {size}",
                self.storage
            );
            return plain(&head, b"Found".to_vec());
        }
        self.content(request, content.clone(), &etag)
    }

    fn content(&self, request: &Request, mut content: Vec<u8>, etag: &str) -> (String, Vec<u8>, Option<usize>) {
        if let Some(corrupt) = self.corrupt {
            corrupt(&mut content);
        }
        let total = content.len();
        let from = request.range.as_ref().filter(|_| !self.ignores_ranges);
        let from = from.map(|range| range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap());
        let cut = if request.method == "GET" { self.cuts.lock().unwrap().pop() } else { None };
        let rest = content.split_off(from.unwrap_or(0).min(total));
        let status = match from {
            Some(from) if from >= total => "416 Range Not Satisfiable".to_owned(),
            Some(from) => format!("206 Partial Content\r\ncontent-range: bytes {from}-{}/{total}", total - 1),
            None => "200 OK".to_owned(),
        };
        (format!("{status}\r\netag: W/\"{etag}\"\r\ncontent-length: {}", rest.len()), rest, cut)
    }

    fn listing(&self) -> String {
        let sibling = |(name, content): (&String, &Vec<u8>)| {
            let mut file = serde_json::json!({ "rfilename": name });
            if !self.lists_only_names {
                file["size"] = content.len().into();
                file["blobId"] = hash("", content).into();
            }
            if !self.lists_only_names && is_large(name) {
                file["lfs"] =
                    serde_json::json!({ "sha256": hash(name, content), "size": content.len(), "pointerSize": 130 });
            }
            file
        };
        let siblings: Vec<_> = self.files.iter().map(sibling).collect();
        serde_json::json!({ "id": "owner/name", "sha": self.commit, "siblings": siblings }).to_string()
    }
}

impl Server {
    /// What was asked for since the last time.
    pub(super) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}
