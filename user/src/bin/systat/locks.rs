//! The lock profile: each lock's acquisitions, waits and longest hold.

use super::counts::{Line, Snapshot};
use super::view::fit;
use std::cmp::Reverse;

/// The locks used between two snapshots, those with the longest waits first.
pub fn lines(before: &Snapshot, after: &Snapshot, width: usize) -> Vec<String> {
    let empty = Line::default();
    let old = |name: &str| {
        let found = before.locks.iter().find(|l| l.word("name") == name);
        found.unwrap_or(&empty)
    };
    let mut rows: Vec<Row> = after
        .locks
        .iter()
        .map(|new| Row::new(old(new.word("name")), new))
        .filter(|row| row.acquired + row.contended > 0)
        .collect();
    rows.sort_by_key(|row| (Reverse(row.stalled_us), Reverse(row.acquired), row.name));
    let mut out = vec![format!(
        "{:<24} {:>4} {:>12} {:>10} {:>11} {:>11}",
        "lock", "rank", "acquired", "contended", "stalled us", "longest us"
    )];
    out.extend(rows.iter().map(|row| row.line(after.lock_profile)));
    if !after.lock_profile {
        out.push(
            "(acquisitions and the longest hold are counted after a boot with lockprof)".into(),
        );
    }
    out.into_iter().map(|line| fit(line, width)).collect()
}

struct Row<'a> {
    name: &'a str,
    rank: u64,
    acquired: u64,
    contended: u64,
    stalled_us: u64,
    /// Since boot, whatever the interval.
    longest_us: u64,
}

impl<'a> Row<'a> {
    fn new(old: &Line, new: &'a Line) -> Row<'a> {
        Row {
            name: new.word("name"),
            rank: new.number("rank"),
            acquired: new.since(old, "acquired"),
            contended: new.since(old, "contended"),
            stalled_us: new.since(old, "stall_ns") / 1000,
            longest_us: new.number("longest_ns") / 1000,
        }
    }

    fn line(&self, profiled: bool) -> String {
        let counted = |n: u64| if profiled { n.to_string() } else { "-".into() };
        format!(
            "{:<24} {:>4} {:>12} {:>10} {:>11} {:>11}",
            self.name,
            self.rank,
            counted(self.acquired),
            self.contended,
            self.stalled_us,
            counted(self.longest_us)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(locks: &[&str], lock_profile: bool) -> Snapshot {
        Snapshot {
            locks: locks.iter().map(|line| Line::parse(line)).collect(),
            lock_profile,
            ..Snapshot::boot()
        }
    }

    #[test]
    fn the_costliest_lock_comes_first_and_idle_ones_are_left_out() {
        let old = snapshot(
            &["name=\"a\" rank=1 acquired=5 contended=1 stall_ns=1000"],
            true,
        );
        let new = snapshot(
            &[
                "name=\"a\" rank=1 acquired=5 contended=1 stall_ns=1000",
                "name=\"b c\" rank=2 acquired=9 contended=0 stall_ns=0 longest_ns=7000",
                "name=\"d\" rank=3 acquired=2 contended=2 stall_ns=4000 longest_ns=1",
            ],
            true,
        );
        let lines = lines(&old, &new, 80);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[1].starts_with("d ") && lines[2].starts_with("b c "));
        let row: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(row[2..], ["2", "9", "0", "0", "7"]);
    }

    #[test]
    fn without_the_profile_unknown_counts_are_dashes() {
        let new = snapshot(
            &["name=\"a\" rank=1 acquired=0 contended=1 stall_ns=1000"],
            false,
        );
        let lines = lines(&Snapshot::boot(), &new, 80);
        let row: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(row[1..], ["1", "-", "1", "1", "-"]);
        assert!(lines[2].contains("lockprof"));
    }
}
