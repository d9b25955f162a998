//! The cases: every pair of variants that commutes, in each mode.

use crate::call::Call;
use crate::model::{Mode, commute};
use crate::variant::{ALL, Variant};

/// Two operations, the first on CPU 0, the second on CPU 1.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its index in [`all`].
    pub number: u16,
    /// How the sides are related.
    pub mode: Mode,
    /// The operation of each side.
    pub sides: [&'static Variant; 2],
}

impl Case {
    /// `mode: call variant / call variant`.
    pub fn name(&self) -> String {
        let side = |v: &Variant| format!("{} {}", v.call.name(), v.name);
        let [a, b] = self.sides.map(side);
        format!("{}: {a} / {b}", self.mode.name())
    }

    /// The two calls.
    pub fn calls(&self) -> [Call; 2] {
        self.sides.map(|side| side.call)
    }
}

/// Every case.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for mode in Mode::ALL {
        for (first, a) in ALL.iter().enumerate() {
            for b in &ALL[first..] {
                if commute(a.touches, b.touches, mode) {
                    let number = cases.len() as u16;
                    cases.push(Case {
                        number,
                        mode,
                        sides: [a, b],
                    });
                }
            }
        }
    }
    cases
}

/// Which cases to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Names of calls, or pairs `call:call`; empty selects all. A name selects every pair that contains it.
    pub only: Vec<String>,
    /// One case out of this many; 0 and 1 select all.
    pub every: u16,
}

impl Choice {
    /// Whether `case` is selected. The sample is spread over calls and modes alike.
    pub fn takes(&self, case: &Case) -> bool {
        let [a, b] = case.calls().map(Call::name);
        let fits = |word: &String| match word.split_once(':') {
            Some((x, y)) => (x, y) == (a, b) || (x, y) == (b, a),
            None => word == a || word == b,
        };
        let sampled = self.every < 2 || spread(case.number).is_multiple_of(u32::from(self.every));
        (self.only.is_empty() || self.only.iter().any(fits)) && sampled
    }

    /// The selected cases.
    ///
    /// # Errors
    /// A word of `only` is not the name of a call.
    pub fn cases(&self) -> Result<Vec<Case>, String> {
        for word in self.only.iter().flat_map(|word| word.split(':')) {
            if !Call::ALL.iter().any(|call| call.name() == word) {
                let names: Vec<_> = Call::ALL.iter().map(|call| call.name()).collect();
                return Err(format!("{word} is none of {}", names.join(", ")));
            }
        }
        Ok(all().into_iter().filter(|case| self.takes(case)).collect())
    }
}

/// A pseudo-random number that depends only on the case's number.
fn spread(number: u16) -> u32 {
    (u32::from(number) + 1).wrapping_mul(0x9e37_79b1) >> 12
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(mode: Mode, a: &str, b: &str) -> bool {
        let name = format!("{}: {a} / {b}", mode.name());
        all().iter().any(|case| case.name() == name)
    }

    #[test]
    fn there_are_enough_cases_and_every_pair_of_calls_has_some() {
        let cases = all();
        assert!(cases.len() >= 2000, "{}", cases.len());
        assert!(cases.len() < usize::from(u16::MAX));
        for a in Call::ALL {
            for b in &Call::ALL[a.index()..] {
                let pair = [a, *b];
                assert!(cases.iter().any(|case| case.calls() == pair), "{pair:?}");
            }
        }
    }

    #[test]
    fn numbers_are_places_and_names_are_unique() {
        let cases = all();
        assert!(
            cases
                .iter()
                .enumerate()
                .all(|(i, case)| usize::from(case.number) == i)
        );
        let mut names: Vec<_> = cases.iter().map(Case::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), cases.len());
    }

    #[test]
    fn known_pairs_are_in_or_out() {
        let (threads, processes) = (Mode::Threads, Mode::Processes);
        assert!(has(threads, "mmap any", "mmap any"));
        assert!(!has(threads, "brk grow", "brk grow") && has(processes, "brk grow", "brk grow"));
        assert!(has(threads, "brk query", "brk query"));
        assert!(
            !has(threads, "pipe pipe", "open one file")
                && has(processes, "pipe pipe", "open one file")
        );
        assert!(!has(threads, "mmap any", "fork fork") && has(processes, "mmap any", "fork fork"));
        assert!(!has(processes, "read one pipe", "read one pipe"));
        assert!(has(processes, "read one pipe", "write one pipe"));
        assert!(!has(processes, "write one file own page", "stat one file"));
        assert!(has(
            processes,
            "write one file own page",
            "write one file own page"
        ));
    }

    #[test]
    fn a_choice_names_calls_or_pairs_and_samples_evenly() {
        let all = all().len();
        let cases = |only: &[&str], every| {
            let only = only.iter().map(|&word| word.to_owned()).collect();
            Choice { only, every }.cases()
        };
        assert_eq!(cases(&[], 0).unwrap().len(), all);
        let futex = cases(&["futex"], 0).unwrap();
        assert!(futex.iter().all(|case| case.calls().contains(&Call::Futex)));
        let pair = cases(&["read:brk"], 0).unwrap();
        assert!(
            !pair.is_empty()
                && pair
                    .iter()
                    .all(|case| case.calls() == [Call::Brk, Call::Read])
        );
        assert!(cases(&["frok"], 0).unwrap_err().contains("frok"));
        let some = cases(&[], 10).unwrap();
        assert!((all / 14..all / 7).contains(&some.len()), "{}", some.len());
        for call in Call::ALL {
            assert!(
                some.iter().any(|case| case.calls().contains(&call)),
                "{}",
                call.name()
            );
        }
    }
}
