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
        }
    }
}
