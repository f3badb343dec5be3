//! The report as one page that needs nothing else: no server, no network.

use super::report::Report;

/// The page before the program's data, the style and the script are put in.
pub const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(
    include_str!("page/model.js"),
    include_str!("page/layout.js"),
    include_str!("page/draw.js"),
    include_str!("page/panels.js"),
);

/// The page. Everything from the program enters as data, never as markup.
pub fn page(report: &Report) -> serde_json::Result<String> {
    // `<` cannot end the script element or open a comment when it is written as an escape.
    let data = serde_json::to_string(report)?.replace('<', "\\u003c");
    let title = report.file.replace('&', "&amp;").replace('<', "&lt;");
    let parts = [("@@TITLE@@", title.as_str()), ("@@STYLE@@", STYLE), ("@@DATA@@", &data), ("@@SCRIPT@@", SCRIPT)];
    let (mut page, mut rest) = (String::with_capacity(TEMPLATE.len() + data.len() + SCRIPT.len()), TEMPLATE);
    for (mark, part) in parts {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    page.push_str(rest);
    Ok(page)
}
