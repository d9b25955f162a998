//! Names for the lines in the way, and their order by the cases that they spoil.

use super::verdict::Judged;
use crate::symbols::Symbols;
use coherence::record::{Shared, Touches};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// Functions that work for their callers, which say more. Prefixes of Linux's and Pantala's names.
const HELPERS: [&str; 22] = [
    "_raw_spin_",
    "_raw_read_",
    "_raw_write_",
    "native_queued_spin",
    "queued_",
    "mutex_",
    "__mutex_",
    "down_",
    "up_",
    "rwsem_",
    "__list_",
    "refcount_",
    "atomic",
    "percpu_counter_add",
    "lockref_",
    "memset",
    "memcpy",
    "clear_page",
    "copy_page",
    "__memset",
    "__memcpy",
    "<ksync",
];

/// A line, or one of many alike: what it is, which code changed it and which other code touched it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The static that it lies in, with the offset of the line; none for memory that was allocated.
    pub datum: Option<String>,
    /// On each CPU, what was done, where, called from where.
    pub cpus: [String; 2],
    /// No word of it was touched by both.
    pub false_sharing: bool,
}

/// A line that spoils cases.
pub struct Culprit {
    /// What is known of it.
    pub line: Line,
    /// The cases that it spoils.
    pub cases: usize,
    /// Those that no other line spoils.
    pub alone: usize,
    /// One of them, if possible one that it spoils alone.
    pub example: String,
}

/// The frames that say most: the innermost one that is no helper, and its caller.
fn place(symbols: &Symbols, stack: &[u64]) -> [Option<String>; 2] {
    let names: Vec<String> = stack.iter().map(|&pc| symbols.name(pc)).collect();
    let helps = |name: &String| HELPERS.iter().any(|helper| name.starts_with(helper));
    let from = names.iter().position(|name| !helps(name)).unwrap_or(0);
    [names.get(from).cloned(), names.get(from + 1).cloned()]
}

/// The most telling thing that a CPU did to a line.
fn deed(touches: &Touches) -> (&'static str, &[u64]) {
    match touches {
        Touches { store, .. } if !store.is_empty() => ("writes", store),
        Touches { atomic, .. } if !atomic.is_empty() => ("atomic", atomic),
        Touches { load, .. } => ("reads", load),
    }
}

/// A line with its names.
pub fn describe(symbols: &Symbols, shared: &Shared) -> Line {
    let cpu = |touches: &Touches| {
        let (what, stack) = deed(touches);
        match place(symbols, stack) {
            [Some(place), Some(caller)] => format!("{what}: {place} < {caller}"),
            [Some(place), None] => format!("{what}: {place}"),
            _ => what.to_owned(),
        }
    };
    let datum = symbols.datum(shared.vaddr);
    Line {
        datum: datum.map(|(name, offset)| match offset & !63 {
            0 => name,
            offset => format!("{name}+{offset}"),
        }),
        cpus: [0, 1].map(|index| cpu(&shared.cpus[index])),
        false_sharing: shared.words == 0,
    }
}

/// What makes two lines the same for the ranking: the static, or else the places of both CPUs, whichever CPU's they are.
fn key(symbols: &Symbols, shared: &Shared) -> String {
    if let Some((name, offset)) = symbols.datum(shared.vaddr) {
        return format!("{name}+{}", offset & !63);
    }
    let mut places = [0, 1].map(|index| {
        let (what, stack) = deed(&shared.cpus[index]);
        let [place, _] = place(symbols, stack);
        format!("{what} {}", place.unwrap_or_default())
    });
    places.sort();
    places.join(" | ")
}

/// The lines of the cases that conflict, those that spoil most cases first.
pub fn rank(symbols: &Symbols, judged: &[Judged]) -> Vec<Culprit> {
    let mut found: HashMap<String, Culprit> = HashMap::new();
    for one in judged.iter().filter(|one| one.conflicts()) {
        let mut seen: HashSet<String> = HashSet::new();
        for shared in &one.lines {
            seen.insert(key(symbols, shared));
        }
        let alone = seen.len() == 1;
        for shared in &one.lines {
            let key = key(symbols, shared);
            if !seen.remove(&key) {
                continue;
            }
            let culprit = found.entry(key).or_insert_with(|| Culprit {
                line: describe(symbols, shared),
                cases: 0,
                alone: 0,
                example: one.case.name(),
            });
            if alone && culprit.alone == 0 {
                culprit.example = one.case.name();
                culprit.line = describe(symbols, shared);
            }
            culprit.cases += 1;
            culprit.alone += usize::from(alone);
        }
    }
    let mut culprits: Vec<Culprit> = found.into_values().collect();
    culprits.sort_by(|a, b| {
        let by_cases = (b.cases, b.alone).cmp(&(a.cases, a.alone));
        by_cases.then_with(|| a.example.cmp(&b.example))
    });
    culprits
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Verdict;
    use super::super::verdict::tests::line;
    use super::*;

    fn symbols() -> Symbols {
        Symbols::parse(
            "ffffffff81000000 t _raw_spin_lock\nffffffff81000100 t fork\nffffffff81000200 t read\n\
             ffffffff82000000 b tasks\nffffffff82001000 b end\n",
        )
    }

    fn shared(vaddr: u64, writer: &[u64], reader: u64) -> Shared {
        let mut line = line(vaddr, 1, 1);
        line.cpus[0].store = writer.to_vec();
        line.cpus[1].load = vec![reader];
        line
    }

    const LOCK: u64 = 0xffff_ffff_8100_0010;
    const FORK: u64 = 0xffff_ffff_8100_0110;
    const READ: u64 = 0xffff_ffff_8100_0210;
    const HEAP: u64 = 0xffff_8880_0000_0000;

    #[test]
    fn a_helper_is_left_out_for_its_caller_and_statics_have_names() {
        let line = describe(
            &symbols(),
            &shared(0xffff_ffff_8200_0050, &[LOCK, FORK, READ], READ),
        );
        assert_eq!(line.datum.as_deref(), Some("tasks+64"));
        assert_eq!(line.cpus, ["writes: fork < read", "reads: read"]);
        assert_eq!(
            describe(&symbols(), &shared(HEAP, &[LOCK], READ)).datum,
            None
        );
    }

    #[test]
    fn lines_are_ranked_by_cases_and_mirrored_pairs_are_one() {
        let cases = commute::cases::all();
        let judged = |index: usize, lines: Vec<Shared>| Judged {
            case: cases[index],
            verdict: Verdict::Conflict,
            lines,
        };
        let mut mirrored = shared(HEAP + 64, &[FORK], READ);
        mirrored.cpus.reverse();
        let of = [
            judged(
                0,
                vec![
                    shared(HEAP, &[FORK], READ),
                    shared(HEAP + 128, &[READ], READ),
                ],
            ),
            judged(1, vec![mirrored]),
            Judged {
                verdict: Verdict::Rare,
                ..judged(2, vec![shared(HEAP, &[READ], FORK)])
            },
        ];
        let ranked = rank(&symbols(), &of);
        let counts: Vec<_> = ranked.iter().map(|c| (c.cases, c.alone)).collect();
        assert_eq!(counts, [(2, 1), (1, 0)]);
        assert_eq!(ranked[0].example, cases[1].name());
    }
}
