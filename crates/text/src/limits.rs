//! Limits on files and arguments.

/// Limits on untrusted input. The defaults are far above what models need.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of `tokenizer.json` or `tokenizer_config.json`.
    pub json_bytes: usize,
    /// Bytes of a text to encode.
    pub text_bytes: usize,
    /// How many times longer the replacements of a normalizer may make a text, and those of a decoder a token.
    pub growth: usize,
    /// Bytes that a text to encode may have after the steps that make it longer; each costs some 140 bytes of memory.
    pub normalized_bytes: usize,
    /// The same of all added tokens together; each costs some 75.
    pub added_bytes: usize,
    /// Bytes of a template.
    pub template_bytes: usize,
    /// Steps that a template may take.
    pub template_steps: u64,
    /// Calls of macros inside each other.
    pub template_depth: usize,
    /// Bytes that a template may copy or walk over, all in all.
    pub template_work_bytes: usize,
    /// Bytes of a rendered template, and of any text that it makes on the way.
    pub output_bytes: usize,
    /// Bytes of a JSON Schema, a regular expression or a Lark grammar.
    pub grammar_bytes: usize,
    /// Schemas, rules and groups of a grammar inside each other, through all references.
    pub grammar_depth: usize,
    /// Symbols of a grammar, and schemas after those that references are merged with are copied.
    pub grammar_size: usize,
    /// Parts of regular expressions that can be left out or repeated, all in all.
    pub grammar_optional: usize,
    /// Alternatives and patterns of a schema that are compared in pairs, all in all.
    pub grammar_pairs: usize,
    /// The common multiple of all `multipleOf` of a schema, without decimal points.
    pub grammar_remainders: usize,
    /// Steps of building a grammar; 100,000 take up to a third of a second.
    pub grammar_steps: u64,
    /// States that following a grammar may need, over a whole text; each costs a kilobyte or two.
    pub grammar_states: usize,
    /// Rules that may be in progress at once.
    pub grammar_items: usize,
    /// Steps of regular expressions for finding the tokens that are allowed next.
    pub mask_steps: u64,
    /// Steps of rules for finding the tokens that are allowed next.
    pub mask_items: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            json_bytes: 64 << 20,
            text_bytes: 16 << 20,
            growth: 4096,
            normalized_bytes: 64 << 20,
            added_bytes: 8 << 20,
            template_bytes: 1 << 20,
            template_steps: 1_000_000,
            template_depth: 64,
            template_work_bytes: 512 << 20,
            output_bytes: 8 << 20,
            grammar_bytes: 1 << 20,
            grammar_depth: 4096,
            grammar_size: 60_000,
            grammar_optional: 2000,
            grammar_pairs: 200,
            grammar_remainders: 100_000,
            grammar_steps: 200_000,
            grammar_states: 50_000,
            grammar_items: 2000,
            mask_steps: 200_000,
            mask_items: 50_000,
        }
    }
}
