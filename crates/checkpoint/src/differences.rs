//! Differences between the tensors of a checkpoint and those that a model wants.

use crate::{Fault, Result};
use std::collections::BTreeSet;
use std::fmt;

/// A tensor's name and the shape it has or should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its sizes, outermost first.
    pub shape: Vec<u64>,
}

/// A tensor of another shape than wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misshapen {
    /// Its name.
    pub name: String,
    /// The shape it has.
    pub found: Vec<u64>,
    /// The shape it should have.
    pub wanted: Vec<u64>,
}

/// All differences between a checkpoint and the tensors that are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Wanted but missing, in the order wanted.
    pub missing: Vec<Named>,
    /// Present in another shape, in the order wanted.
    pub misshapen: Vec<Misshapen>,
    /// Present but not wanted, by name.
    pub surplus: Vec<Named>,
}

impl Differences {
    pub(crate) fn between<'a>(
        tensors: &crate::entry::Tensors,
        wanted: impl IntoIterator<Item = (&'a str, &'a [u64])>,
    ) -> Self {
        let (mut differences, mut names) = (Self::default(), BTreeSet::new());
        for (name, shape) in wanted {
            names.insert(name);
            match tensors.get(name) {
                None => differences.missing.push(Named { name: name.to_owned(), shape: shape.to_vec() }),
                Some(tensor) if tensor.shape() != shape => differences.misshapen.push(Misshapen {
                    name: name.to_owned(),
                    found: tensor.shape().to_vec(),
                    wanted: shape.to_vec(),
                }),
                Some(_) => {}
            }
        }
        let surplus = tensors.iter().filter(|(name, _)| !names.contains(name.as_str()));
        let named = |(name, tensor): (&String, &crate::TensorEntry)| Named {
            name: name.clone(),
            shape: tensor.shape().to_vec(),
        };
        differences.surplus = surplus.map(named).collect();
        differences
    }

    /// Returns `true` if there are none.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.misshapen.is_empty() && self.surplus.is_empty()
    }

    /// Returns an error with all differences if there are any. Remove from `surplus` first what the model does not read.
    ///
    /// # Errors
    /// When there is a difference.
    pub fn require_none(self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { Err(Fault::Differs(Box::new(self)).into()) }
    }
}

/// This many differences of a kind are shown; the others are counted.
const SHOWN: usize = 100;

fn list<T>(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    items: &[T],
    show: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    if !items.is_empty() {
        write!(f, "\n{} {what}:", items.len())?;
    }
    for item in items.iter().take(SHOWN) {
        f.write_str("\n  ")?;
        show(f, item)?;
    }
    match items.len().checked_sub(SHOWN) {
        None | Some(0) => Ok(()),
        Some(more) => write!(f, "\n  and {more} more"),
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tensors are not those that the model wants")?;
        list(f, "missing", &self.missing, |f, tensor| {
            write!(f, "`{}` of shape {:?}", tensor.name.escape_debug(), tensor.shape)
        })?;
        list(f, "of another shape", &self.misshapen, |f, tensor| {
            write!(f, "`{}` is {:?}, wanted {:?}", tensor.name.escape_debug(), tensor.found, tensor.wanted)
        })?;
        list(f, "not wanted", &self.surplus, |f, tensor| {
            write!(f, "`{}` of shape {:?}", tensor.name.escape_debug(), tensor.shape)
        })
    }
}
