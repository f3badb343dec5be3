//! Writes weights: several threads read and encode, one writes, and only a few runs of rows are in memory at a time.

use super::{Encoded, Weight};
use crate::error::Result;
use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// How many encoded runs of each worker may wait for the writer.
const WAITING: usize = 4;

/// Writes all weights in order. `wrote` is called with the number of bytes after each run.
pub(crate) fn write_all(weights: &[Weight], out: &mut dyn Write, wrote: &mut dyn FnMut(u64)) -> Result<()> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let lines: Vec<Receiver<Result<Encoded>>> = (0..workers)
            .map(|worker| {
                let (give, take) = sync_channel(WAITING);
                scope.spawn(move || encode_every(weights, workers, worker, &give));
                take
            })
            .collect();
        // Workers take turns; one that ended early has sent its error before.
        let mut encoded = lines.iter().cycle().map_while(|line| line.recv().ok());
        for weight in weights {
            let (mut scales, mut biases) = (Vec::new(), Vec::new());
            for run in encoded.by_ref().take(weight.runs().count()) {
                let run = run?;
                out.write_all(&run.main)?;
                wrote(run.main.len() as u64);
                scales.extend_from_slice(&run.scales);
                biases.extend_from_slice(&run.biases);
            }
            out.write_all(&scales)?;
            out.write_all(&biases)?;
            wrote((scales.len() + biases.len()) as u64);
        }
        Ok(())
    })
}

/// Encodes every run whose turn is this worker's.
fn encode_every(weights: &[Weight], workers: usize, worker: usize, give: &SyncSender<Result<Encoded>>) {
    let runs = weights.iter().flat_map(|weight| weight.runs().map(move |rows| (weight, rows)));
    for (weight, rows) in runs.skip(worker).step_by(workers) {
        // The writer has stopped after an error.
        if give.send(weight.encode(rows)).is_err() {
            return;
        }
    }
}
