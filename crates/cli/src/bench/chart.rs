//! The report as one SVG file: rates by prompt length and depth, profiles, and a comparison of samplers. It needs no other file and
//! follows the reader's choice of a light or dark theme.

mod bars;
mod plot;
mod svg;
mod timeline;

use super::report::{Report, Run, Test};
use super::text;
use crate::print::counted;
use plot::{Panel, Point, Series};
pub(super) use svg::escape;
use svg::{Area, Part, START};

const WIDTH: f64 = 980.0;
const MARGIN: f64 = 28.0;
/// The height of the title, the line below it and the legend.
const HEAD: f64 = 108.0;
const PANEL_HEIGHT: f64 = 300.0;
const PANEL_GAP: f64 = 36.0;
/// The number of colours in the style.
const COLOURS: usize = 4;
const STYLE: &str = include_str!("chart/chart.css");

/// Returns the chart.
pub(super) fn chart(report: &Report) -> String {
    let mut parts = title(report);
    parts.extend(legend(report));
    let panels = panels(report);
    let count = panels.len() as f64;
    let width = (WIDTH - 2.0 * MARGIN - PANEL_GAP * (count - 1.0)) / count.max(1.0);
    let lefts = (0..).map(|at| f64::from(at) * (width + PANEL_GAP) + MARGIN);
    parts.extend(panels.iter().zip(lefts).flat_map(|(panel, x)| panel.draw(Area { x, y: HEAD, width }, PANEL_HEIGHT)));
    let mut y = HEAD + if panels.is_empty() { 0.0 } else { PANEL_HEIGHT + 40.0 };
    for (run, test) in report.runs.iter().flat_map(|run| run.tests.iter().map(move |test| (run, test))) {
        let Some(profile) = &test.profile else { continue };
        let area = Area { x: MARGIN, y, width: WIDTH - 2.0 * MARGIN };
        let (timeline, bottom) = timeline::draw(profile, &text::profiled(run, test, profile), area);
        parts.extend(timeline);
        y = bottom;
    }
    for run in &report.runs {
        let Some(comparison) = &run.sampling else { continue };
        let area = Area { x: MARGIN, y, width: WIDTH - 2.0 * MARGIN };
        let (bars, bottom) = bars::draw(comparison, &text::compared(run, comparison), area);
        parts.extend(bars);
        y = bottom;
    }
    let label = escape(&text::heading(report));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y:.0}\" width=\"{WIDTH}\" height=\"{y:.0}\" \
         role=\"img\" aria-label=\"{label}\">\n<style>{STYLE}</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"10\"/>\n\
         {}</svg>\n",
        parts.concat(),
    )
}

fn title(report: &Report) -> Vec<Part> {
    let Report { device, instructions, repeats, .. } = report;
    let threads: Vec<String> = report.runs.iter().map(|run| run.threads.to_string()).collect();
    let plural = if threads == ["1"] { "" } else { "s" };
    let threads = threads.join(", ");
    let below =
        format!("{device} ({instructions}), {threads} thread{plural} · median of {repeats}, bars show the range");
    vec![svg::text("title", (MARGIN, 38.0), START, &report.model), svg::text("muted", (MARGIN, 60.0), START, &below)]
}

/// Explains the colours and the dashes.
fn legend(report: &Report) -> Vec<Part> {
    let threads = |(at, run): (usize, &Run)| (format!("line c{}", at % COLOURS), counted(run.threads, "thread"));
    let mut entries: Vec<(String, String)> = report.runs.iter().enumerate().map(threads).collect();
    let mut tests = report.runs.iter().flat_map(|run| &run.tests);
    if tests.any(|test| limit(test).is_some()) {
        entries.push(("limit".to_owned(), "the limit set by memory bandwidth".to_owned()));
    }
    let mut x = MARGIN;
    let mut parts = Vec::new();
    for (class, label) in entries {
        parts.push(svg::line(&class, (x, 80.0), (x + 22.0, 80.0)));
        parts.push(svg::text("small", (x + 29.0, 84.0), START, &label));
        x += 50.0 + 6.6 * label.chars().count() as f64;
    }
    parts
}

fn panels(report: &Report) -> Vec<Panel> {
    let panel = |test: &str, title, x_label, x: fn(&Test) -> usize| {
        let points = |run: &Run| {
            let tests = run.tests.iter().filter(|found| found.test == test);
            let point = |test: &Test| Point { x: x(test) as f64, rate: test.tokens_per_s, limit: limit(test) };
            let mut points: Vec<Point> = tests.map(point).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            points
        };
        let series = |(at, run): (usize, &Run)| Series { colour: at % COLOURS, points: points(run) };
        let series = report.runs.iter().enumerate().map(series).filter(|series| !series.points.is_empty());
        Panel { title, x_label, series: series.collect() }
    };
    let prefill = panel("prefill", "Prefill: tokens per second", "prompt length", |test| test.tokens);
    let depth = |test: &Test| test.depth.unwrap_or(0);
    let decode = panel("decode", "Decode: tokens per second", "positions filled before", depth);
    [prefill, decode].into_iter().filter(|panel| !panel.series.is_empty()).collect()
}

/// Returns the tokens per second that the memory bandwidth allows.
fn limit(test: &Test) -> Option<f64> {
    let traffic = test.traffic?;
    Some(1e9 * traffic.machine_gb_per_s? / traffic.bytes_per_step.total().max(1.0))
}
