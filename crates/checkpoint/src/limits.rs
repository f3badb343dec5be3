//! Limits of the readers.

/// Limits on files. They are checked before memory is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a table of contents: the JSON of a safetensors file or of an index, or all of a GGUF file before its
    /// weights. Upstream's own bound for safetensors.
    pub header_bytes: u64,
    /// Bytes of a JSON file that is read whole, such as `config.json`.
    pub json_bytes: u64,
    /// Tensors of one file, or of one index.
    pub tensors: u64,
    /// Key-value pairs of metadata.
    pub entries: u64,
    /// Bytes of the name of a tensor or of a key; GGUF's own bound for keys.
    pub name_bytes: u64,
    /// Sizes of a shape.
    pub rank: u64,
    /// Arrays inside arrays of metadata.
    pub nesting: u64,
    /// Files that an index names.
    pub shards: u64,
}

impl Limits {
    /// The limits that `ptero` uses.
    pub const DEFAULT: Limits = Limits {
        header_bytes: 100_000_000,
        json_bytes: 8 << 20,
        tensors: 1_000_000,
        entries: 1 << 16,
        name_bytes: 65_535,
        rank: ptero_tensor::MAX_RANK as u64,
        nesting: 8,
        shards: 4096,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
