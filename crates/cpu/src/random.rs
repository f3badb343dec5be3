//! Random bits.

use crate::lines::each_line;
use crate::run::Context;
use ptero_backend::Fault;
use ptero_plan::dim::Dim;
use ptero_sampling::threefry;

#[allow(clippy::cast_sign_loss, reason = "the seed's 64 bits are the key")]
pub(crate) fn random_bits(context: &mut Context<'_>, seed: Option<&Dim>) -> Result<(), Fault> {
    // Takes no key if there is no memory for the output.
    context.open()?;
    let key = match seed {
        Some(seed) => threefry::key(seed.eval(&context.bound.values) as u64),
        None => context.resources.keys.next_key(),
    };
    let (target, _, mut workers) = context.open()?;
    let (count, size) = (target.view.count(), target.dtype.size());
    let words = (count * size).div_ceil(4);
    let per_word = 4 / size.max(1);
    let axis = target.view.shape.len().saturating_sub(1);
    let length = target.view.size(axis);
    each_line(&mut workers, target, (axis, 16 * length), |number, out: &mut [i64], _| {
        for (element, index) in out.iter_mut().zip(number * length..) {
            let word = threefry::word(key, words, index / per_word);
            *element = i64::from(word >> (8 * size * (index % per_word)));
        }
    });
    Ok(())
}
