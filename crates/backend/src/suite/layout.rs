//! Sizes that differ from call to call, and windows on buffers.

use super::rng::Rng;
use ptero_plan::dim::Dim;
use ptero_plan::prim::{Buf, View};
use ptero_tensor::DType;

/// How often a case runs on one state.
pub const CALLS: usize = 2;

/// A size, and what it is in each call.
#[derive(Clone, Debug)]
pub(super) struct Size {
    pub(super) dim: Dim,
    pub(super) at: [i64; CALLS],
}

impl Size {
    pub(super) fn fixed(value: i64) -> Self {
        Self { dim: Dim::fixed(value), at: [value; CALLS] }
    }

    pub(super) fn is_fixed(&self) -> bool {
        self.dim.as_fixed().is_some()
    }

    pub(super) fn largest(&self) -> i64 {
        self.at.into_iter().fold(0, i64::max)
    }

    pub(super) fn times(&self, other: &Size) -> Self {
        Self { dim: &self.dim * &other.dim, at: std::array::from_fn(|call| self.at[call] * other.at[call]) }
    }

    pub(super) fn plus(&self, other: i64) -> Self {
        Self { dim: &self.dim + &Dim::fixed(other), at: self.at.map(|value| value + other) }
    }

    pub(super) fn scaled(&self, factor: i64) -> Self {
        self.times(&Size::fixed(factor))
    }
}

pub(super) fn product(sizes: &[Size]) -> Size {
    sizes.iter().fold(Size::fixed(1), |count, size| count.times(size))
}

pub(super) fn dims(sizes: &[Size]) -> Vec<Dim> {
    sizes.iter().map(|size| size.dim.clone()).collect()
}

pub(super) fn fixed(sizes: &[i64]) -> Vec<Size> {
    sizes.iter().map(|&size| Size::fixed(size)).collect()
}

/// A whole buffer in row-major order.
pub(super) fn row_major(buf: Buf, dtype: DType, shape: &[Dim]) -> View {
    let mut stride = Dim::fixed(1);
    let mut strides: Vec<Dim> = shape
        .iter()
        .rev()
        .map(|size| {
            let own = stride.clone();
            stride = &stride * size;
            own
        })
        .collect();
    strides.reverse();
    View { buf, dtype, shape: shape.to_vec(), strides, offset: Dim::fixed(0) }
}

/// Which windows an operand may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freedom {
    /// So many of the first axes may have stride zero.
    pub(super) broadcast: usize,
    /// One in so many is the whole buffer in row-major order.
    pub(super) plain: usize,
    /// Whether the buffer must have a fixed size.
    pub(super) is_state: bool,
}

/// A window on a buffer that is not made yet.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// The buffer's sizes, row-major.
    pub(super) extents: Vec<Size>,
    shape: Vec<Dim>,
    strides: Vec<Dim>,
    offset: Dim,
    /// Whether the window shows all of the buffer.
    pub(super) is_whole: bool,
}

impl Layout {
    pub(super) fn new(rng: &mut Rng, shape: &[Size], freedom: Freedom) -> Self {
        if rng.one_in(freedom.plain) && (!freedom.is_state || shape.iter().all(Size::is_fixed)) {
            let View { strides, offset, shape: dims, .. } = row_major(Buf(0), DType::F32, &dims(shape));
            return Self { extents: shape.to_vec(), shape: dims, strides, offset, is_whole: true };
        }
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if rng.one_in(2) {
            rng.shuffle(&mut order);
        }
        // Only some axes are thinned out, or five of them would need much memory.
        let mut thinned = 2;
        let mut layout = Self {
            extents: Vec::new(),
            shape: dims(shape),
            strides: vec![Dim::fixed(0); shape.len()],
            offset: Dim::fixed(0),
            is_whole: false,
        };
        let mut stride = Size::fixed(1);
        for axis in order.into_iter().rev() {
            let size = &shape[axis];
            if axis < freedom.broadcast && rng.one_in(5) {
                layout.extents.insert(0, Size::fixed(1));
                continue;
            }
            let is_thinned = thinned > 0 && rng.one_in(2) && size.largest() <= 1100;
            thinned -= usize::from(is_thinned);
            let extent = layout.add_axis(rng, axis, size, &stride, is_thinned);
            let extent = if freedom.is_state { Size::fixed(extent.largest()) } else { extent };
            stride = stride.times(&extent);
            layout.extents.insert(0, extent);
        }
        layout
    }

    /// Gives an axis its stride; the size that the buffer has along it.
    fn add_axis(&mut self, rng: &mut Rng, axis: usize, size: &Size, stride: &Size, is_thinned: bool) -> Size {
        let [step, before, after] =
            if is_thinned { [rng.pick(&[1, 1, 2, 3]), rng.pick(&[0, 1, 2]), rng.pick(&[0, 1, 3])] } else { [1, 0, 0] };
        let is_flipped = rng.one_in(5);
        let first = if is_flipped { size.plus(-1).scaled(step).plus(before) } else { Size::fixed(before) };
        let sign = if is_flipped { -1 } else { 1 };
        self.strides[axis] = stride.scaled(step * sign).dim;
        self.offset = &self.offset + &stride.times(&first).dim;
        size.scaled(step).plus(before + after)
    }

    pub(super) fn view(&self, buf: Buf, dtype: DType) -> View {
        let Self { shape, strides, offset, .. } = self.clone();
        View { buf, dtype, shape, strides, offset }
    }
}

/// Where the elements of a view lie, in row-major order, in a call with these host values.
pub(super) fn positions(view: &View, values: &[i64]) -> Vec<usize> {
    let mut positions = vec![view.offset.eval(values)];
    for (size, stride) in view.shape.iter().zip(&view.strides) {
        let (size, stride) = (size.eval(values), stride.eval(values));
        positions = positions.into_iter().flat_map(|start| (0..size).map(move |at| start + at * stride)).collect();
    }
    positions.into_iter().map(|place| usize::try_from(place).expect("windows lie inside their buffers")).collect()
}
