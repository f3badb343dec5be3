//! The report as a picture: rates by length and depth with their range, and samplers side by side. One SVG that needs nothing
//! else and follows the reader's choice of light or dark.

mod bars;
mod plot;

use super::report::{Figures, Report, Run, Test};
use super::text;
use plot::{Panel, Place, Point, Series};

const WIDTH: f64 = 980.0;
const MARGIN: f64 = 28.0;
/// Title, two lines under it, and a legend.
const HEAD: f64 = 108.0;
const PANEL_HEIGHT: f64 = 300.0;
const STYLE: &str = include_str!("chart/chart.css");

/// The picture as a file of its own.
pub(super) fn chart(report: &Report) -> String {
    drawing(report)
}

/// The picture, to be put anywhere.
pub(super) fn drawing(report: &Report) -> String {
    let panels = panels(report);
    let bars_top = HEAD + if panels.is_empty() { 0.0 } else { PANEL_HEIGHT + 40.0 };
    let mut bars = String::new();
    let mut bottom = bars_top;
    for run in &report.runs {
        if let Some(comparison) = &run.sampling {
            let title = text::compared(run, comparison);
            let (drawn, height) =
                bars::bars(comparison, &title, Place { x: MARGIN, y: bottom, width: WIDTH - 2.0 * MARGIN });
            bars += &drawn;
            bottom += height;
        }
    }
    let width = (WIDTH - 2.0 * MARGIN - 36.0 * (panels.len() as f64 - 1.0)) / (panels.len() as f64).max(1.0);
    let places = (0..).map(|at| f64::from(at) * (width + 36.0) + MARGIN);
    let plots: String =
        panels.iter().zip(places).map(|(panel, x)| panel.draw(Place { x, y: HEAD, width }, PANEL_HEIGHT)).collect();
    let label = escape(&text::heading(report));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {bottom:.0}\" width=\"{WIDTH}\" height=\"{bottom:.0}\" \
         role=\"img\" aria-label=\"{label}\">\n<style>{STYLE}</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"10\"/>\n\
         {}{}{plots}{bars}</svg>\n",
        title(report),
        legend(report),
    )
}

fn title(report: &Report) -> String {
    let Report { device, instructions, repeats, .. } = report;
    let threads: Vec<String> = report.runs.iter().map(|run| run.threads.to_string()).collect();
    let threads = match threads.as_slice() {
        [one] if one == "1" => "1 thread".to_owned(),
        threads => format!("{} threads", threads.join(", ")),
    };
    let model = escape(&report.model);
    let under = format!("{device} ({instructions}), {threads} · median of {repeats}, bars from the least to the most");
    format!(
        "<text class=\"title\" x=\"{MARGIN}\" y=\"38\">{model}</text>\n<text class=\"muted\" x=\"{MARGIN}\" y=\"60\">{under}</text>\n"
    )
}

/// Which colour is which number of threads, and what the dashes are.
fn legend(report: &Report) -> String {
    let mut x = MARGIN;
    let mut entries = String::new();
    let mut entry = |class: &str, label: &str| {
        entries += &format!(
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"80\" x2=\"{:.1}\" y2=\"80\"/><text class=\"small\" x=\"{:.1}\" y=\"84\">{label}</text>\n",
            x + 22.0,
            x + 29.0,
        );
        x += 50.0 + 6.6 * label.chars().count() as f64;
    };
    for (at, run) in report.runs.iter().enumerate() {
        entry(&format!("line c{}", at % COLOURS), &text::threads(run.threads));
    }
    if has_limit(report) {
        entry("limit", "what the bandwidth of memory allows");
    }
    entries
}

/// Colours in the style.
const COLOURS: usize = 4;

fn has_limit(report: &Report) -> bool {
    let tests = report.runs.iter().flat_map(|run| &run.tests);
    tests.filter_map(|test| test.traffic).any(|traffic| traffic.machine_gb_per_s.is_some())
}

fn panels(report: &Report) -> Vec<Panel> {
    let of = |run: &Run, wanted: &str, at: fn(&Test) -> usize| -> Vec<Point> {
        let mut points: Vec<Point> =
            run.tests.iter().filter(|test| test.test == wanted).map(|test| point(at(test), test)).collect();
        points.sort_by(|a, b| a.at.total_cmp(&b.at));
        points
    };
    let series = |wanted: &str, at: fn(&Test) -> usize| -> Vec<Series> {
        let series = report
            .runs
            .iter()
            .enumerate()
            .map(|(number, run)| Series { colour: number % COLOURS, points: of(run, wanted, at) });
        series.filter(|series| !series.points.is_empty()).collect()
    };
    let prefill = Panel {
        title: "Prefill: tokens per second",
        across: "tokens of the prompt",
        series: series("prefill", |test| test.tokens),
    };
    let decode = Panel {
        title: "Decode: tokens per second",
        across: "positions filled before",
        series: series("decode", |test| test.depth.unwrap_or(0)),
    };
    [prefill, decode].into_iter().filter(|panel| !panel.series.is_empty()).collect()
}

#[allow(clippy::cast_precision_loss, reason = "counts of tokens and bytes are below 2^53")]
fn point(at: usize, test: &Test) -> Point {
    let Figures { median, least, most } = test.tokens_per_s;
    let limit = test.traffic.and_then(|traffic| {
        let bytes = traffic.bytes_per_step.weights + traffic.bytes_per_step.state;
        Some(1e9 * traffic.machine_gb_per_s? / bytes.max(1) as f64)
    });
    Point { at: at as f64, median, least, most, limit }
}

/// Text as it may stand in markup.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
