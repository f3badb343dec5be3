//! Copies of states: each goes its own way.

use super::compare::{Failure, Outputs, What};
use super::{Case, State};
use ptero_backend::{Backend, Error, Executable, run_once};
use ptero_plan::graph::Op;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Forks states in the first `cases` cases of a primitive: what a fork and its origin give afterwards must be what two states
/// give that never had to do with each other, to the bit.
///
/// # Errors
///
/// The first case in which it is not.
///
/// # Panics
///
/// If there is no primitive of that name.
pub fn check_forks(backend: &dyn Backend, primitive: &str, cases: u64, seed: u64) -> Result<(), Box<Failure>> {
    (0..cases).try_for_each(|number| {
        let case = Case::new(primitive, seed, number);
        if case.has_epilogue() && !backend.capabilities().epilogues {
            return Ok(());
        }
        case.forks(backend).map_err(|what| case.failure(backend, *what))
    })
}

/// What a state is asked for after the first call.
type Next = fn(&Case, &dyn Executable, &mut dyn State) -> Result<(), Error>;

/// With what was given.
const REPEAT: Next = |_, executable, state| run_once(executable, state, &AtomicBool::new(false));
const GO_ON: Next = |case, executable, state| case.call(executable, state, 1);

impl Case {
    pub(super) fn forks(&self, backend: &dyn Backend) -> Result<(), Box<What>> {
        let refused = |error| Box::new(What::Refused(error));
        let executable = backend.compile(Arc::clone(&self.graph)).map_err(refused)?;
        let start = || -> Result<Box<dyn State>, Error> {
            let mut state = executable.state(self.finished.state_seed)?;
            // Some cases are meant to fail.
            let _ = self.call(&*executable, state.as_mut(), 0);
            Ok(state)
        };
        let alone =
            |next: Next| start().map(|mut state| self.outputs(&*executable, state.as_mut(), next)).map_err(refused);
        let (repeated, gone_on) = (alone(REPEAT)?, alone(GO_ON)?);

        let mut origin = start().map_err(refused)?;
        let fork = |origin: &dyn State| origin.fork(self.finished.state_seed).map_err(refused);
        let (mut early, mut late, mut last) = (fork(&*origin)?, fork(&*origin)?, fork(&*origin)?);
        if let Ok(found) = early.read(0) {
            let expected = Err("can be read only after a successful run".to_owned());
            return Err(Box::new(What::Fork { of: "a new fork", expected, found: Ok(vec![found]) }));
        }
        let runs: [(&'static str, &mut dyn State, Next, &Outputs); 4] = [
            ("a fork before its origin goes on", &mut *early, REPEAT, &repeated),
            ("the origin of forks", &mut *origin, GO_ON, &gone_on),
            ("a fork after its origin went on", &mut *late, REPEAT, &repeated),
            ("a fork that is given other inputs", &mut *last, GO_ON, &gone_on),
        ];
        for (of, state, next, expected) in runs {
            let found = self.outputs(&*executable, state, next);
            // A fork has keys of its own.
            if found != *expected && !(self.draws_keys() && of.starts_with("a fork")) {
                return Err(Box::new(What::Fork { of, expected: expected.clone(), found }));
            }
        }
        Ok(())
    }

    /// Whether a step gets its key from the sequence of the state.
    fn draws_keys(&self) -> bool {
        let nodes = self.graph.blocks.iter().flat_map(|block| &block.nodes);
        // What draws without a seed is the only primitive with an effect.
        nodes.into_iter().any(|node| matches!(node.op, Op::Prim(_)) && node.op.has_effect())
    }

    fn outputs(&self, executable: &dyn Executable, state: &mut dyn State, next: Next) -> Outputs {
        let read = |state: &dyn State| (0..self.graph.outputs.len()).map(|output| state.read(output)).collect();
        next(self, executable, state).and_then(|()| read(state)).map_err(|error| error.to_string())
    }
}
