//! Sizes that may be known only when a call runs: polynomials with integer coefficients over host values.

use std::fmt;
use std::ops::{Add, Mul, Sub};

/// A host value: the size of an input, an integer read from a tensor, or something computed from those. Its number is its
/// place in the list of values that a call fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub u32);

/// A size, stride, offset or other integer of a plan. Equal polynomials are equal values; the reverse need not hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// Products of values with their factors: sorted, no product twice, no factor zero.
    terms: Vec<(Vec<Var>, i64)>,
    /// Whether it grew beyond what is followed; then the terms say nothing.
    too_large: bool,
}

/// Terms that a size may have. Sizes of real programs have three; a hostile one could double them with every node.
const MOST_TERMS: usize = 64;
/// Values that a term may multiply.
const MOST_FACTORS: usize = 16;

impl Dim {
    /// A number known now.
    pub fn fixed(value: i64) -> Self {
        Self { terms: if value == 0 { Vec::new() } else { vec![(Vec::new(), value)] }, too_large: false }
    }

    /// A value known when a call runs.
    pub fn var(var: Var) -> Self {
        Self { terms: vec![(vec![var], 1)], too_large: false }
    }

    /// Whether it grew beyond what is followed. Nothing else about it is true then.
    pub fn is_too_large(&self) -> bool {
        self.too_large
    }

    /// The number, if it is known now.
    pub fn as_fixed(&self) -> Option<i64> {
        match self.terms.as_slice() {
            _ if self.too_large => None,
            [] => Some(0),
            [(product, value)] if product.is_empty() => Some(*value),
            _ => None,
        }
    }

    /// Whether it is known now to be `value`.
    pub fn is(&self, value: i64) -> bool {
        self.as_fixed() == Some(value)
    }

    /// The number in a call whose host values are `values`. Wraps where it overflows; sizes are checked where they enter.
    pub fn eval(&self, values: &[i64]) -> i64 {
        let value = |var: &Var| values.get(var.0 as usize).copied().unwrap_or(0);
        let term = |(product, factor): &(Vec<Var>, i64)| {
            product.iter().fold(*factor, |so_far, var| so_far.wrapping_mul(value(var)))
        };
        self.terms.iter().fold(0, |sum, next| sum.wrapping_add(term(next)))
    }

    /// The value, if it is nothing but one value.
    pub fn as_var(&self) -> Option<Var> {
        match self.terms.as_slice() {
            [(product, 1)] if !self.too_large => match product.as_slice() {
                [var] => Some(*var),
                _ => None,
            },
            _ => None,
        }
    }

    /// Combines the terms, each a product of values and a factor; `None` when there are too many to follow.
    pub(crate) fn fold<T>(&self, start: T, mut with: impl FnMut(T, &[Var], i64) -> T) -> Option<T> {
        let folded = self.terms.iter().fold(start, |so_far, (vars, factor)| with(so_far, vars, *factor));
        (!self.too_large).then_some(folded)
    }

    /// The quotient, if the divisor is a single product that divides every term.
    pub fn divided_by(&self, divisor: &Dim) -> Option<Dim> {
        if self == divisor {
            return Some(Dim::fixed(1));
        }
        let [(product, factor)] = divisor.terms.as_slice() else { return None };
        let term = |(vars, value): &(Vec<Var>, i64)| {
            let mut vars = vars.clone();
            for var in product {
                vars.remove(vars.iter().position(|own| own == var)?);
            }
            (value.checked_rem(*factor)? == 0).then(|| (vars, value / factor))
        };
        let terms = self.terms.iter().map(term).collect::<Option<Vec<_>>>();
        terms.map(|terms| Dim::collect(terms.into_iter(), self.too_large))
    }

    fn collect(terms: impl Iterator<Item = (Vec<Var>, i64)>, too_large: bool) -> Self {
        // Products of two sizes that are followed are at most the square of the limit.
        let mut sorted: Vec<(Vec<Var>, i64)> = terms.collect();
        sorted.sort();
        let mut terms: Vec<(Vec<Var>, i64)> = Vec::with_capacity(sorted.len());
        for (product, factor) in sorted {
            match terms.last_mut() {
                Some((last, sum)) if *last == product => *sum = sum.wrapping_add(factor),
                _ => terms.push((product, factor)),
            }
        }
        terms.retain(|(_, factor)| *factor != 0);
        if too_large || terms.len() > MOST_TERMS || terms.iter().any(|(product, _)| product.len() > MOST_FACTORS) {
            return Self { terms: Vec::new(), too_large: true };
        }
        Self { terms, too_large: false }
    }
}

impl From<i64> for Dim {
    fn from(value: i64) -> Self {
        Self::fixed(value)
    }
}

impl Add for &Dim {
    type Output = Dim;

    fn add(self, other: &Dim) -> Dim {
        Dim::collect(self.terms.iter().chain(&other.terms).cloned(), self.too_large || other.too_large)
    }
}

impl Sub for &Dim {
    type Output = Dim;

    fn sub(self, other: &Dim) -> Dim {
        let minus = other.terms.iter().map(|(product, factor)| (product.clone(), factor.wrapping_neg()));
        Dim::collect(self.terms.iter().cloned().chain(minus), self.too_large || other.too_large)
    }
}

impl Mul for &Dim {
    type Output = Dim;

    fn mul(self, other: &Dim) -> Dim {
        let pairs = self.terms.iter().flat_map(|left| other.terms.iter().map(move |right| (left, right)));
        let products = pairs.map(|((left, a), (right, b))| {
            let mut product = [left.as_slice(), right.as_slice()].concat();
            product.sort();
            (product, a.wrapping_mul(*b))
        });
        Dim::collect(products, self.too_large || other.too_large)
    }
}

/// `3`, `h0`, `2*h0*h1 + 5`.
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str(if self.too_large { "?" } else { "0" });
        }
        // Values first, the plain number last, as people write it.
        let (plain, products): (Vec<_>, Vec<_>) = self.terms.iter().partition(|(product, _)| product.is_empty());
        for (index, (product, factor)) in products.into_iter().chain(plain).enumerate() {
            f.write_str(if index == 0 { "" } else { " + " })?;
            let names: Vec<String> = product.iter().map(|var| format!("h{}", var.0)).collect();
            match (names.is_empty(), *factor) {
                (true, factor) => write!(f, "{factor}")?,
                (false, 1) => f.write_str(&names.join("*"))?,
                (false, factor) => write!(f, "{factor}*{}", names.join("*"))?,
            }
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
