//! Small programs: one constant (t0), two inputs (t1, t2), one output (t3), one state (t4) and temporaries from t5 on.

use super::program::verified;
use ptero_pte::{
    Bytes, Chains, DType, Delegate, NamedData, NamedSlot, Node, ShapeDim, SlotType, SlotVariant, TensorMeta, Verified,
};

fn slot(idx: u32) -> SlotVariant {
    SlotVariant { idx, slot_type: SlotType::Tensor }
}

/// A size of -1 varies.
pub(crate) fn meta(scalar_type: DType, sizes: &[i32]) -> TensorMeta {
    let dim = |&value: &i32| ShapeDim { value, min_value: 0, max_value: if value == -1 { 64 } else { -1 } };
    TensorMeta { shape: sizes.iter().map(dim).collect(), scalar_type, dim_order: None }
}

/// The types of t0 to t4, of which most tests change only that of t1.
#[allow(dead_code, reason = "some tests change more")]
pub(crate) fn metas(x: TensorMeta) -> [TensorMeta; 5] {
    [meta(DType::F32, &[3]), x, meta(DType::I64, &[1]), meta(DType::F32, &[2, 3]), meta(DType::F32, &[1, 8, 2])]
}

pub(crate) fn program(metas: [TensorMeta; 5], chains: Vec<Vec<Node>>) -> Verified {
    let data: Bytes = vec![0; usize::try_from(metas[0].byte_count().unwrap()).unwrap()].into();
    let names = ["w", "x", "y", "out", "state"];
    let named_slots = (0..).zip(names).map(|(idx, name)| NamedSlot { name: name.to_owned(), slot: slot(idx) });
    let delegate = Delegate {
        version: None,
        num_constant_tensors: 1,
        num_input_tensors: 2,
        num_output_tensors: 1,
        num_mutable_buffer_tensors: 1,
        num_temp_tensors: 40,
        num_values: 8,
        instruction_chains: Chains(chains),
        main_chain_idx: 0,
        init_chain_idx: -1,
        input_map: vec![slot(1), slot(2)],
        output_map: vec![slot(3)],
        mutable_buffer_map: vec![slot(4)],
        named_slots: named_slots.collect(),
        tensor_meta: metas.to_vec(),
    };
    verified(delegate, vec![NamedData { key: "w".to_owned(), data }])
}
