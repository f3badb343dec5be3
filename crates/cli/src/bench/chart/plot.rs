//! Rates by length: lines through the medians, with ranges.

use super::svg::{self, Area, At, END, MIDDLE, Part, START, Ticks};
use crate::bench::report::Figures;
use crate::bench::text::decimals;

/// A measurement.
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) rate: Figures,
    /// The rate that the memory bandwidth allows.
    pub(super) limit: Option<f64>,
}

/// Measurements of one colour.
pub(super) struct Series {
    pub(super) colour: usize,
    pub(super) points: Vec<Point>,
}

/// A plot with its axes.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) x_label: &'static str,
    pub(super) series: Vec<Series>,
}

/// The width of the numbers on the left, the height of the title, and the height of the numbers below.
const LEFT: f64 = 52.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 46.0;

/// Maps values to positions.
struct Scale {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    /// The first and last value of the x axis, after the logarithm.
    ends: (f64, f64),
    is_log: bool,
    ticks: Ticks,
}

impl Scale {
    fn across(&self, x: f64) -> f64 {
        let x = if self.is_log { x.max(1.0).log2() } else { x };
        let (first, last) = self.ends;
        let share = if last > first { (x - first) / (last - first) } else { 0.5 };
        // Points do not touch the edges.
        let inset = 26.0;
        self.left + inset + share * (self.right - self.left - 2.0 * inset)
    }

    fn up(&self, value: f64) -> f64 {
        self.bottom - value / self.ticks.largest * (self.bottom - self.top)
    }
}

impl Panel {
    pub(super) fn draw(&self, area: Area, height: f64) -> Vec<Part> {
        let scale = self.scale(area, height);
        let mut parts = vec![svg::text("head", (area.x, area.y + 14.0), START, self.title)];
        parts.extend(self.axes(&scale));
        parts.extend(self.series.iter().map(|series| limit(&scale, series)));
        parts.extend(self.series.iter().flat_map(|series| line(&scale, series)));
        // Numbers are on top of all lines.
        parts.extend(self.points().map(|point| self.value(&scale, point)));
        parts
    }

    /// Draws the median as a number: above the uppermost point, below the others, so that numbers do not overlap.
    fn value(&self, scale: &Scale, point: &Point) -> Part {
        let others = self.points().filter(|other| other.x == point.x);
        let is_uppermost = others.map(|other| other.rate.median).fold(0.0, f64::max) <= point.rate.median;
        let (above, below) = (scale.up(point.rate.most) - 8.0, scale.up(point.rate.least) + 17.0);
        let y = if is_uppermost || below > scale.bottom - 2.0 { above } else { below };
        svg::text("value", (scale.across(point.x), y), MIDDLE, &decimals(point.rate.median))
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series.iter().flat_map(|series| &series.points)
    }

    fn scale(&self, area: Area, height: f64) -> Scale {
        let ends = |(first, last): (f64, f64), point: &Point| (first.min(point.x), last.max(point.x));
        let (first, last) = self.points().fold((f64::MAX, 0.0), ends);
        let is_log = first >= 1.0 && last / first >= 8.0;
        let ends = if is_log { (first.log2(), last.log2()) } else { (first, last) };
        let largest = self.points().map(|point| point.rate.most.max(point.limit.unwrap_or(0.0))).fold(1e-9, f64::max);
        let (left, right) = (area.x + LEFT, area.x + area.width);
        let (top, bottom) = (area.y + ABOVE, area.y + height - BELOW);
        Scale { left, right, top, bottom, ends, is_log, ticks: Ticks::new(1.06 * largest) }
    }

    fn axes(&self, scale: &Scale) -> Vec<Part> {
        let (left, right, bottom) = (scale.left, scale.right, scale.bottom);
        let mut parts = Vec::new();
        for (tick, label) in scale.ticks.iter() {
            let y = scale.up(tick);
            parts.push(svg::line(if tick == 0.0 { "axis" } else { "grid" }, (left, y), (right, y)));
            parts.push(svg::text("tick", (left - 8.0, y + 4.0), END, &label));
        }
        let mut values: Vec<f64> = self.points().map(|point| point.x).collect();
        values.sort_by(f64::total_cmp);
        // Numbers that would overlap the one before are left out.
        values.dedup_by(|next, last| scale.across(*next) - scale.across(*last) <= 34.0);
        for value in values {
            let x = scale.across(value);
            parts.push(svg::line("axis", (x, bottom), (x, bottom + 5.0)));
            parts.push(svg::text("tick", (x, bottom + 19.0), MIDDLE, &value.to_string()));
        }
        parts.push(svg::text("tick", (f64::midpoint(left, right), bottom + 38.0), MIDDLE, self.x_label));
        parts
    }
}

fn limit(scale: &Scale, series: &Series) -> Part {
    let points = series.points.iter().filter_map(|point| Some((scale.across(point.x), scale.up(point.limit?))));
    let mut points: Vec<At> = points.collect();
    // A single point becomes a short line.
    if let [(x, y)] = *points.as_slice() {
        points = vec![(x - 24.0, y), (x + 24.0, y)];
    }
    svg::polyline(&format!("limit c{}", series.colour), &points)
}

fn line(scale: &Scale, series: &Series) -> Vec<Part> {
    let colour = series.colour;
    let medians: Vec<At> =
        series.points.iter().map(|point| (scale.across(point.x), scale.up(point.rate.median))).collect();
    let mut parts = vec![svg::polyline(&format!("line c{colour}"), &medians)];
    for (point, (x, y)) in series.points.iter().zip(medians) {
        let (left, low, high) = (x - 4.0, scale.up(point.rate.least), scale.up(point.rate.most));
        parts.push(format!(
            "<path class=\"range c{colour}\" d=\"M{left:.1} {low:.1}h8M{x:.1} {low:.1}V{high:.1}M{left:.1} {high:.1}h8\"/>\
             <circle class=\"dot c{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>\n"
        ));
    }
    parts
}
