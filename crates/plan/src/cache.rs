//! The key-value cache that some programs keep outside their graph: the size of each layer, from the caller or from metadata.

use ptero_pte::Program;
use ptero_tensor::DType;

/// The most layers of a cache.
const MOST_LAYERS: i64 = 1 << 16;
/// The most elements of one layer.
const MOST_ELEMENTS: i64 = 1 << 40;

/// The size of a key-value cache outside the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvCache {
    capacity: i64,
    layers: Vec<CacheLayer>,
    /// The most positions that callers write at once.
    max_write: Option<i64>,
    /// The type that keys and values are stored in; their own if `None`.
    dtype: Option<DType>,
}

/// One layer of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayer {
    /// Heads of keys and values.
    pub kv_heads: i64,
    /// Elements of a head.
    pub head_dim: i64,
    /// The number of positions that a query attends to, up to and including its own; `None` for all.
    pub window: Option<i64>,
}

/// How a sliding-window layer reuses its memory: position `p` is at index `p` modulo `length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// The number of positions it holds.
    pub(crate) length: i64,
    /// The most positions that may be written at once, so that each query among them still finds its window.
    pub(crate) most: i64,
}

/// What can be wrong with the description of a cache.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each variant is its documentation")]
pub enum CacheError {
    #[error("{value} is no possible {what} of a key-value cache")]
    Size { what: &'static str, value: i64 },
    #[error("a key-value cache holds f32, f16 or bf16, not {0}")]
    DType(DType),
    #[error("a layer of {capacity} positions, {kv_heads} heads and {head_dim} elements is too large")]
    TooLarge { capacity: i64, kv_heads: i64, head_dim: i64 },
    #[error("`{name}` has {found} entries, but `get_n_caches` is {wanted}")]
    Count { name: &'static str, found: usize, wanted: i64 },
    #[error("has `get_n_caches`, but no `{0}`")]
    Missing(&'static str),
    #[error(transparent)]
    Metadata(#[from] ptero_pte::Error),
}

impl KvCache {
    /// A cache of these layers, each for `capacity` positions.
    pub fn new(capacity: i64, layers: Vec<CacheLayer>) -> Result<Self, CacheError> {
        let possible = |what, value| match value {
            1..=0x7fff_ffff => Ok(()),
            _ => Err(CacheError::Size { what, value }),
        };
        possible("capacity", capacity)?;
        for CacheLayer { kv_heads, head_dim, window } in &layers {
            possible("number of heads", *kv_heads)?;
            possible("size of a head", *head_dim)?;
            window.map_or(Ok(()), |window| possible("window", window))?;
            let elements = capacity.checked_mul(*kv_heads).and_then(|elements| elements.checked_mul(*head_dim));
            if elements.is_none_or(|elements| elements > MOST_ELEMENTS) {
                return Err(CacheError::TooLarge { capacity, kv_heads: *kv_heads, head_dim: *head_dim });
            }
        }
        Ok(Self { capacity, layers, max_write: None, dtype: None })
    }

    /// A cache of `layers` equal layers.
    pub fn uniform(capacity: i64, layers: i64, layer: CacheLayer) -> Result<Self, CacheError> {
        let bad_count = CacheError::Size { what: "number of layers", value: layers };
        let count = usize::try_from(layers).ok().filter(|_| (1..=MOST_LAYERS).contains(&layers)).ok_or(bad_count)?;
        Self::new(capacity, vec![layer; count])
    }

    /// The cache whose layers the program's own metadata describes; `None` when it has none.
    ///
    /// `get_n_caches` counts the layers; `get_kv_heads`, `get_head_dims` and `get_windows` (0: all positions) have an entry for
    /// each. `get_prefill_chunk_size` is the most that is written at once.
    pub fn of_program(program: &Program, capacity: i64) -> Result<Option<Self>, CacheError> {
        let Some(count) = program.int_metadata("get_n_caches")? else { return Ok(None) };
        let list = |name| {
            let list = program.ints_metadata(name)?.ok_or(CacheError::Missing(name))?;
            let found = list.len();
            let fits = i64::try_from(found).is_ok_and(|found| found == count);
            if fits { Ok(list) } else { Err(CacheError::Count { name, found, wanted: count }) }
        };
        let (heads, dims, windows) = (list("get_kv_heads")?, list("get_head_dims")?, list("get_windows")?);
        let layers = heads.into_iter().zip(dims).zip(windows);
        let layers = layers.map(|((kv_heads, head_dim), window)| CacheLayer {
            kv_heads,
            head_dim,
            window: (window != 0).then_some(window),
        });
        let mut cache = Self::new(capacity, layers.collect())?;
        cache.max_write = program.int_metadata("get_prefill_chunk_size")?;
        Ok(Some(cache))
    }

    /// The same cache with these windows (0: all positions), repeated over the layers. An empty list changes nothing.
    pub fn with_windows(mut self, windows: &[i64]) -> Result<Self, CacheError> {
        for (layer, window) in self.layers.iter_mut().zip(windows.iter().cycle()) {
            layer.window = (*window != 0).then_some(*window);
        }
        Ok(Self { max_write: self.max_write, dtype: self.dtype, ..Self::new(self.capacity, self.layers)? })
    }

    /// The same cache, stored in a type that need not be that of its keys and values.
    pub fn with_dtype(self, dtype: DType) -> Result<Self, CacheError> {
        if dtype.is_float() { Ok(Self { dtype: Some(dtype), ..self }) } else { Err(CacheError::DType(dtype)) }
    }

    /// The type that keys and values are stored in, if it is not their own.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// The number of positions.
    pub fn capacity(&self) -> i64 {
        self.capacity
    }

    /// The layers, each with its own keys and values.
    pub fn layers(&self) -> &[CacheLayer] {
        &self.layers
    }

    /// The ring of a sliding-window layer; `None` if it would take as much memory as all positions.
    ///
    /// A ring stores each position twice (see `lower/cache.rs`). Beyond the window it holds the positions that are written at
    /// once: as many as the window has, unless the program declares fewer.
    pub(crate) fn ring(&self, layer: &CacheLayer) -> Option<Ring> {
        let window = layer.window?;
        let most = self.max_write.unwrap_or(window).clamp(1, window);
        let length = window + most - 1;
        (2 * length < self.capacity).then_some(Ring { length, most })
    }
}
