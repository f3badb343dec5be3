//! Texts of random tokens that a schema allows are valid by an independent validator.

use ptero_pte::{Bytes, Limits as ProgramLimits, Program};
use ptero_text::{Error, Grammar, Limits, Matcher, Tokenizer, Vocabulary};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The token that ends texts of the model.
const END: u32 = 0;
/// Tokens after which a text is completed.
const LONG: usize = 120;

/// Numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        for shift in [13, -7, 17_i32] {
            self.0 ^= if shift > 0 { self.0 << shift } else { self.0 >> -shift };
        }
        (self.0 % bound as u64) as usize
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tokenizer() -> Tokenizer {
    let program = Bytes::map(&root().join("models/little-qwen.pte")).unwrap();
    let program = Program::read(&program, &ProgramLimits::DEFAULT).unwrap();
    Tokenizer::from_json(program.data_by_name()["files/tokenizer.json"], None, &Limits::default()).unwrap()
}

fn allowed(mask: &[u32]) -> Vec<u32> {
    let bits = |(word, bits): (usize, &u32)| {
        (0..32).filter(|bit| bits >> bit & 1 == 1).map(move |bit| word as u32 * 32 + bit).collect::<Vec<_>>()
    };
    mask.iter().enumerate().flat_map(bits).collect()
}

/// A random text: any allowed token at first, later the ones that bring it to an end.
fn walk(matcher: &mut Matcher, tokenizer: &Tokenizer, random: &mut Random) -> Option<String> {
    let mut tokens = Vec::new();
    while !matcher.is_finished() {
        if tokens.len() > 8 * LONG {
            return None;
        }
        let mut choices = allowed(matcher.mask().unwrap());
        assert!(!choices.contains(&END) || matcher.is_complete().unwrap());
        if choices.contains(&END) && tokens.len() > LONG {
            break;
        }
        if tokens.len() > LONG {
            // Short tokens that close what is open come first.
            let closing = |token: &u32| match tokenizer.decode(&[*token], true).as_str() {
                "}" | "]" => 0,
                "\"" => 1,
                text if text.trim().is_empty() => 9,
                "," | "{" | "[" => 5,
                text => 2 + text.len().min(2),
            };
            let best = choices.iter().map(closing).min().unwrap();
            choices.retain(|token| closing(token) == best);
        }
        let token = choices[random.below(choices.len())];
        matcher.accept(token).unwrap();
        if token != END {
            tokens.push(token);
        }
    }
    Some(tokenizer.decode(&tokens, true))
}

#[test]
fn every_text_that_a_schema_allows_is_valid() {
    let tokenizer = tokenizer();
    // The model's rows are padded.
    let vocabulary = Vocabulary::new(&tokenizer, tokenizer.vocabulary_size() + 50).unwrap();
    let mut random = Random(7);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root().join("crates/text/tests/schemas")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 20);
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        let validator =
            jsonschema::options().should_validate_formats(true).build(&serde_json::from_str(&source).unwrap()).unwrap();
        let grammar =
            Grammar::json_schema(&source, &Limits::default()).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let start = Matcher::new(&grammar, &vocabulary, &[END]).unwrap();
        let mut finished = 0;
        for _ in 0..12 {
            let Some(text) = walk(&mut start.clone(), &tokenizer, &mut random) else { continue };
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file:?}: {error}: {text}"));
            let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{file:?}: {errors:?}: {text}");
            finished += 1;
        }
        assert!(finished >= 6, "{file:?}: only {finished} texts of twelve came to an end");
    }
}

#[test]
fn any_object_is_json() {
    let tokenizer = tokenizer();
    let vocabulary = Vocabulary::new(&tokenizer, tokenizer.vocabulary_size()).unwrap();
    let grammar = Grammar::json_object(&Limits::default()).unwrap();
    let mut random = Random(8);
    for _ in 0..20 {
        let mut matcher = Matcher::new(&grammar, &vocabulary, &[END]).unwrap();
        if let Some(text) = walk(&mut matcher, &tokenizer, &mut random) {
            assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
        }
        assert!(matches!(matcher.accept(5), Err(Error::NotAllowed { .. })), "nothing follows the end");
    }
}
