//! Builds integers of the host.

use super::{Builder, Root, RootView, Tensor};
use crate::dim::{Dim, Var};
use crate::error::{Fault, Result, ensure};
use crate::graph::{BlockId, Op};
use crate::host::{Check, HostBinary, HostOp};
use ptero_tensor::DType;

/// Identifies a host value, so that it is computed once.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Binary(HostBinary, Dim, Dim),
    Element(usize, Dim),
    /// A check that two sizes are equal.
    Equal(Dim, Dim),
}

impl Builder {
    /// Returns `true` if a number is known before anything runs.
    pub(crate) fn is_early(&self, dim: &Dim) -> bool {
        dim.vars().all(|var| self.early.get(var.0 as usize).copied().unwrap_or(false))
    }

    /// Adds a host value, which is known from here on.
    pub(crate) fn host(&mut self, op: HostOp) -> Var {
        let is_early = op.is_early(&self.early);
        let is_marked = !is_early && !matches!(op, HostOp::Index { .. } | HostOp::Chosen(..));
        let var = self.graph.var(op);
        self.early.push(is_early);
        if is_marked {
            self.node(Op::Host(var));
        }
        var
    }

    /// The one of two numbers that belongs to the branch that ran. It is known where both blocks end.
    pub(crate) fn chosen(&mut self, condition: &Dim, [then, otherwise]: [(BlockId, &Dim); 2]) -> Dim {
        if then.1 == otherwise.1 {
            return then.1.clone();
        }
        let var = self.host(HostOp::Chosen(condition.clone(), then.1.clone(), otherwise.1.clone()));
        let outside = self.block;
        for block in [then.0, otherwise.0] {
            self.block = block;
            self.node(Op::Host(var));
        }
        self.block = outside;
        Dim::var(var)
    }

    /// The one element of an integer tensor. Those of constants are known now, those of inputs before anything runs.
    pub(crate) fn item(&mut self, x: &Tensor) -> Result<Dim> {
        for size in &x.shape {
            self.check_equal(size, &Dim::fixed(1), "the size of a tensor that one integer is read from")?;
        }
        let is_integer =
            matches!(x.dtype, DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U32);
        ensure!(is_integer, Fault::DType { what: "an integer read from a tensor", dtype: x.dtype });
        if let Some(RootView { root, view }) = self.shown.get(&x.value) {
            let at = view.offset.clone();
            match root {
                Root::Constant(bytes) => {
                    if let Some(known) = element(bytes, x.dtype, &at) {
                        return Ok(Dim::fixed(known));
                    }
                }
                Root::Input(input) if self.is_early(&at) => {
                    let input = *input;
                    return Ok(self.once(Key::Element(input, at.clone()), HostOp::Element { input, at }));
                }
                Root::Input(_) => {}
            }
        }
        Ok(Dim::var(self.host(HostOp::Item(x.value))))
    }

    /// A host value that is added when it is first needed.
    fn once(&mut self, key: Key, op: HostOp) -> Dim {
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let dim = Dim::var(self.host(op));
        self.known.insert(key, dim.clone());
        dim
    }

    /// A host value of two others, computed once per pair.
    fn binary(&mut self, op: HostBinary, a: Dim, b: Dim) -> Dim {
        match (a.as_fixed(), b.as_fixed()) {
            (Some(a), Some(b)) => Dim::fixed(op.apply(a, b)),
            _ => self.once(Key::Binary(op, a.clone(), b.clone()), HostOp::Binary(op, a, b)),
        }
    }

    pub(crate) fn min(&mut self, a: Dim, b: Dim) -> Dim {
        if a == b { a } else { self.binary(HostBinary::Min, a, b) }
    }

    pub(crate) fn max(&mut self, a: Dim, b: Dim) -> Dim {
        if a == b { a } else { self.binary(HostBinary::Max, a, b) }
    }

    pub(crate) fn floor_div(&mut self, a: Dim, b: Dim) -> Result<Dim> {
        self.check_divisor(&b)?;
        Ok(match a.divided_by(&b) {
            Some(exact) if a.as_fixed().is_none() => exact,
            _ => self.binary(HostBinary::FloorDiv, a, b),
        })
    }

    pub(crate) fn modulo(&mut self, a: Dim, b: Dim) -> Result<Dim> {
        self.check_divisor(&b)?;
        Ok(self.binary(HostBinary::Mod, a, b))
    }

    fn check_divisor(&mut self, divisor: &Dim) -> Result<()> {
        ensure!(!divisor.is(0), Fault::Value { what: "divisor", value: 0 });
        if divisor.as_fixed().is_none() {
            self.node(Op::Check(Check::NotZero(divisor.clone())));
        }
        Ok(())
    }

    /// A position along an axis as in Python: from the end if negative, then clamped to the axis.
    pub(crate) fn clamped(&mut self, index: &Dim, size: &Dim) -> Dim {
        let zero = Dim::fixed(0);
        match (index.as_fixed(), size.as_fixed()) {
            (Some(0), None) => zero,
            (Some(index), None) if index >= i64::from(i32::MAX) => size.clone(),
            (Some(index), None) if index < 0 => {
                let from_start = size + &Dim::fixed(index);
                self.max(from_start, zero)
            }
            (Some(_), None) => self.min(index.clone(), size.clone()),
            (None, _) if index == size => size.clone(),
            (Some(_), Some(_)) | (None, _) => self.binary(HostBinary::Clamp, index.clone(), size.clone()),
        }
    }

    /// The same for a slice that goes backwards, which may end before the first position.
    pub(crate) fn clamped_backward(&mut self, index: &Dim, size: &Dim) -> Dim {
        self.binary(HostBinary::ClampBackward, index.clone(), size.clone())
    }
}

/// An integer of a constant, cut to 32 bits as upstream reads it.
fn element(bytes: &[u8], dtype: DType, at: &Dim) -> Option<i64> {
    let raw = bytes.chunks_exact(dtype.size()).nth(usize::try_from(at.as_fixed()?).ok()?)?;
    #[allow(clippy::cast_possible_truncation, reason = "upstream reads the low half")]
    Some(i64::from(ptero_tensor::integer(dtype, raw) as i32))
}
