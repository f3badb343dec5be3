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

/// Shows a number of parameters: `960`, `135M`, `1.24B`.
pub(crate) fn parameter_count(count: u64) -> String {
    let scaled = count as f64;
    match scaled {
        scaled if scaled >= 999.5e6 => {
            format!("{:.3}", scaled / 1e9).trim_end_matches('0').trim_end_matches('.').to_owned() + "B"
        }
        scaled if scaled >= 999.5e3 => format!("{:.0}M", scaled / 1e6),
        scaled if scaled >= 9999.5 => format!("{:.0}k", scaled / 1e3),
        _ => count.to_string(),
    }
}

/// Shows a count: `1 thread`, `2 threads` and so on.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_shown_as_model_cards_do() {
        let shown = [960, 9_999, 134_515, 134_515_008, 1_000_000_000, 1_000_000_001, 1_235_814_400, 35_107_181_936];
        let wanted = ["960", "9999", "135k", "135M", "1B", "1B", "1.236B", "35.107B"];
        assert_eq!(shown.map(parameter_count), wanted);
    }
}
