//! SVG elements and axes.

/// An SVG element.
pub(super) type Part = String;
/// A position, to the right and down.
pub(super) type At = (f64, f64);

/// Where a plot is drawn.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
}

pub(super) const START: &str = "start";
pub(super) const MIDDLE: &str = "middle";
pub(super) const END: &str = "end";

/// Escapes a text for markup.
pub(in crate::bench) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

pub(super) fn text(class: &str, (x, y): At, anchor: &str, text: &str) -> Part {
    let text = escape(text);
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n")
}

pub(super) fn line(class: &str, (x1, y1): At, (x2, y2): At) -> Part {
    format!("<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n")
}

pub(super) fn rect(class: &str, (x, y): At, (width, height): At) -> Part {
    format!("<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\"/>")
}

pub(super) fn polyline(class: &str, points: &[At]) -> Part {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    format!("<polyline class=\"{class}\" points=\"{}\"/>\n", points.join(" "))
}

/// Multiples of a round number, from 0 to at least the largest value.
pub(super) struct Ticks {
    step: f64,
    pub(super) largest: f64,
}

impl Ticks {
    pub(super) fn new(largest: f64) -> Self {
        let step = tick_step(largest);
        Self { step, largest: step * (largest / step).ceil() }
    }

    /// Returns the values and their labels.
    pub(super) fn iter(&self) -> impl Iterator<Item = (f64, String)> {
        let ticks = (0_u32..).map(|tick| f64::from(tick) * self.step);
        ticks.take_while(|tick| *tick <= self.largest * 1.000_001).map(|tick| (tick, label(tick)))
    }
}

/// Returns a round number, four to eight of which reach the largest value.
fn tick_step(largest: f64) -> f64 {
    let raw = largest.max(1e-9) / 5.0;
    let unit = 10_f64.powf(raw.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|round| round * unit >= raw * 0.999).unwrap_or(10.0);
    round * unit
}

fn label(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 1.0 => format!("{value:.2}"),
        value if value < 10.0 => format!("{value:.1}"),
        value if value < 10_000.0 => format!("{value:.0}"),
        value => format!("{}k", value / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (largest, wanted) in [(1.0, 0.2), (7.0, 2.0), (90.0, 20.0), (704.0, 200.0), (25_000.0, 5000.0)] {
            let step = tick_step(largest);
            assert!((step - wanted).abs() < 1e-9 * wanted, "{largest}: {step}");
        }
        assert!(tick_step(0.0).is_finite());
    }
}
