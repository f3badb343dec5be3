//! Layers on the blocks of GGUF files: the lowerer knows our kernels, and they give what the decoded blocks do.

use crate::draw::{Given, Session, backends, i64s};
use crate::head::finished;
use ptero_backend::{cast, check_graph};
use ptero_export::{GgufMatrix, GraphBuilder};
use ptero_plan::{Capabilities, Options, lower};
use ptero_pte::field::Int;
use ptero_pte::nodes::{IdCopy, SymSize};
use ptero_pte::{DType, Node, ShapeDim, Verified};
use ptero_tensor::GgufType;

const KINDS: [GgufType; 3] = [GgufType::Q4K, GgufType::Q5K, GgufType::Q6K];
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];
const ROWS: usize = 37;
const COLUMNS: usize = 512;

/// Numbers in -1..1 from a simple rule.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 7919 + seed * 104_729 + at * at % 613) % 2003) as f32 / 1001.5 - 1.0).collect()
}

/// Blocks with anything in them but the factors, which are small.
fn blocks(kind: GgufType) -> Vec<u8> {
    let count = ROWS * COLUMNS / kind.block_len();
    let mut state = 0x9e37_79b9_u32;
    let mut bytes = Vec::new();
    for _ in 0..count * kind.block_bytes() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.push((state >> 24) as u8);
    }
    let factors: &[usize] = if kind == GgufType::Q6K { &[209] } else { &[1, 3] };
    for block in bytes.chunks_exact_mut(kind.block_bytes()) {
        // The high byte of a half: about 0.01, of either sign.
        factors.iter().for_each(|at| block[*at] = (block[*at] & 0x80) | 0x20);
    }
    bytes
}

fn decoded(kind: GgufType) -> Vec<f32> {
    let mut weights = vec![0.0; ROWS * COLUMNS];
    kind.decode(&blocks(kind), &mut weights);
    weights
}

fn floats(dtype: DType, shape: &[u64], values: &[f32]) -> Given {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    (dtype, shape.to_vec(), cast(&bytes, DType::F32, dtype).unwrap())
}

/// What a tensor holds, and the spacing of its type's numbers near one.
fn widened(given: &Given) -> (Vec<f32>, f32) {
    let bytes = cast(&given.2, given.0, DType::F32).unwrap();
    let epsilon = match given.0 {
        DType::F16 => 2_f32.powi(-10),
        DType::Bf16 => 2_f32.powi(-7),
        _ => f32::EPSILON,
    };
    (bytes.chunks_exact(4).map(|raw| f32::from_le_bytes(raw.try_into().unwrap())).collect(), epsilon)
}

fn i32_of(size: usize) -> i32 {
    i32::try_from(size).unwrap()
}

fn matrix(b: &mut GraphBuilder, kind: GgufType) -> GgufMatrix {
    GgufMatrix::constant(b, "weight", kind, [ROWS, COLUMNS].map(i32_of), blocks(kind)).unwrap()
}

/// A linear layer on `[1, S, K]`, or without the one.
fn linear(kind: GgufType, dtype: DType, has_batch: bool, bias: Option<&Given>) -> Verified {
    let mut b = GraphBuilder::new("99af");
    let outer: Vec<ShapeDim> =
        has_batch.then(|| ShapeDim::fixed(1)).into_iter().chain([ShapeDim::between(1, 64)]).collect();
    let with = |last| outer.iter().cloned().chain([ShapeDim::fixed(i32_of(last))]).collect::<Vec<_>>();
    let x = b.input("x", dtype, with(COLUMNS));
    let y = b.output("y", dtype, with(ROWS));
    let matrix = matrix(&mut b, kind);
    let bias = bias.map(|bias| b.constant("bias", bias.0, [i32_of(ROWS)], bias.2.clone()));
    let length = b.value(|out| SymSize { a: x.src(), dim: i32::from(has_batch), out }).int();
    let sizes: Vec<Int> = has_batch.then_some(Int::Literal(1)).into_iter().chain([length]).collect();
    let result = matrix.linear(&mut b, x, &sizes, dtype, bias);
    b.emit(IdCopy { x: result.src(), out: y.dst() });
    finished(b)
}

/// Rows for indices `[1, S]`.
fn embedding(kind: GgufType, dtype: DType) -> Verified {
    let mut b = GraphBuilder::new("99af");
    let (one, length) = (ShapeDim::fixed(1), ShapeDim::between(1, 64));
    let indices = b.input("indices", DType::I64, [one.clone(), length.clone()]);
    let y = b.output("y", dtype, [one, length, ShapeDim::fixed(i32_of(COLUMNS))]);
    let matrix = matrix(&mut b, kind);
    let length = b.value(|out| SymSize { a: indices.src(), dim: 1, out }).int();
    let result = matrix.embedding(&mut b, indices, &[Int::Literal(1), length], dtype);
    b.emit(IdCopy { x: result.src(), out: y.dst() });
    finished(b)
}

#[test]
fn the_lowerer_knows_every_kernel_that_we_emit() {
    let bias = floats(DType::F32, &[ROWS as u64], &numbers(ROWS, 1));
    let mut unknown = Vec::new();
    for kind in KINDS {
        for program in [
            linear(kind, DType::F32, true, None),
            linear(kind, DType::F32, true, Some(&bias)),
            embedding(kind, DType::F32),
        ] {
            let (_, delegate) = program.delegates("forward").next().unwrap();
            let graph = lower(delegate, &Options::default()).unwrap();
            unknown.extend(check_graph(&graph, &Capabilities::default()).err().map(|error| error.to_string()));
        }
    }
    assert!(unknown.is_empty(), "put the new hashes into `KNOWN` of the crate `plan`:\n{}", unknown.join("\n"));
}

#[test]
fn a_linear_layer_multiplies_by_the_decoded_blocks() {
    for (kind, dtype) in KINDS.into_iter().flat_map(|kind| FLOATS.map(|dtype| (kind, dtype))) {
        let weights = decoded(kind);
        let bias = floats(dtype, &[ROWS as u64], &numbers(ROWS, 1));
        for (has_batch, bias) in [(true, None), (false, Some(&bias))] {
            let program = linear(kind, dtype, has_batch, bias);
            for backend in backends() {
                let mut session = Session::new(&program, backend.as_ref());
                for length in [1, 5] {
                    let outer: &[u64] = if has_batch { &[1, length] } else { &[length] };
                    let shape = |last: usize| [outer, &[last as u64]].concat();
                    let rows = usize::try_from(length).unwrap();
                    let x = floats(dtype, &shape(COLUMNS), &numbers(rows * COLUMNS, 2));
                    let found = &session.call(std::slice::from_ref(&x))[0];
                    assert_eq!((found.0, &found.1), (dtype, &shape(ROWS)));
                    let what = format!("{kind:?} {dtype} {} {length}", backend.name());
                    check_product(&widened(&x).0, &weights, bias, found, &what);
                }
            }
        }
    }
}

/// Each sum in f64, to the tolerance that the primitive declares (1e-4 of the sum of magnitudes) and one rounding.
fn check_product(x: &[f32], weights: &[f32], bias: Option<&Given>, found: &Given, what: &str) {
    let bias = bias.map_or(vec![0.0; ROWS], |bias| widened(bias).0);
    let (found, epsilon) = widened(found);
    let cells =
        x.chunks(COLUMNS).flat_map(|x| weights.chunks(COLUMNS).zip(&bias).map(move |(row, bias)| (x, row, bias)));
    for ((x, row, bias), found) in cells.zip(found) {
        let products = x.iter().zip(row).map(|(x, weight)| f64::from(*x) * f64::from(*weight));
        let wanted = products.clone().sum::<f64>() + f64::from(*bias);
        let slack = 1e-4 * products.map(f64::abs).sum::<f64>() + f64::from(epsilon) * wanted.abs();
        assert!((f64::from(found) - wanted).abs() <= slack, "{what}: {found} for {wanted}");
    }
}

#[test]
fn an_embedding_gives_the_decoded_rows() {
    let rows = i64::try_from(ROWS).unwrap();
    for (kind, dtype) in KINDS.into_iter().flat_map(|kind| FLOATS.map(|dtype| (kind, dtype))) {
        let weights = decoded(kind);
        let program = embedding(kind, dtype);
        for backend in backends() {
            let mut session = Session::new(&program, backend.as_ref());
            for indices in [&[rows - 1][..], &[0, 5, 5, -1, 36]] {
                let found = &session.call(&[i64s(&[1, indices.len() as u64], indices)])[0];
                let row =
                    |index: &i64| &weights[usize::try_from(index.rem_euclid(rows)).unwrap() * COLUMNS..][..COLUMNS];
                let wanted: Vec<f32> = indices.iter().flat_map(row).copied().collect();
                let wanted = floats(dtype, &[1, indices.len() as u64, COLUMNS as u64], &wanted);
                assert_eq!(*found, wanted, "{kind:?} {dtype} {}", backend.name());
            }
        }
    }
}

#[test]
fn the_grid_has_a_simdgroup_for_each_row_of_weights_and_eight_rows_of_x() {
    let mut b = GraphBuilder::new("");
    let x = b.input("x", DType::F32, [3, 17, 512].map(ShapeDim::fixed));
    let matrix = matrix(&mut b, GgufType::Q4K);
    matrix.linear(&mut b, x, &[Int::Literal(3), Int::Literal(17)], DType::F32, None);
    let graph = b.finish().graph;
    let kernel = graph.nodes().find_map(|node| if let Node::MetalKernel(kernel) = node { Some(kernel) } else { None });
    assert_eq!(kernel.unwrap().grid, [32 * 37, 7, 1].map(Int::Literal), "51 rows of x are seven eights");
}

#[test]
fn rows_that_are_not_whole_blocks_are_refused() {
    let mut b = GraphBuilder::new("");
    for sizes in [[4, 255], [4, 0], [0, 256], [4, -256]] {
        assert_eq!(GgufMatrix::constant(&mut b, "weight", GgufType::Q6K, sizes, Vec::new()), None, "{sizes:?}");
    }
}
