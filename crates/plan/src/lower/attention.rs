//! Norms, rotary positions and attention.

use super::Lowerer;
use crate::builder::Tensor;
use crate::dim::Dim;
use crate::error::{Fault, Result, ensure};
use crate::prim::{Angles, Normalize, Position, Prim};
use crate::promote::{promote, to_float};
use ptero_pte::field::{Src, ValueOrSrc};
use ptero_pte::nodes::{Rope, Sdpa};
use ptero_tensor::DType;

/// Returns `true` if a number of heads is known to be a multiple of the number of groups.
pub(super) fn is_multiple(heads: &Dim, groups: &Dim) -> bool {
    let numbers = heads.as_fixed().zip(groups.as_fixed());
    numbers.is_some_and(|(heads, groups)| groups > 0 && heads % groups == 0)
}

/// The operands of an attention.
pub(super) struct Heads {
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) mask: Option<Tensor>,
    /// The position of the first key.
    pub(super) first: Dim,
    pub(super) causal: bool,
    pub(super) window: Option<i64>,
    pub(super) scale: f32,
}

/// Ensures that queries, keys and values have four axes.
pub(super) fn check_ranks(heads: [&Tensor; 3]) -> Result<()> {
    let odd = heads.into_iter().map(Tensor::rank).find(|rank| *rank != 4);
    odd.map_or(Ok(()), |found| Err(Fault::Rank { what: "attention", wanted: 4, found }))
}

impl Lowerer<'_> {
    pub(super) fn norm(&mut self, x: Src, factors: [Option<Src>; 2], eps: f32, kind: Normalize) -> Result<Tensor> {
        let x = self.tensor(x)?;
        let width = x.shape.last().ok_or(Fault::Rank { what: "a norm", wanted: 1, found: 0 })?.clone();
        let [weight, bias] = factors;
        let (weight, bias) = (self.maybe(weight)?, self.maybe(bias)?);
        for factor in [&weight, &bias].into_iter().flatten() {
            self.builder.check_shape(&factor.shape, std::slice::from_ref(&width), "the weight of a norm")?;
        }
        // As in MLX, weights of a wider type make the result wider.
        let factors = [&weight, &bias].into_iter().flatten();
        let dtype = factors.fold(to_float(x.dtype), |dtype, factor| promote(dtype, factor.dtype));
        let x = if dtype == to_float(x.dtype) { x } else { self.builder.cast(&x, dtype)? };
        Ok(self.builder.prim(dtype, x.shape.clone(), |out| Prim::Norm { out, x, weight, bias, eps, kind }))
    }

    pub(super) fn rope(&mut self, n: &Rope) -> Result<Tensor> {
        let x = self.tensor(n.x)?;
        ensure!(x.rank() >= 2, Fault::Rank { what: "rotary positions", wanted: 2, found: x.rank() });
        let bad_dims = Fault::Value { what: "number of rotated elements", value: n.dims.into() };
        let dims = usize::try_from(n.dims).ok().filter(|dims| dims % 2 == 0).ok_or(bad_dims)?;
        let width = x.size(x.rank() - 1)?.clone();
        self.builder.check_within(&n.dims.into(), 0, width, "number of rotated elements")?;
        let angles = match self.maybe(n.freqs)? {
            None => Angles::Base(n.base),
            Some(periods) => {
                let half = [Dim::fixed(i64::from(n.dims) / 2)];
                self.builder.check_shape(&periods.shape, &half, "the periods of rotary positions")?;
                Angles::Periods(self.builder.cast(&periods, DType::F32)?)
            }
        };
        let position = match n.offset {
            ValueOrSrc::Value(value) => Position::Host(self.value(value)?),
            ValueOrSrc::Tensor(src) => Position::Tensor(self.tensor(src)?),
        };
        let Rope { traditional: interleaved, scale, .. } = *n;
        let rope = |out| Prim::Rope { out, x: x.clone(), dims, interleaved, scale, position, angles };
        Ok(self.builder.prim(x.dtype, x.shape.clone(), rope))
    }

    pub(super) fn sdpa(&mut self, n: &Sdpa) -> Result<Tensor> {
        let (q, k, v) = (self.tensor(n.q)?, self.tensor(n.k)?, self.tensor(n.v)?);
        let mask = self.maybe(n.mask)?;
        self.attend(Heads { q, k, v, mask, first: Dim::fixed(0), causal: n.causal, window: None, scale: n.scale })
    }

    pub(super) fn attend(&mut self, heads: Heads) -> Result<Tensor> {
        let Heads { q, k, v, mask, first, causal, window, scale } = heads;
        check_ranks([&q, &k, &v])?;
        for (a, b, axis) in [(&q, &k, 0), (&k, &v, 0), (&k, &v, 1), (&k, &v, 2), (&q, &k, 3)] {
            self.builder.check_equal(a.size(axis)?, b.size(axis)?, "sizes of queries, keys and values")?;
        }
        let is_grouped = is_multiple(q.size(1)?, k.size(1)?);
        ensure!(is_grouped, Fault::Unsupported("attention whose heads are no multiple of its key heads"));
        let span = [q.size(0)?, q.size(1)?, q.size(2)?, k.size(2)?].map(Dim::clone);
        let mask = mask.map(|mask| self.builder.broadcast(&mask, &span)).transpose()?;
        let shape = [q.size(0)?, q.size(1)?, q.size(2)?, v.size(3)?].map(Dim::clone).to_vec();
        let attention = |out| Prim::Attention { out, q: q.clone(), k, v, mask, first, causal, window, scale };
        Ok(self.builder.prim(to_float(q.dtype), shape, attention))
    }
}
