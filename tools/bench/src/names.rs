//! Numbers and names of the benchmark's cases, and of their phases as they appear on the console.

use anyhow::{Context, Result};
use machine::tools;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// The cases in order: the first has number 1.
pub struct Names(Vec<String>);

/// Asks the benchmark itself, which runs on this machine, too.
///
/// # Errors
/// It cannot be run.
pub fn of(vmbench: &Path) -> Result<Names> {
    let text = tools::output(Command::new(vmbench).arg("--list"), "vmbench --list")?;
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    Ok(Names(text.lines().filter_map(first).collect()))
}

/// What the time-stamp counter of this machine, and so of the emulated ones, counts in a millisecond.
///
/// # Errors
/// The benchmark cannot be run.
pub fn tsc_khz(vmbench: &Path) -> Result<u64> {
    let text = tools::output(Command::new(vmbench).arg("--tsc-khz"), "vmbench --tsc-khz")?;
    text.trim().parse().context("vmbench --tsc-khz")
}

/// One line of the benchmark's results.
#[derive(Debug, PartialEq)]
pub struct Line {
    /// Case and phase, as printed.
    pub name: String,
    /// Case's number, phase's number; none for a figure of memory.
    pub key: Option<(u16, u8)>,
    /// Operations, all workers together; processes or mappings for a figure of memory.
    pub ops: f64,
    /// Operations a second.
    pub rate: f64,
    /// Bytes for each process, or mapping.
    pub bytes: Option<f64>,
    /// Whether they are those of a mapping.
    pub of_mapping: bool,
}

impl Names {
    /// The results on a console.
    pub fn lines(&self, console: &str) -> Vec<Line> {
        let mut phases: HashMap<u16, u8> = HashMap::new();
        console
            .lines()
            .filter_map(|line| self.line(line.trim(), &mut phases))
            .collect()
    }

    fn line(&self, line: &str, phases: &mut HashMap<u16, u8>) -> Option<Line> {
        let words = line.strip_prefix("vmbench ")?;
        let values: HashMap<&str, &str> = words
            .split(' ')
            .filter_map(|word| word.split_once('='))
            .collect();
        let number = |key: &str| values.get(key).and_then(|value| value.parse::<f64>().ok());
        let name = (*values.get("case")?).to_owned();
        let of_mapping = values.contains_key("mappings");
        let bytes = number("bytes_per_process").or(number("bytes_per_mapping"));
        if bytes.is_some() {
            let ops = number("processes").or(number("mappings"))?;
            return Some(Line {
                name,
                key: None,
                ops,
                rate: 0.0,
                bytes,
                of_mapping,
            });
        }
        let (ops, rate) = (number("ops")?, number("ops_per_s")?);
        let case = self.number(&name)?;
        let phase = phases.entry(case).or_default();
        let key = Some((case, *phase));
        *phase += 1;
        Some(Line {
            name,
            key,
            ops,
            rate,
            bytes,
            of_mapping,
        })
    }

    /// The case that a printed name belongs to: the longest that it begins with.
    fn number(&self, printed: &str) -> Option<u16> {
        let fits = |case: &str| {
            printed
                .strip_prefix(case)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let found = self.0.iter().enumerate().filter(|(_, case)| fits(case));
        found
            .max_by_key(|(_, case)| case.len())
            .map(|(index, _)| index as u16 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_names_find_their_case_and_phase() {
        let names = Names(
            ["null", "fork", "fork-16m", "chain"]
                .map(str::to_owned)
                .into(),
        );
        let console = "noise\r\n\
            vmbench case=fork-16m workers=1 ops=30 ns_per_op=1.5 ops_per_s=47\r\n\
            vmbench case=fork workers=1 ops=3 ns_per_op=1.5 ops_per_s=4\r\n\
            vmbench case=null workers=1 FAILED: because\r\n\
            vmbench case=chain-create workers=1 ops=5 ns_per_op=1 ops_per_s=6\r\n\
            vmbench case=chain-memory workers=1 processes=5 bytes_per_process=900\r\n\
            vmbench case=chain-kill workers=1 ops=5 ns_per_op=1 ops_per_s=7\r\n\
            vmbench case=map workers=1 mappings=16384 bytes_per_mapping=8.25\r\n\
            vmbench: 4 cases right, 1 wrong\r\n";
        let lines = names.lines(console);
        let keys: Vec<_> = lines
            .iter()
            .map(|line| (line.name.as_str(), line.key))
            .collect();
        let want = [
            ("fork-16m", Some((3, 0))),
            ("fork", Some((2, 0))),
            ("chain-create", Some((4, 0))),
            ("chain-memory", None),
            ("chain-kill", Some((4, 1))),
            ("map", None),
        ];
        assert_eq!(keys, want);
        assert_eq!((lines[5].bytes, lines[5].of_mapping), (Some(8.25), true));
        assert_eq!(
            (lines[0].ops, lines[0].rate, lines[3].bytes),
            (30.0, 47.0, Some(900.0))
        );
    }
}
