use super::*;
use std::fs;

#[cfg(feature = "hub")]
mod online;
#[cfg(feature = "hub")]
mod server;

/// A folder that goes when the test ends well.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ptero-hub-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// Options that touch nothing outside the folder.
fn options(folder: &Folder, endpoint: &str) -> Options {
    Options {
        endpoint: endpoint.to_owned(),
        token: None,
        cache: folder.0.join("hub"),
        is_offline: false,
        progress: Progress::default(),
        pause: Duration::ZERO,
    }
}

fn offline(folder: &Folder) -> Options {
    Options { is_offline: true, ..options(folder, "http://127.0.0.1:1") }
}

#[test]
fn a_path_that_exists_is_itself() {
    let folder = Folder::new("path");
    let file = folder.0.join("owner/name");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "").unwrap();
    for path in [&folder.0, &file] {
        assert_eq!(resolve(path.to_str().unwrap(), &offline(&folder)).unwrap(), *path);
    }
}

#[test]
fn names_of_repositories_are_read() {
    for (source, id, revision, file) in [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main", None),
        ("a/b@v1.0", "a/b", "v1.0", None),
        ("a/b@refs/pr/1", "a/b", "refs/pr/1", None),
        ("a/b:c.gguf", "a/b", "main", Some("c.gguf")),
        ("a/b@dev:q4/c-00001-of-00002.GGUF", "a/b", "dev", Some("q4/c-00001-of-00002.GGUF")),
        ("a/b/c.gguf", "a/b", "main", Some("c.gguf")),
        ("a/b/q4/c.gguf@dev", "a/b", "dev", Some("q4/c.gguf")),
    ] {
        let read = Repository::parse(source).unwrap();
        assert_eq!((read.id().as_str(), read.revision(), read.file()), (id, revision, file), "{source}");
    }
}

#[test]
fn what_is_no_name_is_refused_and_the_answer_says_what_is_taken() {
    for source in [
        "",
        "gpt2",
        "/",
        "a/",
        "/b",
        "a//b",
        "./a/b",
        "../b",
        "a/..",
        "a/b/c",
        "a/b.gguf",
        "a/b.pte",
        "a/b.safetensors",
        "a/b:",
        "a/b:c",
        "a/b:../c.gguf",
        "a/b:/c.gguf",
        "a/b:c\\d.gguf",
        "a/b:x/../c.gguf",
        "a/b/../c.gguf",
        "a/b:.gguf",
        "a/b@",
        "a/b@../x",
        "a/b@x//y",
        "a/b@x y",
        "a/b@.x",
        "a/b?x=1",
        "a/b#c",
        "a/b%2e",
        "a\\b",
        "C:\\a\\b",
        "a b/c",
        "https://huggingface.co/a/b",
        "a/--b",
        "a/b\u{1b}[2J",
        "a/b:\u{1b}[2J.gguf",
        "a/b/c:d.gguf",
    ] {
        let said = Repository::parse(source).unwrap_err().to_string();
        assert!(said.contains("give a path, or `owner/name`"), "{said}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
    let folder = Folder::new("no-name");
    let said = resolve("missing.gguf", &offline(&folder)).unwrap_err().to_string();
    assert!(said.starts_with("`missing.gguf` is no file and no folder here"), "{said}");
}

#[test]
fn what_python_downloaded_is_found_offline() {
    let folder = Folder::new("python");
    let (repository, commit) = (folder.0.join("hub/models--owner--name"), "a".repeat(40));
    let snapshot = repository.join("snapshots").join(&commit);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repository.join("refs")).unwrap();
    let find = |source: &str| resolve(source, &offline(&folder)).map_err(|error| error.to_string());
    let refused = find("owner/name").unwrap_err();
    assert!(refused.starts_with("owner/name: not in the cache ("), "{refused}");
    fs::write(repository.join("refs/main"), &commit).unwrap();
    fs::write(snapshot.join("config.json"), "{}").unwrap();
    fs::write(snapshot.join("model.safetensors.index.json"), r#"{"weight_map": {"t": "a.safetensors"}}"#).unwrap();
    assert!(find("owner/name").is_err(), "a shard is missing");
    fs::write(snapshot.join("a.safetensors"), "").unwrap();
    assert_eq!(find("owner/name").unwrap(), snapshot);
    assert_eq!(find(&format!("owner/name@{commit}")).unwrap(), snapshot);
    assert!(find("owner/name@other").is_err());
    assert!(find("owner/name:q4.gguf").is_err());
    fs::write(snapshot.join("q4.gguf"), "").unwrap();
    assert_eq!(find("owner/name:q4.gguf").unwrap(), snapshot.join("q4.gguf"));
    fs::write(repository.join("refs/main"), "../../../elsewhere").unwrap();
    assert!(find("owner/name").is_err(), "a reference is a commit");
}

#[test]
fn options_are_those_of_pythons_variables() {
    let read = |variables: &[(&str, &str)]| {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Options::from_variables(Progress::default(), get)
    };
    let plain = read(&[("HF_HOME", "/none")]);
    assert_eq!((plain.endpoint.as_str(), plain.is_offline), ("https://huggingface.co", false));
    assert_eq!(plain.cache, Path::new("/none/hub"));
    assert!(plain.token.is_none());
    assert_eq!(read(&[("XDG_CACHE_HOME", "/none")]).cache, Path::new("/none/huggingface/hub"));
    assert!(read(&[]).cache.ends_with(".cache/huggingface/hub"));
    let set = read(&[
        ("HF_ENDPOINT", "https://mirror.example/"),
        ("HF_HOME", "/none"),
        ("HF_HUB_CACHE", "/cache"),
        ("HF_HUB_OFFLINE", "1"),
        ("HF_TOKEN", " secret\n"),
    ]);
    assert_eq!((set.endpoint.as_str(), set.is_offline), ("https://mirror.example", true));
    assert_eq!(set.cache, Path::new("/cache"));
    assert_eq!(set.token.as_ref().map(Token::secret), Some("secret"));
    assert!(!format!("{set:?}").contains("secret"));
    let folder = Folder::new("token");
    fs::write(folder.0.join("token"), "from-file\n").unwrap();
    let from_file = read(&[("HF_HOME", folder.0.to_str().unwrap())]);
    assert_eq!(from_file.token.as_ref().map(Token::secret), Some("from-file"));
}

#[cfg(not(feature = "hub"))]
#[test]
fn without_downloads_the_answer_says_so() {
    let folder = Folder::new("without");
    let said = resolve("owner/name", &options(&folder, "")).unwrap_err().to_string();
    assert!(said.contains("built without downloads (feature `hub`)"), "{said}");
}
