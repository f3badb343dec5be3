//! Writes programs whose weights stay in GGUF blocks, one for each kind of block and type of element, for
//! `conformance/check_metal.py` to look at: a linear layer, one with a bias, an embedding.
//!
//! `cargo run -p ptero-export --example gguf -- target/gguf`

use ptero_export::{GgufMatrix, GraphBuilder, Tensor};
use ptero_pte::field::Int;
use ptero_pte::nodes::{IdCopy, SymSize};
use ptero_pte::{DType, Limits, Program, ShapeDim, Verified};
use ptero_tensor::GgufType;
use std::error::Error;
use std::fs::File;
use std::path::PathBuf;

/// Rows, more than one group of threads has and no multiple of it; columns of three blocks.
const SIZES: [i32; 2] = [37, 768];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: gguf FOLDER")?);
    std::fs::create_dir_all(&folder)?;
    for (name, kind) in [("q4k", GgufType::Q4K), ("q5k", GgufType::Q5K), ("q6k", GgufType::Q6K)] {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let program = program(kind, dtype).ok_or("rows are whole blocks")?;
            let file = folder.join(format!("{name}_{dtype}.pte"));
            Verified::new(program, &Limits::DEFAULT)?.write(&mut File::create(file)?)?;
        }
    }
    Ok(())
}

fn program(kind: GgufType, dtype: DType) -> Option<Program> {
    let [rows, columns] = SIZES;
    let (one, length) = (ShapeDim::fixed(1), ShapeDim::between(1, 64));
    let mut b = GraphBuilder::new("99af");
    let x = b.input("x", dtype, [one.clone(), length.clone(), ShapeDim::fixed(columns)]);
    let flat = b.input("flat", dtype, [length.clone(), ShapeDim::fixed(columns)]);
    let indices = b.input("indices", DType::I64, [one.clone(), length.clone()]);
    let block_count = usize::try_from(rows * columns).ok()? / kind.block_len();
    let matrix = GgufMatrix::constant(&mut b, "weight", kind, SIZES, vec![0; block_count * kind.block_bytes()])?;
    let bias_bytes = usize::try_from(u64::try_from(rows).ok()? * dtype.bytes()).ok()?;
    let bias = b.constant("bias", dtype, [rows], vec![0; bias_bytes]);
    let size = |b: &mut GraphBuilder, a: Tensor, dim| b.value(|out| SymSize { a: a.src(), dim, out }).int();
    let outer = [Int::Literal(1), size(&mut b, x, 1)];
    let linear = matrix.linear(&mut b, x, &outer, dtype, None);
    let outer = [size(&mut b, flat, 0)];
    let biased = matrix.linear(&mut b, flat, &outer, dtype, Some(bias));
    let outer = [Int::Literal(1), size(&mut b, indices, 1)];
    let embedding = matrix.embedding(&mut b, indices, &outer, dtype);
    let shapes =
        [(linear, vec![&one, &length], rows), (biased, vec![&length], rows), (embedding, vec![&one, &length], columns)];
    for ((result, outer, last), name) in shapes.into_iter().zip(["linear", "biased", "embedding"]) {
        let out = b.output(name, dtype, outer.into_iter().cloned().chain([ShapeDim::fixed(last)]));
        b.emit(IdCopy { x: result.src(), out: out.dst() });
    }
    let mut program = Program::default();
    b.finish().add_to(&mut program, "forward");
    Some(program)
}
