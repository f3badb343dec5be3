//! Parts of a model that primitives are counted to.

use ptero_plan::prim::Prim;
use serde::{Serialize, Serializer};

/// A part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Products with weights, and other products of matrices.
    Products,
    /// Attention, and what takes its place.
    Attention,
    /// Along rows: norms, rotary embeddings, softmax, reductions, sorting.
    Rows,
    /// Elementwise functions and copies.
    Maps,
    /// Rows of tables: embeddings, caches that are indexed.
    Lookups,
    /// Drawing a token.
    Sampling,
}

impl Part {
    /// All, in the order of tables and legends.
    pub(crate) const ALL: [Part; 6] =
        [Part::Products, Part::Attention, Part::Rows, Part::Maps, Part::Lookups, Part::Sampling];

    /// The part that a primitive is counted to.
    pub(super) fn of(prim: &Prim) -> Self {
        match prim {
            Prim::MatMul { .. } | Prim::QuantMatMul { .. } | Prim::Conv { .. } => Part::Products,
            Prim::Attention { .. } | Prim::GatedDelta(_) => Part::Attention,
            Prim::Norm { .. } | Prim::Rope { .. } | Prim::Softmax { .. } | Prim::Reduce { .. } => Part::Rows,
            Prim::ArgReduce { .. } | Prim::Sort { .. } | Prim::Cumsum { .. } => Part::Rows,
            Prim::Map { .. } => Part::Maps,
            Prim::Gather { .. } | Prim::Scatter { .. } | Prim::Dequantize { .. } => Part::Lookups,
            Prim::RandomBits { .. } | Prim::Sample(_) => Part::Sampling,
        }
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Products => "products",
            Part::Attention => "attention",
            Part::Rows => "rows",
            Part::Maps => "maps",
            Part::Lookups => "lookups",
            Part::Sampling => "sampling",
        }
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
