//! Norms, rotary positions and attention.

use super::{KvCache, Lowerer};
use crate::dim::Dim;
use crate::error::{Fault, Result};
use crate::plan::BufferKind;
use crate::prim::{Angles, Normalize, Position, Prim, View};
use crate::promote::to_float;
use ptero_pte::field::{Dst, Src, ValueOrSrc};
use ptero_pte::nodes::{LayerNorm, RMSNorm, Rope, Sdpa, UpdateAndAttend};
use ptero_tensor::DType;

/// An attention, but for its result.
struct Heads {
    q: View,
    k: View,
    v: View,
    mask: Option<View>,
    causal: bool,
    scale: f32,
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
        let result = self.builder.new_tensor(to_float(x.dtype), x.shape.clone());
        self.builder.prim(Prim::Norm { out: result.clone(), x, weight, bias, eps, kind });
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
                Angles::Periods(self.builder.cast(&periods, DType::F32)?)
            }
        };
        let position = match n.offset {
            ValueOrSrc::Value(value) => Position::Host(self.value(value)?),
            ValueOrSrc::Tensor(src) => Position::Tensor(self.tensor(src)?),
        };
        let out = self.builder.new_tensor(x.dtype, x.shape.clone());
        let (interleaved, scale) = (n.traditional, n.scale);
        self.builder.prim(Prim::Rope { out: out.clone(), x, dims, interleaved, scale, position, angles });
        self.set(n.out, out)
    }

    pub(super) fn sdpa(&mut self, n: &Sdpa) -> Result<()> {
        let (q, k, v) = (self.tensor(n.q)?, self.tensor(n.k)?, self.tensor(n.v)?);
        let mask = self.maybe(n.mask)?;
        let result = self.attend(Heads { q, k, v, mask, causal: n.causal, scale: n.scale })?;
        self.set(n.out, result)
    }

    fn attend(&mut self, heads: Heads) -> Result<View> {
        let Heads { q, k, v, mask, causal, scale } = heads;
        for view in [&q, &k, &v] {
            if view.rank() != 4 {
                return Err(Fault::Rank { what: "attention", wanted: 4, found: view.rank() });
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
        let mask = mask.map(|mask| self.builder.broadcast(&mask, &span)).transpose()?;
        let shape = vec![q.size(0)?.clone(), q.size(1)?.clone(), q.size(2)?.clone(), v.size(3)?.clone()];
        let out = self.builder.new_tensor(to_float(q.dtype), shape);
        self.builder.prim(Prim::Attention { out: out.clone(), q, k, v, mask, causal, window: None, scale });
        Ok(out)
    }

    /// Keys and values go to the cache outside the graph, behind those of earlier positions; then queries attend to all.
    pub(super) fn update_and_attend(&mut self, n: &UpdateAndAttend) -> Result<()> {
        let (q, k, v) = (self.tensor(n.q)?, self.tensor(n.k)?, self.tensor(n.v)?);
        let layer = n.layer_id.ok_or(Fault::Unsupported("attention without a layer"))?;
        let scale = n.scale.ok_or(Fault::Unsupported("attention without a scale"))?;
        let (keys, values) = self.cache(layer)?;
        let mut position = self.tensor(n.position)?;
        while position.rank() > 0 {
            position = position.at(0, &Dim::fixed(0));
        }
        let start = self.item(position)?;
        if k.rank() != 4 || v.rank() != 4 {
            return Err(Fault::Rank { what: "attention", wanted: 4, found: k.rank().min(v.rank()) });
        }
        let count = k.size(2)?.clone();
        let end = &start + &count;
        self.builder.within(&start, Dim::fixed(0), keys.size(2)?.clone(), "position in the cache")?;
        self.builder.within(&end, Dim::fixed(0), keys.size(2)?.clone(), "position in the cache")?;
        let one = Dim::fixed(1);
        for (cache, new) in [(&keys, &k), (&values, &v)] {
            let part = cache.narrowed(2, &start, count.clone(), &one);
            self.builder.same_shape(&part.shape, &new.shape, "keys or values and their cache")?;
            self.builder.copy_into(part, new)?;
        }
        let [k, v] = [keys, values].map(|cache| cache.narrowed(2, &Dim::fixed(0), end.clone(), &one));
        let result = self.attend(Heads { q, k, v, mask: None, causal: true, scale })?;
        let result = self.builder.cast(&result, n.out_dtype.unwrap_or(result.dtype))?;
        self.set(n.out, result)
    }

    fn cache(&mut self, layer: i32) -> Result<(View, View)> {
        let Some(KvCache { capacity, layers, kv_heads, head_dim, dtype }) = self.options.kv_cache.clone() else {
            return Err(Fault::NoCache);
        };
        if !(0..layers).contains(&layer.into()) {
            return Err(Fault::Value { what: "layer of the cache", value: layer.into() });
        }
        if let Some(known) = self.caches.get(&layer) {
            return Ok(known.clone());
        }
        let shape = [1, kv_heads, capacity, head_dim].map(Dim::fixed).to_vec();
        let elements = shape.iter().fold(Dim::fixed(1), |product, size| &product * size);
        let mut side = || {
            let buf = self.builder.buffer(dtype, elements.clone(), BufferKind::State);
            View::row_major(buf, dtype, shape.clone())
        };
        let pair = (side(), side());
        self.caches.insert(layer, pair.clone());
        Ok(pair)
    }
}
