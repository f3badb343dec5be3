//! The report as one HTML page that needs no server, no network and no script.

use super::chart::{chart, escape};
use super::report::Report;
use super::text::{Align, Block, Column, Table, blocks};

/// The page, with marks where the title and the body go.
const TEMPLATE: &str = include_str!("page/page.html");

/// Returns the page.
pub(super) fn page(report: &Report) -> String {
    let show = |block| match block {
        Block::Heading(text) => format!("<h2>{}</h2>\n", escape(&text)),
        Block::Line(text) => format!("<p>{}</p>\n", escape(&text)),
        Block::Table(table) => html(&table),
    };
    let bytes = Block::Line(format!("Bytes of a step: {}.", report.bytes_counted));
    let body: String = blocks(report).into_iter().chain([bytes]).map(show).collect();
    TEMPLATE.replacen("@@TITLE@@", &escape(&report.model), 1).replacen("@@BODY@@", &(chart(report) + &body), 1)
}

fn html(table: &Table) -> String {
    let row = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cell = |(cell, (_, align)): (&str, &Column)| {
            let class = if matches!(align, Align::Left) { " class=\"word\"" } else { "" };
            format!("<{tag}{class}>{}</{tag}>", escape(cell))
        };
        format!("<tr>{}</tr>\n", cells.zip(table.columns).map(cell).collect::<String>())
    };
    let head = row("th", &mut table.columns.iter().map(|(name, _)| *name));
    let rows: String = table.rows.iter().map(|cells| row("td", &mut cells.iter().map(String::as_str))).collect();
    format!("<table>\n{head}{rows}</table>\n")
}
