//! Products with weights, which the recipe stores in one of several ways.

use super::Net;
use crate::builder::Tensor;
use crate::gguf_kernels::GgufMatrix;
use crate::recipe::Storage;
use crate::weights::{Form, Weight, WeightRows};
use ptero_checkpoint::Format;
use ptero_pte::DType;
use ptero_pte::field::{Int, IntOrSrc, QuantMode};
use ptero_pte::nodes::{Addmm, Dequantize, QuantizedMatmul, Take};
use ptero_tensor::{Affine, GgufType};

/// A matrix that is a constant of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored {
    /// As a stack of one.
    Alone(Stack),
    /// As the blocks of a GGUF file.
    Blocks(GgufMatrix),
}

/// Matrices of one size that are one constant of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stack {
    /// As numbers.
    Plain(Tensor),
    /// As codes with scales and biases.
    Affine { codes: Tensor, scales: Tensor, biases: Tensor, affine: Affine },
}

impl Net<'_> {
    /// `x` times the transpose of `name.weight`, which has the shape `[out, in]`.
    pub(crate) fn linear(&mut self, name: &str, x: Tensor, shape: [i32; 2]) -> Tensor {
        self.linear_with(name, x, shape, false)
    }

    /// Same as [`Net::linear`], but never quantized: for small matrices whose precision matters.
    pub(crate) fn plain_linear(&mut self, name: &str, x: Tensor, shape: [i32; 2]) -> Tensor {
        let weight = self.matrix(&format!("{name}.weight"), shape, Storage::Plain);
        self.product(x, weight, None)
    }

    /// Same as [`Net::linear`], plus `name.bias` if `has_bias`.
    pub(crate) fn linear_with(&mut self, name: &str, x: Tensor, [rows, columns]: [i32; 2], has_bias: bool) -> Tensor {
        let weight = self.matrix(&format!("{name}.weight"), [rows, columns], self.storage(name));
        let bias = has_bias.then(|| self.weight(&format!("{name}.bias"), &[rows]));
        self.product(x, weight, bias)
    }

    /// Several linear layers of the same input as one, since a few large products are faster than many small ones. `name`
    /// is the name of the combined weight in the program. Where the recipe stores some layers differently, each run of
    /// layers that are stored the same way is one.
    pub(crate) fn linears<const N: usize>(
        &mut self,
        name: &str,
        layers: [(&str, i32); N],
        x: Tensor,
        columns: i32,
        has_bias: bool,
    ) -> [Tensor; N] {
        let mut outputs = Vec::with_capacity(N);
        let runs: Vec<_> = layers.chunk_by(|(one, _), (next, _)| self.storage(one) == self.storage(next)).collect();
        for run in runs {
            let joined = joined_name(run);
            let name = if run.len() == N { name } else { &joined };
            outputs.extend(self.fused(name, run, x, columns, has_bias));
        }
        outputs.try_into().expect("each layer is in one run")
    }

    /// Linear layers of the same input and storage as one; separate, if the checkpoint has them in different forms that
    /// are kept.
    fn fused(&mut self, name: &str, layers: &[(&str, i32)], x: Tensor, columns: i32, has_bias: bool) -> Vec<Tensor> {
        let storage = layers.first().map_or(self.recipe.linear, |(layer, _)| self.storage(layer));
        let parts: Vec<Option<WeightRows>> =
            layers.iter().map(|(layer, rows)| self.rows_of(&format!("{layer}.weight"), &[*rows, columns])).collect();
        let forms: Vec<Form> = parts.iter().map(|part| self.form(part.iter(), columns, storage)).collect();
        if layers.len() == 1 || forms.iter().any(|form| Some(form) != forms.first()) {
            let alone = |(layer, rows): &(&str, i32)| self.linear_with(layer, x, [*rows, columns], has_bias);
            return layers.iter().map(alone).collect();
        }
        let shape = [layers.iter().map(|(_, rows)| rows).sum(), columns];
        let full = self.full_name(name);
        let parts = parts.into_iter().flatten().collect();
        let weight = self.store(&format!("{full}.weight"), parts, shape, storage);
        let bias = has_bias.then(|| {
            let parts = layers.iter().filter_map(|(layer, rows)| self.rows_of(&format!("{layer}.bias"), &[*rows]));
            let (parts, [rows, _]) = (parts.collect(), shape);
            self.store_plain(&format!("{full}.bias"), parts, &[rows], self.dtype(), None)
        });
        let together = self.product(x, weight, bias);
        let mut start = 0;
        layers.iter().map(|(_, rows)| self.next_part(together, &mut start, *rows)).collect()
    }

    /// The rows of `name.weight`, `[vocabulary, width]`, that the tokens name: `[1, length, width]`.
    pub(crate) fn embedding(&mut self, name: &str, tokens: Tensor, shape: [i32; 2]) -> Tensor {
        let table = self.matrix(&format!("{name}.weight"), shape, self.recipe.embedding);
        let mut rows = |table: Tensor| {
            self.graph.node(|out| Take { x: table.src(), out, index: IntOrSrc::Tensor(tokens.src()), axis: 0 })
        };
        match table {
            Stored::Alone(Stack::Plain(table)) => rows(table),
            Stored::Alone(Stack::Affine { codes, scales, biases, affine }) => {
                let (w, scales, biases) = (rows(codes), rows(scales), rows(biases));
                let dtype = Some(self.dtype());
                self.graph.node(|out| Dequantize {
                    w: w.src(),
                    scales: scales.src(),
                    out,
                    biases: Some(biases.src()),
                    group_size: group_size(affine),
                    bits: affine.bits().into(),
                    mode: QuantMode::Affine,
                    global_scale: None,
                    dtype,
                })
            }
            Stored::Blocks(table) => {
                let (outer, dtype) = ([Int::Literal(1), self.length.int()], self.dtype());
                table.embedding(&mut self.graph, tokens, &outer, dtype)
            }
        }
    }

    /// Logits: `x` times the transpose of the table of embeddings where the head is tied to it, else of a table of its own.
    pub(crate) fn head(&mut self, name: &str, embedding: Option<&str>, x: Tensor, shape: [i32; 2]) -> Tensor {
        let table = match embedding {
            Some(tied) => self.matrix(&format!("{tied}.weight"), shape, self.recipe.embedding),
            None => self.matrix(&format!("{name}.weight"), shape, self.recipe.sensitive()),
        };
        let position = self.recipe.every_position.then(|| self.length.int());
        let outer: Vec<Int> = [Int::Literal(1)].into_iter().chain(position).collect();
        self.product_of(x, &outer, table, None)
    }

    /// A matrix of the checkpoint as a constant; the same one is stored once.
    pub(crate) fn matrix(&mut self, name: &str, shape: [i32; 2], storage: Storage) -> Stored {
        let full = self.full_name(name);
        if let Some(stored) = self.stored.get(&full) {
            return *stored;
        }
        let parts = self.rows_of(name, &shape).into_iter().collect();
        let stored = self.store(&full, parts, shape, storage);
        self.stored.insert(full, stored);
        stored
    }

    /// Rows of the checkpoint as one matrix.
    pub(crate) fn store(&mut self, name: &str, parts: Vec<WeightRows>, shape: [i32; 2], storage: Storage) -> Stored {
        if let Form::Blocks(kind) = self.form(parts.iter(), shape[1], storage) {
            return self.store_blocks(name, kind, parts, shape);
        }
        Stored::Alone(self.store_stack(name, parts, &shape, storage))
    }

    /// Rows of the checkpoint as one constant of this shape, whose last axis is a row. No kernel takes a stack of matrices
    /// in blocks, so their numbers are stored.
    pub(crate) fn store_stack(&mut self, name: &str, parts: Vec<WeightRows>, shape: &[i32], storage: Storage) -> Stack {
        let columns = shape.last().copied().unwrap_or(1);
        let form = self.form(parts.iter(), columns, storage);
        let affine = match form {
            Form::Blocks(_) | Form::Bytes | Form::Plain(_) => {
                return Stack::Plain(self.store_plain(name, parts, shape, self.dtype(), None));
            }
            Form::Affine(affine, _) => affine,
            Form::Legacy(kind, _) => kind.affine(),
        };
        let columns = usize::try_from(columns).unwrap_or(0);
        let with_last = |last: usize| -> Vec<i32> {
            let outer = shape.iter().take(shape.len().saturating_sub(1)).copied();
            outer.chain([i32::try_from(last).unwrap_or(i32::MAX)]).collect()
        };
        let (words, groups) = (with_last(affine.code_bytes(columns) / 4), with_last(affine.groups(columns)));
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let (codes, first) = self.declare(name, DType::U32, &words);
        let (scales, second) = self.declare(&format!("{stem}.scales"), self.dtype(), &groups);
        let (biases, third) = self.declare(&format!("{stem}.biases"), self.dtype(), &groups);
        self.weights.push(Weight { parts, columns, change: None, form, data: vec![first, second, third] });
        Stack::Affine { codes, scales, biases, affine }
    }

    /// Rows of blocks as they are.
    fn store_blocks(
        &mut self,
        name: &str,
        kind: GgufType,
        parts: Vec<WeightRows>,
        [rows, columns]: [i32; 2],
    ) -> Stored {
        let width = usize::try_from(columns).unwrap_or(0);
        let row_bytes = i32::try_from(width / kind.block_len() * kind.block_bytes()).unwrap_or(i32::MAX);
        let (weight, pending) = self.declare(name, DType::U8, &[rows, row_bytes]);
        let form = Form::Blocks(kind);
        self.weights.push(Weight { parts, columns: width, change: None, form, data: vec![pending] });
        Stored::Blocks(GgufMatrix::new(weight, kind, [rows, columns]))
    }

    /// The form in which the recipe stores rows of `columns` elements. Rows that are no multiple of the group size use a
    /// smaller group, and stay plain if no group size divides them.
    fn form<'a>(&self, parts: impl IntoIterator<Item = &'a WeightRows>, columns: i32, storage: Storage) -> Form {
        let dtype = self.recipe.dtype;
        let columns = usize::try_from(columns).unwrap_or(0);
        let affine = |bits: u8| {
            let groups = Affine::GROUPS.iter().rev().filter(|group| **group <= self.group);
            let fits = |affine: &Affine| affine.divides(columns);
            groups.filter_map(|group| Affine::new(bits, *group)).find(fits).map(|affine| Form::Affine(affine, dtype))
        };
        match storage {
            Storage::Plain => Form::Plain(dtype),
            Storage::Int4 => affine(4).unwrap_or(Form::Plain(dtype)),
            Storage::Int8 => affine(8).unwrap_or(Form::Plain(dtype)),
            Storage::AsInCheckpoint => {
                let mut formats = parts.into_iter().map(|part| part.entry.format());
                let first = formats.next();
                match first.filter(|first| formats.all(|format| format == *first)) {
                    Some(Format::GgufLegacy(kind)) => Form::Legacy(kind, dtype),
                    Some(Format::Gguf(kind)) => Form::Blocks(kind),
                    _ => Form::Plain(dtype),
                }
            }
        }
    }

    /// `x`, `[1, length, in]`, times the transpose of a matrix, plus a bias.
    pub(crate) fn product(&mut self, x: Tensor, weight: Stored, bias: Option<Tensor>) -> Tensor {
        let outer = [Int::Literal(1), self.length.int()];
        self.product_of(x, &outer, weight, bias)
    }

    /// `x`, `[outer.., in]`, times the transpose of a matrix, plus a bias.
    pub(crate) fn product_of(&mut self, x: Tensor, outer: &[Int], weight: Stored, bias: Option<Tensor>) -> Tensor {
        match weight {
            Stored::Alone(Stack::Plain(matrix)) => {
                let mat2 = self.transpose(matrix, &[1, 0]);
                let bias = bias.map(Tensor::src);
                let (mat1, mat2) = (x.src(), mat2.src());
                self.graph.node(|out| Addmm { mat1, mat2, out, bias, alpha: 1.0, beta: 1.0 })
            }
            Stored::Alone(Stack::Affine { codes, scales, biases, affine }) => {
                let product = self.graph.node(|out| QuantizedMatmul {
                    x: x.src(),
                    w: codes.src(),
                    scales: scales.src(),
                    out,
                    biases: Some(biases.src()),
                    group_size: group_size(affine),
                    bits: affine.bits().into(),
                    mode: QuantMode::Affine,
                    transpose: true,
                });
                bias.map_or(product, |bias| self.add(product, bias))
            }
            Stored::Blocks(matrix) => {
                let dtype = self.dtype();
                matrix.linear(&mut self.graph, x, outer, dtype, bias)
            }
        }
    }
}

/// The name of several layers as one: `qk_proj` of `q_proj` and `k_proj`.
fn joined_name(layers: &[(&str, i32)]) -> String {
    let stems = layers.iter().map(|(layer, _)| layer.strip_suffix("_proj").unwrap_or(layer));
    stems.chain(["_proj"]).collect()
}

pub(super) fn group_size(affine: Affine) -> i32 {
    i32::try_from(affine.group()).unwrap_or(i32::MAX)
}
