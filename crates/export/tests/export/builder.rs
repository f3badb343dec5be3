//! The builder: names, numbers, and slots that are used again.

use crate::draw::{Session, backends, f32s};
use crate::generate::{Rng, program};
use crate::head::finished;
use crate::trace::trace;
use ptero_export::GraphBuilder;
use ptero_pte::field::{Int, IntOrSrc};
use ptero_pte::nodes::{Add, IdCopy, Multiply, Neg, SymSize, Take};
use ptero_pte::{Bytes, DType, Limits, Payload, ShapeDim, Verified};
use ptero_sampling::inputs::Scalar;

#[test]
fn slots_are_numbered_by_role_and_named_within_the_space() {
    let mut b = GraphBuilder::new("5ace");
    let x = b.input("x", DType::F32, [ShapeDim::between(1, 8), ShapeDim::fixed(2)]);
    let sum = b.state("sum", DType::F32, [1, 2]);
    let y = b.output("y", DType::F32, [ShapeDim::fixed(1), ShapeDim::fixed(2)]);
    let doubled = b.constant("two", DType::F32, [2], Bytes::from(2_f32.to_le_bytes().repeat(2)));
    let (two, same) = (b.scalar(Scalar::F32(2.0)), b.scalar(Scalar::F32(2.0)));
    assert_eq!(two, same);
    assert_ne!(two, b.scalar(Scalar::I64(2)));
    let last = b.value(|out| SymSize { a: x.src(), dim: 0, out });
    let last = b.value(|out| ptero_pte::nodes::SubtractInt { a: last.int(), b: Int::Literal(1), out });
    let row = b.node(|out| Take { x: x.src(), out, index: IntOrSrc::Value(last.value()), axis: 0 });
    let row = b.node(|out| Multiply { a: row.src(), b: doubled.src(), out });
    b.emit(Add { a: sum.src(), b: row.src(), out: sum.dst() });
    b.emit(IdCopy { x: sum.src(), out: y.dst() });
    let program = finished(b);
    let (_, graph) = program.methods[0].mlx_delegates().next().unwrap();
    let name = |slot: u32| graph.names()[&ptero_pte::Slot::Tensor(slot)].to_owned();
    let names: Vec<String> = (0..6).map(name).collect();
    assert_eq!(names, ["5ace/two", "5ace/_scalar_2.0", "5ace/_scalar_2", "5ace/x", "5ace/y", "5ace/sum"]);
    for backend in backends() {
        let mut session = Session::new(&program, backend.as_ref());
        assert_eq!(session.call(&[f32s(&[2, 2], &[9.0, 9.0, 1.0, 2.0])]), [f32s(&[1, 2], &[2.0, 4.0])]);
        assert_eq!(session.call(&[f32s(&[1, 2], &[1.0, 1.0])]), [f32s(&[1, 2], &[4.0, 6.0])]);
    }
}

#[test]
fn a_long_line_of_nodes_needs_two_slots() {
    let mut b = GraphBuilder::new("");
    let x = b.input("x", DType::F32, [ShapeDim::fixed(1)]);
    let y = b.output("y", DType::F32, [ShapeDim::fixed(1)]);
    let mut last = x;
    for _ in 0..100 {
        last = b.node(|out| Neg { x: last.src(), out });
    }
    b.emit(IdCopy { x: last.src(), out: y.dst() });
    let graph = b.finish().graph;
    assert_eq!(graph.num_temp_tensors, 2);
}

#[test]
fn names_that_are_taken_get_a_number() {
    let mut b = GraphBuilder::new("");
    for _ in 0..3 {
        b.input("x", DType::F32, []);
    }
    let names: Vec<_> = b.finish().graph.named_slots.into_iter().map(|named| named.name).collect();
    assert_eq!(names, ["x", "x_2", "x_3"]);
}

#[test]
fn any_sound_graph_goes_through_the_builder_and_computes_the_same() {
    for seed in 0..400 {
        let mut program = Verified::new(program(&mut Rng::new(seed), 40), &Limits::DEFAULT).unwrap().into_program();
        let (_, graph) = program.methods[0].mlx_delegates().next().unwrap();
        let (before, temporaries) = (trace(&program, graph), graph.num_temp_tensors);
        let built = GraphBuilder::resume(graph.clone(), []).finish();
        assert!(built.graph.num_temp_tensors <= temporaries);
        program.methods[0].delegates[0].payload = Payload::Mlx(Box::new(built.graph));
        let program = Verified::new(program, &Limits::DEFAULT).unwrap();
        let (_, graph) = program.methods[0].mlx_delegates().next().unwrap();
        assert_eq!(trace(&program, graph), before, "seed {seed}");
    }
}
