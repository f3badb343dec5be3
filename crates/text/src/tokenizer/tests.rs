use super::{Tokenizer, guarded};
use crate::{Error, Limits};
use proptest::prelude::*;
use serde_json::{Value, json};

fn small() -> Value {
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "a"},
        "added_tokens": [{"id": 8, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "▁?[^▁]+|▁"}, "behavior": "Isolated", "invert": false},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [8], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": 0.5, "unk_token": "?", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": {"?": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "ab": 5, "<0xC3>": 6, "<0xA9>": 7},
            "merges": [["▁", "a"], ["a", "b"]]},
    })
}

fn read(file: &Value) -> crate::Result<Tokenizer> {
    let config = br#"{"bos_token": {"content": "<s>"}, "eos_token": "b", "pad_token": null, "model_max_length": 4}"#;
    Tokenizer::from_json(&serde_json::to_vec(file).unwrap(), Some(config), &Limits::default())
}

#[test]
fn a_text_goes_there_and_back() {
    let tokenizer = read(&small()).unwrap();
    assert_eq!(tokenizer.encode("a b aé", false).unwrap(), [4, 1, 3, 4, 6, 7]);
    assert_eq!(tokenizer.encode("a", true).unwrap(), [8, 4]);
    assert_eq!(tokenizer.decode(&[8, 4, 1, 3, 4, 6, 7], true), "a b aé");
    assert_eq!(tokenizer.decode(&[8, 4, 1, 3], false), "<s> a b");
    // What looks like a special token is one.
    assert_eq!(tokenizer.encode("<s>", false).unwrap(), [8]);
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.vocabulary_size()), (Some(8), Some(3), 9));
    assert_eq!(tokenizer.token_to_id("▁a"), Some(4));
    assert_eq!(tokenizer.special_tokens().len(), 2);
}

#[test]
fn what_contradicts_itself_is_refused() {
    let changed = |path: &str, value: Value| {
        let mut file = small();
        *file.pointer_mut(path).unwrap() = value;
        read(&file).unwrap_err()
    };
    assert!(matches!(changed("/added_tokens/0/id", json!(12)), Error::AddedId { told: 12, found: Some(8), .. }));
    assert!(matches!(changed("/added_tokens/0/content", json!("")), Error::Malformed { .. }));
    assert!(matches!(changed("/model/merges/0/0", json!("c")), Error::Tokenizer { .. }));
    assert!(matches!(changed("/model/merges/0/0", json!("longer than all")), Error::Malformed { .. }));
    // The library would cut inside a character.
    assert!(matches!(changed("/model/continuing_subword_prefix", json!("#")), Error::Malformed { .. }));
    assert!(matches!(changed("/post_processor/special_tokens", json!({})), Error::Malformed { .. }));
    assert!(matches!(changed("/normalizer", json!({"type": "Precompiled"})), Error::Malformed { .. }));
    assert!(matches!(changed("/model/type", json!("Magic")), Error::Unsupported { .. }));
    assert!(matches!(changed("/decoder", json!(7)), Error::Unsupported { .. }));
    assert!(matches!(
        changed("/pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
        Error::Unsupported { .. }
    ));
    let grows = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "a".repeat(100)});
    let grows = json!({"type": "Sequence", "normalizers": [grows, grows, grows]});
    assert!(matches!(changed("/normalizer", grows), Error::TooMany { .. }));
    let mut deep = json!({"type": "NFC"});
    for _ in 0..20 {
        deep = json!({"type": "Sequence", "normalizers": [deep]});
    }
    assert!(matches!(changed("/normalizer", deep), Error::TooMany { .. }));
    let limits = Limits { json_bytes: 10, text_bytes: 3, ..Limits::default() };
    assert!(matches!(Tokenizer::from_json(&[b' '; 11], None, &limits), Err(Error::TooMany { .. })));
    assert!(matches!(Tokenizer::from_json(b"[]", None, &limits), Err(Error::NotAnObject(_))));
    assert!(matches!(Tokenizer::from_json(b"{", None, &limits), Err(Error::NotJson { .. })));
}

/// One added token, or one text, that a pattern which matches everywhere would make gigabytes of.
#[test]
fn what_would_grow_to_gigabytes_is_refused_before_it_does() {
    let normalized = "bytes of normalized text, at the most that `tokenizer.json` can make of it,";
    let mut file = small();
    file["normalizer"] = json!({"type": "Replace", "pattern": {"String": ""}, "content": "a".repeat(4095)});
    let tokenizer = read(&file).unwrap();
    assert!(tokenizer.encode("ab", false).is_ok());
    let error = tokenizer.encode(&"a".repeat(1 << 14), false).unwrap_err();
    assert!(matches!(error, Error::TooMany { what, found, .. } if what == normalized && found == 4096 * 16_385));
    file["added_tokens"][0]["content"] = json!("b".repeat(200_000));
    file["post_processor"] = json!(null);
    assert!(read(&file).is_ok());
    file["added_tokens"][0]["normalized"] = json!(true);
    assert!(matches!(read(&file), Err(Error::TooMany { what, .. }) if what == normalized));
    // Each step doubles a text.
    let doubles = json!({"type": "Replace", "pattern": {"String": ""}, "content": "a"});
    file["normalizer"] = json!({"type": "Sequence", "normalizers": vec![doubles; 40]});
    assert!(matches!(read(&file), Err(Error::TooMany { what: "times longer by replacements", .. })));
    // What models have takes more than a million tokens.
    assert!(read(&small()).unwrap().0.growth * (5 << 20) <= Limits::default().normalized_bytes);
}

#[test]
fn merges_may_be_lines_of_a_file_of_old() {
    let mut file = small();
    file["model"]["merges"] = json!(["#version: 0.2", "▁ a", "a b"]);
    file["model"].as_object_mut().unwrap().remove("type");
    let tokenizer = read(&file).unwrap();
    assert_eq!(tokenizer.encode("a b aé ab", false).unwrap(), [4, 1, 3, 4, 6, 7, 4, 3]);
    for wrong in [json!(["a"]), json!(["a  b"]), json!([["a", "b", "b"]]), json!([7]), json!("a b"), json!(null)] {
        file["model"]["merges"] = wrong;
        assert!(matches!(read(&file).unwrap_err(), Error::Malformed { field: "model.merges", .. }));
    }
}

#[test]
fn tokens_have_numbers() {
    for wrong in [json!(-1), json!(1.0), json!(u64::from(u32::MAX) + 1), json!("1"), json!([1]), json!({"1": 1})] {
        let mut file = small();
        file["model"]["vocab"]["a"] = wrong;
        assert!(matches!(read(&file).unwrap_err(), Error::Malformed { field: "model.vocab", .. }));
        file["model"] = json!({"type": "WordLevel", "unk_token": "?", "vocab": file["model"]["vocab"]});
        assert!(matches!(read(&file).unwrap_err(), Error::Malformed { field: "model.vocab", .. }));
    }
}

#[test]
fn of_keys_that_come_twice_the_last_counts() {
    let twice = |from: &str, to: &str| {
        let text = serde_json::to_string(&small()).unwrap();
        assert!(text.contains(from));
        Tokenizer::from_json(text.replacen(from, to, 1).as_bytes(), None, &Limits::default())
    };
    let tokenizer = twice(r#""vocab":{"#, r#""vocab":7,"vocab":{"\u0061":9,"#).unwrap();
    assert_eq!(tokenizer.token_to_id("a"), Some(2));
    assert!(twice(r#""model":{"#, r#""model":[],"model":{"#).is_ok());
    assert!(twice(r#""dropout":0.5"#, r#""vocab":{},"merges":[],"dropout":2"#).is_ok());
    let config = br#"{"bos_token": "a", "eos_token": "b", "bos_token": null, "model": {"x_token": "c"}}"#;
    let tokenizer = Tokenizer::from_json(&serde_json::to_vec(&small()).unwrap(), Some(config), &Limits::default());
    assert_eq!((tokenizer.as_ref().unwrap().bos(), tokenizer.unwrap().eos()), (None, Some(3)));
}

#[test]
fn models_of_every_kind_are_read() {
    let words = json!({"?": 0, "a": 1, "b": 2, "##b": 3});
    let pieces =
        json!({"unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9, "vocab": words});
    let scored = json!({"unk_id": 0, "vocab": [["?", 0.0], ["a", -1.0], ["b", -1.5], ["ab", -2.0]]});
    let level = json!({"type": "WordLevel", "unk_token": "?", "vocab": words});
    // The first two are files of old, without a type.
    for (model, wanted) in [(pieces, vec![1, 3, 4]), (scored, vec![3, 4]), (level, vec![0, 4])] {
        let mut file = small();
        file["model"] = model.clone();
        file["added_tokens"][0]["id"] = json!(4);
        file["normalizer"] = json!(null);
        let tokenizer = read(&file).unwrap();
        assert_eq!(tokenizer.encode("ab<s>", false).unwrap(), wanted, "{model}");
        assert_eq!(tokenizer.vocabulary_size(), 5);
    }
}

/// All places in a value.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                places(item, &format!("{at}/{index}"), found);
            }
        }
        Value::Object(items) => {
            for (key, item) in items {
                places(item, &format!("{at}/{key}"), found);
            }
        }
        _ => {}
    }
}

/// Uses what can be read; the answers do not matter.
fn used(bytes: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_json(bytes, Some(bytes), &Limits::default()) {
        for text in ["", "a b aé <s> \u{1F600} ▁▁", "\0\n"] {
            if let Ok(ids) = tokenizer.encode(text, true) {
                let _ = tokenizer.decode(&ids, false);
            }
        }
        let _ = tokenizer.decode(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, u32::MAX], true);
        let _ = (tokenizer.bos(), tokenizer.eos());
    }
}

/// Whether the library reads a file as we do, where its own reader takes what ours takes.
fn same_as_the_library(file: &Value) {
    let bytes = serde_json::to_vec(file).unwrap();
    let Ok(ours) = Tokenizer::from_json(&bytes, None, &Limits::default()) else { return };
    let mut file = file.clone();
    for key in ["truncation", "padding", "decoder"] {
        file[key] = Value::Null;
    }
    if !file["model"]["type"].is_string() {
        return;
    }
    file["model"].as_object_mut().unwrap().remove("dropout");
    let file = serde_json::to_vec(&file).unwrap();
    let Ok(library) = guarded("read the file", || tokenizers::Tokenizer::from_bytes(file)) else { return };
    for token in library.get_vocab(true).keys() {
        assert_eq!(ours.token_to_id(token), library.token_to_id(token));
    }
    assert_eq!(ours.vocabulary_size(), library.get_vocab_size(true));
    for text in ["", "a b aé <s> ab ▁▁", "?a"] {
        // Where it panics, as templates can make it, ours is an error.
        let theirs = guarded("encode", || library.encode_fast(text, true));
        let theirs = theirs.ok().map(|encoding| encoding.get_ids().to_vec());
        assert_eq!(ours.encode(text, true).ok(), theirs);
    }
}

fn strange() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(7),
        json!(1e300),
        json!(u64::MAX),
        json!(u32::MAX),
        json!(""),
        json!("▁"),
        json!("é"),
        json!("("),
        json!("(a*)*b"),
        json!("BPE"),
        json!("Unigram"),
        json!("WordPiece"),
        json!("WordLevel"),
        json!("ByteLevel"),
        json!("Metaspace"),
        json!("Precompiled"),
        json!("Sequence"),
        json!("Removed"),
        json!([]),
        json!([null]),
        json!({}),
        json!({"type": "ByteLevel"}),
        json!([["a", 0.0]]),
        json!({"a": 0}),
        json!({"Regex": "("}),
        json!({"String": ""}),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        used(&bytes);
    }

    #[test]
    fn a_changed_file_is_refused_or_read_as_the_library_reads_it(
        changes in prop::collection::vec((any::<prop::sample::Index>(), strange()), 1..4),
    ) {
        let mut file = small();
        for (place, value) in changes {
            let mut all = Vec::new();
            places(&file, "", &mut all);
            *file.pointer_mut(&all[place.index(all.len())]).unwrap() = value;
        }
        used(&serde_json::to_vec(&file).unwrap());
        same_as_the_library(&file);
    }

    #[test]
    fn no_damaged_byte_makes_the_reader_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = serde_json::to_vec(&small()).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        used(&bytes);
    }
}
