//! Samplers side by side.

use super::escape;
use super::plot::{Place, tick_step};
use crate::bench::report::{Comparison, Sampled};

const BAR: f64 = 22.0;
const GAP: f64 = 12.0;
/// Names stand here.
const LEFT: f64 = 168.0;
/// Numbers stand here.
const RIGHT: f64 = 250.0;

/// The drawing, and how high it is.
pub(super) fn bars(comparison: &Comparison, title: &str, place: Place) -> (String, f64) {
    let largest = comparison.samplers.iter().map(|way| way.ms_per_token.most).fold(1e-9, f64::max);
    let (left, width) = (place.x + LEFT, place.width - LEFT - RIGHT);
    let step = tick_step(largest);
    let largest = step * (largest / step).ceil();
    let top = place.y + 48.0;
    #[allow(clippy::cast_precision_loss, reason = "three samplers")]
    let bottom = top + comparison.samplers.len() as f64 * (BAR + GAP);
    let mut drawn = format!(
        "<text class=\"head\" x=\"{x:.1}\" y=\"{:.1}\">Milliseconds per token, by where tokens are drawn</text>\n\
         <text class=\"muted small\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
        place.y + 12.0,
        place.y + 31.0,
        escape(title),
        x = place.x,
    );
    for tick in (0_u32..).map(|tick| f64::from(tick) * step).take_while(|tick| *tick <= largest * 1.000_001) {
        let x = left + tick / largest * width;
        let digits = if step < 1.0 { 2 } else { 0 };
        drawn += &format!(
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick:.digits$}</text>\n",
            top - 4.0,
            bottom + 14.0
        );
    }
    for (at, way) in (0_u32..).zip(&comparison.samplers) {
        drawn += &bar(way, Place { x: left, y: top + f64::from(at) * (BAR + GAP), width }, largest);
    }
    (drawn, bottom + 40.0 - place.y)
}

fn bar(way: &Sampled, place: Place, largest: f64) -> String {
    let Place { x, y, width } = place;
    let at = |ms: f64| x + ms / largest * width;
    let figures = way.ms_per_token;
    let (colour, name) = match way.sampler {
        "program" => ("c0", "in the program"),
        "host_fast" => ("c1", "on the host, fast"),
        _ => ("c2", "on the host, reference"),
    };
    let gain = way.program_is_faster_percent.map_or_else(String::new, |gain| match gain.median {
        gain if gain >= 0.0 => format!(", the program is {gain:.1} % faster"),
        gain => format!(", the program is {:.1} % slower", -gain),
    });
    let middle = y + BAR / 2.0;
    format!(
        "<text x=\"{:.1}\" y=\"{baseline:.1}\" text-anchor=\"end\">{name}</text>\
         <rect class=\"bar {colour}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"3\"/>\
         <path class=\"whisker\" d=\"M{least:.1} {:.1}v8M{least:.1} {middle:.1}H{most:.1}M{most:.1} {:.1}v8\"/>\
         <text class=\"value\" x=\"{:.1}\" y=\"{baseline:.1}\">{:.2} ms{gain}</text>\n",
        x - 10.0,
        at(figures.median) - x,
        middle - 4.0,
        middle - 4.0,
        at(figures.most) + 8.0,
        figures.median,
        baseline = middle + 4.5,
        least = at(figures.least),
        most = at(figures.most),
    )
}
