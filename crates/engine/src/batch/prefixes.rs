//! States of earlier texts, for prompts that begin like them.

use crate::TokenId;
use crate::session::Session;

/// A shorter prefix than this is not worth copying a state for.
const SHORTEST: usize = 16;
/// Copying a position of a state takes less than this part of the time that processing it takes.
const COPY_COST: usize = 16;

/// The most states: a session has buffers beside its state, which the bytes do not count, and every prompt is compared with all.
const MOST_HELD: usize = 32;

/// Returns the number of tokens of a prompt that a copy of the session has processed; 0 if copying it does not pay off.
pub(super) fn usable_prefix(session: &Session, prompt: &[TokenId]) -> usize {
    let shared = session.tokens().iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
    // A call takes at least one token.
    let shared = shared.min(prompt.len().saturating_sub(1));
    let can_use = shared == session.position() || session.engine().can_rewind();
    let pays_off = shared >= SHORTEST && shared >= session.position() / COPY_COST;
    if can_use && pays_off && !session.is_torn() { shared } else { 0 }
}

/// States, bounded in number and bytes: those that were not used for the longest time are dropped first.
#[derive(Debug)]
pub(super) struct Prefixes {
    /// The most recently used comes last.
    held: Vec<Held>,
    limit: u64,
}

#[derive(Debug)]
struct Held {
    session: Session,
    bytes: u64,
}

impl Prefixes {
    pub(super) fn new(limit: u64) -> Self {
        Self { held: Vec::new(), limit }
    }

    /// Returns the state with the longest usable prefix of a prompt.
    pub(super) fn find(&mut self, prompt: &[TokenId]) -> Option<&Session> {
        let lengths = self.held.iter().map(|held| usable_prefix(&held.session, prompt)).enumerate();
        let (best, _) = lengths.filter(|(_, length)| *length > 0).max_by_key(|(_, length)| *length)?;
        let found = self.held.remove(best);
        self.held.push(found);
        self.held.last().map(|held| &held.session)
    }

    /// Keeps a copy of a state, unless it is too large or too short.
    pub(super) fn insert(&mut self, session: &Session) {
        let (tokens, can_rewind) = (session.tokens(), session.engine().can_rewind());
        let bytes = session.engine().step_bytes(session.position().saturating_sub(1)).state;
        if tokens.len() < SHORTEST || bytes > self.limit || session.is_torn() {
            return;
        }
        // A state that can be rewound holds those of all prefixes.
        let covers =
            |long: &[TokenId], short: &[TokenId]| if can_rewind { long.starts_with(short) } else { long == short };
        if let Some(at) = self.held.iter().position(|held| covers(held.session.tokens(), tokens)) {
            let found = self.held.remove(at);
            return self.held.push(found);
        }
        self.held.retain(|held| !covers(tokens, held.session.tokens()));
        let is_full = |held: &[Held]| {
            held.len() >= MOST_HELD || held.iter().map(|held| held.bytes).sum::<u64>() + bytes > self.limit
        };
        while is_full(&self.held) && !self.held.is_empty() {
            self.held.remove(0);
        }
        // Without a copy, the next prompt is processed from its start.
        if let Ok(session) = session.fork() {
            self.held.push(Held { session, bytes });
        }
    }
}
