//! The CPU with bursts of steps, one step of which may do its work and then fail.

use crate::tiny::device;
use ptero_backend::{Backend, Executable, Fault, Lane, Result, State, Steps};
use ptero_plan::Capabilities;
use ptero_plan::graph::Graph;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone)]
pub(crate) struct Breaking {
    /// Which step fails, counted from 1 over all sessions; 0 for none.
    pub(crate) at: usize,
    /// What it fails with.
    pub(crate) fault: Fault,
    /// How many steps at once are said to pay off.
    pub(crate) burst: usize,
    /// The most steps that were asked for at once.
    pub(crate) longest: Arc<AtomicUsize>,
}

impl Breaking {
    /// Step `at` says that it was stopped.
    pub(crate) fn stopped(at: usize) -> Self {
        Self { at, fault: Fault::Cancelled, ..Self::bursts(1) }
    }

    /// No step fails.
    pub(crate) fn bursts(burst: usize) -> Self {
        Self { at: 0, fault: Fault::Cancelled, burst, longest: Arc::default() }
    }
}

struct Compiled {
    inner: Box<dyn Executable>,
    device: Breaking,
    /// Steps so far.
    done: AtomicUsize,
}

impl Backend for Breaking {
    fn name(&self) -> &'static str {
        "breaking"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { burst: self.burst, ..device().capabilities() }
    }

    fn compile(&self, graph: Arc<Graph>) -> Result<Box<dyn Executable>> {
        let inner = device().compile(graph)?;
        Ok(Box::new(Compiled { inner, device: self.clone(), done: AtomicUsize::new(0) }))
    }
}

impl Executable for Compiled {
    fn state(&self, seed: u64) -> Result<Box<dyn State>> {
        self.inner.state(seed)
    }

    fn run(&self, lanes: &mut [Lane<'_>], steps: &Steps<'_>) -> Result<()> {
        self.device.longest.fetch_max(steps.count, Ordering::Relaxed);
        let left = self.device.at.checked_sub(self.done.load(Ordering::Relaxed)).filter(|left| *left > 0);
        let count = steps.count.min(left.unwrap_or(usize::MAX));
        self.inner.run(lanes, &Steps { count, ..*steps })?;
        let [lane] = lanes else { panic!("sessions of these tests run alone") };
        let ran = if steps.follow.is_some() { lane.tokens.len() } else { 1 };
        self.done.fetch_add(ran, Ordering::Relaxed);
        if left == Some(ran) && lane.fault.is_none() {
            // What the step drew is lost; what it wrote into the state is not.
            lane.tokens.pop();
            lane.fault = Some(self.device.fault.clone().into());
        }
        Ok(())
    }
}
