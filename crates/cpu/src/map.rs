//! Elementwise functions: an interpreter whose registers hold a few hundred elements each.
//!
//! A function is compiled once ([`Function::new`]): every step gets a register of floats or of integers, which is given to
//! another when its last reader has run. A call cuts the output into tasks and tasks into chunks; each chunk loads its
//! operands, runs all steps over the whole chunk, and stores. So the cost of interpreting is shared by the chunk, and nothing
//! between the steps leaves the first cache.

mod function;
mod walk;

pub(crate) use function::{Chunk, Function, Register, Registers};

use crate::element::size_of;
use crate::run::Context;
use ptero_backend::Fault;
use ptero_plan::prim::ViewId;
use walk::{Operand, Walk};

/// Elements of a register.
pub(crate) const CHUNK: usize = 512;
/// About so many elements are worth a task.
const GRAIN: usize = 16 * 1024;

pub(crate) fn map(context: &mut Context<'_>, out: &ViewId, ins: &[ViewId], function: &Function) -> Result<(), Fault> {
    let buf = context.buf(out);
    if ins.iter().any(|view| context.buf(view) == buf && view != out) {
        context.keep(buf)?;
    }
    let around = (context.isa, context.values());
    let (target, sources, mut workers) = context.open(out)?;
    let operand = |view| if view == out { Ok(Operand::Target) } else { sources.tensor(view).map(Operand::Source) };
    let walk = Walk::new(&target.window, ins.iter().map(operand).collect::<Result<_, _>>()?, function)?;
    if target.window.count() == 0 {
        return Ok(());
    }
    let (dtype, first) = (target.dtype, target.window.offset);
    let Some((places, distance)) = walk.split(GRAIN) else {
        walk.run(around, 0..usize::MAX, first, (dtype, target.bytes), workers.scratch, function);
        return Ok(());
    };
    // Tasks own the bytes from their first element to that of the next task.
    let size = size_of(dtype);
    let bytes = target.bytes.get_mut(first * size..(first + walk.extent()) * size).unwrap_or_default();
    workers.chunks(bytes, distance * size, |task, bytes, scratch| {
        walk.run(around, places * task..places * (task + 1), 0, (dtype, bytes), scratch, function);
    });
    Ok(())
}
