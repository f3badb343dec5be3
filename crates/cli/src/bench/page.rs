//! The report as one page that needs nothing else: no server, no network, no script.

use super::chart::{drawing, escape};
use super::report::{Report, Run};
use super::text;

/// The page before the report is put in.
const TEMPLATE: &str = include_str!("page/page.html");

/// The page.
pub(super) fn page(report: &Report) -> String {
    let rows: Vec<Vec<String>> =
        report.runs.iter().flat_map(|run| run.tests.iter().map(|test| text::row(run, test))).collect();
    let loading: String = report.runs.iter().map(|run| paragraph(&text::loading(report, run))).collect();
    let skipped: String = report.skipped.iter().map(|skipped| paragraph(&format!("Skipped {skipped}"))).collect();
    let tests = if rows.is_empty() { String::new() } else { table(&text::HEADS, &rows) };
    let samplers: String = report.runs.iter().map(samplers).collect();
    let notes = paragraph(&format!("Bytes of a step: {}.", report.bytes_counted));
    let body =
        format!("{}{}{loading}{tests}{skipped}{samplers}{notes}", drawing(report), paragraph(&text::heading(report)));
    TEMPLATE.replacen("@@TITLE@@", &escape(&report.model), 1).replacen("@@BODY@@", &body, 1)
}

fn samplers(run: &Run) -> String {
    let Some(comparison) = &run.sampling else { return String::new() };
    let what = |way: &super::report::Sampled| paragraph(&format!("{}: {}", way.sampler, way.what));
    let ways: String = comparison.samplers.iter().map(what).collect();
    let (heading, table) =
        (paragraph(&text::compared(run, comparison)), table(&text::SAMPLER_HEADS, &text::samplers(comparison)));
    let grafted = if comparison.grafted { paragraph(text::GRAFTED) } else { String::new() };
    format!("<h2>Where tokens are drawn</h2>\n{heading}{table}{grafted}{ways}")
}

fn paragraph(text: &str) -> String {
    format!("<p>{}</p>\n", escape(text))
}

fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cell = |(cell, head): (&str, &&str)| {
            let class = if text::is_word(head) { " class=\"word\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escape(cell))
        };
        format!("<tr>{}</tr>\n", cells.zip(heads).map(cell).collect::<String>())
    };
    let head = cells("th", &mut heads.iter().copied());
    let rows: String = rows.iter().map(|row| cells("td", &mut row.iter().map(String::as_str))).collect();
    format!("<table>\n{head}{rows}</table>\n")
}
