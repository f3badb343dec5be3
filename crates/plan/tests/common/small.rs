//! Small programs: one constant (t0), two inputs (t1, t2), one output (t3), one state (t4) and temporaries from t5 on.
#![allow(dead_code, reason = "each test uses some")]

use super::program::{lowered, meta, program};
use ptero_plan::graph::Graph;
use ptero_plan::{Options, PlanError};
use ptero_pte::{DType, Node, TensorMeta, Verified};

/// A program whose input t1 has this type.
pub(crate) fn small(x: TensorMeta, chains: Vec<Vec<Node>>) -> Verified {
    with_metas([meta(DType::F32, &[3]), x, meta(DType::F32, &[2, 3]), meta(DType::F32, &[1, 8, 2])], chains)
}

/// A program whose tensors t0, t1, t3 and t4 have these types.
pub(crate) fn with_metas([w, x, out, state]: [TensorMeta; 4], chains: Vec<Vec<Node>>) -> Verified {
    let data = vec![0; usize::try_from(w.byte_count().unwrap()).unwrap()];
    program(vec![data], &[3], vec![w, x, meta(DType::I64, &[1]), out, state], chains)
}

pub(crate) fn lower_small(x: TensorMeta, chains: Vec<Vec<Node>>) -> Result<Graph, PlanError> {
    lowered(&small(x, chains), &Options::default())
}
