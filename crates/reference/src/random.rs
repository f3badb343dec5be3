//! Random bits.

use crate::memory::Memory;
use ptero_backend::Fault;
use ptero_plan::dim::Dim;
use ptero_plan::graph::Value;
use ptero_sampling::threefry;

#[allow(clippy::cast_sign_loss, reason = "the seed's 64 bits are the key")]
pub(crate) fn random_bits(memory: &mut Memory<'_>, out: Value, seed: Option<&Dim>) -> Result<(), Fault> {
    let (element, shape) = (memory.element(out)?, memory.shape(out)?);
    let key = match seed {
        Some(seed) => threefry::key(seed.eval(&memory.host) as u64),
        None => memory.keys.next_key(),
    };
    let count = shape.iter().product();
    let bits = threefry::bits(key, element.bytes(), count);
    let numbers = (0..count).map(|index| element.load(&bits, index)).collect();
    memory.store(out, numbers)
}
