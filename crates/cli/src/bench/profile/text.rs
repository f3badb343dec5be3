//! Tables of a profile.

use super::{Profile, Spent};
use crate::bench::text::Align::{Left, Right};
use crate::bench::text::{Block, Column, Table, decimals, or_dash};
use crate::print::counted;

const STEP_COLUMNS: &[Column] = &[
    ("step", Left),
    ("weights", Left),
    ("calls", Right),
    ("µs", Right),
    ("share", Right),
    ("GB/s", Right),
    ("of bandwidth", Right),
    ("waiting", Right),
];

const PART_COLUMNS: &[Column] = &[
    ("part", Left),
    ("µs", Right),
    ("share", Right),
    ("memory", Right),
    ("compute", Right),
    ("waiting", Right),
    ("serial", Right),
];

/// Groups with a smaller share of the time are added up.
const LEAST_SHARE: f64 = 0.01;
/// Names of weights that are shown of a group.
const SHOWN_WEIGHTS: usize = 2;

/// Explains the columns of both tables.
const LEGEND: &str = "memory: reading weights and state at the machine's bandwidth; compute: work beyond that; waiting: threads wait \
for each other in shared work; serial: threads wait while one works alone; all in µs of the wall time";

/// Returns a profile as tables.
pub(in crate::bench) fn blocks(profile: &Profile) -> Vec<Block> {
    vec![
        Block::Table(Table { columns: STEP_COLUMNS, rows: step_rows(profile) }),
        Block::Table(Table { columns: PART_COLUMNS, rows: part_rows(profile) }),
        Block::Line(LEGEND.to_owned()),
    ]
}

fn step_rows(profile: &Profile) -> Vec<Vec<String>> {
    let row = |label: &str, weights: String, spent: &Spent| {
        let rate = spent.gb_per_s();
        let of_bandwidth = rate.zip(profile.machine_gb_per_s).map(|(rate, machine)| percent(rate / machine));
        let waiting = (spent.us > 0.0).then(|| percent((spent.waiting_us + spent.serial_us) / spent.us));
        vec![
            label.to_owned(),
            weights,
            decimals_of_count(spent.calls),
            decimals(spent.us),
            share(profile, spent.us),
            or_dash(rate.map(decimals)),
            or_dash(of_bandwidth),
            or_dash(waiting),
        ]
    };
    let (groups, small): (Vec<_>, Vec<_>) =
        profile.groups().into_iter().partition(|group| group.spent.us >= LEAST_SHARE * profile.us);
    let weights = |names: &[String]| {
        let more = names.len().saturating_sub(SHOWN_WEIGHTS);
        let shown = names.iter().take(SHOWN_WEIGHTS).cloned().collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{shown}, {more} more") } else { shown }
    };
    let mut rows: Vec<_> = groups.iter().map(|group| row(group.label, weights(&group.weights), &group.spent)).collect();
    let mut sum = Spent::default();
    if !small.is_empty() {
        small.iter().for_each(|group| sum += group.spent);
        rows.push(row(&counted(small.len(), "other kind"), String::new(), &sum));
    }
    groups.iter().for_each(|group| sum += group.spent);
    rows.push(outside(profile, STEP_COLUMNS.len(), 3));
    rows.push(row("total", String::new(), &Spent { us: profile.us, ..sum }));
    rows
}

fn part_rows(profile: &Profile) -> Vec<Vec<String>> {
    let row = |name: &str, spent: &Spent| {
        let Spent { us, memory_us, compute_us, waiting_us, serial_us, .. } = *spent;
        let times = [memory_us, compute_us, waiting_us, serial_us].map(decimals);
        [vec![name.to_owned(), decimals(us), share(profile, us)], times.to_vec()].concat()
    };
    let parts = profile.parts();
    let mut rows: Vec<_> = parts.iter().map(|(part, spent)| row(part.name(), spent)).collect();
    let mut sum = Spent::default();
    parts.iter().for_each(|(_, spent)| sum += *spent);
    rows.push(outside(profile, PART_COLUMNS.len(), 1));
    rows.push(row("total", &Spent { us: profile.us, ..sum }));
    rows
}

/// The row of what belongs to no step; its time is in column `at`.
fn outside(profile: &Profile, columns: usize, at: usize) -> Vec<String> {
    let cell = |column: usize| match column {
        0 => "outside of steps".to_owned(),
        column if column == at => decimals(profile.outside_us),
        column if column == at + 1 => share(profile, profile.outside_us),
        column if column > at + 1 => or_dash(None),
        _ => String::new(),
    };
    (0..columns).map(cell).collect()
}

fn share(profile: &Profile, us: f64) -> String {
    format!("{:.1} %", 100.0 * us / profile.us.max(1e-9))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A mean number of calls, which is whole unless branches differ.
fn decimals_of_count(count: f64) -> String {
    if count.fract() == 0.0 { format!("{count:.0}") } else { format!("{count:.1}") }
}
