//! Gather and scatter.
#![allow(clippy::indexing_slicing, reason = "`start` checks every index; views lie inside their buffers")]

use crate::element::{Element, elements, elements_mut, with_element};
use crate::memory::Sources;
use crate::run::Context;
use crate::view::{BoundView, Sizes, Tensor};
use ptero_backend::Fault;
use ptero_plan::prim::{Axis, ViewId};
use ptero_tensor::DType;
use smallvec::SmallVec;

pub(crate) fn gather(context: &mut Context<'_>, x: &ViewId, axes: &[Axis]) -> Result<(), Fault> {
    let (target, sources, _) = context.open()?;
    let x = sources.tensor(x)?;
    let runs = IndexedRuns::new(&sources, axes, &target.view.shape, &x.view)?;
    with_element!(target.dtype, E => {
        let (from, to) = (elements::<E>(x.bytes), elements_mut::<E>(target.bytes));
        runs.each(|number, start| {
            copy_run(from, (start, runs.stride), to, runs.start_in(&target.view, number), runs.length);
        })
    })
}

pub(crate) fn scatter(context: &mut Context<'_>, updates: &ViewId, axes: &[Axis], add: bool) -> Result<(), Fault> {
    let mut views = std::iter::once(updates).chain(axes.iter().flat_map(|axis| &axis.index));
    if views.any(|view| context.is_in_output(*view)) {
        context.keep()?;
    }
    let (target, sources, _) = context.open()?;
    let updates = sources.tensor(updates)?;
    let runs = IndexedRuns::new(&sources, axes, &updates.view.shape, &target.view)?;
    // All indices are checked before anything is written.
    runs.each(|_, _| ())?;
    with_element!(target.dtype, E => {
        let (from, to) = (elements::<E>(updates.bytes), elements_mut::<E>(target.bytes));
        runs.each(|number, start| {
            let (at, to_run) = (runs.start_in(&updates.view, number), (start, runs.stride));
            if add {
                add_run(target.dtype, from, at, to, to_run, runs.length);
            } else {
                copy_run(from, at, to, to_run, runs.length);
            }
        })
    })
}

/// Offset and stride of a run of elements.
type Run = (usize, isize);

/// Copies a run of elements.
fn copy_run<E: Element>(from: &[E], source: Run, to: &mut [E], target: Run, length: usize) {
    if source.1 == 1 && target.1 == 1 {
        return to[target.0..target.0 + length].copy_from_slice(&from[source.0..source.0 + length]);
    }
    for at in 0..length {
        to[along(target, at)] = from[along(source, at)];
    }
}

/// Adds a run of elements, each sum rounded to their type.
fn add_run<E: Element>(dtype: DType, from: &[E], source: Run, to: &mut [E], target: Run, length: usize) {
    for at in 0..length {
        let (from, to) = (from[along(source, at)], &mut to[along(target, at)]);
        *to = match dtype {
            DType::Bool => E::from_int((to.to_int() != 0 || from.to_int() != 0).into()),
            dtype if dtype.is_float() => E::from_float(to.to_float() + from.to_float()),
            _ => E::from_int(to.to_int().wrapping_add(from.to_int())),
        };
    }
}

fn along((start, stride): Run, at: usize) -> usize {
    start.wrapping_add_signed(at.cast_signed() * stride)
}

/// The positions of all elements of a shape in another tensor, run by run: along a run, only coordinates change.
struct IndexedRuns<'a> {
    shape: Sizes,
    axes: SmallVec<[Axis<Tensor<'a>>; 6]>,
    other: BoundView,
    /// The length of a run: that of the last axis, or one.
    length: usize,
    /// The distance between neighbours of a run in the other tensor.
    stride: isize,
}

impl<'a> IndexedRuns<'a> {
    fn new(sources: &Sources<'a>, axes: &[Axis], shape: &Sizes, other: &BoundView) -> Result<Self, Fault> {
        if axes.len() != other.shape.len() {
            return Err(Fault::Contract("there is an index for each axis"));
        }
        let last = shape.len().saturating_sub(1);
        let read = |&Axis { ref index, coordinate }: &Axis| {
            Ok::<_, Fault>(Axis { index: sources.optional(index.as_ref())?, coordinate })
        };
        let axes = axes.iter().map(read).collect::<Result<SmallVec<[_; 6]>, _>>()?;
        let mut indices = axes.iter().filter_map(|axis| axis.index.as_ref());
        if indices.clone().any(|index| index.view.shape != *shape) {
            return Err(Fault::Contract("indices have the shape of what they are for"));
        }
        let is_run = !shape.is_empty() && indices.all(|index| index.view.stride(last) == 0);
        let along = axes.iter().zip(&other.strides).filter(|(axis, _)| axis.coordinate == Some(last) && is_run);
        let stride = along.map(|(_, stride)| stride).sum();
        let length = if is_run { shape[last] } else { 1 };
        Ok(Self { shape: shape.clone(), axes, other: other.clone(), length, stride })
    }

    /// The offset of run `number` in a view of this shape, and its stride there.
    fn start_in(&self, view: &BoundView, number: usize) -> Run {
        (view.offset_of(number * self.length), view.stride(self.shape.len().saturating_sub(1)))
    }

    /// Calls `visit` with the number of each run and its offset in the other tensor. Stops at the first index out of range.
    fn each(&self, mut visit: impl FnMut(usize, usize)) -> Result<(), Fault> {
        let count: usize = self.shape.iter().product();
        for number in 0..count.checked_div(self.length).unwrap_or(0) {
            visit(number, self.start(number * self.length)?);
        }
        Ok(())
    }

    /// The offset in the other tensor of the run that starts with an element.
    fn start(&self, element: usize) -> Result<usize, Fault> {
        let mut start = self.other.offset.cast_signed();
        // The first coordinate along the run that is out of range, and its fault.
        let mut first_outside: Option<(usize, Fault)> = None;
        let sizes = self.other.shape.iter().zip(&self.other.strides);
        for (&Axis { ref index, coordinate: axis }, (&size, &stride)) in self.axes.iter().zip(sizes) {
            let index = index.as_ref().map_or(0, |index| index.number::<i64>(element));
            let coordinate = axis.map_or(0, |axis| self.coordinate(element, axis));
            let outside = |coordinate: usize| Fault::IndexOutside {
                index: index.saturating_add_unsigned(coordinate as u64),
                size,
            };
            let from_start = if index < 0 { index.checked_add_unsigned(size as u64) } else { Some(index) };
            let at = from_start.and_then(|from_start| usize::try_from(from_start).ok());
            let at = at.and_then(|at| at.checked_add(coordinate)).filter(|&at| at < size);
            let at = at.ok_or_else(|| outside(coordinate))?;
            let (is_along, left) = (axis == Some(self.shape.len().saturating_sub(1)), size - at);
            if is_along && left < self.length && first_outside.as_ref().is_none_or(|(first, _)| left < *first) {
                first_outside = Some((left, outside(coordinate + left)));
            }
            start += at.cast_signed() * stride;
        }
        first_outside.map_or(Ok(start.cast_unsigned()), |(_, fault)| Err(fault))
    }

    /// The coordinate of an element, which exists, along an axis.
    fn coordinate(&self, element: usize, axis: usize) -> usize {
        let inner: usize = self.shape.iter().skip(axis + 1).product();
        element / inner % self.shape[axis]
    }
}
