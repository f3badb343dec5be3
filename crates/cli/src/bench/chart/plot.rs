//! Rates over lengths: lines through medians, with ranges.

use crate::bench::text::decimals;

/// A measurement.
pub(super) struct Point {
    pub(super) at: f64,
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    /// What memory allows.
    pub(super) limit: Option<f64>,
}

/// Measurements of one colour.
pub(super) struct Series {
    pub(super) colour: usize,
    pub(super) points: Vec<Point>,
}

/// Where something is drawn.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
}

/// A plot with its axes.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) across: &'static str,
    pub(super) series: Vec<Series>,
}

/// Room for the numbers on the left, the title above and the numbers below.
const LEFT: f64 = 52.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 46.0;

/// From numbers to places.
struct Scale {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    /// The first and last number across, as they are drawn.
    ends: (f64, f64),
    /// Whether doubling is one step.
    is_log: bool,
    /// The largest number up.
    largest: f64,
}

impl Scale {
    fn across(&self, at: f64) -> f64 {
        let place = if self.is_log { at.max(1.0).log2() } else { at };
        let (first, last) = self.ends;
        let share = if last > first { (place - first) / (last - first) } else { 0.5 };
        // Points do not touch the edges.
        let inset = 26.0;
        self.left + inset + share * (self.right - self.left - 2.0 * inset)
    }

    fn up(&self, value: f64) -> f64 {
        self.bottom - value / self.largest * (self.bottom - self.top)
    }
}

impl Panel {
    pub(super) fn draw(&self, place: Place, height: f64) -> String {
        let step = tick_step(self.largest());
        let scale = self.scale(place, height, step);
        let mut drawn =
            format!("<text class=\"head\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n", place.x, place.y + 14.0, self.title);
        drawn += &self.axes(&scale, step);
        self.series.iter().for_each(|series| drawn += &limit(&scale, series));
        self.series.iter().for_each(|series| drawn += &line(&scale, series));
        // On top of all lines.
        self.series.iter().for_each(|series| drawn += &self.values(&scale, series));
        drawn
    }

    /// Medians in numbers: above the uppermost point of a place, below the others, so that they do not meet.
    fn values(&self, scale: &Scale, series: &Series) -> String {
        let value = |point: &Point| {
            let others = self.points().filter(|other| other.at == point.at);
            let is_uppermost = others.map(|other| other.median).fold(0.0, f64::max) <= point.median;
            let (above, below) = (scale.up(point.most) - 8.0, scale.up(point.least) + 17.0);
            let y = if is_uppermost || below > scale.bottom - 2.0 { above } else { below };
            let (x, shown) = (scale.across(point.at), decimals(point.median));
            format!("<text class=\"value\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{shown}</text>\n")
        };
        series.points.iter().map(value).collect()
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points)
    }

    fn largest(&self) -> f64 {
        self.points().map(|point| point.most.max(point.limit.unwrap_or(0.0))).fold(1e-9, f64::max)
    }

    fn scale(&self, place: Place, height: f64, step: f64) -> Scale {
        let (first, last) = self
            .points()
            .map(|point| point.at)
            .fold((f64::MAX, 0.0_f64), |(first, last), at| (first.min(at), last.max(at)));
        let is_log = first >= 1.0 && last / first >= 8.0;
        let ends = if is_log { (first.log2(), last.log2()) } else { (first, last) };
        let largest = step * (1.06 * self.largest() / step).ceil();
        let (left, right) = (place.x + LEFT, place.x + place.width);
        Scale { left, right, top: place.y + ABOVE, bottom: place.y + height - BELOW, ends, is_log, largest }
    }

    fn axes(&self, scale: &Scale, step: f64) -> String {
        let (left, right, bottom) = (scale.left, scale.right, scale.bottom);
        let mut drawn = String::new();
        for tick in (0_u32..).map(|tick| f64::from(tick) * step).take_while(|tick| *tick <= scale.largest * 1.000_001) {
            let y = scale.up(tick);
            let class = if tick == 0.0 { "axis" } else { "grid" };
            let label = if tick == 0.0 { "0".to_owned() } else { short(tick) };
            drawn += &format!(
                "<line class=\"{class}\" x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n",
                left - 8.0,
                y + 4.0
            );
        }
        for at in places(self.points().map(|point| point.at).collect(), scale) {
            let x = scale.across(at);
            drawn += &format!(
                "<line class=\"axis\" x1=\"{x:.1}\" y1=\"{bottom:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at}</text>\n",
                bottom + 5.0,
                bottom + 19.0
            );
        }
        let middle = f64::midpoint(left, right);
        drawn
            + &format!(
                "<text class=\"tick\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                bottom + 38.0,
                self.across
            )
    }
}

/// Numbers below the axis, without those that would stand in each other's way.
fn places(mut at: Vec<f64>, scale: &Scale) -> Vec<f64> {
    at.sort_by(f64::total_cmp);
    at.dedup();
    let mut kept: Vec<f64> = Vec::new();
    for at in at {
        if kept.last().is_none_or(|last| scale.across(at) - scale.across(*last) > 34.0) {
            kept.push(at);
        }
    }
    kept
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

fn limit(scale: &Scale, series: &Series) -> String {
    let places: Vec<(f64, f64)> =
        series.points.iter().filter_map(|point| Some((scale.across(point.at), scale.up(point.limit?)))).collect();
    let colour = series.colour;
    match places.as_slice() {
        [] => String::new(),
        // A single one is a short stroke.
        [(x, y)] => {
            format!(
                "<polyline class=\"limit c{colour}\" points=\"{}\"/>\n",
                path([(x - 24.0, *y), (x + 24.0, *y)].into_iter())
            )
        }
        places => format!("<polyline class=\"limit c{colour}\" points=\"{}\"/>\n", path(places.iter().copied())),
    }
}

fn line(scale: &Scale, series: &Series) -> String {
    let colour = series.colour;
    let places = series.points.iter().map(|point| (scale.across(point.at), scale.up(point.median)));
    let mut drawn = format!("<polyline class=\"line c{colour}\" points=\"{}\"/>\n", path(places));
    for point in &series.points {
        let (x, low, high) = (scale.across(point.at), scale.up(point.least), scale.up(point.most));
        drawn += &format!(
            "<path class=\"range c{colour}\" d=\"M{:.1} {low:.1}h8M{x:.1} {low:.1}V{high:.1}M{:.1} {high:.1}h8\"/>\
             <circle class=\"dot c{colour}\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"4.5\"/>\n",
            x - 4.0,
            x - 4.0,
            scale.up(point.median)
        );
    }
    drawn
}

/// A round number of which four to eight reach the largest.
pub(super) fn tick_step(largest: f64) -> f64 {
    let raw = largest.max(1e-9) / 5.0;
    let unit = 10_f64.powf(raw.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|round| round * unit >= raw * 0.999).unwrap_or(10.0);
    round * unit
}

/// Thousands as k.
fn short(value: f64) -> String {
    if value >= 10_000.0 {
        return format!("{}k", value / 1000.0);
    }
    let digits = if value < 1.0 {
        2
    } else if value < 10.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$}")
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
