//! Products of matrices of floats.

pub mod dot;
pub(crate) mod product;
pub(crate) mod transpose;
