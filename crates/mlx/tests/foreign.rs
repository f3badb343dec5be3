//! Kernels that programs bring run where the user allows them and there is Metal; elsewhere they are refused by name.
#![cfg(feature = "link")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use ptero_backend::{Backend, Fault, InputValue, OutputValue, run_once};
use ptero_mlx::Mlx;
use ptero_plan::dim::Dim;
use ptero_plan::graph::{Block, BlockId, Foreign, Graph, Input, Node, Op, Output, Type, Value};
use ptero_pte::field::Int;
use ptero_pte::nodes::MetalKernel;
use ptero_tensor::DType;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Doubles six numbers.
fn twice() -> MetalKernel {
    MetalKernel {
        name: "twice".to_owned(),
        source: "uint at = thread_position_in_grid.x; out[at] = T(FACTOR) * x[at];".to_owned(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        grid: [6, 1, 1].map(Int::Literal).to_vec(),
        threadgroup: [1, 1, 1].map(Int::Literal).to_vec(),
        header: None,
        input_names: Some(vec!["x".to_owned()]),
        output_names: Some(vec!["out".to_owned()]),
        ensure_row_contiguous: true,
        atomic_outputs: false,
        output_shapes_flat: Some(vec![Int::Literal(6)]),
        output_shape_lengths: Some(vec![1]),
        output_dtypes: Some(vec![DType::F32]),
        template_arg_names: Some(vec!["T".to_owned(), "FACTOR".to_owned()]),
        template_arg_kinds: Some(vec![2, 0]),
        template_arg_values: Some(vec![DType::F32.code().into(), 2]),
        init_value: None,
    }
}

/// A graph of the kernel alone.
fn graph() -> Arc<Graph> {
    let six = || Type { dtype: DType::F32, shape: vec![Dim::fixed(6)] };
    let kernel = Foreign {
        kernel: Arc::new(twice()),
        hashes: [1, 2],
        ins: vec![Value(0)],
        outs: vec![Value(1)],
        numbers: [6, 1, 1, 1, 1, 1].map(Dim::fixed).to_vec(),
    };
    let nodes = vec![Node { op: Op::Foreign(Box::new(kernel)), origin: (0, 0) }];
    Arc::new(Graph {
        values: vec![six(), six()],
        inputs: vec![Input::Tensor(Value(0))],
        outputs: vec![Output::Tensor(Value(1))],
        blocks: vec![Block { nodes, results: Vec::new() }],
        main: BlockId(0),
        ..Graph::default()
    })
}

fn bytes(numbers: [f32; 6]) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn a_kernel_that_a_program_brings_needs_permission_and_metal() {
    for is_allowed in [false, true] {
        let device = Mlx::new().with_foreign_kernels(is_allowed);
        let compiled = device.compile(graph());
        if !device.capabilities().foreign_kernels {
            let error = compiled.map(drop).unwrap_err();
            assert!(matches!(error.fault(), Fault::Foreign { name, .. } if name == "twice"), "{error}");
            continue;
        }
        assert!(is_allowed);
        let compiled = compiled.unwrap();
        let mut state = compiled.state(0).unwrap();
        let given = bytes([1.0, -2.0, 0.5, 0.0, 3.0, 4.0]);
        state.write(0, InputValue::Tensor { dtype: DType::F32, shape: &[6], bytes: &given }).unwrap();
        run_once(compiled.as_ref(), state.as_mut(), &AtomicBool::new(false)).unwrap();
        let OutputValue::Tensor { bytes: found, .. } = state.read(0).unwrap() else { panic!("a tensor") };
        assert_eq!(found, bytes([2.0, -4.0, 1.0, 0.0, 6.0, 8.0]));
    }
}
