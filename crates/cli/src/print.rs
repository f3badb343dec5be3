//! What the commands print, in the same way.

use serde::Serialize;
use std::io::Write;

/// Prints a value as JSON on standard output.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Shows a size in units of 1,000 bytes.
pub(crate) fn size(bytes: u64) -> String {
    let mut scaled = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if scaled < 999.5 {
            let digits = usize::from(unit != "B" && scaled < 99.5);
            return format!("{scaled:.digits$} {unit}");
        }
        scaled /= 1000.0;
    }
    format!("{scaled:.1} TB")
}

/// Shows a count: `1 thread`, `2 threads` and so on.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
