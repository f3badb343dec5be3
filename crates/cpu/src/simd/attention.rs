//! Attention: products of queries with keys and of weights with values, and the softmax between them.

pub(crate) mod attend;
pub(crate) mod columns;
pub(crate) mod tile;
