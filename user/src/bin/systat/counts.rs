//! Parses /proc/pantala: each line is a list of `name=value` pairs.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

/// Where the kernel's raw counts are.
const DIR: &str = "/proc/pantala";

/// One line: its numbers and words by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    numbers: BTreeMap<String, u64>,
    words: BTreeMap<String, String>,
}

impl Line {
    /// Parses a line; words that are no pair are skipped.
    pub fn parse(text: &str) -> Line {
        let mut line = Line::default();
        let mut rest = text.trim();
        while let Some((name, after)) = rest.split_once('=') {
            let (value, more) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
                None => after.split_once(' ').unwrap_or((after, "")),
            };
            let name = name.trim().to_owned();
            match value.parse() {
                Ok(number) => drop(line.numbers.insert(name, number)),
                Err(_) => drop(line.words.insert(name, value.to_owned())),
            }
            rest = more.trim_start();
        }
        line
    }

    /// A number, 0 if it is missing.
    pub fn number(&self, name: &str) -> u64 {
        self.numbers.get(name).copied().unwrap_or(0)
    }

    /// A word, empty if it is missing.
    pub fn word(&self, name: &str) -> &str {
        self.words.get(name).map_or("", |word| word)
    }

    /// The increase of a count since `before`.
    pub fn since(&self, before: &Line, name: &str) -> u64 {
        self.number(name).saturating_sub(before.number(name))
    }

    /// All pairs, numbers first.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        let numbers = self.numbers.iter().map(|(k, v)| (&**k, Value::Number(*v)));
        numbers.chain(self.words.iter().map(|(k, v)| (&**k, Value::Word(v))))
    }
}

/// A value of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A count.
    Number(u64),
    /// Anything else.
    Word(&'a str),
}

/// Reads one of the kernel's files.
///
/// # Errors
/// A message for the user.
pub fn read(name: &str) -> Result<Vec<Line>, String> {
    let path = format!("{DIR}/{name}");
    let text = fs::read_to_string(&path)
        .map_err(|e| format!("{path}: {e}; systat needs a Pantala kernel with /proc mounted"))?;
    Ok(text.lines().map(Line::parse).collect())
}

/// All counts at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// The time of the reading.
    pub at: Instant,
    /// One line per CPU.
    pub cpus: Vec<Line>,
    /// One line per NUMA node.
    pub nodes: Vec<Line>,
    /// One line per lock class.
    pub locks: Vec<Line>,
    /// The kernel counts acquisitions and measures holds.
    pub lock_profile: bool,
}

impl Snapshot {
    /// The counts at boot: all zero.
    pub fn boot() -> Snapshot {
        Snapshot {
            at: Instant::now(),
            cpus: Vec::new(),
            nodes: Vec::new(),
            locks: Vec::new(),
            lock_profile: false,
        }
    }

    /// Reads all counts.
    ///
    /// # Errors
    /// A message for the user.
    pub fn take() -> Result<Snapshot, String> {
        Ok(Snapshot {
            at: Instant::now(),
            cpus: read("cpu")?,
            nodes: read("node")?,
            locks: read("locks")?,
            lock_profile: fs::read_to_string("/proc/cmdline")
                .is_ok_and(|line| line.split_whitespace().any(|word| word == "lockprof")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_pairs() {
        let line = Line::parse("cpu=1 stall_ns=20 lock=\"run queue\" pc=0xffff fn=\"a::b+0x1\" x=");
        assert_eq!((line.number("cpu"), line.number("stall_ns")), (1, 20));
        assert_eq!(
            (line.word("lock"), line.word("fn")),
            ("run queue", "a::b+0x1")
        );
        assert_eq!(
            (line.word("pc"), line.word("x"), line.word("y")),
            ("0xffff", "", "")
        );
    }

    #[test]
    fn growth_never_wraps() {
        let (old, new) = (Line::parse("a=5 b=9"), Line::parse("a=7 b=2"));
        assert_eq!(
            (
                new.since(&old, "a"),
                new.since(&old, "b"),
                new.since(&old, "c")
            ),
            (2, 0, 0)
        );
    }
}
