use super::Tokenizer;
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
    fn no_change_of_a_file_makes_the_reader_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), strange()), 1..4),
    ) {
        let mut file = small();
        for (place, value) in changes {
            let mut all = Vec::new();
            places(&file, "", &mut all);
            *file.pointer_mut(&all[place.index(all.len())]).unwrap() = value;
        }
        used(&serde_json::to_vec(&file).unwrap());
    }

    #[test]
    fn no_damaged_byte_makes_the_reader_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = serde_json::to_vec(&small()).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        used(&bytes);
    }
}
