//! Forks of states are independent of each other.

use super::compare::{Difference, Failure};
use super::{Case, State};
use ptero_backend::{Backend, Error, Executable, OutputValue, run_once};
use ptero_plan::graph::Op;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Forks states in the first `cases` cases of a primitive: the outputs of a fork and its origin must be those of two independent
/// states, to the bit.
///
/// # Errors
///
/// The first case in which they are not.
///
/// # Panics
///
/// If there is no primitive of that name.
pub fn check_forks(backend: &dyn Backend, primitive: &str, cases: u64, seed: u64) -> Result<(), Box<Failure>> {
    (0..cases).try_for_each(|number| Case::new(primitive, seed, number).check(backend, Case::forks))
}

/// All outputs of a run, or its error.
type Outputs = Result<Vec<OutputValue>, String>;

/// The call after the first one.
type Next = fn(&Case, &dyn Executable, &mut dyn State) -> Result<(), Error>;

/// The same inputs again.
const REPEAT: Next = |_, executable, state| run_once(executable, state, &AtomicBool::new(false));
const GO_ON: Next = |case, executable, state| case.call(executable, state, 1);

impl Case {
    pub(super) fn forks(&self, backend: &dyn Backend) -> Result<(), Box<Difference>> {
        let executable = backend.compile(Arc::clone(&self.graph)).map_err(Difference::refused)?;
        let start = || -> Result<Box<dyn State>, Error> {
            let mut state = executable.state(self.finished.state_seed)?;
            // Some cases are meant to fail.
            let _ = self.call(&*executable, state.as_mut(), 0);
            Ok(state)
        };
        let alone = |next: Next| {
            start().map(|mut state| self.outputs(&*executable, state.as_mut(), next)).map_err(Difference::refused)
        };
        let (repeated, gone_on) = (alone(REPEAT)?, alone(GO_ON)?);

        let mut origin = start().map_err(Difference::refused)?;
        let fork = |origin: &dyn State| origin.fork(self.finished.state_seed).map_err(Difference::refused);
        let (mut early, mut late, mut last) = (fork(&*origin)?, fork(&*origin)?, fork(&*origin)?);
        if let Ok(found) = early.read(0) {
            let expected = Err("can be read only after a successful run".to_owned());
            return Err(different("a new fork", &expected, &Ok(vec![found])));
        }
        // A rest changes nothing that a run can see.
        origin.rest().map_err(Difference::refused)?;
        let runs: [(&'static str, &mut dyn State, Next, &Outputs); 4] = [
            ("a fork before its origin goes on", &mut *early, REPEAT, &repeated),
            ("the origin of forks, after a rest", &mut *origin, GO_ON, &gone_on),
            ("a fork after its origin went on", &mut *late, REPEAT, &repeated),
            ("a fork that is given other inputs", &mut *last, GO_ON, &gone_on),
        ];
        for (of, state, next, expected) in runs {
            let found = self.outputs(&*executable, state, next);
            // A fork has keys of its own.
            if found != *expected && !(self.draws_keys() && of.starts_with("a fork")) {
                return Err(different(of, expected, &found));
            }
        }
        Ok(())
    }

    /// Returns `true` if a step gets its key from the sequence of the state.
    fn draws_keys(&self) -> bool {
        let nodes = self.graph.blocks.iter().flat_map(|block| &block.nodes);
        // A draw without a seed is the only primitive with an effect.
        nodes.into_iter().any(|node| matches!(node.op, Op::Prim(_)) && node.op.has_effect())
    }

    fn outputs(&self, executable: &dyn Executable, state: &mut dyn State, next: Next) -> Outputs {
        let read = |state: &dyn State| (0..self.graph.outputs.len()).map(|output| state.read(output)).collect();
        next(self, executable, state).and_then(|()| read(state)).map_err(|error| error.to_string())
    }
}

fn different(of: &str, expected: &Outputs, found: &Outputs) -> Box<Difference> {
    Box::new(Difference::Other(format!("{of}: {found:?} where a state without forks has {expected:?}")))
}
