//! The report for people: blocks that become Markdown on the terminal and HTML on the page.

use super::profile::{self, Profile};
use super::report::{Comparison, Figures, Report, Run, Sampled, Skipped, Test, Traffic};
use crate::print::{counted, size};

/// A part of the report.
pub(super) enum Block {
    Heading(String),
    Line(String),
    Table(Table),
}

/// A table; every row has one cell per column.
pub(crate) struct Table {
    pub(crate) columns: &'static [Column],
    pub(crate) rows: Vec<Vec<String>>,
}

/// The name of a column, and how its cells are aligned.
pub(crate) type Column = (&'static str, Align);

pub(crate) enum Align {
    Left,
    Right,
}
use Align::{Left, Right};

const TEST_COLUMNS: &[Column] = &[
    ("threads", Right),
    ("test", Left),
    ("tokens/s", Right),
    ("range", Right),
    ("ms/token", Right),
    ("GB/s", Right),
    ("of bandwidth", Right),
];

const SAMPLER_COLUMNS: &[Column] =
    &[("sampler", Left), ("ms/token", Right), ("range", Right), ("program is faster by", Right), ("range", Right)];

/// Returns the report as Markdown.
pub(super) fn markdown(report: &Report) -> String {
    let show = |block| match block {
        Block::Heading(text) => format!("\n{text}\n"),
        Block::Line(text) => format!("{text}\n"),
        Block::Table(table) => format!("\n{}", table.markdown()),
    };
    blocks(report).into_iter().map(show).collect()
}

/// Returns the parts of the report in order.
pub(super) fn blocks(report: &Report) -> Vec<Block> {
    let mut blocks = vec![Block::Line(heading(report))];
    blocks.extend(report.runs.iter().map(|run| Block::Line(loading(report, run))));
    let rows: Vec<Vec<String>> =
        report.runs.iter().flat_map(|run| run.tests.iter().map(|test| test_row(run, test))).collect();
    if !rows.is_empty() {
        blocks.push(Block::Table(Table { columns: TEST_COLUMNS, rows }));
    }
    blocks.extend(report.skipped.iter().map(|skipped| {
        let Skipped { test, tokens, depth, reason } = skipped;
        Block::Line(format!("skipped {}: it {reason}", name(test, *tokens, *depth)))
    }));
    for (run, test) in report.runs.iter().flat_map(|run| run.tests.iter().map(move |test| (run, test))) {
        let Some(profile) = &test.profile else { continue };
        blocks.push(Block::Heading(profiled(run, test, profile)));
        blocks.extend(profile::blocks(profile));
    }
    for run in &report.runs {
        let Some(comparison) = &run.sampling else { continue };
        blocks.push(Block::Heading(compared(run, comparison)));
        let rows = comparison.samplers.iter().map(sampler_row).collect();
        blocks.push(Block::Table(Table { columns: SAMPLER_COLUMNS, rows }));
        if comparison.grafted {
            blocks.push(Block::Line("the program returns logits; a sampling head was added for this".to_owned()));
        }
        let what = |sampled: &Sampled| Block::Line(format!("{}: {}", sampled.sampler, sampled.what));
        blocks.extend(comparison.samplers.iter().map(what));
    }
    blocks
}

/// Describes the model and the device.
pub(super) fn heading(report: &Report) -> String {
    let Report { model, vocabulary, context, device, instructions, repeats, .. } = report;
    let output = if report.samples_in_program { "samples its own tokens" } else { "returns logits" };
    let bytes = report.model_bytes.map_or_else(String::new, |bytes| format!("{}, ", size(bytes)));
    format!(
        "{model}: {bytes}{output}, vocabulary {vocabulary}, context {context}; on {device}, {instructions}; median of {repeats}"
    )
}

/// Describes how long it took to start.
fn loading(report: &Report, run: &Run) -> String {
    let times = [run.open_ms + run.compile_ms, run.open_ms, run.compile_ms, run.first_token.ms].map(decimals);
    let ([load, open, compile, first], device) = (times, &report.device);
    let (threads, prompt) = (counted(run.threads, "thread"), counted(run.first_token.prompt_tokens, "token"));
    format!(
        "{device}, {threads}: load {load} ms (open {open}, compile {compile}), then the first token of a prompt of {prompt} in {first} ms"
    )
}

/// Describes what was compared.
pub(super) fn compared(run: &Run, comparison: &Comparison) -> String {
    let Comparison { temperature, top_k, top_p, tokens, depth, .. } = comparison;
    let top_k = if *top_k == 0 { "all".to_owned() } else { top_k.to_string() };
    let (threads, rounds) = (counted(run.threads, "thread"), counted(comparison.rounds as usize, "round"));
    format!(
        "sampling, temperature {temperature}, top-k {top_k}, top-p {top_p}: decode {tokens} at {depth}, {threads}, {rounds}, the same tokens by all"
    )
}

/// Describes what was recorded.
pub(super) fn profiled(run: &Run, test: &Test, profile: &Profile) -> String {
    let Profile { us, averaged, recorded, recording_us, .. } = profile;
    let what = if test.depth.is_some() { "a token" } else { "the prompt" };
    let what = if test.lanes.is_some() { "a token of each lane" } else { what };
    let (name, threads) = (test_name(test), counted(run.threads, "thread"));
    let (ms, recording) = (decimals(1e-3 * us), 100.0 * recording_us / us.max(1e-9));
    format!(
        "profile of {name}, {threads}: {what} takes {ms} ms, the mean of the middle {averaged} of {recorded}; recording takes \
         {recording:.1} % more"
    )
}

fn test_row(run: &Run, test: &Test) -> Vec<String> {
    let share = |traffic: Traffic| {
        let (share, machine) = traffic.share_of_bandwidth.zip(traffic.machine_gb_per_s)?;
        Some(format!("{:.0} % of {}", 100.0 * share, decimals(machine)))
    };
    vec![
        run.threads.to_string(),
        test_name(test),
        decimals(test.tokens_per_s.median),
        range(test.tokens_per_s, decimals),
        decimals(test.ms_per_token.median),
        or_dash(test.traffic.map(|traffic| decimals(traffic.gb_per_s))),
        or_dash(test.traffic.and_then(share)),
    ]
}

fn sampler_row(sampled: &Sampled) -> Vec<String> {
    let gain = sampled.program_is_faster_percent;
    vec![
        sampled.sampler.to_owned(),
        format!("{:.3}", sampled.ms_per_token.median),
        range(sampled.ms_per_token, |ms| format!("{ms:.3}")),
        or_dash(gain.map(|gain| format!("{:.1} %", gain.median))),
        or_dash(gain.map(|gain| range(gain, |percent| format!("{percent:.1}")))),
    ]
}

pub(crate) fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "–".to_owned())
}

/// Returns the name of a test, with its lanes if there are several.
fn test_name(test: &Test) -> String {
    let lanes = test.lanes.map_or_else(String::new, |lanes| format!("{}: ", counted(lanes, "lane")));
    lanes + &name(test.test, test.tokens, test.depth)
}

/// Returns a short name of a test.
fn name(test: &str, tokens: usize, depth: Option<usize>) -> String {
    depth.map_or_else(|| format!("{test} {tokens}"), |depth| format!("{test} {tokens} at {depth}"))
}

pub(crate) fn range(figures: Figures, show: impl Fn(f64) -> String) -> String {
    format!("{} – {}", show(figures.least), show(figures.most))
}

/// Shows a number with about three significant digits.
pub(crate) fn decimals(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        value if value >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

impl Table {
    /// Returns the table as Markdown that lines up on a terminal, too.
    pub(crate) fn markdown(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let rows = || std::iter::once(&names).chain(&self.rows);
        let width = |column: usize| rows().filter_map(|row| row.get(column)?.chars().count().into()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..names.len()).map(width).collect();
        let columns = || self.columns.iter().map(|(_, align)| align).zip(&widths);
        let line = |row: &Vec<String>| {
            let cell = |(cell, (align, width)): (&String, (&Align, &usize))| match align {
                Left => format!(" {cell:<width$} |"),
                Right => format!(" {cell:>width$} |"),
            };
            format!("|{}\n", row.iter().zip(columns()).map(cell).collect::<String>())
        };
        let rule = |(align, width): (&Align, &usize)| match align {
            Left => format!("{}|", "-".repeat(width + 2)),
            Right => format!("{}:|", "-".repeat(width + 1)),
        };
        let rule = format!("|{}\n", columns().map(rule).collect::<String>());
        line(&names) + &rule + &self.rows.iter().map(line).collect::<String>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits() {
        let shown = [0.0123, 0.5, 1.234, 9.999, 12.34, 99.96, 1234.5].map(decimals);
        assert_eq!(shown, ["0.012", "0.500", "1.23", "10.0", "12.3", "100", "1234"]);
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["decode 64 at 0".to_owned(), "7".to_owned()], vec!["a".to_owned(), "1234567".to_owned()]];
        let text = Table { columns: &[("test", Left), ("ms", Right)], rows }.markdown();
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
        assert!(text.contains("|--------:|") && text.contains("| a              |"), "{text}");
    }
}
