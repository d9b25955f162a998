//! The report on mutants: those that live, and how many were killed.

use crate::Fate;
use crate::points::{Part, Point};
use report::{Column, Medium, Report, Style, Table, Text};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where survivors are explained.
const EXPLAINED: &str = "doc/mutants.md";
/// Where in it the points begin that no test can judge.
const APART: &str = "## Apart";

/// So many survivors, and points apart, are no fault of a part with few points: the files of a reverse map have some twenty.
const FEW: usize = 3;

/// What the report asks of a part.
struct Limits {
    /// What people call it.
    title: &'static str,
    /// Most survivors in a hundred.
    survivors: usize,
    /// Most points apart in a hundred.
    apart: usize,
}

impl Limits {
    fn of(part: Part) -> Limits {
        match part {
            Part::Vm => Limits {
                title: "ksync and vm",
                survivors: 2,
                apart: 4,
            },
            Part::Kernel => Limits {
                title: "the kernel's crates",
                survivors: 5,
                // More of its conditions only save time.
                apart: 7,
            },
        }
    }
}

/// What the report says of one mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Killed,
    KilledAlthoughExplained,
    Apart,
    Explained,
    Unexplained,
}

impl Verdict {
    /// Of a mutant by that name, which is `alive` or was killed. `known` and `apart` are the two parts of the explanations.
    fn of(key: &str, alive: bool, known: &str, apart: &str) -> Verdict {
        // As code in two backticks, which asks for a space where the text ends with one.
        let name = format!("``{key} ``");
        match (alive, apart.contains(&name), known.contains(&name)) {
            (false, false, false) => Verdict::Killed,
            (false, ..) => Verdict::KilledAlthoughExplained,
            (true, true, _) => Verdict::Apart,
            (true, false, true) => Verdict::Explained,
            (true, false, false) => Verdict::Unexplained,
        }
    }

    fn text(self) -> Text {
        match self {
            Verdict::Killed => "killed".into(),
            Verdict::KilledAlthoughExplained => Text::of(Style::Bad, "killed, although explained"),
            Verdict::Apart => "apart".into(),
            Verdict::Explained => "survived, explained".into(),
            Verdict::Unexplained => Text::of(Style::Bad, "survived, NOT EXPLAINED"),
        }
    }
}

/// The report on `points`, and the status: 1 if too many live, or one without an explanation.
pub fn of(root: &Path, points: &[&Point], fates: &BTreeMap<String, Fate>) -> (Report, u8) {
    let explained = fs::read_to_string(root.join(EXPLAINED)).unwrap_or_default();
    let (known, apart) = explained.split_once(APART).unwrap_or((&explained, ""));
    let judged: Vec<(&Point, Verdict)> = points
        .iter()
        .map(|point| {
            let alive = fates.get(&point.key).is_none_or(Fate::survived);
            (*point, Verdict::of(&point.key, alive, known, apart))
        })
        .collect();
    let mut report = Report::new("Mutants, and the tests that they meet", "");
    living(&mut report, &judged);
    by_kind(&mut report, &judged);
    let mut status = 0;
    for part in Part::ALL {
        let of_part: Vec<_> = judged
            .iter()
            .filter(|(point, _)| point.part() == part)
            .copied()
            .collect();
        if !of_part.is_empty() {
            status |= totals(&mut report, &of_part, &Limits::of(part));
        }
    }
    (report, status)
}

/// Those that are worth a line: all that were not simply killed.
fn living(report: &mut Report, judged: &[(&Point, Verdict)]) {
    let mut table = Table::new(["", "place", "point"].map(Column::left));
    for (point, verdict) in judged {
        if *verdict != Verdict::Killed {
            table.row([
                verdict.text(),
                format!("{}:{}", point.file, point.line).into(),
                Text::of(Style::Code, &point.key),
            ]);
        }
    }
    if !table.is_empty() {
        report.heading("mutants that live, or were expected to");
        report.add(Medium::Both, table);
    }
}

fn by_kind(report: &mut Report, judged: &[(&Point, Verdict)]) {
    let mut counts: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
    for (point, verdict) in judged {
        for kind in [point.kind.name(), "all"] {
            let row = counts.entry((point.package(), kind)).or_default();
            *row = (row.0 + usize::from(is_killed(*verdict)), row.1 + 1);
        }
    }
    let mut table = Table::new([
        Column::left("crate"),
        Column::left("kind"),
        Column::right("killed"),
        Column::right("of"),
    ]);
    for ((part, kind), (killed, all)) in counts {
        table.row([part.into(), kind.into(), killed.into(), all.into()]);
    }
    report.heading("by crate and kind");
    report.add(Medium::Both, table);
}

fn is_killed(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Killed | Verdict::KilledAlthoughExplained)
}

/// How many of how many in a part; the status.
fn totals(report: &mut Report, judged: &[(&Point, Verdict)], limits: &Limits) -> u8 {
    let count = |which: fn(Verdict) -> bool| judged.iter().filter(|(_, one)| which(*one)).count();
    let killed = count(is_killed);
    let survived = count(|one| matches!(one, Verdict::Explained | Verdict::Unexplained));
    let apart = count(|one| one == Verdict::Apart);
    let unexplained = count(|one| one == Verdict::Unexplained);
    let all = judged.len().max(1);
    let percent = |n: usize| n as f64 * 100.0 / all as f64;
    report.heading(limits.title);
    report.note(format!(
        "{killed} of {all} mutants killed ({:.1} %), {survived} survived ({:.1} %), {apart} stand apart ({:.1} %)",
        percent(killed),
        percent(survived),
        percent(apart)
    ));
    report.note(format!(
        "{unexplained} survived without an explanation in {EXPLAINED}"
    ));
    let over = |n: usize, limit: usize| n > (all * limit / 100).max(FEW);
    let many = over(survived, limits.survivors) || over(apart, limits.apart);
    u8::from(many || unexplained > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::points::Kind;

    #[test]
    fn few_survivors_are_no_fault_of_a_small_part() {
        let mut report = Report::new("", "");
        let point = Point {
            id: 1,
            kind: Kind::Lock,
            file: String::new(),
            line: 1,
            key: String::new(),
        };
        let mut status = |killed: usize, explained: usize, unexplained: usize| {
            let fates = [
                (Verdict::Killed, killed),
                (Verdict::Explained, explained),
                (Verdict::Unexplained, unexplained),
            ];
            let judged: Vec<_> = fates
                .into_iter()
                .flat_map(|(verdict, n)| std::iter::repeat_n((&point, verdict), n))
                .collect();
            totals(&mut report, &judged, &Limits::of(Part::Vm))
        };
        assert_eq!(status(16, 3, 0), 0);
        assert_eq!(status(16, 4, 0), 1);
        assert_eq!(status(16, 0, 1), 1);
        assert_eq!((status(490, 10, 0), status(490, 11, 0)), (0, 1));
    }

    #[test]
    fn a_mutant_that_lives_needs_an_explanation() {
        let verdict = |key, alive| Verdict::of(key, alive, "- ``a b ``: why", "- ``c d ``: why");
        assert_eq!(verdict("a b", true), Verdict::Explained);
        assert_eq!(verdict("c d", true), Verdict::Apart);
        assert_eq!(verdict("a", true), Verdict::Unexplained);
        assert_eq!(verdict("a b", false), Verdict::KilledAlthoughExplained);
        assert_eq!(verdict("x", false), Verdict::Killed);
    }
}
