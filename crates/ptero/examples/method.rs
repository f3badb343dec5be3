//! Runs a method of any program on tensors of zeros: `cargo run --release --example method -- add.pte forward`.

use ptero::{Program, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let program = Program::open(arguments.next().ok_or("which program?")?)?;
    println!("methods: {}", program.methods().collect::<Vec<_>>().join(", "));
    let mut method = program.method(&arguments.next().unwrap_or_else(|| "forward".to_owned()))?;
    let mut inputs = Vec::new();
    for input in method.inputs() {
        println!("input    {} {:?}", input.dtype, input.shape);
        let bytes = input.shape.iter().product::<u64>() * input.dtype.bytes();
        inputs.push(Tensor::new(input.dtype, &input.shape, vec![0; usize::try_from(bytes)?])?);
    }
    for output in method.run(inputs)? {
        println!("output   {} {:?}", output.dtype(), output.shape());
    }
    Ok(())
}
