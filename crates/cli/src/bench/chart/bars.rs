//! A bar for each sampler.

use super::svg::{self, Area, END, MIDDLE, Part, START, Ticks};
use crate::bench::report::{Comparison, Sampled};

const BAR: f64 = 22.0;
const GAP: f64 = 12.0;
/// The width of the names.
const LEFT: f64 = 168.0;
/// The width of the numbers.
const RIGHT: f64 = 250.0;

/// Returns the chart and its bottom.
pub(super) fn draw(comparison: &Comparison, title: &str, area: Area) -> (Vec<Part>, f64) {
    let ticks = Ticks::new(comparison.samplers.iter().map(|way| way.ms_per_token.most).fold(1e-9, f64::max));
    let (left, width) = (area.x + LEFT, area.width - LEFT - RIGHT);
    let across = |ms: f64| left + ms / ticks.largest * width;
    let top = area.y + 48.0;
    let bottom = top + comparison.samplers.len() as f64 * (BAR + GAP);
    let mut parts = vec![
        svg::text("head", (area.x, area.y + 12.0), START, "Milliseconds per token, by where tokens are sampled"),
        svg::text("muted small", (area.x, area.y + 31.0), START, title),
    ];
    for (tick, label) in ticks.iter() {
        let x = across(tick);
        parts.push(svg::line("grid", (x, top - 4.0), (x, bottom)));
        parts.push(svg::text("tick", (x, bottom + 14.0), MIDDLE, &label));
    }
    for (at, sampled) in comparison.samplers.iter().enumerate() {
        parts.extend(bar(sampled, at, top + at as f64 * (BAR + GAP), across));
    }
    (parts, bottom + 40.0)
}

fn bar(sampled: &Sampled, colour: usize, y: f64, across: impl Fn(f64) -> f64) -> [Part; 4] {
    let (name, _) = sampled.what.split_once(':').unwrap_or((sampled.what, ""));
    let figures = sampled.ms_per_token;
    let gain = sampled.program_is_faster_percent.map_or_else(String::new, |gain| match gain.median {
        gain if gain >= 0.0 => format!(", the program is {gain:.1} % faster"),
        gain => format!(", the program is {:.1} % slower", -gain),
    });
    let [left, median, least, most] = [0.0, figures.median, figures.least, figures.most].map(across);
    let (width, middle) = (median - left, y + BAR / 2.0);
    let (top, baseline) = (middle - 4.0, middle + 4.5);
    [
        svg::text("", (left - 10.0, baseline), END, name),
        format!(
            "<rect class=\"bar c{colour}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"3\"/>"
        ),
        format!(
            "<path class=\"whisker\" d=\"M{least:.1} {top:.1}v8M{least:.1} {middle:.1}H{most:.1}M{most:.1} {top:.1}v8\"/>"
        ),
        svg::text("value", (most + 8.0, baseline), START, &format!("{:.2} ms{gain}", figures.median)),
    ]
}
