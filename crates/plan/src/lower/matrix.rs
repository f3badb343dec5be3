//! Matrix products, plain and quantized, and convolutions.

use super::Lowerer;
use crate::builder::Tensor;
use crate::dim::Dim;
use crate::error::{Fault, Result, ensure};
use crate::expr::Binary;
use crate::prim::{Prim, QuantFormat, Quantized};
use crate::promote::{promote, to_float};
use ptero_pte::field::{QuantMode, Src};
use ptero_pte::nodes::{Addmm, Dequantize, GatherMm, GatherQmm, QuantizedMatmul};
use ptero_tensor::DType;

/// Quantized weights while a graph is built.
pub(super) type Weights = Quantized<Tensor>;

fn split_matrix(view: &Tensor) -> Result<(&[Dim], &Dim, &Dim)> {
    match view.shape.as_slice() {
        [outer @ .., rows, columns] => Ok((outer, rows, columns)),
        _ => Err(Fault::Rank { what: "a matrix", wanted: 2, found: view.rank() }),
    }
}

/// Which matrices of two stacks are multiplied: those at the same index of the outer axes, or those that indices choose.
struct Pairing {
    lhs: Option<Tensor>,
    rhs: Option<Tensor>,
    outer: Vec<Dim>,
}

impl Lowerer<'_> {
    pub(super) fn addmm(&mut self, n: &Addmm) -> Result<Tensor> {
        let (a, b) = (self.tensor(n.mat1)?, self.tensor(n.mat2)?);
        let product = self.matmul(a, b)?;
        let Some(bias) = self.maybe(n.bias)? else { return Ok(product) };
        // `alpha * product + beta * bias`, summed in f32 and rounded once.
        let dtype = promote(product.dtype, to_float(bias.dtype));
        self.builder.map(&[product, bias], |f, [product, bias]| {
            let scaled = [(product, n.alpha), (bias, n.beta)]
                .map(|(part, factor)| f.binary(Binary::Mul, f.cast(part, DType::F32), f.float(factor, DType::F32)));
            let [product, bias] = scaled;
            f.cast(f.binary(Binary::Add, product, bias), dtype)
        })
    }

    /// A product as in numpy: a vector counts as a matrix of one row or column, which is removed from the result.
    fn matmul(&mut self, a: Tensor, b: Tensor) -> Result<Tensor> {
        let (row, column) = (a.rank() == 1, b.rank() == 1);
        let a = if row { self.builder.insert_axis(&a, 0) } else { a };
        let b = if column { self.builder.insert_axis(&b, 1) } else { b };
        let pairing = self.paired(&a, &b, None, None)?;
        let mut out = self.multiplied(a, b, pairing)?;
        if column {
            out = self.builder.remove_axis(&out, out.rank() - 1);
        }
        let rows = out.rank().saturating_sub(if column { 1 } else { 2 });
        Ok(if row { self.builder.remove_axis(&out, rows) } else { out })
    }

    /// Pairs matrices. Outer axes are those of the indices, or of both stacks broadcast together.
    fn paired(&mut self, a: &Tensor, b: &Tensor, lhs: Option<Tensor>, rhs: Option<Tensor>) -> Result<Pairing> {
        let ((a_outer, ..), (b_outer, ..)) = (split_matrix(a)?, split_matrix(b)?);
        let left = lhs.as_ref().map_or(a_outer, |view| &view.shape);
        let right = rhs.as_ref().map_or(b_outer, |view| &view.shape);
        let outer = self.builder.broadcast_shapes(left, right)?;
        let mut seen = |view: Option<Tensor>| view.map(|view| self.builder.broadcast(&view, &outer)).transpose();
        Ok(Pairing { lhs: seen(lhs)?, rhs: seen(rhs)?, outer })
    }

    /// Broadcasts a stack to the outer axes of the result, unless its matrices are chosen by indices.
    fn spread(&mut self, view: Tensor, chosen: bool, outer: &[Dim]) -> Result<Tensor> {
        if chosen {
            return Ok(view);
        }
        let (_, rows, columns) = split_matrix(&view)?;
        let shape: Vec<Dim> = outer.iter().chain([rows, columns]).cloned().collect();
        self.builder.broadcast(&view, &shape)
    }

    fn multiplied(&mut self, a: Tensor, b: Tensor, pairing: Pairing) -> Result<Tensor> {
        let dtype = to_float(promote(a.dtype, b.dtype));
        let (a, b) = (self.builder.cast(&a, dtype)?, self.builder.cast(&b, dtype)?);
        let Pairing { lhs, rhs, outer } = pairing;
        let (a, b) = (self.spread(a, lhs.is_some(), &outer)?, self.spread(b, rhs.is_some(), &outer)?);
        let ((_, rows, inner), (_, inner_too, columns)) = (split_matrix(&a)?, split_matrix(&b)?);
        self.builder.check_equal(inner, inner_too, "inner sizes of a matrix product")?;
        let shape = outer.iter().chain([rows, columns]).cloned().collect();
        Ok(self.builder.prim(dtype, shape, |out| Prim::MatMul { out, a, b, lhs, rhs, epilogue: None }))
    }

    pub(super) fn gather_mm(&mut self, n: &GatherMm) -> Result<Tensor> {
        let (a, b) = (self.tensor(n.a)?, self.tensor(n.b)?);
        let (lhs, rhs) = (self.maybe(n.lhs_indices)?, self.maybe(n.rhs_indices)?);
        let pairing = self.paired(&a, &b, lhs, rhs)?;
        self.multiplied(a, b, pairing)
    }

    fn quantized(
        &mut self,
        [codes, scales]: [Src; 2],
        biases: Option<Src>,
        mode: QuantMode,
        bits: i32,
        group: i32,
    ) -> Result<Weights> {
        let (codes, scales, biases) = (self.tensor(codes)?, self.tensor(scales)?, self.maybe(biases)?);
        let allowed: (&[u8], &[u16]) = match mode {
            QuantMode::Affine => (&[2, 3, 4, 5, 6, 8], &[32, 64, 128]),
            QuantMode::Mxfp4 => (&[4], &[32]),
            QuantMode::Mxfp8 => (&[8], &[32]),
            QuantMode::Nvfp4 => (&[4], &[16]),
        };
        let bad_bits = Fault::Value { what: "number of bits of a quantized weight", value: bits.into() };
        let bad_group = Fault::Value { what: "group size of a quantized weight", value: group.into() };
        let bits = u8::try_from(bits).ok().filter(|bits| allowed.0.contains(bits)).ok_or(bad_bits)?;
        let group = u16::try_from(group).ok().filter(|group| allowed.1.contains(group)).ok_or(bad_group)?;
        ensure!(codes.dtype == DType::U32, Fault::DType { what: "packed weights", dtype: codes.dtype });
        let has_right_biases = biases.is_some() == (mode == QuantMode::Affine);
        ensure!(has_right_biases, Fault::Unsupported("affine weights without biases, or other weights with them,"));
        let format = QuantFormat::Words { mode, bits, group };
        let quantized = Quantized { codes, scales: Some(scales), biases, format };
        let columns = self.columns(&quantized)?;
        let (outer, rows, _) = split_matrix(&quantized.codes)?;
        let groups = self.builder.floor_div(columns, Dim::fixed(group.into()))?;
        let shape: Vec<Dim> = outer.iter().chain([rows, &groups]).cloned().collect();
        for view in [&quantized.scales, &quantized.biases].into_iter().flatten() {
            self.builder.check_shape(&view.shape, &shape, "scales of quantized weights")?;
        }
        Ok(quantized)
    }

    /// The number of columns of dequantized weights.
    fn columns(&mut self, w: &Weights) -> Result<Dim> {
        let (_, _, width) = split_matrix(&w.codes)?;
        match w.format {
            QuantFormat::Words { bits, .. } => self.builder.floor_div(width * &Dim::fixed(32), Dim::fixed(bits.into())),
            QuantFormat::Gguf(kind) => {
                let size = |size: usize| Dim::fixed(i64::try_from(size).unwrap_or(i64::MAX));
                let blocks = self.builder.floor_div(width.clone(), size(kind.block_bytes()))?;
                self.builder.check_equal(width, &(&blocks * &size(kind.block_bytes())), "bytes of a row of blocks")?;
                Ok(&blocks * &size(kind.block_len()))
            }
        }
    }

    /// `x` times quantized weights, in this type, or in the one that both are promoted to.
    pub(super) fn quant_multiplied(
        &mut self,
        x: Tensor,
        w: Weights,
        transpose: bool,
        [lhs, rhs]: [Option<Tensor>; 2],
        dtype: Option<DType>,
    ) -> Result<Tensor> {
        let x = if x.rank() == 1 { self.builder.insert_axis(&x, 0) } else { x };
        let Pairing { lhs, rhs, outer } = self.paired(&x, &w.codes, lhs, rhs)?;
        let x = self.spread(x, lhs.is_some(), &outer)?;
        let Quantized { codes, scales, biases, format } = w;
        let chosen = rhs.is_some();
        let mut spread = |view: Option<Tensor>| view.map(|view| self.spread(view, chosen, &outer)).transpose();
        let (scales, biases) = (spread(scales)?, spread(biases)?);
        let w = Quantized { codes: self.spread(codes, chosen, &outer)?, scales, biases, format };
        let columns = self.columns(&w)?;
        let ((_, rows, inner), (_, w_rows, _)) = (split_matrix(&x)?, split_matrix(&w.codes)?);
        let (inner_too, width) = if transpose { (&columns, w_rows) } else { (w_rows, &columns) };
        self.builder.check_equal(inner, inner_too, "inner sizes of a matrix product")?;
        let shape = outer.iter().chain([rows, width]).cloned().collect();
        let met = match (&format, &w.scales) {
            (QuantFormat::Words { mode: QuantMode::Affine, .. }, Some(scales)) => {
                to_float(promote(x.dtype, scales.dtype))
            }
            _ => to_float(x.dtype),
        };
        let product = |out| Prim::QuantMatMul { out, x, w, transpose, lhs, rhs, epilogue: None };
        Ok(self.builder.prim(dtype.unwrap_or(met), shape, product))
    }

    pub(super) fn quantized_matmul(&mut self, n: &QuantizedMatmul) -> Result<Tensor> {
        let x = self.tensor(n.x)?;
        let vector = x.rank() == 1;
        let w = self.quantized([n.w, n.scales], n.biases, n.mode, n.bits, n.group_size)?;
        let result = self.quant_multiplied(x, w, n.transpose, [None, None], None)?;
        Ok(if vector { self.builder.remove_axis(&result, result.rank() - 2) } else { result })
    }

    pub(super) fn gather_qmm(&mut self, n: &GatherQmm) -> Result<Tensor> {
        let x = self.tensor(n.x)?;
        let w = self.quantized([n.w, n.scales], n.biases, n.mode, n.bits, n.group_size)?;
        let choices = [self.maybe(n.lhs_indices)?, self.maybe(n.rhs_indices)?];
        self.quant_multiplied(x, w, n.transpose, choices, None)
    }

    pub(super) fn dequantize(&mut self, n: &Dequantize) -> Result<Tensor> {
        let w = self.quantized([n.w, n.scales], n.biases, n.mode, n.bits, n.group_size)?;
        let global = self.maybe(n.global_scale)?;
        let native = match (n.mode, &w.scales) {
            (QuantMode::Affine, Some(scales)) => to_float(scales.dtype),
            _ => DType::Bf16,
        };
        let dtype = n.dtype.unwrap_or(native);
        let out = self.dequantized(w, if global.is_some() { DType::F32 } else { dtype })?;
        let Some(global) = global else { return Ok(out) };
        self.builder
            .map(&[out, global], |f, [x, factor]| f.cast(f.binary(Binary::Mul, x, f.cast(factor, DType::F32)), dtype))
    }

    pub(super) fn dequantized(&mut self, w: Weights, dtype: DType) -> Result<Tensor> {
        let columns = self.columns(&w)?;
        let (outer, rows, _) = split_matrix(&w.codes)?;
        let shape: Vec<Dim> = outer.iter().chain([rows, &columns]).cloned().collect();
        Ok(self.builder.prim(dtype, shape, |out| Prim::Dequantize { out, w }))
    }

    /// A convolution. `moves` has for each spatial axis the stride, padding, dilation, and the output padding of a transposed one.
    pub(super) fn conv(
        &mut self,
        [x, w]: [Src; 2],
        moves: &[[i32; 4]],
        groups: i32,
        transposed: bool,
    ) -> Result<Tensor> {
        let (x, w, groups, spatial) = (self.tensor(x)?, self.tensor(w)?, i64::from(groups), moves.len());
        for found in [x.rank(), w.rank()] {
            ensure!(found == spatial + 2, Fault::Rank { what: "a convolution", wanted: spatial + 2, found });
        }
        let column = |pick: fn(&[i32; 4]) -> i32| moves.iter().map(|axis| pick(axis).into()).collect::<Vec<i64>>();
        let [stride, padding, dilation] = [column(|axis| axis[0]), column(|axis| axis[1]), column(|axis| axis[2])];
        if let Some(value) = stride.iter().chain(&dilation).chain([&groups]).find(|value| **value < 1) {
            return Err(Fault::Value { what: "stride, dilation or number of groups", value: *value });
        }
        let channels = w.size(spatial + 1)? * &Dim::fixed(groups);
        self.builder.check_equal(x.size(spatial + 1)?, &channels, "channels of a convolution")?;
        let is_grouped = w.size(0)?.as_fixed().is_some_and(|filters| filters % groups == 0);
        ensure!(is_grouped, Fault::Value { what: "number of groups", value: groups });
        let mut shape = vec![x.size(0)?.clone()];
        for (at, moves) in moves.iter().enumerate() {
            shape.push(self.conv_size(x.size(at + 1)?, w.size(at + 1)?, moves.map(i64::from), transposed)?);
        }
        shape.push(w.size(0)?.clone());
        let dtype = to_float(promote(x.dtype, w.dtype));
        let (x, w) = (self.builder.cast(&x, dtype)?, self.builder.cast(&w, dtype)?);
        let conv = |out| Prim::Conv { out, x, w, stride, padding, dilation, groups, transposed };
        Ok(self.builder.prim(dtype, shape, conv))
    }

    /// The size of the result along a spatial axis.
    fn conv_size(&mut self, size: &Dim, filter: &Dim, moves: [i64; 4], transposed: bool) -> Result<Dim> {
        let [stride, padding, dilation, added] = moves;
        let one = Dim::fixed(1);
        let reach = &(filter - &one) * &Dim::fixed(dilation);
        let size = if transposed {
            let spread = &(size - &one) * &Dim::fixed(stride);
            &(&spread + &reach) + &Dim::fixed(1 + added - 2 * padding)
        } else {
            let room = &(size + &Dim::fixed(2 * padding)) - &(&reach + &one);
            &self.builder.floor_div(room, Dim::fixed(stride))? + &one
        };
        self.builder.check_within(&size, 0, i32::MAX, "size of a convolution's result")?;
        Ok(size)
    }
}
