//! Random bits.

use super::memory::Memory;
use super::number::Element;
use crate::error::Fault;
use ptero_plan::dim::Dim;
use ptero_plan::prim::View;
use ptero_sampling::threefry;

#[allow(clippy::cast_sign_loss, reason = "the seed's 64 bits are the key")]
pub(super) fn random_bits(memory: &mut Memory, out: &View, seed: Option<&Dim>) -> Result<(), Fault> {
    let (element, window, _) = memory.target(out)?;
    let key = match seed {
        Some(seed) => threefry::key(seed.eval(&memory.values) as u64),
        None => memory.keys.next_key(),
    };
    let count = window.count();
    let bits = threefry::bits(key, element.bytes(), count);
    let numbers = (0..count).map(|place| element.load(&bits, place)).collect();
    memory.store(out, numbers)
}

/// What is wrong with a request whatever its size.
pub(super) fn check(out: &View) -> Result<(), Fault> {
    match Element::new(out.dtype)? {
        Element::U8 | Element::U16 | Element::U32 => Ok(()),
        Element::Bool | Element::I8 | Element::I16 | Element::I32 | Element::I64 => Err(WRONG_TYPE),
        Element::F16 | Element::Bf16 | Element::F32 => Err(WRONG_TYPE),
    }
}

const WRONG_TYPE: Fault = Fault::Contract("random bits are u8, u16 or u32");
