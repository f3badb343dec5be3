//! Folders that are not as they should be.

mod common;

use common::{refusal, safetensors};
use ptero_checkpoint::{Checkpoint, Limits, Result};
use std::path::PathBuf;

/// A folder of its own for each test, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let path = std::env::temp_dir().join(format!("ptero-checkpoint-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("writable");
        for (name, bytes) in files {
            std::fs::write(path.join(name), bytes).expect("writable");
        }
        Self(path)
    }

    fn open(&self) -> Result<Checkpoint> {
        Checkpoint::open(&self.0, &Limits::DEFAULT)
    }

    /// The error message after the path of the folder.
    fn refusal(&self) -> String {
        let text = refusal(self.open());
        text.strip_prefix(&*self.0.to_string_lossy()).expect("names the folder").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn of_one(name: &str) -> Vec<u8> {
    safetensors(&format!(r#"{{"{name}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}}"#), 4)
}

#[test]
fn one_file_is_preferred_to_shards_and_a_config_is_not_needed() {
    let index = br#"{"weight_map":{"t":"gone.safetensors"}}"#;
    let files: [(&str, &[u8]); 2] = [("model.safetensors", &of_one("t")), ("model.safetensors.index.json", index)];
    let checkpoint = Folder::new("one", &files).open().unwrap();
    assert_eq!(checkpoint.tensors().len(), 1);
    assert!(checkpoint.config().is_none());
    assert_eq!(checkpoint.chat_template(&Limits::DEFAULT).unwrap(), None);
}

#[test]
fn a_template_of_its_own_is_preferred() {
    let files: [(&str, &[u8]); 3] = [
        ("model.safetensors", &of_one("t")),
        ("chat_template.jinja", b"own"),
        ("tokenizer_config.json", br#"{"chat_template": "other"}"#),
    ];
    let folder = Folder::new("template", &files);
    assert_eq!(folder.open().unwrap().chat_template(&Limits::DEFAULT).unwrap().unwrap(), "own");
    std::fs::remove_file(folder.0.join("chat_template.jinja")).unwrap();
    assert_eq!(folder.open().unwrap().chat_template(&Limits::DEFAULT).unwrap().unwrap(), "other");
}

#[test]
fn shards_that_are_absent_or_lack_a_tensor_are_told() {
    let index = br#"{"weight_map":{"t":"a.safetensors","u":"a.safetensors"}}"#;
    let folder = Folder::new("shards", &[("model.safetensors.index.json", index)]);
    assert!(folder.refusal().starts_with("/a.safetensors: No such file"), "{}", folder.refusal());
    std::fs::write(folder.0.join("a.safetensors"), of_one("t")).unwrap();
    let wanted = "/model.safetensors.index.json: tensor `u`: not in `a.safetensors`, where the index says it is";
    assert_eq!(folder.refusal(), wanted);
    std::fs::write(folder.0.join("a.safetensors"), of_one("t").split_last().unwrap().1).unwrap();
    let wanted = "/a.safetensors: tensor `t`: 4 bytes at offset 0 reach outside the 3 bytes there are";
    assert_eq!(folder.refusal(), wanted);
}

#[test]
fn what_else_a_shard_holds_is_not_part_of_the_checkpoint() {
    let index = br#"{"weight_map":{"t":"a.safetensors"}}"#;
    let files: [(&str, &[u8]); 3] =
        [("model.safetensors.index.json", index), ("a.safetensors", &of_one("t")), ("b.safetensors", &of_one("u"))];
    assert_eq!(Folder::new("rest", &files).open().unwrap().tensors().len(), 1);
}

#[test]
fn pickles_and_bad_configs_are_refused() {
    let pickle = Folder::new("pickle", &[("pytorch_model.bin", b"")]);
    assert!(pickle.refusal().starts_with(": `pytorch_model.bin` is not read"));
    let config = Folder::new("config", &[("model.safetensors", &of_one("t")), ("config.json", b"[]")]);
    assert_eq!(config.refusal(), ": config.json: not a JSON object");
    std::fs::write(config.0.join("config.json"), b"{").unwrap();
    assert!(config.refusal().starts_with(": config.json: EOF"), "{}", config.refusal());
}
