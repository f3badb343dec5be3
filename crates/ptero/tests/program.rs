//! Running any method of a program on tensors.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use ptero::{DType, Device, Error, Options, Program, Tensor};
use std::path::{Path, PathBuf};

fn bigram() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/bigram.pte")
}

/// Inputs of a language model for one token at a position.
fn step(token: i64, position: i64) -> Vec<Tensor> {
    let scalar = |value: i64| Tensor::from_slice(&[], &[value]).unwrap();
    let float = |value: f32| Tensor::from_slice(&[], &[value]).unwrap();
    let tokens = Tensor::from_slice(&[1, 1], &[token]).unwrap();
    vec![tokens, Tensor::from_slice(&[1], &[position]).unwrap(), float(0.0), scalar(1), float(1.0), scalar(3)]
}

#[test]
fn a_method_keeps_its_state_from_call_to_call() {
    let tokens = |device: Device| {
        let program = Options::new().device(device).included_program().unwrap();
        let mut forward = program.method("forward").unwrap();
        assert_eq!(forward.inputs().iter().map(|input| input.dtype).filter(|dtype| *dtype == DType::F32).count(), 2);
        let mut token = 300;
        let mut text = Vec::new();
        for position in 0..4 {
            let outputs = forward.run(step(token, position)).unwrap();
            token = outputs[0].to_vec::<i64>().unwrap()[0];
            text.push(token);
        }
        text
    };
    assert_eq!(tokens(Device::Cpu), tokens(Device::Reference), "devices give the same bits");
}

#[test]
fn what_a_program_does_not_have_is_named() {
    let program = Program::open(bigram()).unwrap();
    assert_eq!((program.name(), program.methods().collect::<Vec<_>>()), ("bigram", vec!["forward"]));
    let error = program.method("backward").map(drop).unwrap_err();
    assert_eq!(error.innermost().to_string(), "the program has no method `backward` (it has: forward)");
    let mut forward = program.method("forward").unwrap();
    let error = forward.run([]).unwrap_err();
    assert!(matches!(error.innermost(), Error::InputCount { given: 0, .. }), "{error}");
    let wrong: Vec<Tensor> = forward.inputs().iter().map(|_| Tensor::from_slice(&[0], &[0_u8; 0]).unwrap()).collect();
    assert!(matches!(forward.run(wrong).unwrap_err().innermost(), Error::Device(_)));
}

#[test]
fn tensors_have_as_many_elements_as_their_shape_says() {
    assert!(matches!(Tensor::from_slice(&[2, 3], &[1_i32; 5]), Err(Error::Tensor { bytes: 20, .. })));
    assert!(Tensor::new(DType::F32, &[u64::MAX, 2], Vec::new()).is_err(), "no overflow");
    let tensor = Tensor::new(DType::Bf16, &[2], vec![0, 63, 0, 64]).unwrap();
    assert_eq!((tensor.shape(), tensor.bytes().len(), tensor.to_vec::<f32>()), (&[2][..], 4, None));
}
