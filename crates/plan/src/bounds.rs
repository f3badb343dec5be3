//! Between which numbers a host value, and so a size, can lie.

use crate::dim::{Dim, Var};
use crate::plan::{HostOp, Plan, PlanStep};

/// The least and the greatest number that something can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) low: i64,
    pub(crate) high: i64,
}

/// Any integer that the host can hold.
const ANY: Interval = Interval { low: i32::MIN as i64, high: i32::MAX as i64 };

impl Interval {
    fn new(low: i64, high: i64) -> Self {
        Self { low, high }
    }

    /// The interval of a polynomial, from those of its values. Terms count as independent, so it may be wider than needed.
    pub(crate) fn of(dim: &Dim, bounds: &[Interval]) -> Self {
        dim.fold(Interval::new(0, 0), |sum, vars, factor| {
            let term = vars.iter().fold(Interval::new(factor, factor), |product, var| {
                product.times(bounds.get(var.0 as usize).copied().unwrap_or(ANY))
            });
            Interval::new(sum.low.saturating_add(term.low), sum.high.saturating_add(term.high))
        })
        .unwrap_or(ANY)
    }

    fn times(self, other: Self) -> Self {
        let corners = [self.low, self.high].map(|a| [other.low, other.high].map(|b| a.saturating_mul(b)));
        let [[a, b], [c, d]] = corners;
        Self::new(a.min(b).min(c).min(d), a.max(b).max(c).max(d))
    }

    fn union(self, other: Self) -> Self {
        Self::new(self.low.min(other.low), self.high.max(other.high))
    }
}

/// The intervals of all host values of a plan.
pub(crate) fn bounds(plan: &Plan) -> Vec<Interval> {
    let count = plan.vars as usize;
    let mut bounds = Bounds { plan, known: vec![ANY; count], filled: vec![false; count] };
    for (var, largest) in &plan.largest {
        bounds.fill(*var, Interval::new(0, *largest));
    }
    bounds.block(plan.main, 0);
    bounds.known
}

/// The intervals found so far, in the order in which a call fills the values.
struct Bounds<'a> {
    plan: &'a Plan,
    known: Vec<Interval>,
    filled: Vec<bool>,
}

impl Bounds<'_> {
    fn fill(&mut self, var: Var, interval: Interval) {
        let at = var.0 as usize;
        if let (Some(known), Some(filled)) = (self.known.get_mut(at), self.filled.get_mut(at)) {
            // A value that two branches fill can be either.
            *known = if *filled { known.union(interval) } else { interval };
            *filled = true;
        }
    }

    /// The depth is a limit for plans made by hand.
    fn block(&mut self, block: usize, depth: usize) {
        let plan = self.plan;
        let Some(block) = plan.blocks.get(block).filter(|_| depth < 256) else { return };
        for step in &block.steps {
            match step {
                PlanStep::Host { out, op } => self.fill(*out, of_op(op, &self.known)),
                PlanStep::Loop { index, count, body } => {
                    let most = Interval::of(count, &self.known).high.saturating_sub(1);
                    self.fill(*index, Interval::new(0, most.max(0)));
                    self.block(*body, depth + 1);
                }
                PlanStep::If { then, otherwise, .. } => {
                    self.block(*then, depth + 1);
                    self.block(*otherwise, depth + 1);
                }
                PlanStep::Device(_) | PlanStep::Check(_) => {}
            }
        }
    }
}

fn of_op(op: &HostOp, bounds: &[Interval]) -> Interval {
    let of = |dim: &Dim| Interval::of(dim, bounds);
    match op {
        HostOp::Item(_) => ANY,
        HostOp::Copy(value) => of(value),
        HostOp::FloorDiv(a, b) => match (of(a), b.as_fixed()) {
            (a, Some(divisor @ 1..)) => Interval::new(a.low.div_euclid(divisor), a.high.div_euclid(divisor)),
            // By less than one, the quotient is no further from zero than what is divided, give or take one.
            (a, _) => {
                let most = a.low.saturating_abs().max(a.high.saturating_abs()).saturating_add(1);
                Interval::new(-most, most)
            }
        },
        HostOp::Mod(_, b) => {
            let b = of(b);
            Interval::new(b.low.min(0), b.high.max(0))
        }
        HostOp::Min(a, b) => Interval::new(of(a).low.min(of(b).low), of(a).high.min(of(b).high)),
        HostOp::Max(a, b) => Interval::new(of(a).low.max(of(b).low), of(a).high.max(of(b).high)),
        HostOp::Clamp(_, size) => Interval::new(0, of(size).high.max(0)),
        HostOp::ClampBackward(_, size) => Interval::new(-1, of(size).high.max(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polynomial_lies_between_its_corners() {
        let bounds = [Interval::new(0, 8), Interval::new(-2, 3)];
        let (a, b) = (Dim::var(Var(0)), Dim::var(Var(1)));
        assert_eq!(Interval::of(&(&(&a * &b) - &Dim::fixed(1)), &bounds), Interval::new(-17, 23));
        assert_eq!(Interval::of(&(&b * &b), &bounds), Interval::new(-6, 9));
        let huge = &(&a * &Dim::fixed(i64::MAX)) * &a;
        assert_eq!(Interval::of(&huge, &bounds).high, i64::MAX);
    }

    #[test]
    fn host_operations_narrow_what_is_possible() {
        let bounds = [Interval::new(0, 100)];
        let (x, eight) = (Dim::var(Var(0)), Dim::fixed(8));
        let of = |op| of_op(&op, &bounds);
        assert_eq!(of(HostOp::Clamp(x.clone(), eight.clone())), Interval::new(0, 8));
        assert_eq!(of(HostOp::Min(x.clone(), eight.clone())), Interval::new(0, 8));
        assert_eq!(of(HostOp::Max(x.clone(), eight.clone())), Interval::new(8, 100));
        assert_eq!(of(HostOp::FloorDiv(x.clone(), eight.clone())), Interval::new(0, 12));
        assert_eq!(of(HostOp::FloorDiv(x.clone(), Dim::fixed(-1))), Interval::new(-101, 101));
        assert_eq!(of(HostOp::Mod(x, eight)), Interval::new(0, 8));
    }
}
