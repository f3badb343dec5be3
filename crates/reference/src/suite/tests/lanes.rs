//! Lanes with a fault are noticed.

use super::super::check_lanes;
use crate::Reference;
use ptero_backend::{Backend, Executable, Follow, Lane, Result, State, Steps};
use ptero_plan::graph::Graph;
use std::sync::Arc;

/// What is wrong with lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// They take a step more than they may, and hide its token.
    Overrun,
    /// They do not look at tokens that end them.
    NoEnds,
    /// Positions stay where they are.
    NoCount,
    /// A fault of one ends all.
    SharedFault,
    /// A fault is forgotten.
    NoFault,
    /// All have the state of the first.
    Swapped,
}

struct Faulty(Wrong);

struct Compiled(Wrong, Box<dyn Executable>);

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty lanes"
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(Compiled(self.0, Reference.compile(graph)?)))
    }
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        self.1.state(seed)
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        let wrong = self.0;
        let mut steps = *steps;
        if let (Wrong::NoCount, Some(follow)) = (wrong, steps.follow) {
            steps.follow = Some(Follow { count_up: &[], ..follow });
        }
        let (count, is_many) = (steps.count, steps.follow.is_some());
        if wrong == Wrong::Overrun && is_many {
            steps.count += 1;
            lanes.iter_mut().for_each(|lane| lane.wanted = lane.wanted.saturating_add(1));
        }
        if wrong == Wrong::NoEnds {
            lanes.iter_mut().for_each(|lane| lane.ends = &[]);
        }
        if wrong == Wrong::Swapped
            && let [first, second, ..] = &mut *lanes
        {
            std::mem::swap(&mut first.state, &mut second.state);
        }
        self.1.run(lanes, &steps)?;
        let has_fault = lanes.iter().any(|lane| lane.fault.is_some());
        for lane in lanes {
            match wrong {
                Wrong::Overrun if is_many => lane.tokens.truncate(count),
                Wrong::SharedFault if has_fault && is_many => lane.tokens.truncate(1),
                Wrong::NoFault => lane.fault = None,
                _ => {}
            }
        }
        Ok(())
    }
}

#[test]
fn lanes_with_a_fault_are_noticed() {
    let wrongs = [Wrong::Overrun, Wrong::NoEnds, Wrong::NoCount, Wrong::SharedFault, Wrong::NoFault, Wrong::Swapped];
    for wrong in wrongs {
        let failure = check_lanes(&Faulty(wrong)).expect_err("a fault shows");
        assert!(
            failure.to_string().starts_with("`lanes`, case 0 of seed 0, on `faulty lanes`\n"),
            "{wrong:?}: {failure}"
        );
    }
}
