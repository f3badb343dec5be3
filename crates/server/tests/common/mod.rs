//! A server in a thread, and a client that writes its requests itself.

#![allow(dead_code, reason = "not every test uses all of it")]

use ptero::{Model, Options};
use ptero_server::{Config, RequestLog, Server};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// A model with a chat template, although it was trained on none.
pub(crate) fn model() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    let template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                    {% if add_generation_prompt %}assistant: {% endif %}";
    MODEL.get_or_init(|| model_with(template)).clone()
}

/// The included model with any chat template.
pub(crate) fn model_with(template: &str) -> Model {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(format!("ptero-serve-{process}-{number}.jinja"));
    std::fs::write(&path, template).unwrap();
    let model = Options::new().threads(2).full_sampler(true).chat_template(&path).included_model().unwrap();
    std::fs::remove_file(path).unwrap();
    model
}

/// A server in a thread of its own, which ends with the test.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) end: Option<oneshot::Sender<()>>,
    pub(crate) thread: Option<JoinHandle<()>>,
    pub(crate) log: Arc<Mutex<Vec<RequestLog>>>,
}

pub(crate) fn start(change: impl FnOnce(&mut Config)) -> Running {
    start_with(model(), change)
}

pub(crate) fn start_with(model: Model, change: impl FnOnce(&mut Config)) -> Running {
    let log = Arc::<Mutex<Vec<_>>>::default();
    let mut config = Config::new(vec![model.into()], 0);
    let kept = Arc::clone(&log);
    config.log = Arc::new(move |request| kept.lock().unwrap().push(request.clone()));
    change(&mut config);
    let server = Server::bind(config).unwrap();
    let address = server.address();
    let (end, ended) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(server.serve(async { drop(ended.await) }, std::future::pending())).unwrap();
    });
    Running { address, end: Some(end), thread: Some(thread), log }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().map(JoinHandle::join);
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn error(&self) -> Value {
        self.json()["error"].clone()
    }

    /// The events of a stream, without the last, `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let events: Vec<&str> = self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        let (last, events) = events.split_last().unwrap();
        assert_eq!(*last, "[DONE]");
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// Removes the lengths of chunks.
pub(crate) fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.push_str(&rest[..length]);
        body = rest[length..].trim_start_matches("\r\n");
    }
    whole
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

pub(crate) fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let head = head.to_ascii_lowercase();
    let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
    Answer { status, head, body }
}

pub(crate) fn ask(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let mut stream = connect(address);
    let request = format!(
        "{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    read(stream)
}

pub(crate) const JSON: &str = "Host: localhost\r\nContent-Type: application/json\r\n";

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    ask(address, "POST", path, JSON, &body.to_string())
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    ask(address, "GET", path, "Host: localhost\r\n", "")
}
