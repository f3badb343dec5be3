//! States of earlier texts, for prompts that begin like them.

use crate::TokenId;
use crate::error::Result;
use crate::session::Session;

/// A shorter prefix than this is not worth copying a state for.
pub(super) const SHORTEST: usize = 16;
/// Copying a position of a state takes less than this part of the time that processing it takes.
const COPY_COST: usize = 16;

/// The most states: a session has buffers beside its state, which the bytes do not count, and every prompt is compared with all.
const MOST_HELD: usize = 32;

/// Returns the number of tokens that two texts begin with, without the last token of the second: a call takes at least one.
pub(super) fn shared_length(held: &[TokenId], prompt: &[TokenId]) -> usize {
    let shared = held.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count();
    shared.min(prompt.len().saturating_sub(1))
}

/// Returns the number of tokens of a prompt that a copy of the session has processed; 0 if copying it does not pay off.
pub(super) fn usable_prefix(session: &Session, prompt: &[TokenId]) -> usize {
    let shared = shared_length(session.tokens(), prompt);
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

    /// Returns the length of the longest usable prefix of a prompt.
    pub(super) fn longest(&self, prompt: &[TokenId]) -> usize {
        self.held.iter().map(|held| usable_prefix(&held.session, prompt)).max().unwrap_or(0)
    }

    /// Returns the state with the longest usable prefix of a prompt: itself if the prompt goes on where it ends, else a copy.
    ///
    /// # Errors
    /// When there is no memory for a copy.
    pub(super) fn get(&mut self, prompt: &[TokenId]) -> Result<Option<Session>> {
        let lengths = self.held.iter().map(|held| usable_prefix(&held.session, prompt)).enumerate();
        let Some((best, length)) = lengths.filter(|(_, length)| *length > 0).max_by_key(|(_, length)| *length) else {
            return Ok(None);
        };
        let found = self.held.remove(best);
        // A state that cannot be rewound is the only one for other prompts that go on there.
        if length == found.session.position() && found.session.engine().can_rewind() {
            return Ok(Some(found.session));
        }
        let copy = found.session.fork();
        self.held.push(found);
        copy.map(Some)
    }

    /// Returns `true` if a state is worth keeping. One that is kept already counts as used.
    pub(super) fn wants(&mut self, session: &Session) -> bool {
        if session.position() < SHORTEST || bytes_of(session) > self.limit || session.is_torn() {
            return false;
        }
        let covering = self.held.iter().position(|held| covers(&held.session, session));
        let found = covering.map(|at| self.held.remove(at));
        let is_new = found.is_none();
        self.held.extend(found);
        is_new
    }

    /// Keeps a state that is worth it.
    pub(super) fn insert(&mut self, session: Session) {
        let bytes = bytes_of(&session);
        self.held.retain(|held| !covers(&session, &held.session));
        let is_full = |held: &[Held]| {
            held.len() >= MOST_HELD || held.iter().map(|held| held.bytes).sum::<u64>() + bytes > self.limit
        };
        while is_full(&self.held) && !self.held.is_empty() {
            self.held.remove(0);
        }
        self.held.push(Held { session, bytes });
    }
}

/// The bytes of a state up to its position.
fn bytes_of(session: &Session) -> u64 {
    session.engine().step_bytes(session.position().saturating_sub(1)).state
}

/// Returns `true` if a state makes another one superfluous: one that can be rewound holds those of all prefixes.
fn covers(one: &Session, other: &Session) -> bool {
    let (long, short) = (one.tokens(), other.tokens());
    if one.engine().can_rewind() { long.starts_with(short) } else { long == short }
}
