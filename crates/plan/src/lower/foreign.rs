//! Metal kernels that programs carry. Those known by name and source are replaced by our own equivalent; others stay in the graph
//! for a device that runs such kernels, and other devices refuse them by name.

use super::Lowerer;
use super::attention::is_multiple;
use super::matrix::Weights;
use crate::builder::Tensor;
use crate::digest::sha256_start;
use crate::dim::Dim;
use crate::error::{Fault, Result, ensure};
use crate::expr::{Binary, Compare, Unary};
use crate::graph::{Foreign, Op};
use crate::prim::{Fold, GatedDelta, Prim, QuantFormat, Quantized};
use crate::promote::to_float;
use ptero_pte::field::Dst;
use ptero_pte::nodes::MetalKernel;
use ptero_tensor::GgufType::{Q4K, Q5K, Q6K};
use ptero_tensor::{DType, GgufType};

/// Computes the results of a kernel from its inputs and the declared types of its outputs.
type Equivalent = fn(&mut Lowerer<'_>, &[Tensor], &[DType]) -> Result<Vec<Tensor>>;

/// Name, start of the SHA-256 of the known sources and of the header (empty if there is none), and our equivalent.
const KNOWN: &[(&str, &[u64], u64, Equivalent)] = &[
    ("gated_delta_step", &[0x645d_5e9d_9eac_ecc5], NO_HEADER, gated_delta_step),
    ("gguf_q4k_embedding", &[0xba45_bcab_b61d_0b25], Q4K_HEADER, |l, i, o| embedding(l, i, o, Q4K)),
    ("gguf_q4k_matmul", &[0x0a80_a3dd_2958_b9a6, 0xbcb7_facc_630a_fa97], Q4K_HEADER, |l, i, o| linear(l, i, o, Q4K)),
    ("gguf_q4k_matvec", &[0x7448_acd1_785d_1798, 0xf476_3e51_2843_c776], Q4K_HEADER, |l, i, o| linear(l, i, o, Q4K)),
    ("gguf_q5k_embedding", &[0x9aa9_44e8_6ce1_fac0], Q5K_HEADER, |l, i, o| embedding(l, i, o, Q5K)),
    ("gguf_q5k_matmul", &[0x2945_977f_89d5_a457, 0x5709_b9b6_192d_2187], Q5K_HEADER, |l, i, o| linear(l, i, o, Q5K)),
    ("gguf_q5k_matvec", &[0x6690_1203_4fee_cabe, 0x03a6_16aa_d58d_138d], Q5K_HEADER, |l, i, o| linear(l, i, o, Q5K)),
    ("gguf_q6k_embedding", &[0x5dec_9f28_f98b_f7e9], Q6K_HEADER, |l, i, o| embedding(l, i, o, Q6K)),
    ("gguf_q6k_matmul", &[0x0804_2752_09a9_e1c6, 0x3183_5a3c_0c3b_980d], Q6K_HEADER, |l, i, o| linear(l, i, o, Q6K)),
    ("gguf_q6k_matvec", &[0x4780_3c61_31cd_2b22, 0xcf8e_f889_370a_9382], Q6K_HEADER, |l, i, o| linear(l, i, o, Q6K)),
    ("ptero_gguf_q4k_embedding", &[OUR_EMBEDDING], OUR_Q4K_HEADER, |l, i, o| embedding(l, i, o, Q4K)),
    ("ptero_gguf_q4k_linear", &[OUR_LINEAR], OUR_Q4K_HEADER, |l, i, o| linear(l, i, o, Q4K)),
    ("ptero_gguf_q4k_linear_bias", &[OUR_LINEAR_BIAS], OUR_Q4K_HEADER, |l, i, o| linear(l, i, o, Q4K)),
    ("ptero_gguf_q5k_embedding", &[OUR_EMBEDDING], OUR_Q5K_HEADER, |l, i, o| embedding(l, i, o, Q5K)),
    ("ptero_gguf_q5k_linear", &[OUR_LINEAR], OUR_Q5K_HEADER, |l, i, o| linear(l, i, o, Q5K)),
    ("ptero_gguf_q5k_linear_bias", &[OUR_LINEAR_BIAS], OUR_Q5K_HEADER, |l, i, o| linear(l, i, o, Q5K)),
    ("ptero_gguf_q6k_embedding", &[OUR_EMBEDDING], OUR_Q6K_HEADER, |l, i, o| embedding(l, i, o, Q6K)),
    ("ptero_gguf_q6k_linear", &[OUR_LINEAR], OUR_Q6K_HEADER, |l, i, o| linear(l, i, o, Q6K)),
    ("ptero_gguf_q6k_linear_bias", &[OUR_LINEAR_BIAS], OUR_Q6K_HEADER, |l, i, o| linear(l, i, o, Q6K)),
    ("tq4_compress", &[0x49de_7fef_61b8_06f1], NO_HEADER, tq4_compress),
    ("tq_dequant", &[0x29f5_fd17_b8d3_15ef], TQ_HEADER, tq_dequant),
    ("tq_norm", &[0x9269_56d4_ff65_cd25], TQ_HEADER, tq_norm),
];
const NO_HEADER: u64 = 0xe3b0_c442_98fc_1c14;
const Q4K_HEADER: u64 = 0x0333_e73b_fbb0_59e8;
const Q5K_HEADER: u64 = 0xd956_f0e9_a052_c4d1;
const Q6K_HEADER: u64 = 0xfa10_7cc7_82a7_79eb;
const OUR_Q4K_HEADER: u64 = 0x7538_7e85_ca2a_a954;
const OUR_Q5K_HEADER: u64 = 0x0c45_85ae_51e9_424f;
const OUR_Q6K_HEADER: u64 = 0xa3c1_3ea7_513f_7a38;
const OUR_LINEAR: u64 = 0xf55f_39eb_0c5c_ef6a;
const OUR_LINEAR_BIAS: u64 = 0x9466_f389_07d5_ebb3;
const OUR_EMBEDDING: u64 = 0xfe14_abb9_a911_ef2c;
const TQ_HEADER: u64 = 0xb8fb_59f3_a4dc_0dd1;

impl Lowerer<'_> {
    pub(super) fn metal_kernel(&mut self, n: &MetalKernel) -> Result<()> {
        let source = sha256_start(n.source.as_bytes());
        let header = sha256_start(n.header.as_deref().unwrap_or_default().as_bytes());
        let known = KNOWN.iter().find(|row| (row.0, row.2) == (n.name.as_str(), header) && row.1.contains(&source));
        let inputs = self.tensors(&n.inputs)?;
        let dtypes = n.output_dtypes.as_deref().unwrap_or_default();
        let mut sizes = self.ints(n.output_shapes_flat.as_deref().unwrap_or_default())?.into_iter();
        let ranks = n.output_shape_lengths.as_deref().unwrap_or_default().iter();
        let shape = |rank: &i32| sizes.by_ref().take(usize::try_from(*rank).unwrap_or(0)).collect();
        let shapes: Vec<Vec<Dim>> = ranks.map(shape).collect();
        let results = match known.filter(|_| !self.options.keeps_foreign) {
            Some((.., equivalent)) => equivalent(self, &inputs, dtypes)?,
            None if dtypes.len() == shapes.len() => self.keep_foreign(n, &inputs, &shapes, [source, header])?,
            None => return Err(Fault::Count { what: "types of results", wanted: shapes.len(), found: dtypes.len() }),
        };
        let (wanted, found) = (n.outputs.len(), results.len());
        ensure!([found, shapes.len()] == [wanted; 2], Fault::Count { what: "results", wanted, found });
        for ((result, out), shape) in results.into_iter().zip(&n.outputs).zip(&shapes) {
            self.builder.check_shape(&result.shape, shape, "the result of a kernel")?;
            self.set(Dst(out.0), result)?;
        }
        Ok(())
    }

    /// The kernel itself, with results of the types and shapes that the program declares.
    fn keep_foreign(
        &mut self,
        n: &MetalKernel,
        inputs: &[Tensor],
        shapes: &[Vec<Dim>],
        hashes: [u64; 2],
    ) -> Result<Vec<Tensor>> {
        let declared = n.output_dtypes.iter().flatten().zip(shapes);
        let results: Vec<_> = declared.map(|(dtype, shape)| self.builder.new_tensor(*dtype, shape.clone())).collect();
        let numbers = [&n.grid, &n.threadgroup].into_iter().map(|list| self.ints(list)).collect::<Result<Vec<_>>>()?;
        self.builder.node(Op::Foreign(Box::new(Foreign {
            kernel: std::sync::Arc::new(n.clone()),
            hashes,
            ins: inputs.iter().map(|input| input.value).collect(),
            outs: results.iter().map(|result| result.value).collect(),
            numbers: numbers.concat(),
        })));
        Ok(results)
    }

    fn last_axis(view: &Tensor) -> Result<usize> {
        view.rank().checked_sub(1).ok_or(Fault::Rank { what: "a kernel's input", wanted: 1, found: 0 })
    }
}

/// Exactly `N` inputs or outputs.
fn array<T, const N: usize>(items: &[T]) -> Result<&[T; N]> {
    items.try_into().map_err(|_| Fault::Count { what: "inputs or outputs of a kernel", wanted: N, found: items.len() })
}

/// The gated delta rule over all tokens. The last input repeats the number of tokens.
fn gated_delta_step(lowerer: &mut Lowerer<'_>, views: &[Tensor], dtypes: &[DType]) -> Result<Vec<Tensor>> {
    let [q, k, v, g, beta, state, _] = array(views)?.clone();
    let [y_type, state_type] = *array(dtypes)?;
    for (tensor, wanted) in [(&q, 4), (&k, 4), (&v, 4), (&g, 3), (&beta, 3), (&state, 4)] {
        let found = tensor.rank();
        ensure!(found == wanted, Fault::Rank { what: "a gated delta rule", wanted, found });
    }
    let what = "sizes of a gated delta rule";
    lowerer.builder.check_shape(&q.shape, &k.shape, what)?;
    lowerer.builder.check_shape(&g.shape, &beta.shape, what)?;
    let outer = |tensor: &Tensor, count| tensor.shape.iter().take(count).cloned().collect::<Vec<Dim>>();
    lowerer.builder.check_shape(&outer(&q, 2), &outer(&v, 2), what)?;
    for (axis, (other, of)) in [(&v, 0), (&v, 2), (&v, 3), (&q, 3)].into_iter().enumerate() {
        lowerer.builder.check_equal(state.size(axis)?, other.size(of)?, what)?;
    }
    lowerer.builder.check_shape(&g.shape, &outer(&v, 3), what)?;
    let is_grouped = is_multiple(v.size(2)?, q.size(2)?);
    ensure!(is_grouped, Fault::Unsupported("a gated delta rule whose heads are no multiple of its key heads"));
    let state_out = lowerer.builder.new_tensor(state_type, state.shape.clone());
    let out = lowerer.builder.prim(y_type, v.shape.clone(), |out| {
        Prim::GatedDelta(Box::new(GatedDelta { out, state_out: state_out.clone(), q, k, v, g, beta, state }))
    });
    Ok(vec![out, state_out])
}

fn gguf_weights(codes: Tensor, kind: GgufType) -> Result<Weights> {
    ensure!(codes.dtype == DType::U8, Fault::DType { what: "packed weights", dtype: codes.dtype });
    Ok(Quantized { codes, scales: None, biases: None, format: QuantFormat::Gguf(kind) })
}

/// `x` times the transpose of the weights, plus a bias if there is a third input.
fn linear(lowerer: &mut Lowerer<'_>, views: &[Tensor], dtypes: &[DType], kind: GgufType) -> Result<Vec<Tensor>> {
    let [dtype] = *array(dtypes)?;
    let [x, codes, bias @ ..] = views else {
        return Err(Fault::Count { what: "inputs or outputs of a kernel", wanted: 2, found: views.len() });
    };
    let x = lowerer.builder.cast(x, to_float(x.dtype))?;
    let weights = gguf_weights(codes.clone(), kind)?;
    // With a bias, only the sum is rounded.
    let product_type = if bias.is_empty() { to_float(dtype) } else { DType::F32 };
    let product = lowerer.quant_multiplied(x, weights, true, [None, None], Some(product_type))?;
    let Some(bias) = bias.first() else { return Ok(vec![lowerer.builder.cast(&product, dtype)?]) };
    let sum = lowerer.builder.map(&[product, bias.clone()], |f, [product, bias]| {
        f.cast(f.binary(Binary::Add, product, f.cast(bias, DType::F32)), dtype)
    })?;
    Ok(vec![sum])
}

/// The rows of the weights at the indices.
fn embedding(lowerer: &mut Lowerer<'_>, views: &[Tensor], dtypes: &[DType], kind: GgufType) -> Result<Vec<Tensor>> {
    let [dtype] = *array(dtypes)?;
    let [codes, indices] = array(views)?.clone();
    let rows = lowerer.taken(codes, 0, indices)?;
    // A single index gives one row, which is dequantized as a matrix.
    let single = rows.rank() == 1;
    let rows = if single { lowerer.builder.insert_axis(&rows, 0) } else { rows };
    let weights = lowerer.dequantized(gguf_weights(rows, kind)?, dtype)?;
    Ok(vec![if single { lowerer.builder.remove_axis(&weights, 0) } else { weights }])
}

/// The length of each row, summed in f32.
fn tq_norm(lowerer: &mut Lowerer<'_>, views: &[Tensor], dtypes: &[DType]) -> Result<Vec<Tensor>> {
    let [dtype] = *array(dtypes)?;
    let [x] = array(views)?;
    let last = Lowerer::last_axis(x)?;
    let x = std::array::from_ref(x);
    let squares = lowerer.builder.map(x, |f, [x]| f.unary(Unary::Square, f.cast(x, DType::F32)))?;
    let sum = lowerer.reduced(squares, vec![last], Fold::Sum)?;
    Ok(vec![lowerer.builder.map(&[sum], |f, [x]| f.cast(f.unary(Unary::Sqrt, x), dtype))?])
}

/// Packs pairs of four-bit codes, the first in the high bits. A code is the number of boundaries below the value.
fn tq4_compress(lowerer: &mut Lowerer<'_>, views: &[Tensor], dtypes: &[DType]) -> Result<Vec<Tensor>> {
    let [dtype] = *array(dtypes)?;
    let [values, boundaries] = array(views)?;
    let last = Lowerer::last_axis(values)?;
    let half = lowerer.builder.floor_div(values.size(last)?.clone(), Dim::fixed(2))?;
    let high = lowerer.builder.narrow(values, last, &Dim::fixed(0), half.clone(), 2)?;
    let low = lowerer.builder.narrow(values, last, &Dim::fixed(1), half, 2)?;
    let count = boundaries.size(0)?.as_fixed().filter(|count| (1..=15).contains(count) && boundaries.rank() == 1);
    let count = count.ok_or(Fault::Unsupported("more than 15 boundaries of four-bit codes"))?;
    let mut ins = vec![high, low];
    for at in 0..count {
        ins.push(lowerer.builder.at(boundaries, 0, &Dim::fixed(at))?);
    }
    let packed = lowerer.builder.map_list(&ins, |f, parts| {
        let [high, low, boundaries @ ..] = parts else { return f.float(0.0, dtype) };
        let [high, low] = [high, low].map(|value| {
            let value = f.cast(*value, DType::F32);
            let mut code = f.int(Dim::fixed(0), DType::U8);
            for boundary in boundaries {
                let is_above = f.compare(Compare::Greater, value, f.cast(*boundary, DType::F32));
                code = f.binary(Binary::Add, code, f.cast(is_above, DType::U8));
            }
            code
        });
        let shifted = f.binary(Binary::Mul, high, f.int(Dim::fixed(16), DType::U8));
        f.cast(f.binary(Binary::BitOr, shifted, low), dtype)
    })?;
    Ok(vec![packed])
}

/// Looks up the centroid of each four-bit code and multiplies by the row's norm.
fn tq_dequant(lowerer: &mut Lowerer<'_>, views: &[Tensor], dtypes: &[DType]) -> Result<Vec<Tensor>> {
    let [dtype] = *array(dtypes)?;
    let [packed, norms, centroids] = array(views)?;
    let last = Lowerer::last_axis(packed)?;
    let code = |lowerer: &mut Lowerer<'_>, op: Binary, operand: i64| {
        lowerer.builder.map(std::array::from_ref(packed), |f, [packed]| {
            f.binary(op, f.cast(packed, DType::U8), f.int(Dim::fixed(operand), DType::U8))
        })
    };
    let pair = [code(lowerer, Binary::FloorDiv, 16)?, code(lowerer, Binary::BitAnd, 15)?];
    let pair = pair.map(|codes| lowerer.builder.insert_axis(&codes, last + 1));
    let pairs = lowerer.builder.concat(&pair, last + 1)?;
    let mut shape = packed.shape.clone();
    shape.iter_mut().skip(last).for_each(|size| *size = &*size * &Dim::fixed(2));
    let codes = lowerer.builder.reshape(&pairs, &shape)?;
    let found = lowerer.taken(centroids.clone(), 0, codes)?;
    let scaled = lowerer.builder.map(&[found, norms.clone()], |f, [x, norm]| {
        f.cast(f.binary(Binary::Mul, f.cast(x, DType::F32), f.cast(norm, DType::F32)), dtype)
    })?;
    Ok(vec![scaled])
}
