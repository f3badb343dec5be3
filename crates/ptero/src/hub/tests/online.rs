use super::server::{COMMIT, Corrupt, Hub, Server, hash};
use super::*;
use std::sync::Mutex;

const CONFIG: &[u8] = br#"{"model_type": "llama"}"#;

fn weights() -> Vec<u8> {
    (0_u32..300_000).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// A repository with one file of weights, and much that is not wanted.
fn hub() -> Hub {
    Hub::new(&[
        ("config.json", CONFIG),
        ("tokenizer.json", b"{}"),
        ("README.md", b"# name"),
        ("pytorch_model.bin", b"code"),
        ("evil.py", b"import os"),
        ("onnx/model.onnx", b"other"),
        ("model.safetensors", &weights()),
    ])
}

fn refused(source: &str, options: &Options) -> String {
    format!("{:#}", resolve(source, options).unwrap_err())
}

/// Names and contents below a folder, sorted; links are followed.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            found.extend(files(&path).into_iter().map(|below| format!("{name}/{below}")));
        } else {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    found.sort();
    found
}

fn gets<'a>(requests: &'a [server::Request], end: &str) -> Vec<&'a server::Request> {
    requests.iter().filter(|request| request.path.starts_with("/cdn/") && request.path.ends_with(end)).collect()
}

fn blobs(options: &Options) -> PathBuf {
    options.cache.join("models--owner--name/blobs")
}

#[test]
fn a_repository_is_downloaded_once_and_only_what_a_checkpoint_needs() {
    let (folder, storage, mut hub) = (Folder::new("whole"), hub().serve(), hub());
    hub.storage = storage.endpoint.replace("127.0.0.1", "localhost");
    let server = hub.serve();
    let options = Options { token: Some(Token::new("secret")), ..options(&folder, &server.endpoint) };
    let path = resolve("owner/name", &options).unwrap();
    let repository = options.cache.join("models--owner--name");
    assert_eq!(path, repository.join("snapshots").join(COMMIT));
    assert_eq!(files(&path), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), weights());
    assert_eq!(fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    let mut hashes = [hash("config.json", CONFIG), hash("tokenizer.json", b"{}"), hash(".gguf", &weights())];
    hashes.sort();
    assert_eq!(files(&repository.join("blobs")), hashes, "contents by hash, and nothing unfinished");
    #[cfg(unix)]
    assert_eq!(fs::read_link(path.join("config.json")).unwrap(), Path::new("../../blobs").join(hash("", CONFIG)));
    let (asked, stored) = (server.requests(), storage.requests());
    assert_eq!((asked.len(), stored.len()), (4, 1), "the list and three files, one of them elsewhere: {asked:?}");
    assert!(asked.iter().all(|request| request.has_token) && !stored[0].has_token, "the token stays with its host");

    assert_eq!(resolve("owner/name", &options).unwrap(), path);
    assert_eq!(server.requests().len(), 1, "only the list is asked for again");
    assert_eq!(resolve("owner/name", &offline(&folder)).unwrap(), path);
}

#[test]
fn a_dropped_connection_is_taken_up_where_it_broke() {
    let (folder, mut hub) = (Folder::new("drop"), hub());
    hub.files.remove("config.json");
    hub.files.remove("tokenizer.json");
    hub.cuts = Mutex::new(vec![50_000, 100_000]);
    let server = hub.serve();
    let path = resolve("owner/name", &options(&folder, &server.endpoint)).unwrap();
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), weights());
    let requests = server.requests();
    let seen: Vec<_> =
        gets(&requests, "model.safetensors").iter().map(|get| (get.range.as_deref(), get.sent)).collect();
    let wanted = [(None, 100_000), (Some("bytes=100000-"), 50_000), (Some("bytes=150000-"), 150_000)];
    assert_eq!(seen, wanted);
}

#[test]
fn a_later_run_goes_on_with_what_an_earlier_one_left() {
    let (folder, mut hub) = (Folder::new("later"), hub());
    hub.cuts = Mutex::new(vec![0; 100]);
    hub.cuts.lock().unwrap().extend([120_000, usize::MAX, usize::MAX]);
    let server = hub.serve();
    let first = options(&folder, &server.endpoint);
    let said = refused("owner/name", &first);
    assert!(said.starts_with("owner/name: could not reach http://127.0.0.1:"), "{said}");
    assert!(said.ends_with("; run again to go on from where it stopped"), "{said}");
    let part = blobs(&first).join(hash(".gguf", &weights())).with_added_extension("incomplete");
    assert_eq!(fs::read(&part).unwrap(), weights()[..120_000]);
    let snapshot = first.cache.join("models--owner--name/snapshots").join(COMMIT);
    assert_eq!(files(&snapshot), ["config.json", "tokenizer.json"], "the weights have no name yet");
    assert!(resolve("owner/name", &offline(&folder)).is_err());

    let server = super::online::hub().serve();
    let path = resolve("owner/name", &options(&folder, &server.endpoint)).unwrap();
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), weights());
    assert!(!part.exists());
    let requests = server.requests();
    let seen: Vec<_> = gets(&requests, "").iter().map(|get| (get.range.as_deref(), get.sent)).collect();
    assert_eq!(seen, [(Some("bytes=120000-"), 180_000)]);
    assert!(!requests.iter().any(|request| request.path.ends_with("config.json")), "it was there");
}

#[test]
fn a_server_without_ranges_sends_the_whole_file_again() {
    let (folder, mut hub) = (Folder::new("ranges"), hub());
    hub.ignores_ranges = true;
    hub.cuts = Mutex::new(vec![usize::MAX, 70_000, usize::MAX, usize::MAX]);
    let server = hub.serve();
    let path = resolve("owner/name", &options(&folder, &server.endpoint)).unwrap();
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), weights());
    let sent: Vec<usize> = gets(&server.requests(), "").iter().map(|get| get.sent).collect();
    assert_eq!(sent, [70_000, 300_000]);
}

#[test]
fn content_that_is_not_what_was_promised_is_refused_and_removed() {
    let cases: [(Corrupt, &str); 3] = [
        (|content| content[10] ^= 1, "was damaged on its way: its hash is not"),
        (|content| content.truncate(15), "came with another size than the 23 bytes it should have"),
        (|content| content.push(0), "came with another size than the 23 bytes it should have"),
    ];
    for (corrupt, wanted) in cases {
        let (folder, mut hub) = (Folder::new("corrupt"), hub());
        hub.corrupt = Some(corrupt);
        let options = options(&folder, &hub.serve().endpoint);
        let said = refused("owner/name", &options);
        assert!(said.starts_with(&format!("owner/name: `config.json` {wanted}")), "{said}");
        assert!(files(&blobs(&options)).is_empty());
        assert!(files(&options.cache.join("models--owner--name/snapshots")).is_empty());
    }
}

#[test]
fn a_damaged_part_of_an_earlier_run_is_found_out() {
    let (folder, server) = (Folder::new("rotten"), hub().serve());
    let options = options(&folder, &server.endpoint);
    let part = blobs(&options).join(hash(".gguf", &weights())).with_added_extension("incomplete");
    fs::create_dir_all(part.parent().unwrap()).unwrap();
    fs::write(&part, [0; 1000]).unwrap();
    assert!(refused("owner/name", &options).contains("`model.safetensors` was damaged on its way"));
    assert!(!part.exists());
    // One that is too long cannot be a part of it at all.
    fs::write(&part, vec![0; 400_000]).unwrap();
    resolve("owner/name", &options).unwrap();
}

#[test]
fn shards_are_those_that_the_index_names() {
    let index =
        br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}"#;
    let folder = Folder::new("shards");
    let files_of = |names: &[&str]| {
        let mut hub = Hub::new(&[("config.json", CONFIG), ("model.safetensors.index.json", index)]);
        hub.files.extend(names.iter().map(|name| ((*name).to_owned(), name.as_bytes().to_vec())));
        hub.serve()
    };
    let server = files_of(&["model-1.safetensors"]);
    let said = refused("owner/name", &options(&folder, &server.endpoint));
    let wanted = "owner/name: `model-2.safetensors` belongs to the weights, but the repository does not have it";
    assert_eq!(said, wanted);
    let server = files_of(&["model-1.safetensors", "model-2.safetensors", "consolidated.safetensors"]);
    let path = resolve("owner/name", &options(&folder, &server.endpoint)).unwrap();
    let wanted = ["config.json", "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"];
    assert_eq!(files(&path), wanted);
}

#[test]
fn a_repository_of_gguf_files_is_listed_and_one_is_brought() {
    let folder = Folder::new("gguf");
    let hub = Hub::new(&[("config.json", CONFIG), ("q4.gguf", &[7; 1_500_000]), ("big/q8 0.gguf", b"12345678")]);
    let server = hub.serve();
    let options = options(&folder, &server.endpoint);
    let list = "\n  big/q8 0.gguf  (8 B)\n  q4.gguf  (1.5 MB)";
    let wanted = "owner/name: holds no safetensors but GGUF files; name one of them as `owner/name:FILE`:";
    assert_eq!(refused("owner/name", &options), format!("{wanted}{list}"));
    let wanted = "owner/name: has no file `q5.gguf`; its GGUF files are:";
    assert_eq!(refused("owner/name:q5.gguf", &options), format!("{wanted}{list}"));
    let path = resolve("owner/name/q4.gguf", &options).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [7; 1_500_000]);
    assert_eq!(files(path.parent().unwrap()), ["q4.gguf"]);
    server.requests();
}

#[test]
fn a_file_in_a_folder_is_linked_from_there() {
    let folder = Folder::new("folder");
    let server = Hub::new(&[("big/q8.gguf", b"12345678")]).serve();
    let path = resolve("owner/name@refs/pr/1:big/q8.gguf", &options(&folder, &server.endpoint)).unwrap();
    assert!(path.ends_with(Path::new(COMMIT).join("big/q8.gguf")));
    assert_eq!(fs::read(&path).unwrap(), b"12345678");
    assert_eq!(server.requests()[0].path, "/api/models/owner/name/revision/refs%2Fpr%2F1?blobs=true");
    assert_eq!(resolve("owner/name@refs/pr/1:big/q8.gguf", &offline(&folder)).unwrap(), path);
}

#[test]
fn repositories_without_weights_are_refused() {
    for (file, wanted) in
        [("pytorch_model.bin", "pickles, which can run code"), ("README.md", "no weights that ptero reads")]
    {
        let (folder, server) = (Folder::new("weights"), Hub::new(&[("config.json", CONFIG), (file, b"x")]).serve());
        let said = refused("owner/name", &options(&folder, &server.endpoint));
        assert!(said.contains(wanted), "{said}");
        assert_eq!(server.requests().len(), 1, "nothing was downloaded");
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused_before_anything_is_written() {
    for name in ["../x.gguf", "/etc/x", "a/../../x", "a\\x", "C:x", "a//x", ".", "x\u{1b}[2J", "x\u{202e}y", "x\0y"] {
        let (folder, mut hub) = (Folder::new("attack"), hub());
        hub.files.insert(name.to_owned(), b"x".to_vec());
        let server = hub.serve();
        let said = refused("owner/name", &options(&folder, &server.endpoint));
        assert!(said.contains("which is not safe to write; nothing was downloaded"), "{said}");
        assert!(!said.contains(['\u{1b}', '\u{202e}']), "{said:?}");
        assert!(files(&folder.0).is_empty());
    }
    for commit in ["../../../../elsewhere", "main", ""] {
        let (folder, mut hub) = (Folder::new("attack-commit"), hub());
        hub.commit = commit.to_owned();
        let said = refused("owner/name", &options(&folder, &hub.serve().endpoint));
        assert!(said.contains("(not a commit)"), "{said}");
        assert!(files(&folder.0).is_empty());
    }
    let folder = Folder::new("attack-shard");
    let index = br#"{"weight_map": {"t": "../../../../x.safetensors"}}"#;
    let server = Hub::new(&[("config.json", CONFIG), ("model.safetensors.index.json", index)]).serve();
    let said = refused("owner/name", &options(&folder, &server.endpoint));
    assert!(said.starts_with("owner/name: its index of shards: tensor `t`: "), "{said}");
}

#[test]
fn a_commit_is_that_commit_and_no_other() {
    let (folder, server) = (Folder::new("commit"), hub().serve());
    let options = options(&folder, &server.endpoint);
    let said = refused(&format!("owner/name@{}", "0".repeat(40)), &options);
    assert!(said.contains("(another commit than was asked for)"), "{said}");
    assert!(files(&folder.0).is_empty());
    resolve(format!("owner/name@{COMMIT}"), &options).unwrap();
}

#[test]
fn every_status_says_what_to_do() {
    let token = || Some(Token::new("secret"));
    for (status, headers, token, wanted) in [
        (401, "", None, "check the spelling; for a private or gated repository set HF_TOKEN"),
        (401, "", token(), "it does not accept your token"),
        (403, "", token(), "accept the conditions on its page"),
        (404, "\r\nx-error-code: RepoNotFound", None, "no such repository (404): check the spelling"),
        (404, "\r\nx-error-code: RevisionNotFound", None, "no such revision of this repository (404)"),
        (418, "", None, "status 418, which makes no sense here; is HF_ENDPOINT right?"),
        (503, "", None, "busy or broken (status 503); run again later"),
        (200, "", None, "not that of a hub (not a list of files)"),
    ] {
        let (folder, mut hub) = (Folder::new("status"), hub());
        hub.status = Some((status, headers));
        let server = hub.serve();
        let said = refused("owner/name", &Options { token, ..options(&folder, &server.endpoint) });
        assert!(said.starts_with("owner/name: ") && said.contains(wanted), "{said}");
        assert_eq!(server.requests().len(), if status == 503 { 3 } else { 1 }, "only what may pass is tried again");
    }
}

#[test]
fn sizes_and_hashes_that_are_not_listed_are_asked_for() {
    let (folder, mut hub) = (Folder::new("unlisted"), hub());
    hub.lists_only_names = true;
    let server = hub.serve();
    let path = resolve("owner/name", &options(&folder, &server.endpoint)).unwrap();
    assert_eq!(fs::read(path.join("model.safetensors")).unwrap(), weights());
    assert_eq!(server.requests().iter().filter(|request| request.method == "HEAD").count(), 3);
}

#[test]
fn the_copy_in_the_cache_is_taken_when_nobody_answers() {
    let (folder, server) = (Folder::new("nobody"), hub().serve());
    let path = resolve("owner/name", &options(&folder, &server.endpoint)).unwrap();
    // Nobody can listen there.
    let nobody = options(&folder, "http://127.0.0.1:0");
    assert_eq!(resolve("owner/name", &nobody).unwrap(), path);
    assert!(refused("owner/other", &nobody).starts_with("owner/other: could not reach http://127.0.0.1:0: "));
}

#[test]
fn two_that_want_the_same_download_it_once() {
    let (folder, mut hub) = (Folder::new("twice"), hub());
    hub.pause_ms = 20;
    let server: Server = hub.serve();
    let options = options(&folder, &server.endpoint);
    let paths = std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| resolve("owner/name", &options).unwrap()));
        both.map(|one| one.join().unwrap())
    });
    assert_eq!(paths[0], paths[1]);
    assert_eq!(gets(&server.requests(), "model.safetensors").len(), 1);
}
