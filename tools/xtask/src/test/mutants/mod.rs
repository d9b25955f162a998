//! Mutation tests of `ksync` and `vm`: is each lock, flush, fence and ordering missed by some test?
//!
//! All mutants are built at once, into a copy of the tree in `build/mutants`; a number in the environment says which
//! one a process is. Each test runs once without a mutant, which says which points it reaches and how long it takes; a
//! mutant then meets the tests that reach it, each in a process of its own: first the one that killed it last time,
//! then the others, quickest first, until one fails or does not end.
//!
//! Results are kept in `build/mutants/results`. One holds as long as the programs it comes from do: an interrupted run
//! goes on where it was, and after a change of a test file only what that file decides is tried again.
//! `ONLY=text` limits the run to points whose name contains the text, `JOBS=n` sets how many run at once.

mod points;
mod programs;
mod tree;
mod trial;
mod work;

use crate::tools;
use anyhow::Result;
use points::Point;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use trial::{Program, Trial};

/// Where survivors are explained.
const EXPLAINED: &str = "doc/testing.md";
/// What stands in place of a test that killed.
const SURVIVED: &str = "survived";

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fate {
    /// The test that noticed it, or [`SURVIVED`].
    by: String,
    /// Of the programs that decided it.
    hash: u64,
}

impl Fate {
    fn survived(&self) -> bool {
        self.by == SURVIVED
    }

    /// `hash by key`, with tabs.
    fn parse(line: &str) -> Option<(String, Self)> {
        let mut fields = line.splitn(3, '\t');
        let hash = u64::from_str_radix(fields.next()?, 16).ok()?;
        let by = fields.next()?.into();
        Some((fields.next()?.into(), Self { by, hash }))
    }
}

/// Runs them; prints the survivors and how many were killed.
///
/// # Errors
/// The tree cannot be copied or built, or a test fails without a mutant.
pub fn run() -> Result<u8> {
    let root = tools::root();
    let dir = tools::build_dir()?.join("mutants");
    let points = tree::copy(&root, &dir.join("tree"))?;
    let programs = programs::build(&dir)?;
    let trials = programs::measure(&dir, &programs)?;
    let only = std::env::var("ONLY").unwrap_or_default();
    let chosen: Vec<&Point> = points.iter().filter(|p| p.key.contains(&only)).collect();
    let fates = test(&dir, &programs, &trials, &chosen)?;
    report(&root, &chosen, &fates)
}

/// Lets the mutants meet the tests.
fn test(
    dir: &Path,
    programs: &[Program],
    trials: &[Trial],
    points: &[&Point],
) -> Result<BTreeMap<String, Fate>> {
    let path = dir.join("results");
    let known = fs::read_to_string(&path).unwrap_or_default();
    let mut fates: BTreeMap<String, Fate> = known.lines().filter_map(Fate::parse).collect();
    let holds = |point: &Point| {
        let fate = fates.get(&point.key)?;
        let hash = if fate.survived() {
            hash(programs.iter())
        } else {
            let killer = trials.iter().find(|trial| trial.name() == fate.by)?;
            hash([&killer.program])
        };
        (hash == fate.hash).then_some(())
    };
    let open: Vec<&Point> = points
        .iter()
        .copied()
        .filter(|point| holds(point).is_none())
        .collect();
    let file = Mutex::new(OpenOptions::new().append(true).create(true).open(&path)?);
    let new = work::all("mutants", &open, |_, point| {
        let before = fates.get(&point.key).map(|fate| &*fate.by);
        let killer = killer(trials, point, before)?;
        let fate = Fate {
            by: killer.map_or(SURVIVED.into(), Trial::name),
            hash: killer.map_or_else(|| hash(programs), |trial| hash([&trial.program])),
        };
        writeln!(
            work::locked(&file),
            "{:x}\t{}\t{}",
            fate.hash,
            fate.by,
            point.key
        )?;
        Ok((point.key.clone(), fate))
    })?;
    fates.extend(new);
    let line = |(key, fate): (&String, &Fate)| format!("{:x}\t{}\t{key}\n", fate.hash, fate.by);
    fs::write(&path, fates.iter().map(line).collect::<String>())?;
    Ok(fates)
}

fn hash<'a>(programs: impl IntoIterator<Item = &'a Program>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for program in programs {
        hasher.write_u64(program.hash);
    }
    hasher.finish()
}

/// The first test that notices the mutant; `likely` is tried before all others.
fn killer<'a>(
    trials: &'a [Trial],
    point: &Point,
    likely: Option<&str>,
) -> Result<Option<&'a Trial>> {
    let is_likely = |trial: &&Trial| likely == Some(&*trial.name());
    let first = trials.iter().filter(is_likely);
    let others = trials.iter().filter(|trial| !is_likely(trial));
    for trial in first.chain(others) {
        if trial.concerns(point) && trial.notices(point)? {
            return Ok(Some(trial));
        }
    }
    Ok(None)
}

fn report(root: &Path, points: &[&Point], fates: &BTreeMap<String, Fate>) -> Result<u8> {
    let explained = fs::read_to_string(root.join(EXPLAINED)).unwrap_or_default();
    let (mut killed, mut unexplained) = (0, 0);
    let mut table: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
    for point in points {
        let survived = fates.get(&point.key).is_none_or(Fate::survived);
        killed += usize::from(!survived);
        for kind in [point.kind.name(), "all"] {
            let row = table.entry((point.part(), kind)).or_default();
            *row = (row.0 + usize::from(!survived), row.1 + 1);
        }
        if survived {
            let told = explained.contains(&point.key);
            unexplained += usize::from(!told);
            let mark = if told { "explained" } else { "NOT EXPLAINED" };
            println!(
                "survived ({mark}), {}:{}: {}",
                point.file, point.line, point.key
            );
        }
    }
    for ((part, kind), (killed, all)) in table {
        println!("{part:6} {kind:7} {killed:4} of {all:4} killed");
    }
    let (all, survived) = (points.len(), points.len() - killed);
    println!(
        "{killed} of {all} mutants killed ({:.1} %)",
        killed as f64 * 100.0 / all.max(1) as f64
    );
    println!("{survived} survived, {unexplained} of them without an explanation in {EXPLAINED}");
    Ok(u8::from(killed * 100 < all * 95 || unexplained > 0))
}
