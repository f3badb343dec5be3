//! The steps of a token or a prompt in order, as wide as they took; and the kinds of steps that take longest.

use super::svg::{self, Area, END, Part, START};
use crate::bench::profile::{Group, Part as ModelPart, Profile, Spent, Step};
use crate::bench::text::decimals;

/// Steps per line, so that most are wide enough to point at.
const LINE_STEPS: usize = 56;
const MOST_LINES: usize = 8;
/// The height of a line: the colour of the part, and below it what the time was spent on.
const STRIP: f64 = 12.0;
const SPLIT: f64 = 22.0;
const LINE_GAP: f64 = 9.0;
/// The width of the times on the left of lines.
const LEFT: f64 = 46.0;
/// Groups that are shown.
const GROUPS: usize = 10;
const GROUP_HEIGHT: f64 = 34.0;
const BAR: f64 = 16.0;
/// The width of the names and of the numbers of groups.
const NAMES: f64 = 330.0;
const NUMBERS: f64 = 190.0;

/// What time is spent on: the class of its colour, and what it is.
const KINDS: [(&str, &str); 4] = [
    ("memory", "memory: reading at the machine's bandwidth"),
    ("compute", "compute: work beyond that"),
    ("waiting", "waiting for threads"),
    ("serial", "waiting while one thread works alone"),
];

/// Returns the picture and its bottom.
pub(super) fn draw(profile: &Profile, title: &str, area: Area) -> (Vec<Part>, f64) {
    let mut parts = vec![
        svg::text("head", (area.x, area.y + 12.0), START, "Where the time goes"),
        svg::text("muted small", (area.x, area.y + 31.0), START, title),
    ];
    parts.extend(legend(profile, area.x, area.y + 46.0));
    let (lines, bottom) = lines(profile, Area { y: area.y + 88.0, ..area });
    parts.extend(lines);
    let (groups, bottom) = groups(profile, Area { y: bottom + 22.0, ..area });
    parts.extend(groups);
    (parts, bottom + 24.0)
}

/// Explains the colours: of parts in the first line, of what time is spent on in the second.
fn legend(profile: &Profile, x: f64, y: f64) -> Vec<Part> {
    let used = profile.parts().into_iter().map(|(part, _)| (part_class(part), part.name().to_owned()));
    let used = used.chain([("outside".to_owned(), "outside of steps".to_owned())]).collect();
    let kinds = KINDS.iter().map(|(class, name)| ((*class).to_owned(), (*name).to_owned())).collect();
    let mut parts = Vec::new();
    for (entries, y) in [(used, y), (kinds, y + 20.0)] {
        let entries: Vec<(String, String)> = entries;
        let mut x = x;
        for (class, name) in entries {
            parts.push(svg::rect(&class, (x, y), (11.0, 11.0)));
            parts.push(svg::text("small", (x + 17.0, y + 10.0), START, &name));
            x += 34.0 + 6.3 * name.chars().count() as f64;
        }
    }
    parts
}

fn part_class(part: ModelPart) -> String {
    let number = ModelPart::ALL.iter().position(|found| *found == part).unwrap_or(0);
    format!("part p{number}")
}

/// A piece of a line.
struct Piece {
    line: usize,
    x: f64,
    width: f64,
}

/// Cuts a range of time where lines end.
fn pieces((start, end): (f64, f64), line_us: f64, lines: usize, width: f64) -> Vec<Piece> {
    let piece = |line: usize| {
        let line_start = line as f64 * line_us;
        let (from, to) = (start.max(line_start), end.min(line_start + line_us));
        let [from, to] = [from, to].map(|us| (us - line_start) / line_us * width);
        (to > from).then_some(Piece { line, x: from, width: to - from })
    };
    (0..lines).filter_map(piece).collect()
}

/// Draws the steps, line by line like a text.
fn lines(profile: &Profile, area: Area) -> (Vec<Part>, f64) {
    let count = profile.steps.len().div_ceil(LINE_STEPS).clamp(1, MOST_LINES);
    let (line_us, width) = (profile.us.max(1e-9) / count as f64, area.width - LEFT);
    let top = |line: usize| area.y + line as f64 * (STRIP + SPLIT + LINE_GAP);
    let mut parts = Vec::new();
    for line in 0..count {
        let ms = if line == 0 { "0 ms".to_owned() } else { decimals(1e-3 * line_us * line as f64) };
        parts.push(svg::text("tick", (area.x + LEFT - 8.0, top(line) + 23.0), END, &ms));
    }
    let mut now = 0.0;
    for step in &profile.steps {
        let range = (now, now + step.spent.us);
        now = range.1;
        parts.push(format!("<g><title>{}</title>", svg::escape(&hint(step))));
        for Piece { line, x, width } in pieces(range, line_us, count, width) {
            let (x, y) = (area.x + LEFT + x, top(line));
            parts.push(svg::rect(&part_class(step.part), (x, y), (width, STRIP)));
            let mut y = y + STRIP;
            for ((class, _), share) in KINDS.iter().zip(shares(&step.spent)) {
                parts.push(svg::rect(class, (x, y), (width, SPLIT * share)));
                y += SPLIT * share;
            }
        }
        parts.push("</g>\n".to_owned());
    }
    parts.push(format!("<g><title>outside of steps: {} µs</title>", decimals(profile.outside_us)));
    for Piece { line, x, width } in pieces((now, profile.us), line_us, count, width) {
        parts.push(svg::rect("outside", (area.x + LEFT + x, top(line)), (width, STRIP + SPLIT)));
    }
    parts.push("</g>\n".to_owned());
    (parts, top(count) - LINE_GAP)
}

/// What a step is and took, shown where it is pointed at.
fn hint(step: &Step) -> String {
    let Step { node, label, spent, .. } = step;
    let weight = step.weight.as_ref().map(|weight| format!("\n{weight}")).unwrap_or_default();
    format!("{label}{weight}\nnode {node}: {}", times(spent))
}

fn times(spent: &Spent) -> String {
    let Spent { us, memory_us, compute_us, waiting_us, serial_us, .. } = *spent;
    let [us, memory, compute, waiting, serial] = [us, memory_us, compute_us, waiting_us, serial_us].map(decimals);
    format!("{us} µs: memory {memory}, compute {compute}, waiting {waiting}, serial {serial}")
}

/// The shares of what time is spent on, in the order of [`KINDS`].
fn shares(spent: &Spent) -> [f64; 4] {
    let Spent { us, memory_us, compute_us, waiting_us, serial_us, .. } = *spent;
    [memory_us, compute_us, waiting_us, serial_us].map(|time| time / us.max(1e-9))
}

/// Draws a bar for each of the longest groups.
fn groups(profile: &Profile, area: Area) -> (Vec<Part>, f64) {
    let groups = profile.groups();
    let longest = groups.first().map_or(1e-9, |group| group.spent.us.max(1e-9));
    let width = area.width - NAMES - NUMBERS;
    let mut parts = vec![svg::text("head", (area.x, area.y), START, "The kinds of steps that take longest")];
    for (group, at) in groups.iter().take(GROUPS).zip(0_u32..) {
        let y = area.y + 16.0 + f64::from(at) * GROUP_HEIGHT;
        parts.extend(group_bar(profile, group, Area { y, ..area }, width / longest));
    }
    let shown = groups.len().min(GROUPS) as f64;
    (parts, area.y + 16.0 + shown * GROUP_HEIGHT)
}

fn group_bar(profile: &Profile, group: &Group<'_>, area: Area, scale: f64) -> Vec<Part> {
    let Group { label, part, weights, spent } = group;
    let (left, baseline) = (area.x + NAMES, area.y + 12.5);
    let calls = format!("{:.0} ×", spent.calls);
    let below = if weights.is_empty() { calls } else { format!("{calls} {}", weights.join(", ")) };
    let mut parts = vec![
        format!("<g><title>{}</title>", svg::escape(&format!("{label}\n{}", times(spent)))),
        svg::rect(&part_class(*part), (area.x, area.y + 3.0), (5.0, 24.0)),
        svg::text("name", (area.x + 12.0, baseline), START, &cut(label)),
        svg::text("muted tiny", (area.x + 12.0, baseline + 13.0), START, &cut(&below)),
    ];
    let mut x = left;
    for ((class, _), share) in KINDS.iter().zip(shares(spent)) {
        let width = scale * spent.us * share;
        parts.push(svg::rect(class, (x, area.y + 2.0), (width, BAR)));
        x += width;
    }
    let share = 100.0 * spent.us / profile.us.max(1e-9);
    let rate = spent.gb_per_s().map(|rate| format!(", {} GB/s", decimals(rate))).unwrap_or_default();
    let numbers = format!("{} µs, {share:.1} %{rate}", decimals(spent.us));
    parts.push(svg::text("value", (x + 8.0, baseline + 1.5), START, &numbers));
    parts.push("</g>\n".to_owned());
    parts
}

/// A text that fits before the bars.
fn cut(text: &str) -> String {
    const MOST: usize = 52;
    if text.chars().count() <= MOST { text.to_owned() } else { text.chars().take(MOST - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_crosses_the_end_of_a_line_is_cut_there() {
        let found = pieces((15.0, 45.0), 20.0, 3, 100.0);
        let found: Vec<_> = found.iter().map(|Piece { line, x, width }| (*line, *x, *width)).collect();
        assert_eq!(found, [(0, 75.0, 25.0), (1, 0.0, 100.0), (2, 0.0, 25.0)]);
        assert!(pieces((5.0, 5.0), 20.0, 3, 100.0).is_empty());
    }
}
