//! The `tokenizer.json` that is made of a GGUF file's vocabulary. What it does to texts is compared with llama.cpp by
//! `conformance/check_tokenizer.py`; here stands what it says.

mod common;

use common::{array, gguf, read_gguf, text};
use ptero_checkpoint::{Checkpoint, Kind, Limits};
use serde_json::{Value, json};
use std::path::Path;

const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// A key below `tokenizer.ggml.`, the type of its value, the value.
type Pair = (&'static str, u32, Vec<u8>);

fn word(key: &'static str, value: &str) -> Pair {
    (key, STRING, text(value))
}

fn number(key: &'static str, value: u32) -> Pair {
    (key, U32, value.to_le_bytes().to_vec())
}

fn truth(key: &'static str, value: bool) -> Pair {
    (key, BOOL, vec![value.into()])
}

fn texts(key: &'static str, values: &[&str]) -> Pair {
    let items = values.iter().flat_map(|value| text(value));
    (key, ARRAY, array(STRING, values.len() as u64).into_iter().chain(items).collect())
}

fn types(values: &[i32]) -> Pair {
    let items = values.iter().flat_map(|value| value.to_le_bytes());
    ("token_type", ARRAY, array(I32, values.len() as u64).into_iter().chain(items).collect())
}

fn scores(values: &[f32]) -> Pair {
    let items = values.iter().flat_map(|value| value.to_le_bytes());
    ("scores", ARRAY, array(F32, values.len() as u64).into_iter().chain(items).collect())
}

fn checkpoint(pairs: &[Pair]) -> Checkpoint {
    let keys: Vec<_> = pairs.iter().map(|(key, ..)| format!("tokenizer.ggml.{key}")).collect();
    let pairs: Vec<_> =
        keys.iter().zip(pairs).map(|(key, (_, kind, value))| (key.as_str(), *kind, &value[..])).collect();
    read_gguf(gguf(&pairs, &[], 32, 0)).expect("sound: the tokenizer is not looked at")
}

fn made(name: &str, pairs: &[Pair]) -> Value {
    let bytes = checkpoint(pairs).file(name).expect("sound").expect("there");
    serde_json::from_slice(&bytes).expect("JSON")
}

fn refused(pairs: &[Pair]) -> String {
    checkpoint(pairs).file("tokenizer.json").expect_err("must be refused").to_string()
}

/// A byte-level vocabulary: an end, three letters, a space, and what is made of them.
fn bytes(pre: &str) -> Vec<Pair> {
    vec![
        word("model", "gpt2"),
        word("pre", pre),
        texts("tokens", &["<end>", "a", "b", "Ġ", "ab", "Ġab", "<tool>"]),
        types(&[3, 1, 1, 1, 1, 1, 4]),
        texts("merges", &["a b", "Ġ ab", "b x", "a a"]),
        number("bos_token_id", 0),
    ]
}

#[test]
fn a_byte_level_vocabulary_is_pairs_in_their_order() {
    let json = made("tokenizer.json", &bytes("smollm"));
    let model = &json["model"];
    assert_eq!(model["type"], "BPE");
    assert_eq!(model["vocab"], json!({"<end>": 0, "a": 1, "b": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "<tool>": 6}));
    assert_eq!(model["merges"], json!([["a", "b"], ["Ġ", "ab"]]), "pairs of what are no tokens are left out");
    let added = json["added_tokens"].as_array().unwrap();
    let shown: Vec<_> = added.iter().map(|token| (&token["id"], &token["content"], &token["special"])).collect();
    assert_eq!(shown, [(&json!(0), &json!("<end>"), &json!(true)), (&json!(6), &json!("<tool>"), &json!(false))]);
    let steps = json["pre_tokenizer"]["pretokenizers"].as_array().unwrap();
    assert_eq!((&steps[0]["pattern"]["Regex"], &steps[1]["use_regex"]), (&json!(r"\p{N}"), &json!(true)));
    assert_eq!((&json["normalizer"], &json["post_processor"]), (&Value::Null, &Value::Null));
}

#[test]
fn pre_tokenizers_differ_in_what_they_do_before_and_around() {
    for (pre, whole_words, starts, composes) in
        [("llama-bpe", true, true, false), ("qwen2", false, false, true), ("gpt-2", false, false, false)]
    {
        let json = made("tokenizer.json", &bytes(pre));
        assert_eq!(json["model"]["ignore_merges"], whole_words, "{pre}");
        assert_eq!(json["post_processor"]["single"][0]["SpecialToken"]["id"] == "<end>", starts, "{pre}");
        assert_eq!(json["normalizer"]["type"] == "NFC", composes, "{pre}");
    }
    let told = [bytes("llama-bpe"), vec![truth("add_bos_token", false)]].concat();
    assert_eq!(made("tokenizer.json", &told)["post_processor"], Value::Null, "what the file says is done");
    let ends = [bytes("gpt-2"), vec![truth("add_eos_token", true), number("eos_token_id", 0)]].concat();
    let single = json!([{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<end>", "type_id": 0}}]);
    assert_eq!(made("tokenizer.json", &ends)["post_processor"]["single"], single);
}

#[test]
fn pieces_with_scores_become_pairs_the_highest_score_first() {
    let pieces = vec![
        word("model", "llama"),
        texts("tokens", &["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁ab", "▁a"]),
        types(&[2, 3, 3, 6, 1, 1, 1, 1, 1, 1]),
        scores(&[0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0]),
    ];
    let json = made("tokenizer.json", &pieces);
    let wanted = json!([["▁a", "b"], ["▁", "ab"], ["a", "b"], ["▁", "a"]]);
    assert_eq!(json["model"]["merges"], wanted);
    assert_eq!(json["model"]["byte_fallback"], true);
    assert_eq!(json["model"]["unk_token"], "<unk>");
    assert_eq!(json["post_processor"]["special_tokens"]["<s>"]["ids"], json!([1]));
    assert_eq!(json["normalizer"]["normalizers"][0]["prepend"], "▁");
    let plain = [pieces, vec![truth("add_space_prefix", false)]].concat();
    assert_eq!(made("tokenizer.json", &plain)["normalizer"]["type"], "Replace");
}

#[test]
fn the_config_of_a_tokenizer_names_its_special_tokens() {
    let mut pairs = bytes("llama-bpe");
    pairs.extend([number("eos_token_id", 4), number("padding_token_id", 99)]);
    let wanted = json!({
        "bos_token": "<end>", "eos_token": "ab", "add_bos_token": true, "add_eos_token": false,
        "clean_up_tokenization_spaces": false, "tokenizer_class": "PreTrainedTokenizerFast",
    });
    assert_eq!(made("tokenizer_config.json", &pairs), wanted);
}

#[test]
fn files_without_a_vocabulary_have_no_tokenizer() {
    for pairs in [vec![], vec![word("model", "no_vocab")]] {
        for name in ["tokenizer.json", "tokenizer_config.json", "config.json", "odd"] {
            assert!(checkpoint(&pairs).file(name).unwrap().is_none());
        }
    }
}

#[test]
fn an_unknown_tokenizer_is_refused_only_when_it_is_asked_for() {
    let file = checkpoint(&[word("model", "bert")]);
    assert_eq!(file.chat_template(&Limits::DEFAULT).unwrap(), None);
    let error = file.file("tokenizer.json").unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    let wanted = "key `tokenizer.ggml.model`: `bert` is not a tokenizer that ptero knows (gpt2, llama, gemma4)";
    assert_eq!(error.to_string(), wanted);
    let error = refused(&bytes("odd\u{1b}"));
    assert!(
        error.starts_with("key `tokenizer.ggml.pre`: `odd\\u{1b}` is not a pre-tokenizer that ptero knows (gpt-2, ")
    );
    assert!(error.contains(", smollm, ") && error.contains(", qwen35, ") && error.ends_with("default)"), "{error}");
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let with = |key: &str, other: Pair| {
        let mut pairs: Vec<_> = bytes("gpt-2").into_iter().filter(|(found, ..)| *found != key).collect();
        pairs.push(other);
        refused(&pairs)
    };
    let without =
        |key: &str| refused(&bytes("gpt-2").into_iter().filter(|(found, ..)| *found != key).collect::<Vec<_>>());
    let missing = |key: &str| format!("key `tokenizer.ggml.{key}`: no such key, which tokenizer `gpt2` must have");
    assert_eq!(without("tokens"), missing("tokens"));
    assert_eq!(without("merges"), missing("merges"));
    assert_eq!(with("tokens", number("tokens", 1)), "key `tokenizer.ggml.tokens`: not an array of texts");
    let short = with("token_type", types(&[1, 1]));
    assert_eq!(short, "key `tokenizer.ggml.token_type`: not as long as the list of tokens");
    let single = with("merges", texts("merges", &["a b", "ab"]));
    assert_eq!(single, "key `tokenizer.ggml.merges`, element 1: not two tokens with a space between them");
    assert_eq!(
        with("bos_token_id", word("bos_token_id", "a")),
        "key `tokenizer.ggml.bos_token_id`: not a whole number that is not negative"
    );
    let long = "a".repeat(513);
    let pieces = [word("model", "llama"), texts("tokens", &["a", &long]), scores(&[0.0, 0.0])];
    let wanted = "key `tokenizer.ggml.tokens`, element 1: 513 bytes of a token, over the limit of 512";
    assert_eq!(refused(&pieces), wanted);
    let fewer = [word("model", "llama"), texts("tokens", &["a", "b"]), scores(&[0.0])];
    assert!(refused(&fewer).starts_with("key `tokenizer.ggml.scores`: not an array of 32-bit floats, as long"));
}

#[test]
fn a_pair_may_start_with_a_space_or_more_than_one_byte() {
    let mut pairs = bytes("gpt-2");
    pairs[2] = texts("tokens", &["<end>", " ", "é", " é", "éé", "", "x"]);
    pairs[4] = texts("merges", &["  é", "é é"]);
    let json = made("tokenizer.json", &pairs);
    assert_eq!(json["model"]["merges"], json!([[" ", "é"], ["é", "é"]]));
    assert_eq!(json["model"]["vocab"]["[EMPTY_5]"], 5, "a token has a name even if it is empty");
}

#[test]
fn a_file_that_does_not_say_what_tokens_are_for_has_special_ones_all_the_same() {
    let pairs: Vec<_> = bytes("gpt-2").into_iter().filter(|(key, ..)| *key != "token_type").collect();
    let json = made("tokenizer.json", &pairs);
    assert_eq!(json["added_tokens"].as_array().unwrap().len(), 1);
    assert_eq!(json["added_tokens"][0]["content"], "<end>");
}

#[test]
fn a_file_of_the_python_package_has_both() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/llama.gguf");
    let file = Checkpoint::open(&path, &Limits::DEFAULT).unwrap();
    let json = |name: &str| file.json(name, &Limits::DEFAULT).unwrap().unwrap();
    assert_eq!(json("tokenizer.json")["model"]["merges"], json!([["Ġ", "a"], ["a", "b"]]));
    assert_eq!(json("tokenizer_config.json")["bos_token"], "<s>");
    assert_eq!(file.config().unwrap()["eos_token_id"], 1);
}

#[test]
fn a_vocabulary_of_all_texts_has_more_pairs_than_are_followed() {
    // Every text of up to 18 of two letters: half a million pieces, and eight million ways to make one of two others.
    let pieces: Vec<String> = (1..=18_u32)
        .flat_map(|length| (0..1_u32 << length).map(move |bits| (length, bits)))
        .map(|(length, bits)| (0..length).map(|at| if bits >> at & 1 == 1 { 'a' } else { 'b' }).collect())
        .collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    let file = [
        word("model", "llama"),
        texts("tokens", &pieces),
        types(&vec![1; pieces.len()]),
        scores(&vec![0.0; pieces.len()]),
    ];
    let said = refused(&file);
    assert!(
        said.starts_with("key `tokenizer.ggml.tokens`: 41943") && said.ends_with("over the limit of 4194304"),
        "{said}"
    );
}
