//! Errors with their location, for every reader of files.
//!
//! A [`Fault`] has no location. Each caller that knows one adds a [`Step`] on the way up, so the text reads from the outside in:
//! file, part, fault.

use std::error::Error;
use std::fmt;

/// What can be wrong with one kind of file.
pub trait Fault: Error + 'static {
    /// The steps that lead to it.
    type Step: Step;
    /// Who has to act.
    type Kind;

    /// Who has to act on this one.
    fn kind(&self) -> Self::Kind;
}

/// One step of the way to a fault.
pub trait Step: fmt::Display + fmt::Debug {
    /// Returns `true` for a file, which is followed by a colon.
    fn is_file(&self) -> bool;
}

/// A fault and its location.
pub struct Located<F: Fault>(Box<Inner<F>>);

struct Inner<F: Fault> {
    /// Innermost step first: the order in which they were added.
    steps: Vec<F::Step>,
    fault: F,
}

impl<F: Fault> Located<F> {
    /// The fault, without its location.
    pub fn fault(&self) -> &F {
        &self.0.fault
    }

    /// The location, outermost step first.
    pub fn steps(&self) -> impl Iterator<Item = &F::Step> {
        self.0.steps.iter().rev()
    }

    /// Who has to act.
    pub fn kind(&self) -> F::Kind {
        self.0.fault.kind()
    }

    /// Adds the step that encloses all steps so far.
    #[must_use]
    pub fn at(mut self, step: F::Step) -> Self {
        self.0.steps.push(step);
        self
    }
}

impl<F: Fault> From<F> for Located<F> {
    fn from(fault: F) -> Self {
        Self(Box::new(Inner { steps: Vec::new(), fault }))
    }
}

impl<F: Fault> fmt::Debug for Located<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Located").field("steps", &self.0.steps).field("fault", &self.0.fault).finish()
    }
}

impl<F: Fault> fmt::Display for Located<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for step in self.steps() {
            write!(f, "{separator}{step}")?;
            separator = if step.is_file() { ": " } else { ", " };
        }
        if !self.0.steps.is_empty() {
            f.write_str(": ")?;
        }
        write!(f, "{}", self.0.fault)
    }
}

impl<F: Fault> Error for Located<F> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The text of the fault and of the error it wraps is already part of ours; only the source of that error is new.
        self.0.fault.source()?.source()
    }
}

/// Adds a location to an error.
pub trait AtStep {
    /// The result with the location.
    type Placed;
    /// A step of the location.
    type Step;

    /// Adds the step that encloses all steps so far, if this is an error.
    fn at(self, step: impl FnOnce() -> Self::Step) -> Self::Placed;
}

impl<T, F: Fault> AtStep for Result<T, Located<F>> {
    type Placed = Result<T, Located<F>>;
    type Step = F::Step;

    fn at(self, step: impl FnOnce() -> F::Step) -> Self::Placed {
        self.map_err(|error| error.at(step()))
    }
}

impl<T, F: Fault> AtStep for Result<T, F> {
    type Placed = Result<T, Located<F>>;
    type Step = F::Step;

    fn at(self, step: impl FnOnce() -> F::Step) -> Self::Placed {
        self.map_err(|fault| Located::from(fault).at(step()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Wrong {
        #[error("{0}")]
        Io(#[from] std::io::Error),
        #[error("no end")]
        NoEnd,
    }

    #[derive(Debug)]
    struct Place(&'static str);

    impl fmt::Display for Place {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Step for Place {
        fn is_file(&self) -> bool {
            self.0.contains('.')
        }
    }

    impl Fault for Wrong {
        type Step = Place;
        type Kind = bool;

        fn kind(&self) -> bool {
            matches!(self, Wrong::Io(_))
        }
    }

    #[test]
    fn the_place_reads_from_the_outside_in() {
        let error = Err::<(), _>(Wrong::NoEnd).at(|| Place("row 3")).at(|| Place("table")).at(|| Place("a.b"));
        let error = error.expect_err("it is one");
        assert_eq!(error.to_string(), "a.b: table, row 3: no end");
        assert_eq!(error.steps().map(|step| step.0).collect::<Vec<_>>(), ["a.b", "table", "row 3"]);
        assert!(!error.kind());
        assert_eq!(Located::from(Wrong::NoEnd).to_string(), "no end");
    }

    #[test]
    fn a_cause_is_told_once() {
        let beneath = Wrong::Io(std::io::Error::other("the disk is gone"));
        let error = Located::from(Wrong::Io(std::io::Error::other(beneath)));
        assert_eq!(error.to_string(), "the disk is gone");
        let cause = error.source().expect("what the error of the system wraps");
        assert!(cause.is::<std::io::Error>() && cause.source().is_none());
        assert!(Located::from(Wrong::NoEnd).source().is_none());
    }
}
