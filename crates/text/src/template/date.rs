//! `strftime`, as far as templates use it.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const DAY_SECONDS: i64 = 86_400;

/// The date and time, in seconds since 1970, in English. What is no directive that we know stays as it is.
pub(super) fn format(seconds: i64, format: &str) -> String {
    let moment = Moment::new(seconds);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let directive = characters.next();
        // glibc leaves out the zeros after a `-`.
        let (bare, directive) = if directive == Some('-') { (true, characters.next()) } else { (false, directive) };
        match directive.and_then(|directive| moment.part(directive)) {
            Some(part) if bare => {
                let short = part.trim_start_matches(['0', ' ']);
                out.push_str(if short.is_empty() { "0" } else { short });
            }
            Some(part) => out.push_str(&part),
            None => {
                out.push('%');
                out.extend(bare.then_some('-'));
                out.extend(directive);
            }
        }
    }
    out
}

struct Moment {
    year: i64,
    month: i64,
    day: i64,
    day_of_year: i64,
    weekday: i64,
    second: i64,
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

impl Moment {
    fn new(seconds: i64) -> Self {
        // Years 1 to 9999 are all that Python's dates have.
        let days = seconds.div_euclid(DAY_SECONDS).clamp(-719_162, 2_932_896);
        // Whole cycles of 400 years first, so that the loops are short.
        let (mut year, mut left) = (1970 + days.div_euclid(146_097) * 400, days.rem_euclid(146_097));
        while left >= 365 + i64::from(is_leap(year)) {
            left -= 365 + i64::from(is_leap(year));
            year += 1;
        }
        let day_of_year = left + 1;
        let mut month = 1;
        for length in [31, 28 + i64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if left < length {
                break;
            }
            left -= length;
            month += 1;
        }
        let weekday = days.rem_euclid(7);
        Self { year, month, day: left + 1, day_of_year, weekday, second: seconds.rem_euclid(DAY_SECONDS) }
    }

    fn part(&self, directive: char) -> Option<String> {
        let (hour, minute) = (self.second / 3600, self.second / 60 % 60);
        let name = |names: &'static [&str], at: i64| usize::try_from(at).ok().and_then(|at| names.get(at)).copied();
        let month = || name(&MONTHS, self.month - 1);
        let weekday = || name(&DAYS, self.weekday);
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year),
            'B' => month()?.to_owned(),
            'b' | 'h' => month()?.get(..3)?.to_owned(),
            'A' => weekday()?.to_owned(),
            'a' => weekday()?.get(..3)?.to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'M' => format!("{minute:02}"),
            'S' => format!("{:02}", self.second % 60),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => format!("{hour:02}:{minute:02}:{:02}", self.second % 60),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}
