//! `ptero serve` as a person starts it: names of models, what is refused before anything is loaded, and its end.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{folder, ptero, root};
use std::path::{Path, PathBuf};

/// A folder with models of these names.
fn with_models(test: &str, names: &[&str]) -> PathBuf {
    let folder = folder(test);
    for name in names {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::copy(root().join("models/little-gemma.pte"), path).unwrap();
    }
    folder
}

/// Starts a server that cannot start, and returns its complaint.
#[track_caller]
fn refused(folder: &Path, args: &[&str]) -> String {
    let output = ptero(folder, &[&["serve", "--port", "0"], args].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && !error.contains("serving"), "{args:?}: {error}");
    error
}

#[test]
fn issue_19_models_that_are_wrong_are_refused_before_any_is_loaded() {
    let folder = with_models("names", &["a.pte", "b/a.pte"]);
    // The first is never opened: it would be refused, too.
    std::fs::write(folder.join("broken.pte"), "no program").unwrap();
    let refused = |args: &[&str], wanted: &str| {
        let error = refused(&folder, args);
        assert!(error.contains(wanted), "{args:?}\nwanted: {wanted}\ngot: {error}");
    };
    refused(
        &["-m", "broken.pte", "-m", "x=a.pte", "-m", "x=b/a.pte"],
        "two models have the name `x`\nhint: give it another",
    );
    refused(&["-m", "a.pte", "-m", "b/a.pte"], "two models have the name `a`\nhint: ");
    refused(&["-m", "broken.pte", "-m", "=a.pte"], "`` is not a name for a model\nhint: ");
    refused(&["-m", "broken.pte", "-m", " x=a.pte"], "` x` is not a name");
    refused(&["-m", "broken.pte", "-m", "x="], "`` is no file and no folder here");
    refused(&["-m", "broken.pte", "-m", "x=missing.pte"], "missing.pte: no such file");
    refused(&["-m", "broken.pte", "-m", "x=y=missing.pte"], "y=missing.pte: no such file");
    refused(&["-m", "a.pte", "-m", "x=a.pte", "--chat-template", "a.pte"], "there are several");
    refused(&["a.pte", "-m", "x=a.pte"], "cannot be used with");
    refused(&["-m", "x=broken.pte", "-m", "a.pte"], "broken.pte");
    refused(&["broken.pte", "--cors", "https://a.example/path"], "is not an origin such as");
    refused(&["broken.pte", "--cors", "*"], "so an API key is needed");
    refused(&["broken.pte", "--timeout", "0"], "--timeout");
}

#[cfg(unix)]
mod running {
    use super::{root, with_models};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::path::Path;
    use std::process::{Child, ChildStderr, Command, Stdio};
    use std::time::Duration;

    struct Serving {
        child: Child,
        said: BufReader<ChildStderr>,
        address: String,
    }

    impl Drop for Serving {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn serve(folder: &Path, args: &[&str]) -> Serving {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ptero"));
        command.args(["serve", "--port", "0"]).args(args).current_dir(folder);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut server = Serving { child, said, address: String::new() };
        while server.address.is_empty() {
            let mut line = String::new();
            assert!(server.said.read_line(&mut line).unwrap() > 0, "the server ended");
            let address = line.strip_prefix("page: http://").unwrap_or_default();
            server.address = address.trim().trim_end_matches('/').to_owned();
        }
        server
    }

    impl Serving {
        fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
            let mut stream = TcpStream::connect(&self.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
            let head = "Host: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";
            write!(stream, "{method} {path} HTTP/1.1\r\n{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
            stream
        }

        fn ask(&self, method: &str, path: &str, body: &str) -> String {
            read(self.send(method, path, body))
        }
    }

    fn read(mut stream: TcpStream) -> String {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn issue_19_names_are_given_or_those_of_files_and_paths_may_have_equals_signs() {
        let folder = with_models("served", &["plain.pte", "b=c.pte", "d=e/f.pte"]);
        // The whole of `b=c.pte` is a file, so it is a path; of the last, what comes before the first `=` is the name.
        let server = serve(&folder, &["-m", "plain.pte", "--model", "b=c.pte", "--model=x/y=d=e/f.pte"]);
        let models = server.ask("GET", "/v1/models", "");
        let ids = ["plain", "b=c", "x/y"].map(|id| models.find(&format!("\"id\":\"{id}\"")).unwrap());
        assert!(ids.is_sorted(), "{models}");
        assert!(models.contains("\"unloaded\""), "{models}");
        let text = server.ask("POST", "/v1/completions", r#"{"model": "x/y", "prompt": "The", "max_tokens": 2}"#);
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"model\":\"x/y\""), "{text}");
    }

    #[test]
    fn issue_19_each_line_of_the_log_is_an_object_with_id_status_and_time() {
        let mut server = serve(&root(), &["--log-json", "--timeout", "600", "--cors", "https://example.com"]);
        // What it says before it logs.
        let mut line = String::new();
        while !line.starts_with("try: ") {
            line.clear();
            assert!(server.said.read_line(&mut line).unwrap() > 0, "the server ended");
        }
        let mut ask = |method: &str, path: &str, body: &str| {
            let answer = server.ask(method, path, body);
            let id = answer.split("x-request-id: ").nth(1).unwrap().split("\r\n").next().unwrap().to_owned();
            let mut line = String::new();
            server.said.read_line(&mut line).unwrap();
            let log: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!((log["id"].as_str(), log["path"].as_str()), (Some(id.as_str()), Some(path)), "{line}");
            assert!(log["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{line}");
            assert!(line.ends_with("}\n") && log["method"] == method, "{line}");
            log
        };
        let health = ask("GET", "/health", "");
        assert_eq!((&health["status"], &health["model"]), (&200.into(), &serde_json::Value::Null));
        assert_eq!(ask("POST", "/v1/completions", "{\"pro\nmpt\"")["status"], 400);
        assert_eq!(ask("GET", "/%22none%22%0a", "")["status"], 404);
        let text =
            ask("POST", "/v1/completions", r#"{"prompt": "The", "max_tokens": 4, "stream": true, "ignore_eos": true}"#);
        assert_eq!(
            (&text["status"], &text["new_tokens"], &text["trouble"]),
            (&200.into(), &4.into(), &serde_json::Value::Null)
        );
        assert!(text["prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{text}");
        assert_eq!(text["model"], "little-qwen");
    }

    #[test]
    fn issue_19_sigterm_lets_the_texts_of_all_models_finish() {
        let args = ["-m", "one=models/little-qwen.pte", "-m", "two=models/little-gemma.pte"];
        let mut server = serve(&root(), &args);
        let body = |model: &str| {
            format!(r#"{{"model": "{model}", "prompt": "The", "max_tokens": 60, "ignore_eos": true, "stream": true}}"#)
        };
        let streams = ["one", "two"].map(|model| {
            let mut stream = server.send("POST", "/v1/completions", &body(model));
            // The first byte of the answer: its texts have begun.
            stream.read_exact(&mut [0]).unwrap();
            stream
        });
        assert!(Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap().success());
        for stream in streams {
            let text = read(stream);
            assert!(text.contains("[DONE]") && text.contains("\"length\""), "{text}");
        }
        assert!(server.child.wait().unwrap().success());
        let mut log = String::new();
        server.said.read_to_string(&mut log).unwrap();
        assert!(log.contains(", one, ") && log.contains(", two, ") && log.contains("60 tokens"), "{log}");
    }
}
