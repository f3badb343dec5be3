//! How much of a file the reader is willing to follow.

/// Bounds on what a program may ask of its reader. Everything is checked before memory is taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Elements of one vector, and slots of one graph; upstream's own bound.
    pub elements: u64,
    /// Chains inside chains.
    pub nesting: usize,
    /// Instructions visited while checking one graph, each chain counted once per place that runs it.
    pub visits: u64,
    /// How often the bytes of one table of contents may be read again through overlapping offsets.
    pub overlap: u64,
}

impl Limits {
    /// What `ptero` uses.
    pub const DEFAULT: Limits = Limits { elements: 1_000_000, nesting: 16, visits: 1_000_000, overlap: 4 };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
