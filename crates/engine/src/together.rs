//! Calls of several sessions at once: weights are read once for all of them.

use crate::TokenId;
use crate::error::Result;
use crate::options::TokenSettings;
use crate::session::{Session, StopFlag};
use ptero_backend::{Error, Lane, ListMemory, Steps};

/// A session that takes part in [`call_together`].
#[derive(Debug)]
pub struct CallLane<'a> {
    /// The session.
    pub session: &'a mut Session,
    /// The tokens that it processes, at most as many as [`crate::Engine::max_prefill`].
    pub tokens: &'a [TokenId],
    /// How its next token is sampled.
    pub sampling: TokenSettings,
    /// `true` if the next token is wanted. If the program returns logits, the host samples only then.
    pub is_wanted: bool,
    /// The next token, if it is wanted; before the call, anything.
    pub next: Result<TokenId>,
}

impl<'a> CallLane<'a> {
    /// A lane whose next token is wanted.
    pub fn new(session: &'a mut Session, tokens: &'a [TokenId], sampling: TokenSettings) -> Self {
        Self { session, tokens, sampling, is_wanted: true, next: Ok(0) }
    }
}

/// The memory of the lists of a call, which stays between calls.
#[derive(Default)]
pub(crate) struct CallMemory {
    lanes: ListMemory<Lane<'static>>,
    faults: ListMemory<Option<Error>>,
}

/// Processes tokens of each session and samples the next, as [`Session::decode`] does for one token, with the same results: they
/// depend neither on the other sessions nor on their number. Sessions may be at different positions, but have to be of one engine
/// and to process equally many tokens.
///
/// An error ends the part of its own session only. `stop` stops all of them between two steps. Calls allocate nothing here once one
/// had as many sessions of the engine.
pub fn call_together(lanes: &mut [CallLane<'_>], stop: &StopFlag) {
    let Some(engine) = lanes.first().map(|lane| lane.session.engine().clone()) else { return };
    for lane in lanes.iter_mut() {
        let (tokens, sampling) = (lane.tokens, &lane.sampling);
        let started = lane.session.check_call(tokens, sampling).and_then(|()| lane.session.start(tokens, sampling));
        lane.next = started.map(|()| 0);
    }
    let running = lanes.iter_mut().filter(|lane| lane.next.is_ok());
    let memory = engine.call_memory();
    let mut on_device: Vec<Lane<'_>> = memory.lanes.take();
    let mut faults: Vec<Option<Error>> = memory.faults.take();
    on_device.extend(running.map(|lane| Lane::new(lane.session.state_mut())));
    let ran = engine.executable().run(&mut on_device, &Steps { count: 1, follow: None, stop: stop.flag() });
    faults.extend(on_device.drain(..).map(|lane| lane.fault));
    memory.lanes.put_back(on_device);
    let refused = ran.err().map(|error| error.fault().clone());
    for (lane, fault) in lanes.iter_mut().filter(|lane| lane.next.is_ok()).zip(faults.drain(..)) {
        lane.next = match (&refused, fault) {
            (Some(refused), _) => Err(Error::from(refused.clone()).into()),
            (None, Some(fault)) => Err(lane.session.torn(fault)),
            (None, None) => lane.session.end(lane.tokens, &lane.sampling, lane.is_wanted),
        };
    }
    memory.faults.put_back(faults);
}
