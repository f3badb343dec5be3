//! What the tests on a device share.

use ptero_cuda::{Device, Stream};

/// A stream on the first device; without one, says why.
pub(crate) fn stream() -> Option<Stream> {
    match Device::open(0) {
        Ok(device) => Some(device.stream().unwrap()),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}
