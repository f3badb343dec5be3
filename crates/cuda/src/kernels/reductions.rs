//! Rows and what they are reduced to: norms, sums, softmax, the choice of experts.

pub(crate) mod norm;
pub(crate) mod reduce;
pub(crate) mod route;
pub(crate) mod softmax;
pub(crate) mod sum_rows;
