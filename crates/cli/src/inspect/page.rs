//! The report as one HTML page that needs no server and no network.

use super::report::Report;

/// The page, with marks where the title, the style, the data and the script go.
pub const TEMPLATE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(
    include_str!("page/model.js"),
    include_str!("page/layout.js"),
    include_str!("page/draw.js"),
    include_str!("page/panels.js"),
);

/// Returns the page. Everything from the program is inserted as data, never as markup.
pub fn page(report: &Report) -> serde_json::Result<String> {
    // An escaped `<` cannot end the script element or open a comment.
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
