//! `ptero graft-sampler` as a person meets it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;

use common::{done, folder, ptero};
use ptero_export::GraphBuilder;
use ptero_pte::nodes::IdCopy;
use ptero_pte::{DType, Program, ShapeDim};
use std::path::Path;

const VOCABULARY: i32 = 16;

/// A program that returns the logits that it is given.
fn write_program(path: &Path, shape: &[i32]) {
    let shape: Vec<ShapeDim> = shape.iter().map(|size| ShapeDim::fixed(*size)).collect();
    let mut b = GraphBuilder::new("1091");
    let x = b.input("x", DType::F32, shape.clone());
    let logits = b.output("logits", DType::F32, shape);
    b.emit(IdCopy { x: x.src(), out: logits.dst() });
    let mut program = Program::default();
    b.finish().add_to(&mut program, "forward");
    program.write(&mut std::fs::File::create(path).unwrap()).unwrap();
}

/// A file of tensors: type, sizes, elements.
fn write_tensors(path: &Path, tensors: &[(u32, &[i32], Vec<u8>)]) {
    let mut file = u32::try_from(tensors.len()).unwrap().to_le_bytes().to_vec();
    for (dtype, sizes, elements) in tensors {
        file.extend([*dtype, u32::try_from(sizes.len()).unwrap()].map(u32::to_le_bytes).concat());
        file.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        file.extend(elements);
    }
    std::fs::write(path, file).unwrap();
}

#[test]
fn s1_1_a_grafted_program_says_that_it_samples_and_draws_tokens() {
    let folder = folder("tokens");
    write_program(&folder.join("logits.pte"), &[2, VOCABULARY]);
    done(&folder, &["graft-sampler", "logits.pte", "sampling.pte"]);
    let shown = done(&folder, &["inspect", "sampling.pte"]);
    for line in [
        "outputs  token  i64   [2]",
        "sampling Gumbel-max over [2, 16] with temperature, top-k, top-p; seed from `seed`; greedy where the \
         temperature is 0",
        "use_sampling  true",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let logits: Vec<u8> = (0_u8..32).flat_map(|index| f32::from(index % 5).to_le_bytes()).collect();
    let draw = |temperature: f32, seed: i64| {
        let scalar = |dtype, bytes: &[u8]| (dtype, [].as_slice(), bytes.to_vec());
        let (zero, all) = (temperature.to_le_bytes(), i64::MAX.to_le_bytes());
        let (one, seed) = (1_f32.to_le_bytes(), seed.to_le_bytes());
        let given = [(0, [2, VOCABULARY].as_slice(), logits.clone())];
        let given = given.into_iter().chain([scalar(0, &zero), scalar(3, &all), scalar(0, &one), scalar(3, &seed)]);
        write_tensors(&folder.join("in.bin"), &given.collect::<Vec<_>>());
        done(&folder, &["exec", "--pte", "sampling.pte", "--input", "in.bin", "--output", "out.bin"]);
        let out = std::fs::read(folder.join("out.bin")).unwrap();
        assert_eq!(out[..16], [1_u32, 3, 1, 2].map(u32::to_le_bytes).concat(), "one tensor, i64, of one dimension, 2");
        out[16..].chunks_exact(8).map(|raw| i64::from_le_bytes(raw.try_into().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(draw(0.0, 0), [4, 3]);
    assert_eq!(draw(5.0, 7), draw(5.0, 7));
    assert!((0..8).map(|seed| draw(5.0, seed)).any(|tokens| tokens != draw(5.0, 0)));
}

#[test]
fn the_result_may_replace_the_program_and_a_second_graft_is_refused() {
    let folder = folder("twice");
    write_program(&folder.join("model.pte"), &[1, VOCABULARY]);
    done(&folder, &["graft-sampler", "model.pte", "model.pte", "--no-seed"]);
    assert!(done(&folder, &["inspect", "model.pte"]).contains("no seed: the runtime's own key sequence"));
    let before = std::fs::read(folder.join("model.pte")).unwrap();
    let output = ptero(&folder, &["graft-sampler", "model.pte", "model.pte"]);
    assert_eq!(output.status.code(), Some(1));
    let wanted = "error: model.pte: already samples: output 0: i64 [1] holds token ids, not logits\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), wanted);
    assert_eq!(std::fs::read(folder.join("model.pte")).unwrap(), before, "nothing half-done");
}

#[test]
fn s4_1_logits_of_every_position_are_refused_and_nothing_is_written() {
    let folder = folder("positions");
    write_program(&folder.join("logits.pte"), &[1, 4, VOCABULARY]);
    let output = ptero(&folder, &["graft-sampler", "logits.pte", "sampling.pte"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("output 0 has the shape [1, 4, 16]"), "{said}");
    assert!(!folder.join("sampling.pte").exists());
}

#[test]
fn of_several_outputs_the_option_that_names_one_is_told() {
    let folder = folder("outputs");
    let shape = || [1, VOCABULARY].map(ShapeDim::fixed);
    let mut b = GraphBuilder::new("1091");
    let x = b.input("x", DType::F32, shape());
    let ids = b.input("ids", DType::I32, shape());
    let (logits, copy) = (b.output("logits", DType::F32, shape()), b.output("copy", DType::I32, shape()));
    b.emit(IdCopy { x: x.src(), out: logits.dst() });
    b.emit(IdCopy { x: ids.src(), out: copy.dst() });
    let mut program = Program::default();
    b.finish().add_to(&mut program, "forward");
    program.write(&mut std::fs::File::create(folder.join("two.pte")).unwrap()).unwrap();
    let refused = |args: &[&str]| {
        let output = ptero(&folder, &[&["graft-sampler", "two.pte", "sampling.pte"], args].concat());
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let wanted = "error: two.pte: method `forward` has several outputs: 0: f32 [1, 16], 1: i32 [1, 16]\n\
                  hint: --output N says which one holds the logits\n";
    assert_eq!(refused(&[]), wanted);
    let wanted = "error: two.pte: output 1: i32 [1, 16] does not hold logits: they are f32, f16 or bf16\n\
                  hint: --output N says which one does\n";
    assert_eq!(refused(&["--output", "1"]), wanted);
    done(&folder, &["graft-sampler", "two.pte", "sampling.pte", "--output", "0"]);
}

#[test]
fn help_lists_the_parameters_of_the_table() {
    let help = done(Path::new("."), &["graft-sampler", "--help"]);
    for input in ptero_sampling::inputs::SAMPLER_INPUTS {
        let line = format!("  {:18} {}  {}", input.name, input.dtype.name(), input.help);
        assert!(help.contains(&line), "{help}");
    }
}
