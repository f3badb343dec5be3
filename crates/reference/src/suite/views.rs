//! Sizes that differ from call to call, and random views of tensors.

use super::rng::Rng;
use ptero_plan::dim::Dim;

/// The number of calls of a case on one state.
pub const CALLS: usize = 2;

/// A size, and its value in each call.
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

    pub(super) fn sum(&self, other: &Size) -> Self {
        Self { dim: &self.dim + &other.dim, at: std::array::from_fn(|call| self.at[call] + other.at[call]) }
    }

    pub(super) fn plus(&self, other: i64) -> Self {
        self.sum(&Size::fixed(other))
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

/// An axis of a viewed tensor, and the positions of it that the view shows.
#[derive(Clone, Debug)]
pub(super) struct ViewAxis {
    /// The axis of the view.
    pub(super) axis: usize,
    /// The number of elements of the view; if it repeats, the tensor has only one.
    pub(super) size: Size,
    /// The first position.
    pub(super) start: Size,
    /// The distance between positions, at least 1.
    pub(super) step: i64,
    /// The view shows the last position first.
    pub(super) is_flipped: bool,
    /// The size of the tensor along the axis.
    pub(super) extent: Size,
    /// The view repeats one element.
    pub(super) repeats: bool,
}

impl ViewAxis {
    fn whole(axis: usize, size: &Size) -> Self {
        let (size, extent) = (size.clone(), size.clone());
        Self { axis, size, start: Size::fixed(0), step: 1, is_flipped: false, extent, repeats: false }
    }

    /// Returns `true` if all positions are shown, in order or reversed.
    pub(super) fn is_whole(&self) -> bool {
        self.step == 1 && self.start.dim.is(0) && self.size.dim == self.extent.dim
    }

    /// The position that the view shows first.
    pub(super) fn first(&self) -> Size {
        if self.is_flipped { self.start.sum(&self.size.plus(-1).scaled(self.step)) } else { self.start.clone() }
    }

    /// The distance from one element of the view to the next.
    pub(super) fn signed_step(&self) -> i64 {
        match (self.repeats, self.is_flipped) {
            (true, _) => 0,
            (false, true) => -self.step,
            (false, false) => self.step,
        }
    }
}

/// A random view of a tensor that does not exist yet: its axes in the order of the tensor's.
#[derive(Clone, Debug)]
pub(super) struct RandomView {
    pub(super) axes: Vec<ViewAxis>,
}

impl RandomView {
    /// The first `broadcast` axes may repeat, and one view in `plain` is the whole tensor in row-major order. The tensor of a
    /// state has fixed sizes.
    pub(super) fn new(rng: &mut Rng, shape: &[Size], (broadcast, plain): (usize, usize), is_state: bool) -> Self {
        if rng.one_in(plain) && (!is_state || shape.iter().all(Size::is_fixed)) {
            return Self::whole(shape);
        }
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if rng.one_in(2) {
            rng.shuffle(&mut order);
        }
        // At most two axes are thinned out: with five, the tensor would be large.
        let mut thinned = 2;
        let mut laid = |axis: usize| {
            let mut laid = ViewAxis::whole(axis, &shape[axis]);
            if axis < broadcast && rng.one_in(5) {
                return ViewAxis { extent: Size::fixed(1), repeats: true, ..laid };
            }
            let mut after = 0;
            if thinned > 0 && rng.one_in(2) && laid.size.largest() <= 1100 {
                thinned -= 1;
                laid.step = rng.pick(&[1, 1, 2, 3]);
                laid.start = Size::fixed(rng.pick(&[0, 1, 2]));
                after = rng.pick(&[0, 1, 3]);
            }
            laid.is_flipped = rng.one_in(5);
            laid.extent = laid.size.scaled(laid.step).sum(&laid.start).plus(after);
            if is_state {
                laid.extent = Size::fixed(laid.extent.largest());
            }
            laid
        };
        Self { axes: order.into_iter().map(&mut laid).collect() }
    }

    /// The whole tensor in row-major order.
    pub(super) fn whole(shape: &[Size]) -> Self {
        Self { axes: shape.iter().enumerate().map(|(axis, size)| ViewAxis::whole(axis, size)).collect() }
    }

    /// Returns `true` if the view is the whole tensor in row-major order.
    pub(super) fn is_whole(&self) -> bool {
        let mut axes = self.axes.iter().enumerate();
        axes.all(|(index, laid)| laid.axis == index && laid.is_whole() && !laid.is_flipped && !laid.repeats)
    }

    /// The sizes of the tensor.
    pub(super) fn extents(&self) -> Vec<Size> {
        self.axes.iter().map(|laid| laid.extent.clone()).collect()
    }

    /// For each axis of the view, the axis of the tensor.
    pub(super) fn order(&self) -> Vec<usize> {
        let position = |axis: usize| self.axes.iter().position(|laid| laid.axis == axis).expect("every axis is viewed");
        (0..self.axes.len()).map(position).collect()
    }

    /// The view at one index of its first axis, which keeps one element.
    pub(super) fn at(&self, index: i64) -> Self {
        let mut view = self.clone();
        for laid in view.axes.iter_mut().filter(|laid| laid.axis == 0) {
            laid.start = laid.first().plus(index * laid.signed_step());
            (laid.size, laid.is_flipped) = (Size::fixed(1), false);
        }
        view
    }

    /// The strides of the axes of the view, and the offset of its first element, in elements of the tensor.
    pub(super) fn strides(&self) -> (Vec<Size>, Size) {
        let mut strides = vec![Size::fixed(0); self.axes.len()];
        let (mut offset, mut stride) = (Size::fixed(0), Size::fixed(1));
        for laid in self.axes.iter().rev() {
            strides[laid.axis] = stride.scaled(laid.signed_step());
            if !laid.repeats {
                offset = offset.sum(&stride.times(&laid.first()));
            }
            stride = stride.times(&laid.extent);
        }
        (strides, offset)
    }

    /// The positions of the elements of the view in the tensor, in row-major order, in a call.
    pub(super) fn positions(&self, call: usize) -> Vec<usize> {
        let (strides, offset) = self.strides();
        let mut sizes = vec![0; self.axes.len()];
        self.axes.iter().for_each(|laid| sizes[laid.axis] = laid.size.at[call]);
        let mut positions = vec![offset.at[call]];
        for (size, stride) in sizes.into_iter().zip(strides) {
            let walk = |start: i64| (0..size).map(move |index| start + index * stride.at[call]);
            positions = positions.into_iter().flat_map(walk).collect();
        }
        positions
            .into_iter()
            .map(|position| usize::try_from(position).expect("a view lies inside its tensor"))
            .collect()
    }
}
