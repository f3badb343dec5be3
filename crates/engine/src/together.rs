//! Decoding several sessions at once: weights are read once for all of them.

use crate::TokenId;
use crate::error::Result;
use crate::options::TokenSettings;
use crate::session::{Session, StopFlag};
use ptero_backend::{Lane, Steps};

/// A session that takes part in [`decode_together`].
#[derive(Debug)]
pub struct DecodeLane<'a> {
    /// The session.
    pub session: &'a mut Session,
    /// The token that it processes.
    pub token: TokenId,
    /// How its next token is sampled.
    pub sampling: TokenSettings,
    /// The next token; before the call, anything.
    pub next: Result<TokenId>,
}

/// Processes one token of each session and samples the next, as [`Session::decode`] does, with the same results: they depend
/// neither on the other sessions nor on their number. Sessions may be at different positions, and have to be of one engine.
///
/// An error ends the part of its own session only. `stop` stops all of them between two steps.
pub fn decode_together(lanes: &mut [DecodeLane<'_>], stop: &StopFlag) {
    let Some(engine) = lanes.first().map(|lane| lane.session.engine().clone()) else { return };
    for lane in lanes.iter_mut() {
        let (tokens, sampling) = ([lane.token], &lane.sampling);
        let started = lane.session.check_call(&tokens, sampling).and_then(|()| lane.session.start(&tokens, sampling));
        lane.next = started.map(|()| 0);
    }
    let mut running = lanes.iter_mut().filter(|lane| lane.next.is_ok()).collect::<Vec<_>>();
    let mut on_device = running.iter_mut().map(|lane| Lane::new(lane.session.state_mut())).collect::<Vec<_>>();
    let ran = engine.executable().run(&mut on_device, &Steps { count: 1, follow: None, stop: stop.flag() });
    let faults = on_device.into_iter().map(|lane| lane.fault).collect::<Vec<_>>();
    if let Err(error) = ran {
        let refused = error.fault().clone();
        return running
            .into_iter()
            .for_each(|lane| lane.next = Err(ptero_backend::Error::from(refused.clone()).into()));
    }
    for (lane, fault) in running.into_iter().zip(faults) {
        lane.next = match fault {
            Some(fault) => Err(lane.session.torn(fault)),
            None => lane.session.end(&[lane.token], &lane.sampling, true),
        };
    }
}
