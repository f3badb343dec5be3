//! Views, and operations that join and replace elements without computing.

use crate::memory::Memory;
use crate::tensor::{StridedLayout, Tensor, signed};
use ptero_backend::Fault;
use ptero_plan::graph::{Value, ViewOp};
use ptero_tensor::Bytes;

const NO_AXIS: Fault = Fault::Contract("the axis exists");

pub(crate) fn view(memory: &mut Memory<'_>, out: Value, x: Value, how: &ViewOp) -> Result<(), Fault> {
    let (x, shape) = (memory.tensor(x)?, memory.shape(out)?);
    // These two read elements in row-major order, so others are copied first.
    let x = if matches!(how, ViewOp::Reshape | ViewOp::Strided { .. }) { x.compact()? } else { x.clone() };
    let layout = match how {
        ViewOp::Reshape if x.layout.count() != shape.iter().product() => {
            return Err(Fault::Contract("a reshape keeps the number of elements"));
        }
        ViewOp::Reshape => x.layout.reshaped(shape),
        ViewOp::Permute(order) => x.layout.permuted(order)?,
        ViewOp::Broadcast => x.layout.broadcast(shape)?,
        ViewOp::Slice { axis, start, step } => {
            x.layout.sliced(*axis, start.eval(&memory.host), *shape.get(*axis).ok_or(NO_AXIS)?, *step)?
        }
        ViewOp::Strided { strides, offset } => {
            let strides = strides.iter().map(|stride| stride.eval(&memory.host)).collect();
            x.layout.strided(shape, strides, offset.eval(&memory.host))?
        }
    };
    memory.define(out, Tensor { layout, ..x })
}

pub(crate) fn concat(memory: &mut Memory<'_>, out: Value, parts: &[Value], axis: usize) -> Result<(), Fault> {
    let (element, layout) = (memory.element(out)?, StridedLayout::row_major(memory.shape(out)?));
    let mut bytes = memory.room(out)?;
    let mut start = 0;
    for part in parts {
        let part = memory.tensor(*part)?;
        let size = *part.shape().get(axis).ok_or(NO_AXIS)?;
        let region = layout.sliced(axis, start, size, 1)?;
        if region.shape != part.shape() {
            return Err(Fault::Contract("what is joined differs along one axis only"));
        }
        part.copy_to(&mut bytes, &region);
        start += signed(size);
    }
    if layout.shape.get(axis).copied().map(signed) != Some(start) {
        return Err(Fault::Contract("what is joined makes up the whole"));
    }
    memory.define(out, Tensor { element, layout, bytes: Bytes::from(bytes) })
}

/// The region that an update replaces: the axis, the first position, and the distance between positions.
pub(crate) type Region = (usize, i64, i64);

pub(crate) fn update(
    memory: &mut Memory<'_>,
    out: Value,
    base: Value,
    new: Value,
    (axis, start, step): Region,
) -> Result<(), Fault> {
    let new = memory.tensor(new)?;
    let updated = memory.tensor(base)?.edited(|bytes, layout| {
        let region = layout.sliced(axis, start, *new.shape().get(axis).ok_or(NO_AXIS)?, step)?;
        if region.shape != new.shape() {
            return Err(Fault::Contract("an update differs from the whole along one axis only"));
        }
        new.copy_to(bytes, &region);
        Ok(())
    })?;
    memory.define(out, updated)
}

/// Copies the result of a loop's iteration to position `index` of an axis that only the whole has.
pub(crate) fn stack(
    layout: &StridedLayout,
    bytes: &mut [u8],
    axis: usize,
    index: i64,
    part: &Tensor,
) -> Result<(), Fault> {
    let region = layout.sliced(axis, index, 1, 1)?;
    let mut shape = part.shape().to_vec();
    if axis > shape.len() {
        return Err(NO_AXIS);
    }
    shape.insert(axis, 1);
    if shape != region.shape {
        return Err(Fault::Contract("a round leaves what its loop collects"));
    }
    // The axis has one element, so the order of elements is that of the part.
    part.copy_to(bytes, &region);
    Ok(())
}
