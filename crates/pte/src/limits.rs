//! Limits of the reader.

/// Limits on programs. They are checked before memory is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Elements of one vector, and slots of one graph; upstream's own bound.
    pub elements: u64,
    /// Chains inside chains.
    pub nesting: usize,
    /// Instructions visited while checking one graph; a chain counts once for each node that runs it.
    pub visits: u64,
    /// How often the bytes of one table of contents may be read again through overlapping offsets.
    pub overlap: u64,
}

impl Limits {
    /// The limits that `ptero` uses.
    pub const DEFAULT: Limits = Limits { elements: 1_000_000, nesting: 16, visits: 1_000_000, overlap: 4 };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
