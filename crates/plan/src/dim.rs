//! Sizes that may be known only when a call runs: polynomials over host values with integer coefficients.

use smallvec::SmallVec;
use std::fmt;
use std::ops::{Add, Mul, Sub};

/// A host value: the size of an input, an integer read from a tensor, or a number computed from those. Its number is its index in
/// the list of values of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub u32);

/// A size, stride, offset or other integer: a polynomial over host values. Equal polynomials are equal values; the reverse need
/// not hold. A plain number allocates nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// The constant term.
    constant: i64,
    /// The other terms: sorted, no product twice, none empty, no factor zero.
    terms: Vec<Term>,
    /// `true` if it has more terms than the limit; they are then dropped.
    too_large: bool,
}

/// A product of values, sorted, and its factor.
type Term = (SmallVec<[Var; 2]>, i64);

/// The most terms of a size. Sizes of real programs have three; a hostile program could double them with every node.
const MOST_TERMS: usize = 64;
/// The most values in a product.
const MOST_FACTORS: usize = 16;

impl Dim {
    /// A number known now.
    pub fn fixed(value: i64) -> Self {
        Self { constant: value, terms: Vec::new(), too_large: false }
    }

    /// A value known when a call runs.
    pub fn var(var: Var) -> Self {
        Self { constant: 0, terms: vec![(SmallVec::from_slice(&[var]), 1)], too_large: false }
    }

    /// Returns `true` if it has more terms than the limit. Its value is then unknown.
    pub fn is_too_large(&self) -> bool {
        self.too_large
    }

    /// The number, if it is known now.
    pub fn as_fixed(&self) -> Option<i64> {
        (self.terms.is_empty() && !self.too_large).then_some(self.constant)
    }

    /// Returns `true` if it is known now to be `value`.
    pub fn is(&self, value: i64) -> bool {
        self.as_fixed() == Some(value)
    }

    /// The number in a call whose host values are `values`. Wraps on overflow; sizes are checked where they enter a call.
    pub fn eval(&self, values: &[i64]) -> i64 {
        let value = |var: &Var| values.get(var.0 as usize).copied().unwrap_or(0);
        let term =
            |(product, factor): &Term| product.iter().fold(*factor, |so_far, var| so_far.wrapping_mul(value(var)));
        self.terms.iter().fold(self.constant, |sum, next| sum.wrapping_add(term(next)))
    }

    /// The host value, if it is just one.
    pub fn as_var(&self) -> Option<Var> {
        match self.terms.as_slice() {
            [(product, 1)] if self.constant == 0 && product.len() == 1 => product.first().copied(),
            _ => None,
        }
    }

    /// The values it depends on, possibly repeated.
    pub fn vars(&self) -> impl Iterator<Item = Var> {
        self.terms.iter().flat_map(|(vars, _)| vars.iter().copied())
    }

    /// Folds over the terms, each a product of values and a factor; `None` if it is too large.
    pub(crate) fn fold<T>(&self, start: T, mut with: impl FnMut(T, &[Var], i64) -> T) -> Option<T> {
        let start = if self.constant == 0 { start } else { with(start, &[], self.constant) };
        let folded = self.terms.iter().fold(start, |so_far, (vars, factor)| with(so_far, vars, *factor));
        (!self.too_large).then_some(folded)
    }

    /// Its decomposition `(rest, times)` as `rest + times * var`; `None` if it is not linear in `var`.
    pub(crate) fn linear_in(&self, var: Var) -> Option<(Dim, Dim)> {
        let start = Some((Dim::fixed(0), Dim::fixed(0)));
        let parts = self.fold(start, |parts, vars, factor| {
            let (rest, times) = parts?;
            let others = vars.iter().filter(|other| **other != var);
            let term = others.clone().fold(Dim::fixed(factor), |product, other| &product * &Dim::var(*other));
            match vars.len() - others.count() {
                0 => Some((&rest + &term, times)),
                1 => Some((rest, &times + &term)),
                _ => None,
            }
        });
        parts.flatten()
    }

    /// The quotient, if the divisor is a single product that divides every term.
    pub fn divided_by(&self, divisor: &Dim) -> Option<Dim> {
        if self == divisor {
            return Some(Dim::fixed(1));
        }
        let divide = |value: i64, by: i64| (value.checked_rem(by)? == 0).then(|| value.wrapping_div(by));
        let (product, by): (&[Var], i64) = match (divisor.terms.as_slice(), divisor.constant) {
            ([], by) => (&[], by),
            ([(product, by)], 0) if self.constant == 0 => (product, *by),
            _ => return None,
        };
        let term = |(vars, value): &Term| {
            let mut vars = vars.clone();
            for var in product {
                vars.remove(vars.iter().position(|own| own == var)?);
            }
            Some((vars, divide(*value, by)?))
        };
        let terms = self.terms.iter().map(term).collect::<Option<Vec<_>>>()?;
        Some(Dim::collect(divide(self.constant, by)?, terms, self.too_large))
    }

    /// A polynomial of a constant and terms in any order, some of which may be constants too.
    fn collect(mut constant: i64, mut sorted: Vec<Term>, too_large: bool) -> Self {
        sorted.sort();
        let mut terms: Vec<Term> = Vec::with_capacity(sorted.len());
        for (product, factor) in sorted {
            match terms.last_mut() {
                _ if product.is_empty() => constant = constant.wrapping_add(factor),
                Some((last, sum)) if *last == product => *sum = sum.wrapping_add(factor),
                _ => terms.push((product, factor)),
            }
        }
        terms.retain(|(_, factor)| *factor != 0);
        if too_large || terms.len() > MOST_TERMS || terms.iter().any(|(product, _)| product.len() > MOST_FACTORS) {
            return Self { constant: 0, terms: Vec::new(), too_large: true };
        }
        Self { constant, terms, too_large: false }
    }
}

impl<T: Into<i64>> From<T> for Dim {
    fn from(value: T) -> Self {
        Self::fixed(value.into())
    }
}

impl Add for &Dim {
    type Output = Dim;

    fn add(self, other: &Dim) -> Dim {
        let constant = self.constant.wrapping_add(other.constant);
        match (self.as_fixed(), other.as_fixed()) {
            (Some(_), _) => Dim { constant, ..other.clone() },
            (_, Some(_)) => Dim { constant, ..self.clone() },
            (None, None) => {
                let terms = self.terms.iter().chain(&other.terms).cloned().collect();
                Dim::collect(constant, terms, self.too_large || other.too_large)
            }
        }
    }
}

impl Sub for &Dim {
    type Output = Dim;

    fn sub(self, other: &Dim) -> Dim {
        self + &(other * &Dim::fixed(-1))
    }
}

impl Mul for &Dim {
    type Output = Dim;

    fn mul(self, other: &Dim) -> Dim {
        match (self.as_fixed(), other.as_fixed()) {
            (Some(factor), _) => return other.times(factor),
            (None, Some(factor)) => return self.times(factor),
            (None, None) => {}
        }
        let plain = |dim: &Dim| (dim.constant != 0).then(|| (SmallVec::new(), dim.constant));
        let all = |dim: &Dim| dim.terms.iter().cloned().chain(plain(dim)).collect::<Vec<Term>>();
        let (left, right) = (all(self), all(other));
        let pairs = left.iter().flat_map(|left| right.iter().map(move |right| (left, right)));
        let products = pairs.map(|((left, a), (right, b))| {
            let mut product: SmallVec<[Var; 2]> = left.iter().chain(right).copied().collect();
            product.sort_unstable();
            (product, a.wrapping_mul(*b))
        });
        Dim::collect(0, products.collect(), self.too_large || other.too_large)
    }
}

impl Dim {
    /// Each term times a plain number.
    fn times(&self, factor: i64) -> Self {
        if factor == 1 || self.too_large {
            return self.clone();
        }
        let term = |(vars, value): &Term| (vars.clone(), value.wrapping_mul(factor));
        let terms = self.terms.iter().map(term).filter(|(_, value)| *value != 0).collect();
        Self { constant: self.constant.wrapping_mul(factor), terms, too_large: false }
    }
}

/// `3`, `h0`, `2*h0*h1 + 5`.
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return if self.too_large { f.write_str("?") } else { write!(f, "{}", self.constant) };
        }
        for (index, (product, factor)) in self.terms.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " + " })?;
            let names: Vec<String> = product.iter().map(|var| format!("h{}", var.0)).collect();
            match factor {
                1 => f.write_str(&names.join("*"))?,
                factor => write!(f, "{factor}*{}", names.join("*"))?,
            }
        }
        if self.constant != 0 {
            write!(f, " + {}", self.constant)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_that_of_polynomials() {
        let (a, b, two) = (Dim::var(Var(0)), Dim::var(Var(1)), Dim::fixed(2));
        let sum = &(&a + &b) * &(&a - &b);
        assert_eq!(sum, &(&a * &a) - &(&b * &b));
        assert_eq!(sum.eval(&[7, 3]), 40);
        assert_eq!(&(&a * &two) - &(&a + &a), Dim::fixed(0));
        assert_eq!((&(&two * &a) + &two).to_string(), "2*h0 + 2");
        assert_eq!(Dim::fixed(5).as_fixed(), Some(5));
        assert_eq!(a.as_fixed(), None);
        assert!(Dim::fixed(0).is(0));
    }

    #[test]
    fn a_size_that_doubles_and_doubles_is_given_up_instead_of_followed() {
        let mut size = &Dim::var(Var(0)) + &Dim::var(Var(1));
        for _ in 0..40 {
            size = &size * &size;
        }
        assert!(size.is_too_large());
        assert!((&size - &size).is_too_large() && (&size + &Dim::fixed(1)).as_fixed().is_none());
    }
}
