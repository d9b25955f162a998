//! Results that are kept from one run to the next: a line of a text file for each, the last one of a program and kernel counts.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What came of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Its results were right; seconds that it took by the guest's clock.
    Right(f64),
    /// Why not.
    Wrong(String),
}

/// A program on a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The program's test.
    pub program: String,
    /// The kernel.
    pub system: String,
    /// Tells kernel, image, machine and test from others.
    pub key: u64,
    /// What came of it.
    pub verdict: Verdict,
    /// The commit of the tree.
    pub commit: String,
}

/// All results that there are.
pub struct Kept {
    file: PathBuf,
    by_name: BTreeMap<(String, String), Outcome>,
}

impl Kept {
    /// Those of a file, which need not exist. Lines that mean nothing are passed over.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn read(file: &Path) -> Result<Kept> {
        let mut kept = Kept {
            file: file.to_owned(),
            by_name: BTreeMap::new(),
        };
        if file.exists() {
            let text = fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let outcomes = text.lines().filter_map(Outcome::from_line);
            outcomes.for_each(|outcome| kept.insert(outcome));
        }
        Ok(kept)
    }

    fn insert(&mut self, outcome: Outcome) {
        let name = (outcome.program.clone(), outcome.system.clone());
        self.by_name.insert(name, outcome);
    }

    /// Keeps one more, at once in the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, outcome: Outcome) -> Result<()> {
        let mut options = fs::OpenOptions::new();
        let opened = options.create(true).append(true).open(&self.file);
        let mut file = opened.with_context(|| format!("cannot write {}", self.file.display()))?;
        writeln!(file, "{}", outcome.to_line())?;
        self.insert(outcome);
        Ok(())
    }

    /// The last result of a program on a kernel.
    pub fn get(&self, program: &str, system: &str) -> Option<&Outcome> {
        self.by_name.get(&(program.to_owned(), system.to_owned()))
    }

    /// Whether the program was right there, with the same kernel, image, machine and test.
    pub fn is_right(&self, program: &str, system: &str, key: u64) -> bool {
        self.get(program, system).is_some_and(|outcome| {
            outcome.key == key && matches!(outcome.verdict, Verdict::Right(_))
        })
    }
}

impl Outcome {
    /// Whether the program was not right.
    pub fn is_wrong(&self) -> bool {
        matches!(self.verdict, Verdict::Wrong(_))
    }

    fn to_line(&self) -> String {
        let (word, rest) = match &self.verdict {
            Verdict::Right(seconds) => ("right", format!("{seconds:.1}")),
            Verdict::Wrong(why) => ("wrong", why.replace(['\t', '\n'], " ")),
        };
        let Outcome {
            program,
            system,
            key,
            commit,
            ..
        } = self;
        format!("{program}\t{system}\t{key:016x}\t{commit}\t{word}\t{rest}")
    }

    fn from_line(line: &str) -> Option<Outcome> {
        let words: Vec<&str> = line.split('\t').collect();
        let [program, system, key, commit, word, rest] = words[..] else {
            return None;
        };
        let verdict = match word {
            "right" => Verdict::Right(rest.parse().ok()?),
            "wrong" => Verdict::Wrong(rest.to_owned()),
            _ => return None,
        };
        Some(Outcome {
            program: program.to_owned(),
            system: system.to_owned(),
            key: u64::from_str_radix(key, 16).ok()?,
            verdict,
            commit: commit.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(key: u64, verdict: Verdict) -> Outcome {
        Outcome {
            program: "redis".into(),
            system: "linux".into(),
            key,
            verdict,
            commit: "0123abcd".into(),
        }
    }

    #[test]
    fn a_result_comes_back_from_its_line() {
        for verdict in [Verdict::Right(3.5), Verdict::Wrong("no answer: 5".into())] {
            let one = outcome(7, verdict);
            assert_eq!(Outcome::from_line(&one.to_line()), Some(one));
        }
        assert_eq!(Outcome::from_line("redis\tlinux\tx\tc\tright\t1"), None);
        assert_eq!(Outcome::from_line("half a line"), None);
    }

    #[test]
    fn the_last_result_counts_and_only_right_ones_are_kept() {
        let file = std::env::temp_dir().join(format!("accept-kept-{}", std::process::id()));
        let _ = fs::remove_file(&file);
        let mut kept = Kept::read(&file).unwrap();
        kept.add(outcome(1, Verdict::Wrong("late".into()))).unwrap();
        assert!(!kept.is_right("redis", "linux", 1));
        kept.add(outcome(1, Verdict::Right(2.0))).unwrap();
        let kept = Kept::read(&file).unwrap();
        assert!(kept.is_right("redis", "linux", 1));
        assert!(!kept.is_right("redis", "linux", 2), "another kernel");
        assert!(!kept.is_right("redis", "pantala", 1));
        fs::remove_file(&file).unwrap();
    }
}
