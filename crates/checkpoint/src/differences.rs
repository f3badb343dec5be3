//! Differences between the tensors of a checkpoint and those that a model wants.

use crate::{Fault, Result};
use std::collections::BTreeSet;
use std::fmt;

/// A tensor that is missing, has another shape than wanted, or is not wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// The shape it has, outermost size first.
    pub found: Option<Vec<u64>>,
    /// The shape it should have.
    pub wanted: Option<Vec<u64>>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.name.escape_debug())?;
        match (&self.found, &self.wanted) {
            (Some(found), Some(wanted)) => write!(f, " is {found:?}, wanted {wanted:?}"),
            (found, wanted) => write!(f, " of shape {:?}", found.as_ref().or(wanted.as_ref()).unwrap_or(&Vec::new())),
        }
    }
}

/// All differences between a checkpoint and the tensors that are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Wanted but missing, in the order wanted.
    pub missing: Vec<Difference>,
    /// Present in another shape, in the order wanted.
    pub misshapen: Vec<Difference>,
    /// Present but not wanted, by name.
    pub surplus: Vec<Difference>,
}

impl Differences {
    pub(crate) fn between<'a>(
        tensors: &crate::entry::Tensors,
        wanted: impl IntoIterator<Item = (&'a str, &'a [u64])>,
    ) -> Self {
        let (mut differences, mut names) = (Self::default(), BTreeSet::new());
        for (name, shape) in wanted {
            names.insert(name);
            let found = tensors.get(name).map(|tensor| tensor.shape().to_vec());
            let list = match &found {
                None => &mut differences.missing,
                Some(found) if found != shape => &mut differences.misshapen,
                Some(_) => continue,
            };
            list.push(Difference { name: name.to_owned(), found, wanted: Some(shape.to_vec()) });
        }
        for (name, tensor) in tensors.iter().filter(|(name, _)| !names.contains(name.as_str())) {
            let found = Some(tensor.shape().to_vec());
            differences.surplus.push(Difference { name: name.clone(), found, wanted: None });
        }
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

fn list(f: &mut fmt::Formatter<'_>, what: &str, items: &[Difference]) -> fmt::Result {
    if !items.is_empty() {
        write!(f, "\n{} {what}:", items.len())?;
    }
    items.iter().take(SHOWN).try_for_each(|item| write!(f, "\n  {item}"))?;
    match items.len().checked_sub(SHOWN) {
        None | Some(0) => Ok(()),
        Some(more) => write!(f, "\n  and {more} more"),
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tensors are not those that the model wants")?;
        list(f, "missing", &self.missing)?;
        list(f, "of another shape", &self.misshapen)?;
        list(f, "not wanted", &self.surplus)
    }
}
