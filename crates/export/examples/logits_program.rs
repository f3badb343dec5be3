//! Writes a small program that returns logits, for `ptero graft-sampler` and its fuzzer to work on: state, a constant, a position
//! between rows and vocabulary, planned memory, and upstream's flag that it does not sample.
//!
//! `cargo run -p ptero-export --example logits_program -- fuzz/seeds/logits.pte`

use ptero_export::{GraphBuilder, metadata};
use ptero_pte::nodes::{Add, Multiply};
use ptero_pte::schema::{AllocationDetails, EValue};
use ptero_pte::{DType, Limits, Program, ShapeDim, Verified};
use ptero_sampling::inputs::Scalar;
use std::error::Error;
use std::fs::File;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: logits OUT.pte")?;
    let sizes = [2, 1, 5];
    let mut b = GraphBuilder::new("5eed");
    let x = b.input("x", DType::F32, sizes.map(ShapeDim::fixed));
    let sum = b.state("sum", DType::F32, sizes);
    let logits = b.output("logits", DType::F32, sizes.map(ShapeDim::fixed));
    let half = b.scalar(Scalar::F32(0.5));
    b.emit(Add { a: sum.src(), b: x.src(), out: sum.dst() });
    b.emit(Multiply { a: sum.src(), b: half.src(), out: logits.dst() });
    let mut program = Program::default();
    b.finish().add_to(&mut program, "forward");
    for method in &mut program.methods {
        method.buffer_sizes = vec![0, 48];
        if let Some(EValue::Tensor(logits)) = method.values.last_mut() {
            let place = AllocationDetails { memory_id: 1, memory_offset_low: 0, memory_offset_high: 0 };
            logits.allocation_info = Some(place);
        }
    }
    program.methods.push(metadata::flag(metadata::USE_SAMPLING, false));
    Verified::new(program, &Limits::DEFAULT)?.write(&mut File::create(path)?)?;
    Ok(())
}
