//! How a text is cut into words before pairs are joined: the values of `tokenizer.ggml.pre`.

use super::super::keys::Keys;
use super::json::{byte_level, cut};
use crate::{Fault, Result};
use serde_json::{Value as Json, json};

/// The key that names it.
pub(super) const KEY: &str = "tokenizer.ggml.pre";

/// The value if the key is missing.
pub(super) const DEFAULT: &str = "default";

/// A way to cut texts.
pub(super) struct PreTokenizer {
    names: &'static [&'static str],
    /// One after the other; each cuts before and after its matches.
    cuts: &'static [&'static str],
    /// `true` if words are finally cut as GPT-2 does.
    gpt2: bool,
    /// `true` if a word that is a token is not built from pairs.
    pub(super) whole_words: bool,
    /// The default of whether a text starts with the first token.
    pub(super) starts: bool,
    /// `true` if characters are composed first (NFC). GGUF does not store it; the models' own tokenizers do it.
    pub(super) composes: bool,
}

const PLAIN: PreTokenizer =
    PreTokenizer { names: &[], cuts: &[], gpt2: false, whole_words: false, starts: false, composes: false };

/// Words with a preceding sign, up to three digits, signs with the line ends after them, line ends, spaces.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with single digits.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with the marks of letters.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Words cut where small letters end and capitals start.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The same with up to three digits, and English endings kept at their words.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Signs with the letters after them, words, signs, line ends, spaces.
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// The cuts of `gpt2`, for tokenizers that cut further.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const KNOWN: &[PreTokenizer] = &[
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "mellum",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        gpt2: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"],
        cuts: &[r"\p{N}"],
        gpt2: true,
        ..PLAIN
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        cuts: &[LLAMA3],
        whole_words: true,
        starts: true,
        ..PLAIN
    },
    PreTokenizer { names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], cuts: &[LLAMA3], ..PLAIN },
    PreTokenizer { names: &["qwen2"], cuts: &[QWEN2], composes: true, ..PLAIN },
    PreTokenizer { names: &["deepseek-r1-qwen", "stablelm2", "megrez"], cuts: &[QWEN2], ..PLAIN },
    PreTokenizer { names: &["qwen35"], cuts: &[QWEN35], composes: true, ..PLAIN },
    PreTokenizer { names: &["tekken"], cuts: &[TEKKEN], whole_words: true, starts: true, ..PLAIN },
    PreTokenizer { names: &["gpt-4o", "llama4"], cuts: &[GPT4O], ..PLAIN },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense"],
        cuts: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
        ..PLAIN
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        cuts: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        ..PLAIN
    },
    PreTokenizer { names: &["falcon"], cuts: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"], ..PLAIN },
    PreTokenizer { names: &[DEFAULT], cuts: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..PLAIN },
];

impl PreTokenizer {
    pub(super) fn json(&self) -> Json {
        let steps = self.cuts.iter().map(|pattern| cut(pattern)).chain([byte_level(self.gpt2)]);
        json!({"type": "Sequence", "pretokenizers": steps.collect::<Vec<_>>()})
    }
}

/// The one of this name.
pub(super) fn find(keys: &Keys<'_>, name: &str) -> Result<&'static PreTokenizer> {
    let found = KNOWN.iter().find(|known| known.names.contains(&name));
    found.map_or_else(|| keys.refuse(KEY, Fault::UnknownPreTokenizer(name.to_owned())), Ok)
}

/// The names of all of them.
pub(crate) fn known_pre_tokenizers() -> String {
    KNOWN.iter().flat_map(|known| known.names).copied().collect::<Vec<_>>().join(", ")
}
