use crate::{Error, Limits, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A vocabulary of these tokens and this decoder, ours and the library's.
fn pair(tokens: &[String], special: &[&str], decoder: &Value) -> (Tokenizer, tokenizers::Tokenizer) {
    let vocabulary: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(id, token)| {
            json!({"id": vocabulary.len() + id, "content": token, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    });
    let bytes = serde_json::to_vec(&file).unwrap();
    let ours = Tokenizer::from_json(&bytes, None, &Limits::default()).unwrap();
    (ours, tokenizers::Tokenizer::from_bytes(&bytes).unwrap())
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap()
}

/// GPT-2's spelling of bytes, by its rule: printable bytes stay, the others come after them in order.
fn spelled(bytes: &[u8]) -> String {
    let stays = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let character = |byte: u8| match stays(byte) {
        true => char::from(byte),
        false => char::from_u32(256 + number((0..byte).filter(|&byte| !stays(byte)).count())).unwrap(),
    };
    bytes.iter().map(|&byte| character(byte)).collect()
}

fn sequence(steps: Value) -> Value {
    json!({"type": "Sequence", "decoders": steps})
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

fn llama() -> Value {
    sequence(json!([
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]))
}

fn metaspace(scheme: &str) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true})
}

/// Pieces are final and whole: together they are the text, and at no time more than a character is missing.
fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut detokenizer = tokenizer.detokenizer(skip_special);
    let mut text = String::new();
    for &id in ids {
        if let Some(piece) = detokenizer.push(id) {
            assert!(!piece.is_empty());
            text.push_str(&piece);
        }
    }
    text.extend(detokenizer.finish());
    text
}

fn pieces() -> Vec<String> {
    ["▁", "▁▁", "▁a", "b", " ", "  c", "é", "▁é▁", "<0xZZ>", "<0x4", "?", "\u{fffd}", "😀", "", "d▁"]
        .map(String::from)
        .to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn byte_level_pieces_are_the_librarys_text(
        tokens in prop::collection::hash_set(prop::collection::vec(any::<u8>(), 0..5), 1..40),
        texts in prop::collection::vec("\\PC{1,3}", 0..20),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        skip in any::<bool>(),
    ) {
        // Tokens of random bytes, halves of characters, and a token that is not spelled in bytes.
        let halves = texts.iter().flat_map(|text| { let (a, b) = text.as_bytes().split_at(text.len() / 2); [a.to_vec(), b.to_vec()] });
        let mut tokens: Vec<String> = tokens.into_iter().chain(halves).map(|bytes| spelled(&bytes)).collect();
        tokens.extend(["not spelled 😀".to_owned(), "?".to_owned()]);
        tokens.sort();
        tokens.dedup();
        let (ours, library) = pair(&tokens, &["<|end|>", "<a b>"], &byte_level());
        let ids: Vec<u32> = picks.iter().map(|pick| number(pick.index(tokens.len() + 4))).collect();
        prop_assert_eq!(streamed(&ours, &ids, skip), library.decode(&ids, skip).unwrap());
    }

    #[test]
    fn pieces_with_marked_spaces_are_the_librarys_text(
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
        skip in any::<bool>(),
    ) {
        for decoder in [llama(), metaspace("always"), metaspace("first"), metaspace("never"), Value::Null, json!({"type": "Fuse"}),
            sequence(json!([{"type": "Strip", "content": "▁", "start": 1, "stop": 0}, {"type": "Fuse"}])),
            sequence(json!([{"type": "ByteFallback"}, metaspace("always")])),
            sequence(json!([{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "▁"}, "content": "--"}]))] {
            let tokens = pieces();
            let (ours, library) = pair(&tokens, &["<s>", "▁</s>"], &decoder);
            let ids: Vec<u32> = picks.iter().map(|pick| number(pick.index(tokens.len() + 4))).collect();
            prop_assert_eq!(streamed(&ours, &ids, skip), library.decode(&ids, skip).unwrap(), "{}", decoder);
        }
    }

    #[test]
    fn bytes_that_are_characters_are_the_librarys_text(text in prop::collection::vec(("\\PC?", any::<bool>()), 0..20)) {
        let bytes = (0..=255).map(|byte: u8| format!("<0x{byte:02X}>"));
        let tokens: Vec<String> = bytes.chain(pieces()).collect();
        let (ours, library) = pair(&tokens, &[], &llama());
        let ids: Vec<u32> = text.iter().flat_map(|(character, other)| {
            character.bytes().map(u32::from).chain(other.then_some(256 + number(character.len()))).collect::<Vec<_>>()
        }).collect();
        prop_assert_eq!(streamed(&ours, &ids, false), library.decode(&ids, false).unwrap());
    }

    #[test]
    fn of_bytes_that_are_none_only_the_bad_ones_are_replaced(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
        let tokens: Vec<String> = (0..=255).map(|byte: u8| format!("<0x{byte:02X}>")).chain(["?".to_owned()]).collect();
        let (ours, _) = pair(&tokens, &[], &sequence(json!([{"type": "ByteFallback"}, {"type": "Fuse"}])));
        let ids: Vec<u32> = bytes.iter().copied().map(u32::from).collect();
        let naive: String = bytes.utf8_chunks().flat_map(|chunk| {
            chunk.valid().chars().chain(chunk.invalid().iter().map(|_| '\u{fffd}')).collect::<Vec<_>>()
        }).collect();
        prop_assert_eq!(streamed(&ours, &ids, false), naive);
    }
}

#[test]
fn a_character_comes_when_its_last_byte_does() {
    let tokens: Vec<String> = [&[0xf0, 0x9f][..], &[0x98], &[0x80, b'!'], b"?"].map(spelled).to_vec();
    let (ours, _) = pair(&tokens, &[], &byte_level());
    let mut detokenizer = ours.detokenizer(false);
    assert_eq!(detokenizer.push(0), None);
    assert_eq!(detokenizer.push(1), None);
    assert_eq!(detokenizer.push(2), Some("😀!".to_owned()));
    assert_eq!(detokenizer.push(0), None);
    assert_eq!(detokenizer.push(999), None);
    assert_eq!(detokenizer.finish(), Some("\u{fffd}".to_owned()));
}

#[test]
fn decoders_that_cannot_be_streamed_are_refused() {
    let limits = Limits::default();
    let read = |decoder: Value| super::read_decoder(Some(&decoder), &limits).unwrap_err();
    assert!(matches!(read(json!({"type": "CTC"})), Error::Unsupported { .. }));
    assert!(matches!(
        read(json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""})),
        Error::Malformed { .. }
    ));
    assert!(matches!(read(json!("Fuse")), Error::Unsupported { .. }));
    assert!(matches!(
        read(sequence(json!([{"type": "Fuse"}, {"type": "ByteFallback"}]))),
        Error::AfterFuse("ByteFallback")
    ));
    let mut deep = json!({"type": "Fuse"});
    for _ in 0..20 {
        deep = sequence(json!([deep]));
    }
    assert!(matches!(read(deep), Error::TooMany { .. }));
    let grows = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(100)});
    assert!(matches!(read(sequence(json!([grows, grows, grows]))), Error::TooMany { .. }));
}
