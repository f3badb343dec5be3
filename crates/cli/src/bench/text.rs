//! The report as people read it: tables that can be pasted where Markdown is understood.

use super::report::{Comparison, Figures, Report, Run, Skipped, Test};
use crate::inspect::size;

/// A heading, a table of the tests, and one of samplers if they were compared.
pub(super) fn table(report: &Report) -> String {
    let mut text = format!("{}\n", heading(report));
    for run in &report.runs {
        text += &format!("{}\n", loading(report, run));
    }
    let rows: Vec<Vec<String>> =
        report.runs.iter().flat_map(|run| run.tests.iter().map(|test| row(run, test))).collect();
    if !rows.is_empty() {
        text += &format!("\n{}", columns(&HEADS, &rows));
    }
    for skipped in &report.skipped {
        text += &format!("skipped {skipped}\n");
    }
    for run in &report.runs {
        if let Some(comparison) = &run.sampling {
            text += &format!("\n{}\n\n{}", compared(run, comparison), columns(&SAMPLER_HEADS, &samplers(comparison)));
            if comparison.grafted {
                text += &format!("{GRAFTED}\n");
            }
            text +=
                &comparison.samplers.iter().map(|way| format!("{}: {}\n", way.sampler, way.what)).collect::<String>();
        }
    }
    text
}

/// The model, and where it ran.
pub(super) fn heading(report: &Report) -> String {
    let Report { model, vocabulary, context, device, instructions, repeats, .. } = report;
    let drawn = if report.samples_in_program { "samples its own tokens" } else { "returns logits" };
    let bytes = report.model_bytes.map_or_else(String::new, |bytes| format!("{}, ", size(bytes)));
    format!(
        "{model}: {bytes}{drawn}, vocabulary {vocabulary}, context {context}; on {device}, {instructions}; median of {repeats}"
    )
}

/// How long it took to start.
pub(super) fn loading(report: &Report, run: &Run) -> String {
    let threads = threads(run.threads);
    let Run { open_ms, compile_ms, first_token, .. } = run;
    let load = decimals(open_ms + compile_ms);
    let (open, compile, first) = (decimals(*open_ms), decimals(*compile_ms), decimals(first_token.ms));
    let (device, length) = (&report.device, first_token.prompt_tokens);
    let prompt = if length == 1 { "1 token".to_owned() } else { format!("{length} tokens") };
    format!(
        "{device}, {threads}: load {load} ms (open {open}, compile {compile}), then the first token of a prompt of {prompt} in {first} ms"
    )
}

pub(super) fn threads(count: usize) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

/// Heads of the table of tests.
pub(super) const HEADS: [&str; 7] = ["threads", "test", "tokens/s", "range", "ms/token", "GB/s", "of bandwidth"];

/// A line of it.
pub(super) fn row(run: &Run, test: &Test) -> Vec<String> {
    let traffic = |show: &dyn Fn(&super::report::Traffic) -> Option<String>| {
        test.traffic.as_ref().and_then(show).unwrap_or_else(|| "–".to_owned())
    };
    vec![
        run.threads.to_string(),
        name(test.test, test.tokens, test.depth),
        decimals(test.tokens_per_s.median),
        range(&test.tokens_per_s),
        decimals(test.ms_per_token.median),
        traffic(&|traffic| Some(decimals(traffic.gb_per_s))),
        traffic(&|traffic| {
            let (share, machine) = traffic.share_of_bandwidth.zip(traffic.machine_gb_per_s)?;
            Some(format!("{:.0} % of {}", 100.0 * share, decimals(machine)))
        }),
    ]
}

/// A test in a few words.
pub(super) fn name(test: &str, tokens: usize, depth: Option<usize>) -> String {
    depth.map_or_else(|| format!("{test} {tokens}"), |depth| format!("{test} {tokens} at {depth}"))
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: it {}", name(self.test, self.tokens, self.depth), self.reason)
    }
}

/// What was compared.
pub(super) fn compared(run: &Run, comparison: &Comparison) -> String {
    let Comparison { tokens, depth, rounds, .. } = comparison;
    let (settings, threads) = (comparison.settings(), threads(run.threads));
    let plural = if *rounds == 1 { "" } else { "s" };
    format!(
        "sampling, {settings}: decode {tokens} at {depth}, {threads}, {rounds} round{plural}, the same tokens by all"
    )
}

/// What was done to programs that return logits.
pub(super) const GRAFTED: &str = "the program returns logits; for this it was given the head that samples";

/// Heads of the table of samplers.
pub(super) const SAMPLER_HEADS: [&str; 5] = ["sampler", "ms/token", "range", "program is faster by", "range"];

/// Its lines.
pub(super) fn samplers(comparison: &Comparison) -> Vec<Vec<String>> {
    let line = |way: &super::report::Sampled| {
        let gain = way.program_is_faster_percent;
        vec![
            way.sampler.to_owned(),
            format!("{:.3}", way.ms_per_token.median),
            format!("{:.3} – {:.3}", way.ms_per_token.least, way.ms_per_token.most),
            gain.map_or_else(|| "–".to_owned(), |gain| format!("{:.1} %", gain.median)),
            gain.map_or_else(|| "–".to_owned(), |gain| format!("{:.1} – {:.1}", gain.least, gain.most)),
        ]
    };
    comparison.samplers.iter().map(line).collect()
}

fn range(figures: &Figures) -> String {
    format!("{} – {}", decimals(figures.least), decimals(figures.most))
}

/// About three digits that count.
pub(super) fn decimals(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        value if value >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// Whether a column has words and not numbers.
pub(super) fn is_word(head: &str) -> bool {
    matches!(head, "test" | "sampler")
}

/// Numbers to the right, words to the left.
fn columns(heads: &[&str], rows: &[Vec<String>]) -> String {
    let is_word = |column: usize| heads.get(column).is_some_and(|head| is_word(head));
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(heads.get(column).map(|head| head.chars().count())).max().unwrap_or(0)
    };
    let line = |cells: Vec<&str>| {
        let cell = |(column, cell): (usize, &str)| match is_word(column) {
            true => format!(" {cell:<width$} |", width = width(column)),
            false => format!(" {cell:>width$} |", width = width(column)),
        };
        format!("|{}\n", cells.into_iter().enumerate().map(cell).collect::<String>())
    };
    let rule = |column: usize| match is_word(column) {
        true => format!("{}|", "-".repeat(width(column) + 2)),
        false => format!("{}:|", "-".repeat(width(column) + 1)),
    };
    let mut text = line(heads.to_vec());
    text += &format!("|{}\n", (0..heads.len()).map(rule).collect::<String>());
    rows.iter().for_each(|row| text += &line(row.iter().map(String::as_str).collect()));
    text
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
        let text = columns(&["test", "ms"], &rows);
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
        assert!(text.contains("|--------:|") && text.contains("| a              |"), "{text}");
    }
}
