//! What is wrong with a file, and where.
//!
//! A [`Fault`] says what is wrong; it knows no location. Each caller that knows the location adds one [`Step`] on the way
//! up, so the message reads from the outside in: file, part, fault.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

/// What can be wrong with one kind of file.
pub trait Fault: Error + 'static {
    /// Who has to act on this fault.
    fn kind(&self) -> Kind;
}

/// Who has to act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The file could not be read at all.
    System,
    /// The bytes are not what the format says they must be.
    Malformed,
    /// The file is larger, deeper or longer than the reader's limits.
    Limit,
    /// The file is valid, but uses what ptero does not support.
    Unsupported,
    /// The file is valid, but lacks what was asked for.
    Absent,
}

/// One step of the path to a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A file or folder.
    File(PathBuf),
    /// A part of the file that has neither a name nor an index.
    Part(&'static str),
    /// A named item, after what it is: ``method `forward` ``.
    Named(&'static str, String),
    /// An indexed item, after what it is: `element 3`.
    Indexed(&'static str, u64),
    /// A tensor slot of a graph.
    Tensor(u32),
    /// An instruction of a graph: chain, index in the chain, node.
    Instruction(usize, usize, &'static str),
}

impl Step {
    /// A named item, after what it is.
    pub fn named(what: &'static str, name: impl Into<String>) -> Self {
        Self::Named(what, name.into())
    }

    /// An indexed item, after what it is.
    pub fn indexed(what: &'static str, index: usize) -> Self {
        Self::Indexed(what, index as u64)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::File(path) => write!(f, "{}", path.display()),
            Step::Part(name) => f.write_str(name),
            Step::Named(what, name) => write!(f, "{what} `{}`", name.escape_debug()),
            Step::Indexed(what, index) => write!(f, "{what} {index}"),
            Step::Tensor(slot) => write!(f, "tensor t{slot}"),
            Step::Instruction(chain, index, node) => write!(f, "instruction {chain}.{index} ({node})"),
        }
    }
}

/// A fault and the location where it was found.
pub struct Located<F: Fault>(Box<Inner<F>>);

struct Inner<F: Fault> {
    /// Innermost step first: the order in which they were added.
    steps: Vec<Step>,
    fault: F,
}

impl<F: Fault> Located<F> {
    /// What is wrong, without the location.
    pub fn fault(&self) -> &F {
        &self.0.fault
    }

    /// The location, outermost step first.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.0.steps.iter().rev()
    }

    /// Who has to act.
    pub fn kind(&self) -> Kind {
        self.0.fault.kind()
    }

    /// Adds the step that encloses all steps so far.
    #[must_use]
    pub fn at(mut self, step: Step) -> Self {
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
            separator = if matches!(step, Step::File(_)) { ": " } else { ", " };
        }
        if !self.0.steps.is_empty() {
            f.write_str(": ")?;
        }
        write!(f, "{}", self.0.fault)
    }
}

impl<F: Fault> Error for Located<F> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The fault's own text, and that of the error it wraps, is already part of ours; what it wraps in turn is a
        // further cause.
        self.0.fault.source()?.source()
    }
}

/// Adds a location to a result.
pub trait AtStep {
    /// The same result with a location.
    type Located;

    /// Adds the step that encloses all steps so far, if this is an error.
    fn at(self, step: impl FnOnce() -> Step) -> Self::Located;
}

impl<T, F: Fault> AtStep for Result<T, Located<F>> {
    type Located = Result<T, Located<F>>;

    fn at(self, step: impl FnOnce() -> Step) -> Self::Located {
        self.map_err(|error| error.at(step()))
    }
}

impl<T, F: Fault> AtStep for Result<T, F> {
    type Located = Result<T, Located<F>>;

    fn at(self, step: impl FnOnce() -> Step) -> Self::Located {
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

    impl Fault for Wrong {
        fn kind(&self) -> Kind {
            if matches!(self, Wrong::Io(_)) { Kind::System } else { Kind::Malformed }
        }
    }

    #[test]
    fn the_location_reads_from_the_outside_in() {
        let error = Err::<(), _>(Wrong::NoEnd)
            .at(|| Step::Indexed("row", 3))
            .at(|| Step::named("table", "t\n"))
            .at(|| Step::File("a.b".into()));
        let error = error.expect_err("it is one");
        assert_eq!(error.to_string(), "a.b: table `t\\n`, row 3: no end");
        assert_eq!(error.steps().last(), Some(&Step::Indexed("row", 3)));
        assert_eq!(error.kind(), Kind::Malformed);
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
