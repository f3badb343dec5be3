//! How the weights of an export are stored, for reports.

use super::{Form, Weight};
use ptero_checkpoint::Format;

/// Tensors of an export that are stored in the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormCount {
    /// The form: `int4 in groups of 64`, `bf16` or the name of a GGUF block.
    pub form: String,
    /// How many tensors have it. Layers that are one product are one tensor.
    pub tensors: usize,
    /// How many weights they hold.
    pub weights: u64,
    /// The size of these weights, with their scales and biases.
    pub bytes: u64,
}

impl FormCount {
    /// Bits per weight, with scales and biases.
    pub fn bits_per_weight(&self) -> f64 {
        bits_per_weight(std::slice::from_ref(self))
    }
}

/// The average number of bits of a weight; 0 without weights.
#[allow(clippy::cast_precision_loss, reason = "a figure to look at")]
pub fn bits_per_weight(forms: &[FormCount]) -> f64 {
    let (bytes, weights) =
        forms.iter().fold((0, 0), |(bytes, weights), form| (bytes + form.bytes, weights + form.weights));
    if weights == 0 { 0.0 } else { 8.0 * bytes as f64 / weights as f64 }
}

/// Counts the weights of each form, those with the most weights first.
pub(crate) fn count(weights: &[Weight]) -> Vec<FormCount> {
    let mut counts: Vec<FormCount> = Vec::new();
    for weight in weights {
        let form = name(weight);
        let at = counts.iter().position(|count| count.form == form).unwrap_or_else(|| {
            counts.push(FormCount { form, tensors: 0, weights: 0, bytes: 0 });
            counts.len() - 1
        });
        if let Some(count) = counts.get_mut(at) {
            count.tensors += 1;
            count.weights += weight.parts.iter().map(|part| part.len() * part.entry.columns()).sum::<u64>();
            count.bytes += weight.data.iter().map(|data| data.bytes).sum::<u64>();
        }
    }
    counts.sort_by_key(|count| std::cmp::Reverse(count.weights));
    counts
}

fn name(weight: &Weight) -> String {
    let affine = match weight.form {
        Form::Bytes => {
            let format = weight.parts.first().map(|part| part.entry.format().name());
            return format.unwrap_or("bytes").to_owned();
        }
        Form::Blocks(kind) => return format!("{} blocks", Format::Gguf(kind).name()),
        Form::Plain(float) => return float.dtype().name().to_owned(),
        Form::Affine(affine, _) => affine,
        Form::Legacy(kind, _) => kind.affine(),
    };
    format!("int{} in groups of {}", affine.bits(), affine.group())
}
