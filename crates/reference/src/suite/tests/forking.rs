//! The reference forks as it should; forks with a fault are noticed.

use super::super::{Case, PRIMITIVES, check_forks};
use crate::Reference;
use ptero_backend::{Backend, Executable, Fault, InputValue, Lane, OutputValue, Result, State, Steps, run_once};
use ptero_plan::Capabilities;
use ptero_plan::graph::Graph;
use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// What is wrong with forks.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// They are the state itself.
    Shared,
    /// Their state tensors are zero.
    Zeroed,
    /// They can be read at once.
    Read,
}

struct Forking(Wrong);

struct Compiled(Wrong, Arc<dyn Executable>);

struct FaultyState {
    wrong: Wrong,
    executable: Arc<dyn Executable>,
    inner: Arc<Mutex<Box<dyn State>>>,
    /// Nothing ran since the fork.
    is_new: bool,
}

impl Backend for Forking {
    fn name(&self) -> &'static str {
        "forking"
    }

    fn capabilities(&self) -> Capabilities {
        Reference.capabilities()
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(Compiled(self.0, Arc::from(Reference.compile(graph)?))))
    }
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        let inner = Arc::new(Mutex::new(self.1.state(seed)?));
        Ok(Box::new(FaultyState { wrong: self.0, executable: Arc::clone(&self.1), inner, is_new: true }))
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        for lane in lanes {
            let state: &mut dyn Any = lane.state;
            let session = state.downcast_mut::<FaultyState>().expect("a state of this backend");
            session.is_new = false;
            lane.fault = run_once(&*self.1, session.inner.lock().unwrap().as_mut(), steps.stop).err();
        }
        Ok(())
    }
}

impl State for FaultyState {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        self.inner.lock().unwrap().write(input, value)
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        if self.is_new { Err(Fault::NotRun.into()) } else { self.inner.lock().unwrap().read_into(output, value) }
    }

    fn reset(&mut self) -> Result<()> {
        self.inner.lock().unwrap().reset()
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let mut fork = self.inner.lock().unwrap().fork(seed)?;
        let (inner, is_new) = match self.wrong {
            Wrong::Shared => (Arc::clone(&self.inner), true),
            Wrong::Zeroed => {
                fork.reset()?;
                (Arc::new(Mutex::new(fork)), true)
            }
            Wrong::Read => {
                let _ = run_once(&*self.executable, fork.as_mut(), &AtomicBool::new(false));
                (Arc::new(Mutex::new(fork)), false)
            }
        };
        Ok(Box::new(FaultyState { wrong: self.wrong, executable: Arc::clone(&self.executable), inner, is_new }))
    }
}

#[test]
fn the_reference_forks_states_that_go_their_own_ways() {
    for primitive in PRIMITIVES {
        check_forks(&Reference, primitive, 30, 1).unwrap();
    }
}

#[test]
fn forks_that_share_or_lose_what_changes_are_noticed() {
    for (wrong, least) in [(Wrong::Shared, 5), (Wrong::Zeroed, 1), (Wrong::Read, 5)] {
        // Forks may draw other bits.
        for primitive in PRIMITIVES.iter().filter(|name| **name != "random-bits") {
            let is_seen = |number: &u64| Case::new(primitive, 2, *number).forks(&Forking(wrong)).is_err();
            let seen = (0..30).filter(is_seen).take(least).count();
            assert_eq!(seen, least, "{wrong:?} shows too seldom in 30 cases of `{primitive}`");
        }
    }
}

#[test]
fn a_device_that_cannot_copy_states_says_so() {
    struct Plain;
    impl State for Plain {
        fn write(&mut self, _: usize, _: InputValue<'_>) -> Result<()> {
            Ok(())
        }
        fn read_into(&self, _: usize, _: &mut OutputValue) -> Result<()> {
            Ok(())
        }
        fn reset(&mut self) -> Result<()> {
            Ok(())
        }
    }
    let error = Plain.fork(0).err().unwrap();
    assert_eq!(error.to_string(), "the state of a session on this device cannot be copied");
}
