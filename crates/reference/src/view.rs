//! Other ways to see elements, and what joins and replaces them without computing.

use crate::memory::Memory;
use crate::tensor::{Held, Window, copy_elements, zeros};
use ptero_backend::Fault;
use ptero_plan::graph::{Value, ViewOp};
use ptero_tensor::Bytes;

pub(crate) fn view(memory: &mut Memory<'_>, out: Value, x: Value, how: &ViewOp) -> Result<(), Fault> {
    let (held, shape) = (memory.held(x)?, memory.shape(out)?);
    let seen = match how {
        ViewOp::Reshape => {
            if held.window.count() != shape.iter().product() {
                return Err(Fault::Contract("a reshape keeps the number of elements"));
            }
            let held = held.compact()?;
            Held { window: held.window.reshaped(shape), ..held }
        }
        ViewOp::Permute(order) => Held { window: held.window.permuted(order)?, ..held.clone() },
        ViewOp::Broadcast => Held { window: held.window.broadcast(shape)?, ..held.clone() },
        ViewOp::Slice { axis, start, step } => {
            let count = *shape.get(*axis).ok_or(Fault::Contract("the axis exists"))?;
            let window = held.window.sliced(*axis, start.eval(&memory.host), count, *step)?;
            Held { window, ..held.clone() }
        }
        ViewOp::Strided { strides, offset } => {
            let held = held.compact()?;
            let strides = strides.iter().map(|stride| stride.eval(&memory.host)).collect();
            Held { window: held.window.strided(shape, strides, offset.eval(&memory.host))?, ..held }
        }
    };
    memory.define(out, seen)
}

pub(crate) fn concat(memory: &mut Memory<'_>, out: Value, parts: &[Value], axis: usize) -> Result<(), Fault> {
    let (element, whole) = (memory.element(out)?, Window::row_major(memory.shape(out)?));
    let mut bytes = memory.room(out)?;
    let mut start = 0;
    for part in parts {
        let part = memory.held(*part)?;
        let size = *part.window.shape.get(axis).ok_or(Fault::Contract("the axis exists"))?;
        let region = whole.sliced(axis, start, size, 1)?;
        if region.shape != part.window.shape {
            return Err(Fault::Contract("what is joined differs along one axis only"));
        }
        copy_elements(part, &mut bytes, &region);
        start += crate::tensor::signed(size);
    }
    if whole.shape.get(axis).copied().map(crate::tensor::signed) != Some(start) {
        return Err(Fault::Contract("what is joined makes up the whole"));
    }
    memory.define(out, Held { element, window: whole, bytes: Bytes::from(bytes) })
}

/// Where an update goes: the axis, the first position, and the distance between positions.
pub(crate) type Region = (usize, i64, i64);

pub(crate) fn update(memory: &mut Memory<'_>, out: Value, base: Value, new: Value, at: Region) -> Result<(), Fault> {
    let (axis, start, step) = at;
    let (base, new) = (memory.held(base)?, memory.held(new)?);
    let whole = Window::row_major(base.window.shape.clone());
    let size = *new.window.shape.get(axis).ok_or(Fault::Contract("the axis exists"))?;
    let region = whole.sliced(axis, start, size, step)?;
    if region.shape != new.window.shape {
        return Err(Fault::Contract("an update differs from the whole along one axis only"));
    }
    let mut bytes = zeros(whole.count() * base.element.bytes())?;
    copy_elements(base, &mut bytes, &whole);
    copy_elements(new, &mut bytes, &region);
    let updated = Held { element: base.element, window: whole, bytes: Bytes::from(bytes) };
    memory.define(out, updated)
}

/// Copies the result of a round to position `index` of an axis that only the whole has.
pub(crate) fn stack(whole: &Window, bytes: &mut [u8], axis: usize, index: i64, part: &Held) -> Result<(), Fault> {
    let slab = whole.sliced(axis, index, 1, 1)?;
    let mut shape = part.window.shape.clone();
    if axis > shape.len() {
        return Err(Fault::Contract("the axis exists"));
    }
    shape.insert(axis, 1);
    if shape != slab.shape {
        return Err(Fault::Contract("a round leaves what its loop collects"));
    }
    // The axis has one element, so the order of elements is that of the part.
    copy_elements(part, bytes, &slab);
    Ok(())
}
