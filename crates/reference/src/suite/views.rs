//! Sizes that differ from call to call, and windows on tensors.

use super::rng::Rng;
use ptero_plan::dim::Dim;

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

/// Which windows an operand may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freedom {
    /// The number of first axes that may repeat.
    pub(super) broadcast: usize,
    /// One in this many is the whole tensor in row-major order.
    pub(super) plain: usize,
    /// Whether the tensor that the window is on must have fixed sizes.
    pub(super) is_state: bool,
}

/// An axis of the tensor that a window is on, and what the window shows of it.
#[derive(Clone, Debug)]
pub(super) struct LaidAxis {
    /// The axis of the window.
    pub(super) axis: usize,
    /// How many elements the window shows; if it repeats, the tensor has only one.
    pub(super) size: Size,
    /// The first position.
    pub(super) start: Size,
    /// The distance between positions, at least 1.
    pub(super) step: i64,
    /// Whether the window shows the last position first.
    pub(super) is_flipped: bool,
    /// The size of the tensor along the axis.
    pub(super) extent: Size,
    /// Whether one element is seen many times.
    pub(super) repeats: bool,
}

impl LaidAxis {
    fn whole(axis: usize, size: &Size) -> Self {
        let (size, extent) = (size.clone(), size.clone());
        Self { axis, size, start: Size::fixed(0), step: 1, is_flipped: false, extent, repeats: false }
    }

    /// Whether all positions are shown, in order or from the last on.
    pub(super) fn is_whole(&self) -> bool {
        self.step == 1 && self.start.dim.is(0) && self.size.dim == self.extent.dim
    }

    /// The position that the window shows first.
    pub(super) fn first(&self) -> Size {
        if self.is_flipped { self.start.sum(&self.size.plus(-1).scaled(self.step)) } else { self.start.clone() }
    }

    /// The distance from one element of the window to the next.
    pub(super) fn signed_step(&self) -> i64 {
        match (self.repeats, self.is_flipped) {
            (true, _) => 0,
            (false, true) => -self.step,
            (false, false) => self.step,
        }
    }
}

/// A window on a tensor that is not made yet: its axes in the order of the tensor's.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) axes: Vec<LaidAxis>,
}

impl Layout {
    pub(super) fn new(rng: &mut Rng, shape: &[Size], freedom: Freedom) -> Self {
        if rng.one_in(freedom.plain) && (!freedom.is_state || shape.iter().all(Size::is_fixed)) {
            return Self::whole(shape);
        }
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if rng.one_in(2) {
            rng.shuffle(&mut order);
        }
        // Only some axes are thinned out, or five of them would need much memory.
        let mut thinned = 2;
        let mut laid = |axis: usize| {
            let mut laid = LaidAxis::whole(axis, &shape[axis]);
            if axis < freedom.broadcast && rng.one_in(5) {
                return LaidAxis { extent: Size::fixed(1), repeats: true, ..laid };
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
            if freedom.is_state {
                laid.extent = Size::fixed(laid.extent.largest());
            }
            laid
        };
        Self { axes: order.into_iter().map(&mut laid).collect() }
    }

    /// The whole tensor in row-major order.
    pub(super) fn whole(shape: &[Size]) -> Self {
        Self { axes: shape.iter().enumerate().map(|(axis, size)| LaidAxis::whole(axis, size)).collect() }
    }

    /// Whether the window shows all of the tensor, in its own order.
    pub(super) fn is_whole(&self) -> bool {
        let mut axes = self.axes.iter().enumerate();
        axes.all(|(index, laid)| laid.axis == index && laid.is_whole() && !laid.is_flipped && !laid.repeats)
    }

    /// The sizes of the tensor.
    pub(super) fn extents(&self) -> Vec<Size> {
        self.axes.iter().map(|laid| laid.extent.clone()).collect()
    }

    /// The axis of the tensor that is each axis of the window.
    pub(super) fn order(&self) -> Vec<usize> {
        let place = |axis: usize| self.axes.iter().position(|laid| laid.axis == axis).expect("an axis is laid out");
        (0..self.axes.len()).map(place).collect()
    }

    /// The window at one index of its first axis, which keeps one element.
    pub(super) fn at(&self, index: i64) -> Self {
        let mut layout = self.clone();
        for laid in layout.axes.iter_mut().filter(|laid| laid.axis == 0) {
            laid.start = laid.first().plus(index * laid.signed_step());
            (laid.size, laid.is_flipped) = (Size::fixed(1), false);
        }
        layout
    }

    /// Strides by axis of the window, and the first element, counted in elements of the tensor.
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

    /// Where the elements of the window lie in the tensor, in row-major order, in a call.
    pub(super) fn positions(&self, call: usize) -> Vec<usize> {
        let (strides, offset) = self.strides();
        let mut sizes = vec![0; self.axes.len()];
        self.axes.iter().for_each(|laid| sizes[laid.axis] = laid.size.at[call]);
        let mut positions = vec![offset.at[call]];
        for (size, stride) in sizes.into_iter().zip(strides) {
            let walk = |start: i64| (0..size).map(move |index| start + index * stride.at[call]);
            positions = positions.into_iter().flat_map(walk).collect();
        }
        positions.into_iter().map(|position| usize::try_from(position).expect("windows lie inside")).collect()
    }
}
