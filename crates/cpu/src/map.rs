//! Elementwise functions: an interpreter whose registers hold a few hundred elements each.
//!
//! A function is compiled once ([`Function::new`]): every step gets a register of floats or of integers, which is reused after
//! its last reader has run. A call cuts the output into tasks and tasks into chunks; each chunk loads its operands, runs all
//! steps over the whole chunk, and stores the result. So the elements of a chunk share the cost of interpreting, and
//! intermediate results stay in the L1 cache.

mod function;
mod walk;

pub(crate) use function::{Chunk, Function, Register, Registers};

use crate::run::Context;
use crate::view::Target;
use ptero_backend::Fault;
use ptero_plan::prim::ViewId;
use walk::{Operand, Walk};

/// Elements of a register.
pub(crate) const CHUNK: usize = 512;
/// A task has about this many elements.
const GRAIN: usize = 16 * 1024;

pub(crate) fn map(context: &mut Context<'_>, ins: &[ViewId], function: &Function) -> Result<(), Fault> {
    let (out, values) = (context.out, &context.bound.values);
    if ins.iter().any(|view| context.is_in_output(*view) && *view != out) {
        context.keep()?;
    }
    let (mut target, sources, mut workers) = context.open()?;
    let operand =
        |view: &ViewId| if *view == out { Ok(Operand::Target) } else { sources.tensor(view).map(Operand::Source) };
    let operands = ins.iter().map(operand).collect::<Result<_, _>>()?;
    let walk = Walk::new(function, values, &target.view, operands)?;
    if target.view.count() == 0 {
        return Ok(());
    }
    let first = target.view.offset;
    let Some((rows, distance)) = walk.split(GRAIN) else {
        walk.run(0..usize::MAX, first, &mut target, workers.scratch);
        return Ok(());
    };
    // A task owns the bytes from its first element up to that of the next task.
    let Target { isa, dtype, bytes, view } = target;
    let size = dtype.size();
    #[allow(clippy::indexing_slicing, reason = "all elements of a target lie inside its bytes")]
    let bytes = &mut bytes[first * size..(first + walk.extent()) * size];
    workers.chunks(bytes, distance * size, |task, bytes, scratch| {
        let mut target = Target { isa, dtype, bytes, view: view.clone() };
        walk.run(rows * task..rows * (task + 1), 0, &mut target, scratch);
    });
    Ok(())
}
