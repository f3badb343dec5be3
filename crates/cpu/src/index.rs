//! What moves elements by index: gather and scatter.

use crate::element::{Element, elements, elements_mut, is_float, with_element};
use crate::memory::Sources;
use crate::run::Context;
use crate::simd::Isa;
use crate::window::{Sizes, Tensor, Window};
use ptero_backend::Fault;
use ptero_plan::prim::{Axis, ViewId};
use ptero_tensor::DType;
use smallvec::SmallVec;

pub(crate) fn gather(context: &mut Context<'_>, out: &ViewId, x: &ViewId, axes: &[Axis]) -> Result<(), Fault> {
    let isa = context.isa;
    let (target, sources, _) = context.open(out)?;
    let x = sources.tensor(x)?;
    let places = Places::new(&sources, axes, &target.window.shape, &x.window, isa)?;
    with_element!(target.dtype, E => {
        let (from, to) = (elements::<E>(x.bytes), elements_mut::<E>(target.bytes));
        places.each(|number, start| {
            copy_run(from, (start, places.stride), to, places.start_in(&target.window, number), places.length);
        })
    })
}

pub(crate) fn scatter(
    context: &mut Context<'_>,
    out: &ViewId,
    updates: &ViewId,
    axes: &[Axis],
    add: bool,
) -> Result<(), Fault> {
    let isa = context.isa;
    let buf = context.buf(out);
    if std::iter::once(updates).chain(axes.iter().flat_map(|axis| &axis.index)).any(|view| context.buf(view) == buf) {
        context.keep(buf)?;
    }
    let (target, sources, _) = context.open(out)?;
    let updates = sources.tensor(updates)?;
    let places = Places::new(&sources, axes, &updates.window.shape, &target.window, isa)?;
    // All places are known to exist before the first is written.
    places.each(|_, _| ())?;
    with_element!(target.dtype, E => {
        let (from, to) = (elements::<E>(updates.bytes), elements_mut::<E>(target.bytes));
        places.each(|number, start| {
            let (at, to_run) = (places.start_in(&updates.window, number), (start, places.stride));
            if add {
                add_run(target.dtype, from, at, to, to_run, places.length);
            } else {
                copy_run(from, at, to, to_run, places.length);
            }
        })
    })
}

/// Copies elements at equal distances; places start somewhere and go on by a stride.
fn copy_run<E: Element>(from: &[E], source: (usize, isize), to: &mut [E], target: (usize, isize), length: usize) {
    if source.1 == 1 && target.1 == 1 {
        let from = from.get(source.0..source.0 + length);
        if let (Some(from), Some(to)) = (from, to.get_mut(target.0..target.0 + length)) {
            to.copy_from_slice(from);
        }
        return;
    }
    for at in 0..length {
        if let (Some(from), Some(to)) = (from.get(along(source, at)), to.get_mut(along(target, at))) {
            *to = *from;
        }
    }
}

/// Adds elements one after the other, each sum rounded to their type.
fn add_run<E: Element>(
    dtype: DType,
    from: &[E],
    source: (usize, isize),
    to: &mut [E],
    target: (usize, isize),
    length: usize,
) {
    for at in 0..length {
        let (Some(from), Some(to)) = (from.get(along(source, at)), to.get_mut(along(target, at))) else { continue };
        *to = match dtype {
            DType::Bool => E::from_int((to.to_int() != 0 || from.to_int() != 0).into()),
            dtype if is_float(dtype) => E::from_float(to.to_float() + from.to_float()),
            _ => E::from_int(to.to_int().wrapping_add(from.to_int())),
        };
    }
}

fn along((start, stride): (usize, isize), at: usize) -> usize {
    start.wrapping_add_signed(at.cast_signed() * stride)
}

/// What decides the place along one axis of the other tensor.
struct Decider<'a> {
    index: Option<Tensor<'a>>,
    coordinate: Option<usize>,
    size: usize,
    stride: isize,
}

/// The places in another tensor of all elements of a shape, run by run: along a run, only coordinates change.
struct Places<'a> {
    isa: Isa,
    shape: Sizes,
    deciders: SmallVec<[Decider<'a>; 6]>,
    offset: usize,
    /// The length of a run: that of the last axis, or one.
    length: usize,
    /// The distance between neighbours of a run in the other tensor.
    stride: isize,
}

impl<'a> Places<'a> {
    fn new(sources: &Sources<'a>, axes: &[Axis], shape: &Sizes, other: &Window, isa: Isa) -> Result<Self, Fault> {
        if axes.len() != other.shape.len() {
            return Err(Fault::Contract("there is an index for each axis"));
        }
        let last = shape.len().saturating_sub(1);
        let mut deciders = SmallVec::new();
        for (axis, decider) in axes.iter().enumerate() {
            let index = sources.optional(decider.index.as_ref())?;
            if index.as_ref().is_some_and(|index| index.window.shape != *shape) {
                return Err(Fault::Contract("indices have the shape of what they are for"));
            }
            let (size, stride) = (other.size(axis), other.stride(axis));
            deciders.push(Decider { index, coordinate: decider.coordinate, size, stride });
        }
        let varies = |decider: &Decider<'_>| decider.index.as_ref().is_some_and(|index| index.window.stride(last) != 0);
        let is_run = !shape.is_empty() && !deciders.iter().any(varies);
        let along = deciders.iter().filter(|decider| decider.coordinate == Some(last) && is_run);
        let stride = along.map(|decider| decider.stride).sum();
        let length = if is_run { shape.get(last).copied().unwrap_or(1) } else { 1 };
        Ok(Self { isa, shape: shape.clone(), deciders, offset: other.offset, length, stride })
    }

    /// Where run `number` starts in a window of this shape, and how it goes on.
    fn start_in(&self, window: &Window, number: usize) -> (usize, isize) {
        (window.offset_of(number * self.length), window.stride(self.shape.len().saturating_sub(1)))
    }

    /// Calls `visit` with the number of each run and where it starts in the other tensor. Stops at the first place that is
    /// outside.
    fn each(&self, mut visit: impl FnMut(usize, usize)) -> Result<(), Fault> {
        let count: usize = self.shape.iter().product();
        for number in 0..count.checked_div(self.length).unwrap_or(0) {
            visit(number, self.start(number * self.length)?);
        }
        Ok(())
    }

    /// Where the run that starts with this element starts.
    fn start(&self, element: usize) -> Result<usize, Fault> {
        let mut start = self.offset.cast_signed();
        // The first coordinate along the run that is outside, and what it is outside of.
        let mut first_outside: Option<(usize, Fault)> = None;
        for decider in &self.deciders {
            let index = decider.index.as_ref().map_or(0, |index| index.int(self.isa, element));
            let coordinate = decider.coordinate.map_or(0, |axis| self.coordinate(element, axis));
            let size = decider.size;
            let outside = |coordinate: usize| Fault::IndexOutside {
                index: index.saturating_add_unsigned(coordinate as u64),
                size,
            };
            let from_start = if index < 0 { index.checked_add_unsigned(size as u64) } else { Some(index) };
            let place = from_start.and_then(|from_start| usize::try_from(from_start).ok());
            let place = place.and_then(|place| place.checked_add(coordinate)).filter(|&place| place < size);
            let place = place.ok_or_else(|| outside(coordinate))?;
            let is_along = decider.coordinate == Some(self.shape.len().saturating_sub(1));
            let left = size - place;
            if is_along && left < self.length && first_outside.as_ref().is_none_or(|(first, _)| left < *first) {
                first_outside = Some((left, outside(coordinate + left)));
            }
            start += place.cast_signed() * decider.stride;
        }
        first_outside.map_or(Ok(start.cast_unsigned()), |(_, fault)| Err(fault))
    }

    /// The coordinate of an element along an axis.
    fn coordinate(&self, element: usize, axis: usize) -> usize {
        let inner: usize = self.shape.iter().skip(axis + 1).product();
        element.checked_div(inner).unwrap_or(0) % self.shape.get(axis).copied().unwrap_or(1).max(1)
    }
}
