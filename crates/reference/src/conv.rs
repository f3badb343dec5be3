//! Convolutions over any number of spatial axes.

use crate::matmul::dot;
use crate::memory::Memory;
use crate::tensor::coordinates;
use ptero_backend::number::Number;
use ptero_backend::{Conv, Fault};
use ptero_plan::graph::Value;

pub(crate) fn conv(memory: &mut Memory<'_>, out: Value, x: Value, w: Value, conv: &Conv<'_>) -> Result<(), Fault> {
    let shape = memory.shape(out)?;
    let (x, w) = (memory.tensor(x)?, memory.tensor(w)?);
    let per_group = conv.filters_per_group(x.shape(), w.shape(), &shape)?;
    let ([_, kernel @ .., channels], [_, sizes @ .., _]) = (w.shape(), x.shape()) else {
        return Err(Fault::Contract("what a convolution reads has at least two axes"));
    };
    let mut numbers = Vec::new();
    for at in coordinates(&shape) {
        let [batch, spatial @ .., filter] = at.as_slice() else {
            return Err(Fault::Contract("what a convolution writes has at least two axes"));
        };
        let first_channel = filter / per_group * channels;
        let (mut patch, mut weights) = (Vec::new(), Vec::new());
        // Without channels there is nothing to add, however many taps there are.
        for tap in coordinates(if *channels == 0 { &[0] } else { kernel }) {
            let axes = spatial.iter().zip(&tap).zip(sizes).enumerate();
            let source = axes.map(|(axis, ((&at, &tap), &size))| conv.source(axis, at, tap, size));
            let source: Option<Vec<usize>> = source.collect();
            for channel in 0..*channels {
                let element = |source: &Vec<usize>| {
                    x.at(&[&[*batch], source.as_slice(), &[first_channel + channel]].concat()).float()
                };
                patch.push(source.as_ref().map_or(0.0, element));
                weights.push(w.at(&[&[*filter], tap.as_slice(), &[channel]].concat()).float());
            }
        }
        numbers.push(Number::Float(dot(&patch, &weights)));
    }
    memory.store(out, numbers)
}
