//! What the tests on a device share.

use ptero_cuda::{Device, Stream};

/// Returns a stream on the first device.
///
/// # Panics
///
/// Without a device.
pub(crate) fn stream() -> Stream {
    Device::open(0).unwrap_or_else(|error| panic!("{error}")).stream().unwrap()
}
