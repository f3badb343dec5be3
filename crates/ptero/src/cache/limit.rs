//! `PTERO_CACHE_LIMIT`: the size of the cache.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit(pub(super) u64);

impl Limit {
    /// A handful of large models.
    pub(super) const DEFAULT: Self = Self(50_000_000_000);
}

/// The value of `PTERO_CACHE_LIMIT` is not a number of bytes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`PTERO_CACHE_LIMIT` is `{0}`; a number of bytes is wanted, like `50GB` or `800MB`")]
pub struct NotALimit(String);

const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

impl FromStr for Limit {
    type Err = NotALimit;

    fn from_str(text: &str) -> Result<Self, NotALimit> {
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        // One letter is enough, as in other tools.
        let unit = unit.trim().to_lowercase();
        let is_unit = |name: &str| name == unit || name.len() == 2 && name.strip_suffix('b') == Some(unit.as_str());
        let factor = UNITS.iter().find(|(name, _)| is_unit(name)).map(|(_, factor)| *factor);
        let bytes = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
        bytes.map(Self).ok_or_else(|| NotALimit(text.to_owned()))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, factor) = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)]
            .into_iter()
            .find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor))
            .unwrap_or(("bytes", 1));
        write!(f, "{} {name}", self.0 / factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_with_or_without_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("123", 123),
            ("5B", 5),
            ("2k", 2_000),
            ("50GB", 50_000_000_000),
            (" 50 gb ", 50_000_000_000),
            ("7M", 7_000_000),
            ("1TiB", 1 << 40),
            ("3 MiB", 3 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Limit(bytes)), "{text}");
        }
        for text in ["", "GB", "-1", "1.5GB", "5 boxes", "99999999999999999999", "99999999TB", "5i"] {
            let error = text.parse::<Limit>().unwrap_err().to_string();
            let wanted = "a number of bytes is wanted, like `50GB` or `800MB`";
            assert_eq!(error, format!("`PTERO_CACHE_LIMIT` is `{text}`; {wanted}"));
        }
    }

    #[test]
    fn a_limit_is_shown_in_its_own_unit() {
        let told = [0, 123, 50_000_000_000, 1_500_000].map(|bytes| Limit(bytes).to_string());
        assert_eq!(told, ["0 bytes", "123 bytes", "50 GB", "1500 kB"]);
    }
}
