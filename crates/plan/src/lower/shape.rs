//! Nodes that move elements without computing with them. Most become views.

use super::Lowerer;
use crate::builder::{Tensor, axis};
use crate::dim::Dim;
use crate::error::{Fault, Result, ensure};
use ptero_pte::field::PadMode;
use ptero_pte::nodes::{
    AsStrided, BroadcastTo, ExpandDims, Flip, Pad, Repeat, Roll, Slice, Split, Squeeze, Stack, Tile, Transpose,
};

impl Lowerer<'_> {
    pub(super) fn expand_dims(&mut self, n: &ExpandDims) -> Result<Tensor> {
        let x = self.tensor(n.x)?;
        let at = axis(n.axis.into(), x.rank() + 1)?;
        Ok(self.builder.insert_axis(&x, at))
    }

    /// Removes the axes named, or all, that have size 1. A size known only at run time counts as another.
    pub(super) fn squeeze(&mut self, n: &Squeeze) -> Result<Tensor> {
        let x = self.tensor(n.x)?;
        let named = n.dims.as_deref().unwrap_or_default();
        let named = named.iter().map(|dim| axis((*dim).into(), x.rank())).collect::<Result<Vec<_>>>()?;
        let is_kept = |(at, size): &(usize, &Dim)| !((named.is_empty() || named.contains(at)) && size.is(1));
        let shape: Vec<Dim> = x.shape.iter().enumerate().filter(is_kept).map(|(_, size)| size.clone()).collect();
        self.builder.reshape(&x, &shape)
    }

    pub(super) fn transpose(&mut self, n: &Transpose) -> Result<Tensor> {
        let x = self.tensor(n.x)?;
        let order = n.perm.iter().map(|dim| axis((*dim).into(), x.rank())).collect::<Result<Vec<_>>>()?;
        self.builder.permute(&x, &order)
    }

    /// A size of -1 keeps that of `x`; shapes are aligned at the right.
    pub(super) fn broadcast_to(&mut self, n: &BroadcastTo) -> Result<Tensor> {
        let (x, mut shape) = (self.tensor(n.x)?, self.ints(&n.shape)?);
        let missing = shape.len().saturating_sub(x.rank());
        for (have, want) in x.shape.iter().zip(shape.iter_mut().skip(missing)) {
            if want.is(-1) {
                *want = have.clone();
            }
        }
        self.builder.broadcast(&x, &shape)
    }

    /// Views the elements of `x`, in their row-major order, through strides from the program.
    pub(super) fn as_strided(&mut self, n: &AsStrided) -> Result<Tensor> {
        let (x, shape, strides) = (self.tensor(n.x)?, self.ints(&n.shape)?, self.ints(&n.strides)?);
        let (wanted, found) = (shape.len(), strides.len());
        ensure!(found == wanted, Fault::Count { what: "strides", wanted, found });
        let offset = i64::try_from(n.offset).map_err(|_| Fault::Value { what: "offset", value: i64::MAX })?;
        Ok(self.builder.strided(&x, shape, strides, Dim::fixed(offset)))
    }

    pub(super) fn slice(&mut self, n: &Slice) -> Result<Tensor> {
        let x = self.tensor(n.x)?;
        let at = self.fixed_axis(n.axis, x.rank())?;
        let (start, stop, size) = (self.int(n.start)?, self.int(n.stop)?, x.size(at)?.clone());
        let (start, length) = match n.step {
            0 => return Err(Fault::Value { what: "step", value: 0 }),
            1.. => self.span(&start, &stop, &size, n.step.into())?,
            ..0 => {
                let [start, stop] = [start, stop].map(|index| self.builder.clamped_backward(&index, &size));
                let length = self.builder.max(&start - &stop, Dim::fixed(0));
                let pace = Dim::fixed(-i64::from(n.step));
                (start, self.builder.floor_div(&(&length + &pace) - &Dim::fixed(1), pace)?)
            }
        };
        self.builder.narrow(&x, at, &start, length, n.step.into())
    }

    pub(super) fn fixed_axis(&self, number: ptero_pte::field::Int, rank: usize) -> Result<usize> {
        let number = self.int(number)?.as_fixed();
        axis(number.ok_or(Fault::Unsupported("an axis known only at run time"))?, rank)
    }

    /// Start and length of a slice: positions count from the end if negative, and are clamped to the axis.
    pub(super) fn span(&mut self, start: &Dim, stop: &Dim, size: &Dim, step: i64) -> Result<(Dim, Dim)> {
        let (start, stop) = (self.builder.clamped(start, size), self.builder.clamped(stop, size));
        let length = &stop - &start;
        // Not negative if it starts at 0.
        let length = if start.is(0) { length } else { self.builder.max(length, Dim::fixed(0)) };
        let length = self.builder.floor_div(&length + &Dim::fixed(step - 1), Dim::fixed(step))?;
        Ok((start, length))
    }

    /// Splits into pieces of the sizes given, or, with one size, of that size with a smaller one at the end.
    pub(super) fn split(&mut self, n: &Split) -> Result<()> {
        let (x, at) = self.along(n.x, n.axis)?;
        let mut sizes = self.ints(&n.sizes)?;
        let (total, wanted) = (x.size(at)?.clone(), n.outs.len());
        if let ([chunk], Some(total)) = (sizes.as_slice(), total.as_fixed()) {
            let chunk = chunk.as_fixed().ok_or(Fault::Unsupported("a split whose size is known only at run time"))?;
            ensure!(chunk > 0, Fault::Value { what: "size of a piece", value: chunk });
            // Counted before they are allocated: a program may declare an axis of any size.
            let found = usize::try_from((total + chunk - 1) / chunk).unwrap_or(usize::MAX).max(1);
            ensure!(found == wanted, Fault::Count { what: "pieces", wanted, found });
            let starts = (0..total.max(1)).step_by(usize::try_from(chunk).unwrap_or(usize::MAX));
            sizes = starts.map(|start| Dim::fixed(chunk.min(total - start))).collect();
        }
        ensure!(sizes.len() == wanted, Fault::Count { what: "pieces", wanted, found: sizes.len() });
        let mut start = Dim::fixed(0);
        for (size, out) in sizes.into_iter().zip(&n.outs) {
            let next = &start + &size;
            let piece = self.builder.narrow(&x, at, &start, size, 1)?;
            self.set(*out, piece)?;
            start = next;
        }
        self.builder.check_equal(&start, &total, "the sum of the pieces of a split")
    }

    /// Repeats the whole along each axis.
    pub(super) fn tile(&mut self, n: &Tile) -> Result<Tensor> {
        let (mut x, mut times) = (self.tensor(n.x)?, self.ints(&n.reps)?);
        while x.rank() < times.len() {
            x = self.builder.insert_axis(&x, 0);
        }
        let missing = x.rank() - times.len();
        times.splice(..0, vec![Dim::fixed(1); missing]);
        // A shape [2, 3] with repetitions [a, b] becomes [a, 2, b, 3], then [2 a, 3 b].
        let split: Vec<Dim> = x.shape.iter().flat_map(|size| [Dim::fixed(1), size.clone()]).collect();
        let seen = self.builder.reshape(&x, &split)?;
        let wide: Vec<Dim> =
            times.iter().zip(&x.shape).flat_map(|(times, size)| [times.clone(), size.clone()]).collect();
        let joined: Vec<Dim> = times.iter().zip(&x.shape).map(|(times, size)| times * size).collect();
        self.repeated(&seen, &wide, &joined)
    }

    /// Repeats each element along an axis.
    pub(super) fn repeat(&mut self, n: &Repeat) -> Result<Tensor> {
        let ((x, at), times) = (self.along(n.x, n.axis)?, self.int(n.repeats)?);
        let seen = self.builder.insert_axis(&x, at + 1);
        let mut wide = x.shape.clone();
        wide.insert(at + 1, times.clone());
        self.repeated(&seen, &wide, &x.shape_with(at, x.size(at)? * &times)?)
    }

    fn repeated(&mut self, seen: &Tensor, wide: &[Dim], joined: &[Dim]) -> Result<Tensor> {
        self.builder.check_sizes(wide, "number of repetitions")?;
        let wide = self.builder.broadcast(seen, wide)?;
        self.builder.reshape(&wide, joined)
    }

    pub(super) fn flip(&mut self, n: &Flip) -> Result<Tensor> {
        let mut x = self.tensor(n.x)?;
        for dim in &n.axes {
            x = self.builder.flip(&x, axis((*dim).into(), x.rank())?)?;
        }
        Ok(x)
    }

    /// Shifts along axes; elements that leave at one end enter at the other.
    pub(super) fn roll(&mut self, n: &Roll) -> Result<Tensor> {
        let mut x = self.tensor(n.x)?;
        let (wanted, found) = (n.axes.len(), n.shift.len());
        ensure!(found == wanted, Fault::Count { what: "shifts", wanted, found });
        for (shift, dim) in n.shift.iter().zip(&n.axes) {
            let (at, shift) = (axis((*dim).into(), x.rank())?, self.int(*shift)?);
            let size = x.size(at)?.clone();
            if size.is(0) {
                continue;
            }
            let shift = self.builder.modulo(shift, size.clone())?;
            let head = &size - &shift;
            let last = self.builder.narrow(&x, at, &head, shift, 1)?;
            let first = self.builder.narrow(&x, at, &Dim::fixed(0), head, 1)?;
            x = self.builder.concat(&[last, first], at)?;
        }
        Ok(x)
    }

    pub(super) fn pad(&mut self, n: &Pad) -> Result<Tensor> {
        let mut x = self.tensor(n.x)?;
        let widths = self.ints(&n.pad_width)?;
        let (wanted, found) = (2 * x.rank(), widths.len());
        ensure!(found == wanted, Fault::Count { what: "pad widths", wanted, found });
        for (at, pair) in widths.chunks_exact(2).enumerate() {
            let [before, after] = pair else { continue };
            if before.is(0) && after.is(0) {
                continue;
            }
            let last = x.size(at)? - &Dim::fixed(1);
            let (head, tail) = (self.border(&x, at, before, &Dim::fixed(0), n)?, self.border(&x, at, after, &last, n)?);
            let parts = [head, x.clone(), tail];
            x = self.builder.concat(&parts, at)?;
        }
        Ok(x)
    }

    /// The padding on one side of an axis.
    fn border(&mut self, x: &Tensor, at: usize, width: &Dim, edge: &Dim, n: &Pad) -> Result<Tensor> {
        let shape = x.shape_with(at, width.clone())?;
        self.builder.check_within(width, 0, i32::MAX, "pad width")?;
        match n.mode {
            PadMode::Edge => {
                let nearest = self.builder.narrow(x, at, edge, Dim::fixed(1), 1)?;
                self.builder.broadcast(&nearest, &shape)
            }
            PadMode::Constant => {
                self.builder.fill(shape, |f| f.cast(f.float(n.constant_value, ptero_tensor::DType::F32), x.dtype))
            }
        }
    }

    pub(super) fn concatenate(&mut self, parts: &[Tensor], dim: i32) -> Result<Tensor> {
        let first = parts.first().ok_or(Fault::Count { what: "tensors", wanted: 1, found: 0 })?;
        let at = axis(dim.into(), first.rank())?;
        self.builder.concat(parts, at)
    }

    pub(super) fn stack(&mut self, n: &Stack) -> Result<Tensor> {
        let parts = self.tensors(&n.tensors)?;
        let rank = parts.first().map_or(0, Tensor::rank);
        let at = axis(n.axis.into(), rank + 1)?;
        let parts: Vec<Tensor> = parts.iter().map(|part| self.builder.insert_axis(part, at)).collect();
        self.concatenate(&parts, n.axis)
    }
}
