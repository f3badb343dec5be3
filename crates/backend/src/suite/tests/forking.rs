//! The reference forks as it should; forks with a fault are noticed.

use super::super::{Case, PRIMITIVES, check_forks};
use crate::{Backend, Executable, Fault, InputValue, OutputValue, Reference, Result, State};
use ptero_plan::plan::Plan;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// What is wrong with forks.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// They are the state itself.
    Shared,
    /// Their state buffers are zero.
    Zeroed,
    /// They can be read at once.
    Read,
}

struct Forking(Wrong);

struct Compiled(Wrong, Box<dyn Executable>);

struct Session {
    wrong: Wrong,
    inner: Arc<Mutex<Box<dyn State>>>,
    /// Whether nothing ran since the fork.
    is_new: bool,
}

impl Backend for Forking {
    fn name(&self) -> &'static str {
        "forking"
    }

    fn compile(&self, plan: Arc<Plan>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(Compiled(self.0, Reference.compile(plan)?)))
    }
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        let inner = Arc::new(Mutex::new(self.1.state(seed)?));
        Ok(Box::new(Session { wrong: self.0, inner, is_new: true }))
    }
}

impl State for Session {
    fn write(&mut self, input: usize, value: InputValue<'_>) -> Result<()> {
        self.inner.lock().unwrap().write(input, value)
    }

    fn run_until(&mut self, cancelled: &AtomicBool) -> Result<()> {
        self.is_new = false;
        self.inner.lock().unwrap().run_until(cancelled)
    }

    fn read_into(&self, output: usize, value: &mut OutputValue) -> Result<()> {
        if self.is_new { Err(Fault::NotRun.into()) } else { self.inner.lock().unwrap().read_into(output, value) }
    }

    fn reset(&mut self) {
        self.inner.lock().unwrap().reset();
    }

    fn fork(&self, seed: u64) -> Result<Box<dyn State>> {
        let mut fork = self.inner.lock().unwrap().fork(seed)?;
        let (inner, is_new) = match self.wrong {
            Wrong::Shared => (Arc::clone(&self.inner), true),
            Wrong::Zeroed => {
                fork.reset();
                (Arc::new(Mutex::new(fork)), true)
            }
            Wrong::Read => {
                let _ = fork.run();
                (Arc::new(Mutex::new(fork)), false)
            }
        };
        Ok(Box::new(Session { wrong: self.wrong, inner, is_new }))
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
        fn run_until(&mut self, _: &AtomicBool) -> Result<()> {
            Ok(())
        }
        fn read_into(&self, _: usize, _: &mut OutputValue) -> Result<()> {
            Ok(())
        }
        fn reset(&mut self) {}
    }
    let error = Plain.fork(0).err().unwrap();
    assert_eq!(error.to_string(), "the state of a session on this device cannot be copied");
}
