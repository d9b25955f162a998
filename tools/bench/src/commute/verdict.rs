//! From the windows of a case to what is said of it.

use coherence::record::{Record, Shared};
use commute::call::Call;
use commute::cases::Case;
use std::collections::HashMap;

/// What a case came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No common line in any round.
    Free,
    /// Common lines in fewer than half of the rounds: what is done once in a while, such as filling a cache.
    Rare,
    /// Common lines, each of which was changed by atomic instructions only.
    Atomic,
    /// Common lines.
    Conflict,
    /// Every round had a timer tick in it.
    Disturbed,
    /// A call did not return what it should.
    Wrong,
}

impl Verdict {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Free => "free",
            Verdict::Rare => "rare",
            Verdict::Atomic => "atomic",
            Verdict::Conflict => "conflict",
            Verdict::Disturbed => "disturbed",
            Verdict::Wrong => "wrong",
        }
    }
}

/// A case and its verdict.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The case.
    pub case: Case,
    /// What it came to.
    pub verdict: Verdict,
    /// The common lines of the round that had fewest of them, if it conflicts or rarely does.
    pub lines: Vec<Shared>,
}

impl Judged {
    /// A failed case is an error, not a figure.
    pub fn is_wrong(&self) -> bool {
        self.verdict == Verdict::Wrong
    }

    /// Whether all common lines are false sharing: no word was touched by both.
    pub fn is_false_sharing(&self) -> bool {
        self.lines.iter().all(|line| line.words == 0)
    }

    /// Whether it has a verdict about lines.
    pub fn counts(&self) -> bool {
        !matches!(self.verdict, Verdict::Wrong | Verdict::Disturbed)
    }

    /// Whether it is in the way of the two going on at once.
    pub fn conflicts(&self) -> bool {
        matches!(self.verdict, Verdict::Conflict | Verdict::Atomic)
    }
}

/// Judges those of `cases` that were run, by the plugin's records.
pub fn judge(cases: &[Case], records: &[Record]) -> Vec<Judged> {
    let mut windows: HashMap<u16, Vec<&Record>> = HashMap::new();
    for record in records {
        if let Record::Window { case, .. } = record {
            windows.entry(*case).or_default().push(record);
        }
    }
    let one = |case: &Case| {
        let (verdict, lines) = verdict(windows.get(&case.number)?);
        Some(Judged {
            case: *case,
            verdict,
            lines,
        })
    };
    cases.iter().filter_map(one).collect()
}

fn verdict(windows: &[&Record]) -> (Verdict, Vec<Shared>) {
    let mut quiet = Vec::new();
    for window in windows {
        let Record::Window {
            right,
            overflow,
            ticks,
            conflicts,
            lines,
            ..
        } = window
        else {
            continue;
        };
        if !right || *overflow {
            return (Verdict::Wrong, Vec::new());
        }
        if *ticks == 0 {
            quiet.push((*conflicts, lines));
        }
    }
    let shared = || quiet.iter().filter(|(conflicts, _)| *conflicts > 0);
    let fewest = shared().min_by_key(|(conflicts, _)| *conflicts);
    let lines = fewest.map_or(Vec::new(), |(_, lines)| (*lines).clone());
    let atomic = |line: &Shared| line.cpus.iter().all(|cpu| cpu.stores == 0);
    let verdict = match (shared().count(), quiet.len()) {
        (_, 0) => Verdict::Disturbed,
        (0, _) => Verdict::Free,
        (some, all) if 2 * some < all => Verdict::Rare,
        _ if lines.iter().all(atomic) => Verdict::Atomic,
        _ => Verdict::Conflict,
    };
    (verdict, lines)
}

/// Counts of a set of cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Cases with a verdict about lines.
    pub judged: usize,
    /// Those without any common line.
    pub free: usize,
    /// Those with one in a minority of rounds.
    pub rare: usize,
    /// Those whose lines are changed by atomic instructions only.
    pub atomic: usize,
    /// Those that conflict, by false sharing alone.
    pub falsely: usize,
    /// Cases whose calls failed.
    pub wrong: usize,
    /// Cases that ticks disturbed.
    pub disturbed: usize,
}

impl Tally {
    /// Counts `judged`.
    pub fn of<'a>(judged: impl IntoIterator<Item = &'a Judged>) -> Tally {
        let mut tally = Tally::default();
        for one in judged {
            tally.judged += usize::from(one.counts());
            tally.falsely += usize::from(one.conflicts() && one.is_false_sharing());
            match one.verdict {
                Verdict::Free => tally.free += 1,
                Verdict::Rare => tally.rare += 1,
                Verdict::Atomic => tally.atomic += 1,
                Verdict::Wrong => tally.wrong += 1,
                Verdict::Disturbed => tally.disturbed += 1,
                Verdict::Conflict => {}
            }
        }
        tally
    }

    /// Cases that conflict.
    pub fn conflicting(&self) -> usize {
        self.judged - self.free - self.rare
    }

    /// `some` of those judged, in percent.
    pub fn percent(&self, some: usize) -> f64 {
        some as f64 * 100.0 / self.judged.max(1) as f64
    }
}

/// The cases of each pair of calls, in either order: `[row][column]`.
pub fn by_calls(judged: &[Judged]) -> Vec<Vec<Tally>> {
    let of = |row: Call, column: Call| {
        let here = |one: &&Judged| {
            let [a, b] = one.case.calls();
            (a, b) == (row, column) || (b, a) == (row, column)
        };
        Tally::of(judged.iter().filter(here))
    };
    let row = |row: Call| Call::ALL.iter().map(|&column| of(row, column)).collect();
    Call::ALL.iter().map(|&call| row(call)).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use coherence::record::Touches;

    pub fn line(address: u64, words: u8, stores: u32) -> Shared {
        let touches = Touches {
            loads: 1,
            stores,
            atomics: 1,
            ..Touches::default()
        };
        let pcs = Touches {
            load: vec![1],
            store: vec![2],
            atomic: vec![3],
            ..touches
        };
        Shared {
            line: address,
            vaddr: address,
            words,
            cpus: [pcs, Touches::default()],
        }
    }

    fn window(ticks: u64, right: bool, lines: Vec<Shared>) -> Record {
        window_of(7, ticks, right, lines)
    }

    fn window_of(case: u16, ticks: u64, right: bool, lines: Vec<Shared>) -> Record {
        Record::Window {
            case,
            right,
            ticks,
            interrupts: 0,
            touched: [9, 9],
            overflow: false,
            conflicts: lines.len() as u64,
            lines,
        }
    }

    fn of(windows: &[Record]) -> Verdict {
        verdict(&windows.iter().collect::<Vec<_>>()).0
    }

    #[test]
    fn most_undisturbed_rounds_decide() {
        let free = || window(0, true, Vec::new());
        let shared = || window(0, true, vec![line(64, 1, 1)]);
        assert_eq!(of(&[free(), free(), free()]), Verdict::Free);
        assert_eq!(of(&[free(), shared(), free()]), Verdict::Rare);
        assert_eq!(of(&[free(), shared(), shared()]), Verdict::Conflict);
        assert_eq!(of(&[shared(), free()]), Verdict::Conflict);
        let ticked = window(1, true, vec![line(64, 1, 1)]);
        assert_eq!(of(&[free(), ticked.clone(), ticked.clone()]), Verdict::Free);
        assert_eq!(of(&[ticked]), Verdict::Disturbed);
    }

    #[test]
    fn a_failed_call_is_wrong_whatever_its_lines() {
        let free = window(0, true, Vec::new());
        assert_eq!(of(&[free, window(0, false, Vec::new())]), Verdict::Wrong);
    }

    #[test]
    fn atomic_changes_and_false_sharing_are_told_apart() {
        assert_eq!(
            of(&[window(0, true, vec![line(64, 1, 0)])]),
            Verdict::Atomic
        );
        let mixed = vec![line(64, 1, 0), line(128, 1, 2)];
        assert_eq!(of(&[window(0, true, mixed)]), Verdict::Conflict);
        let case = commute::cases::all()[7];
        let judged = judge(&[case], &[window(0, true, vec![line(64, 0, 1)])]);
        assert_eq!(
            Tally::of(&judged),
            Tally {
                judged: 1,
                falsely: 1,
                ..Tally::default()
            }
        );
    }

    #[test]
    fn the_map_is_symmetric_and_holds_every_case() {
        let cases = commute::cases::all();
        let run = |case: &Case| window_of(case.number, 0, false, Vec::new());
        let records: Vec<Record> = cases.iter().map(run).collect();
        assert!(judge(&cases, &[]).is_empty());
        let all = judge(&cases, &records);
        let map = by_calls(&all);
        let mut sum = 0;
        for (row, line) in map.iter().enumerate() {
            for (column, tally) in line.iter().enumerate() {
                assert_eq!(*tally, map[column][row]);
                sum += if row <= column { tally.wrong } else { 0 };
            }
        }
        assert_eq!(sum, cases.len());
    }
}
