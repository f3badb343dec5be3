//! Products of matrices, and what comes before and after them.

pub(crate) mod by_choice;
pub(crate) mod matmul;
pub(crate) mod matmul_row;
pub(crate) mod product;
pub(crate) mod prologue;
