//! Norms, rotary positions and attention.

use super::Lowerer;
use crate::builder::Tensor;
use crate::dim::Dim;
use crate::error::{Fault, Result};
use crate::prim::{Angles, Normalize, Position, Prim};
use crate::promote::{promote, to_float};
use ptero_pte::field::{Dst, Src, ValueOrSrc};
use ptero_pte::nodes::{LayerNorm, RMSNorm, Rope, Sdpa};
use ptero_tensor::DType;

/// The operands of an attention.
pub(super) struct Heads {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) mask: Option<Tensor>,
    pub(super) causal: bool,
    pub(super) window: Option<i64>,
    pub(super) scale: f32,
}

impl Lowerer<'_> {
    pub(super) fn rms_norm(&mut self, n: &RMSNorm) -> Result<()> {
        self.norm([n.x.0, n.out.0], [n.weight, None], n.eps, Normalize::Rms)
    }

    pub(super) fn layer_norm(&mut self, n: &LayerNorm) -> Result<()> {
        self.norm([n.x.0, n.out.0], [n.weight, n.bias], n.eps, Normalize::Layer)
    }

    fn norm(&mut self, [x, out]: [u32; 2], factors: [Option<Src>; 2], eps: f32, kind: Normalize) -> Result<()> {
        let x = self.tensor(Src(x))?;
        let width = x.shape.last().ok_or(Fault::Rank { what: "a norm", wanted: 1, found: 0 })?.clone();
        let [weight, bias] = factors;
        let (weight, bias) = (self.maybe(weight)?, self.maybe(bias)?);
        for factor in [&weight, &bias].into_iter().flatten() {
            self.builder.same_shape(&factor.shape, std::slice::from_ref(&width), "the weight of a norm")?;
        }
        // As MLX has it: weights of a wider type make the result wider.
        let factors = [&weight, &bias].into_iter().flatten();
        let dtype = factors.fold(to_float(x.dtype), |dtype, factor| promote(dtype, factor.dtype));
        let x = if dtype == to_float(x.dtype) { x } else { self.builder.cast(&x, dtype)? };
        let result = self.builder.new_tensor(dtype, x.shape.clone());
        let (weight, bias) = (weight.map(|weight| weight.value), bias.map(|bias| bias.value));
        self.builder.prim(Prim::Norm { out: result.value, x: x.value, weight, bias, eps, kind });
        self.set(Dst(out), result)
    }

    pub(super) fn rope(&mut self, n: &Rope) -> Result<()> {
        let x = self.tensor(n.x)?;
        if x.rank() < 2 {
            return Err(Fault::Rank { what: "rotary positions", wanted: 2, found: x.rank() });
        }
        let bad_dims = Fault::Value { what: "number of rotated elements", value: n.dims.into() };
        let dims = usize::try_from(n.dims).ok().filter(|dims| dims % 2 == 0).ok_or(bad_dims)?;
        let width = x.size(x.rank() - 1)?.clone();
        self.builder.within(&Dim::fixed(n.dims.into()), Dim::fixed(0), width, "number of rotated elements")?;
        let angles = match self.maybe(n.freqs)? {
            None => Angles::Base(n.base),
            Some(periods) => {
                let half = [Dim::fixed(i64::from(n.dims) / 2)];
                self.builder.same_shape(&periods.shape, &half, "the periods of rotary positions")?;
                Angles::Periods(self.builder.cast(&periods, DType::F32)?.value)
            }
        };
        let position = match n.offset {
            ValueOrSrc::Value(value) => Position::Host(self.value(value)?),
            ValueOrSrc::Tensor(src) => Position::Tensor(self.tensor(src)?.value),
        };
        let out = self.builder.new_tensor(x.dtype, x.shape.clone());
        let (interleaved, scale) = (n.traditional, n.scale);
        self.builder.prim(Prim::Rope { out: out.value, x: x.value, dims, interleaved, scale, position, angles });
        self.set(n.out, out)
    }

    pub(super) fn sdpa(&mut self, n: &Sdpa) -> Result<()> {
        let (q, k, v) = (self.tensor(n.q)?, self.tensor(n.k)?, self.tensor(n.v)?);
        let mask = self.maybe(n.mask)?;
        let result = self.attend(Heads { q, k, v, mask, causal: n.causal, window: None, scale: n.scale })?;
        self.set(n.out, result)
    }

    pub(super) fn attend(&mut self, heads: Heads) -> Result<Tensor> {
        let Heads { q, k, v, mask, causal, window, scale } = heads;
        for tensor in [&q, &k, &v] {
            if tensor.rank() != 4 {
                return Err(Fault::Rank { what: "attention", wanted: 4, found: tensor.rank() });
            }
        }
        for (a, b, axis) in [(&q, &k, 0), (&k, &v, 0), (&k, &v, 1), (&k, &v, 2), (&q, &k, 3)] {
            self.builder.same(a.size(axis)?, b.size(axis)?, "sizes of queries, keys and values")?;
        }
        match (q.size(1)?.as_fixed(), k.size(1)?.as_fixed()) {
            (Some(heads), Some(groups)) if groups > 0 && heads % groups == 0 => {}
            _ => return Err(Fault::Unsupported("attention whose heads are no multiple of its key heads")),
        }
        let span = vec![q.size(0)?.clone(), q.size(1)?.clone(), q.size(2)?.clone(), k.size(2)?.clone()];
        let mask = mask.map(|mask| Ok(self.builder.broadcast(&mask, &span)?.value)).transpose()?;
        let shape = vec![q.size(0)?.clone(), q.size(1)?.clone(), q.size(2)?.clone(), v.size(3)?.clone()];
        let out = self.builder.new_tensor(to_float(q.dtype), shape);
        let (q, k, v) = (q.value, k.value, v.value);
        self.builder.prim(Prim::Attention { out: out.value, q, k, v, mask, causal, window, scale });
        Ok(out)
    }
}
