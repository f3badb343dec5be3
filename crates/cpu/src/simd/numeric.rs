//! Element types: conversions between them, and functions of elements.

pub(crate) mod convert;
pub(crate) mod each;
pub mod element;
pub(crate) mod float;
pub(crate) mod int;
pub(crate) mod small_float;
