//! The report as one page that needs nothing else: no server, no network.

use super::report::Report;

/// The page before the program's data is put in.
pub const TEMPLATE: &str = include_str!("page.html");

/// The page. Everything from the program enters as data, never as markup.
pub fn page(report: &Report) -> serde_json::Result<String> {
    // `<` cannot end the script element or open a comment when it is written as an escape.
    let data = serde_json::to_string(report)?.replace('<', "\\u003c");
    let title = report.file.replace('&', "&amp;").replace('<', "&lt;");
    let (before, after) = TEMPLATE.split_once("@@DATA@@").unwrap_or((TEMPLATE, ""));
    Ok(format!("{}{data}{after}", before.replace("@@TITLE@@", &title)))
}
