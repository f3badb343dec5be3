//! Tracks: on each, the work of some lanes is done in order, beside the work of other tracks.
//!
//! A step of decoding is a chain of small launches that keep little of a GPU busy, so lanes of different tracks hardly slow each other down.

use crate::context::Device;
use crate::error::Result;
use crate::step::Scratch;
use crate::stream::Stream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most tracks, each of which has memory of its own; lanes beyond that share them.
const MOST_TRACKS: usize = 16;

/// What lanes of a track share.
#[derive(Debug)]
pub(crate) struct Track {
    pub(crate) stream: Stream,
    scratch: Mutex<Scratch>,
}

impl Track {
    pub(crate) fn scratch(&self) -> MutexGuard<'_, Scratch> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tracks of a device.
#[derive(Debug, Default)]
pub(crate) struct Tracks(Vec<Arc<Track>>);

impl Tracks {
    /// The track with the fewest lanes; a new one if all have some.
    pub(crate) fn place(&mut self, device: &Device) -> Result<Arc<Track>> {
        let least = self.0.iter().min_by_key(|track| Arc::strong_count(track));
        if let Some(track) = least.filter(|track| Arc::strong_count(track) == 1 || self.0.len() >= MOST_TRACKS) {
            return Ok(Arc::clone(track));
        }
        let stream = device.stream()?;
        let scratch = Mutex::new(Scratch::new(&stream)?);
        let track = Arc::new(Track { stream, scratch });
        self.0.push(Arc::clone(&track));
        Ok(track)
    }

    /// How many steps were done by the launch of one before them.
    pub(crate) fn joined_steps(&self) -> u64 {
        self.0.iter().map(|track| track.scratch().joined_steps).sum()
    }
}
