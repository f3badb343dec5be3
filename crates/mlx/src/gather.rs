//! Gathers and scatters. What takes whole rows, as embeddings do, is told apart from what takes single elements.

use crate::bridge::ffi::{BinaryOp, Kind};
use crate::frame::{Frame, NONE, Sizes, axis as number, device};
use ptero_backend::Fault;
use ptero_plan::graph::Value;
use ptero_plan::prim::Axis;
use smallvec::SmallVec;

const NO_AXES: Fault = Fault::Contract("there is an index for each axis");

pub(crate) fn gather(frame: &mut Frame<'_>, out: Value, x: Value, axes: &[Axis<Value>]) -> Result<(), Fault> {
    let (shape, sizes, mark) = (frame.shape(out)?, frame.shape(x)?, frame.mark());
    in_range(axes, &shape, &sizes)?;
    if axes.is_empty() {
        return frame.arrays().broadcast(out.0, x.0, &shape).map_err(device);
    }
    if let Some((axis, index)) = rows(frame, axes, &shape, &sizes)? {
        let clipped = frame.checked(index.slot, NONE, size(&sizes, axis), true)?;
        frame.arrays().reshape(clipped, clipped, &index.sizes).map_err(device)?;
        frame.arrays().broadcast(clipped, clipped, &index.wanted).map_err(device)?;
        frame.arrays().take(out.0, x.0, clipped, number(axis)).map_err(device)?;
    } else if let Some((axis, index)) = along(axes, &shape, &sizes) {
        let clipped = frame.checked(index.0, NONE, size(&sizes, axis), true)?;
        frame.arrays().take_along(out.0, x.0, clipped, number(axis)).map_err(device)?;
    } else {
        let mut places = places(frame, axes, &shape, &sizes)?;
        // Together they have the shape of the result.
        if let Some(first) = places.first_mut() {
            let whole = frame.temporary();
            frame.arrays().broadcast(whole, *first, &shape).map_err(device)?;
            *first = whole;
        }
        frame.arrays().gather(out.0, x.0, &places).map_err(device)?;
    }
    frame.release(mark);
    Ok(())
}

fn size(sizes: &Sizes, axis: usize) -> i32 {
    sizes.get(axis).copied().unwrap_or(0)
}

/// Checks what is known without the indices.
fn in_range(axes: &[Axis<Value>], shape: &Sizes, sizes: &Sizes) -> Result<(), Fault> {
    if axes.len() != sizes.len() {
        return Err(NO_AXES);
    }
    for (axis, &size) in axes.iter().zip(sizes) {
        let reach = axis.coordinate.map_or(1, |coordinate| self::size(shape, coordinate));
        if reach > size && (axis.index.is_none() || size == 0) {
            return Err(Fault::IndexOutside { index: i64::from(reach - 1), size: usize::try_from(size).unwrap_or(0) });
        }
    }
    Ok(())
}

/// An index before it was repeated.
struct Narrow {
    slot: u32,
    /// Its sizes along the axes that it indexes, and those that are wanted there.
    sizes: Sizes,
    wanted: Sizes,
}

/// The sizes of an index before it was repeated, in the rank of what it indexes.
fn narrow(frame: &Frame<'_>, index: Value, rank: usize) -> Result<(Value, Sizes), Fault> {
    let base = frame.compiled.narrow(index).unwrap_or(index);
    let own = frame.shape(base)?;
    let missing = rank.saturating_sub(own.len());
    Ok((base, std::iter::repeat_n(1, missing).chain(own).collect()))
}

/// The axis of `x` that is indexed, if whole slices of all others are taken in order, and the index.
fn rows(
    frame: &Frame<'_>,
    axes: &[Axis<Value>],
    shape: &Sizes,
    sizes: &Sizes,
) -> Result<Option<(usize, Narrow)>, Fault> {
    let mut indexed = axes.iter().enumerate().filter_map(|(axis, how)| Some((axis, how.index?, how.coordinate)));
    let (Some((axis, index, None)), None) = (indexed.next(), indexed.next()) else { return Ok(None) };
    // The axes of the result are those before, those of the index, those after.
    let Some(count) = (shape.len() + 1).checked_sub(sizes.len()) else { return Ok(None) };
    let is_whole = |(at, how): (usize, &Axis<Value>)| {
        let wanted = if at < axis { at } else { (at + count).saturating_sub(1) };
        at == axis || how.coordinate == Some(wanted) && size(shape, wanted) == size(sizes, at)
    };
    if !axes.iter().enumerate().all(is_whole) {
        return Ok(None);
    }
    let (base, own) = narrow(frame, index, shape.len())?;
    let range = axis..axis + count;
    let is_outside = |(at, size): (usize, &i32)| *size != 1 && !range.contains(&at);
    if own.len() != shape.len() || own.iter().enumerate().any(is_outside) {
        return Ok(None);
    }
    let within = |sizes: &Sizes| sizes.get(range.clone()).map(Sizes::from_slice).unwrap_or_default();
    Ok(Some((axis, Narrow { slot: base.0, sizes: within(&own), wanted: within(shape) })))
}

/// The axis that is indexed, if all others are as they are.
fn along(axes: &[Axis<Value>], shape: &Sizes, sizes: &Sizes) -> Option<(usize, Value)> {
    let mut indexed = axes.iter().enumerate().filter_map(|(axis, how)| Some((axis, how.index?, how.coordinate)));
    let (Some((axis, index, None)), None) = (indexed.next(), indexed.next()) else { return None };
    let is_own = |(at, how): (usize, &Axis<Value>)| {
        at == axis || how.coordinate == Some(at) && size(shape, at) == size(sizes, at)
    };
    (shape.len() == sizes.len() && axes.iter().enumerate().all(is_own)).then_some((axis, index))
}

/// For each axis, the place of every element.
fn places(
    frame: &mut Frame<'_>,
    axes: &[Axis<Value>],
    shape: &Sizes,
    sizes: &Sizes,
) -> Result<SmallVec<[u32; 6]>, Fault> {
    let mut places = SmallVec::new();
    for (axis, &size) in axes.iter().zip(sizes) {
        let coordinate = match axis.coordinate {
            Some(coordinate) => {
                let slot = frame.temporary();
                frame.arrays().index(slot, shape, number(coordinate), Kind::I64).map_err(device)?;
                slot
            }
            None => NONE,
        };
        places.push(match axis.index {
            Some(index) => frame.checked(index.0, coordinate, size, true)?,
            None if coordinate != NONE => coordinate,
            None => {
                let slot = frame.temporary();
                frame.arrays().integer(slot, 0, Kind::I64).map_err(device)?;
                slot
            }
        });
    }
    Ok(places)
}

pub(crate) fn scatter(
    frame: &mut Frame<'_>,
    out: Value,
    (base, updates): (Value, Value),
    axes: &[Axis<Value>],
    add: bool,
) -> Result<(), Fault> {
    let (sizes, shape, mark) = (frame.shape(base)?, frame.shape(updates)?, frame.mark());
    if axes.len() != sizes.len() {
        return Err(NO_AXES);
    }
    if shape.contains(&0) {
        return frame.arrays().alias(out.0, base.0).map_err(device);
    }
    in_range(axes, &shape, &sizes)?;
    if !add && let Some(starts) = block_starts(frame, axes, &shape, &sizes)? {
        frame.arrays().scatter_slice(out.0, base.0, updates.0, &starts).map_err(device)?;
    } else {
        let places = places(frame, axes, &shape, &sizes)?;
        frame.arrays().scatter(out.0, base.0, updates.0, &places, add).map_err(device)?;
    }
    frame.release(mark);
    Ok(())
}

/// The first index along each axis, if the updates replace one block.
fn block_starts(
    frame: &mut Frame<'_>,
    axes: &[Axis<Value>],
    shape: &Sizes,
    sizes: &Sizes,
) -> Result<Option<SmallVec<[u32; 6]>>, Fault> {
    let mut singles = SmallVec::<[Option<Value>; 6]>::new();
    for (at, axis) in axes.iter().enumerate() {
        if axis.coordinate != Some(at) || shape.len() != sizes.len() {
            return Ok(None);
        }
        let single = axis.index.map(|index| narrow(frame, index, shape.len())).transpose()?;
        if single.as_ref().is_some_and(|(_, own)| own.iter().any(|size| *size != 1)) {
            return Ok(None);
        }
        singles.push(single.map(|(value, _)| value));
    }
    if singles.iter().all(Option::is_none) {
        return Ok(None);
    }
    let mut starts = SmallVec::new();
    for ((single, &length), &size) in singles.into_iter().zip(shape).zip(sizes) {
        starts.push(match single {
            Some(index) => block_start(frame, index, length, size)?,
            None => NONE,
        });
    }
    Ok(Some(starts))
}

/// The first index of a block of `length`; the last one is checked too.
fn block_start(frame: &mut Frame<'_>, index: Value, length: i32, size: i32) -> Result<u32, Fault> {
    let [reach, zero] = [i64::from(length - 1), 0].map(|number| (frame.temporary(), number));
    for (slot, number) in [reach, zero] {
        frame.arrays().integer(slot, number, Kind::I64).map_err(device)?;
    }
    let last = frame.checked(index.0, reach.0, size, true)?;
    frame.arrays().binary(last, BinaryOp::Sub, last, reach.0).map_err(device)?;
    frame.arrays().binary(last, BinaryOp::Max, last, zero.0).map_err(device)?;
    Ok(last)
}
