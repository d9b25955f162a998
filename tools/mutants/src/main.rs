//! Mutation tests of `ksync`, `vm` and the kernel's crates: is each lock, flush, fence, ordering and check missed by some test?
//!
//! All mutants are built at once, into a copy of the tree in `build/mutants`; a number in the environment says which
//! one a process is. Each test runs once without a mutant, which says which points make a difference to it and how long it
//! takes; a mutant then meets those tests, each in a process of its own: first the one that killed it last time, then
//! those that killed others of its function, then those of its crate, by the words that they share with its place, then the rest,
//! the quickest first, until one fails or does not end.
//!
//! Results are kept in `build/mutants/results`. One holds as long as the programs it comes from do: an interrupted run
//! goes on where it was, and after a change of a test file only what that file decides is tried again.
//! `ksync` and `vm` are one part, the kernel's crates another: a mutant meets the tests of its part.
//! `ONLY=text` limits the run to points whose name contains the text, `TESTS=text` to test programs whose name does (its results
//! are kept apart, in `build/mutants/some`), `JOBS=n` sets how many run at once, `LIST=1` prints the names of the points alone.
//! `RMAP=pv-obm` is a run on that reverse map, of its own files, which meet the tests and models of `vm-host`; its results are in
//! `build/mutants/pv-obm`.

mod findings;
mod points;
mod programs;
mod rules;
mod tree;
mod trial;
mod walk;
mod work;

use anyhow::Result;
use machine::options::{self, Job};
use machine::{locked, tools};
use points::{Part, Point};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;
use trial::{Program, Trial};

/// Processor time for which tests of the kernel's crates meet a mutant without noticing it: plain ones, and as long again models.
/// Most of these tests boot a machine with all its parts, so hundreds of them reach a point that few of them are about. A mutant
/// that no test has noticed by then has survived.
const ENOUGH: Duration = Duration::from_secs(15);
/// What stands in place of a test that killed.
const SURVIVED: &str = "survived";

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fate {
    /// The test that noticed it, or [`SURVIVED`].
    by: String,
    /// Hashes of the programs that decided it: that of the test, or all that it survived.
    hashes: BTreeSet<u64>,
}

impl Fate {
    fn survived(&self) -> bool {
        self.by == SURVIVED
    }

    /// `hashes by key`, with tabs.
    fn parse(line: &str) -> Option<(String, Self)> {
        let mut fields = line.splitn(3, '\t');
        let hashes = fields.next()?.split(',');
        let hashes = hashes.map(|hash| u64::from_str_radix(hash, 16).ok());
        let hashes = hashes.collect::<Option<_>>()?;
        let by = fields.next()?.into();
        Some((fields.next()?.into(), Self { by, hashes }))
    }

    fn line(&self, key: &str) -> String {
        let hashes: Vec<_> = self.hashes.iter().map(|hash| format!("{hash:x}")).collect();
        format!("{}\t{}\t{key}\n", hashes.join(","), self.by)
    }
}

/// Tests that killed a mutant of a function.
type Killers = Mutex<BTreeMap<String, BTreeSet<String>>>;

fn main() -> ExitCode {
    machine::main("mutants", |job| match job {
        Job::Mutants(asked) => run(asked),
        _ => anyhow::bail!("this is not a job of tools/mutants: cargo xtask does it"),
    })
}

/// Runs them; prints the survivors and how many were killed.
///
/// # Errors
/// The tree cannot be copied or built, or a test fails without a mutant.
fn run(asked: &options::Mutants) -> Result<u8> {
    let root = tools::root();
    let rmap = asked.design.rmap;
    let dir = tools::build_dir()?.join("mutants");
    let dir = rmap.feature().map_or(dir.clone(), |map| dir.join(map));
    let mut points = tree::copy(&root, &dir.join("tree"))?;
    points.retain(|p| p.is_built_with(rmap));
    if asked.list {
        points.iter().for_each(|p| println!("{}", p.key));
        return Ok(0);
    }
    let chosen: Vec<&Point> = points
        .iter()
        .filter(|p| p.key.contains(&asked.only))
        .collect();
    let concerned = |part: &Part| chosen.iter().any(|point| point.part() == *part);
    let parts: Vec<Part> = Part::ALL.into_iter().filter(concerned).collect();
    let mut programs = programs::build(&dir, &parts, rmap)?;
    programs.retain(|program| program.name.contains(&asked.tests));
    let kept = match &*asked.tests {
        "" => dir,
        _ => dir.join("some"),
    };
    fs::create_dir_all(&kept)?;
    let jobs = work::jobs(asked);
    let mut trials = Vec::new();
    for part in parts {
        trials.extend(programs::measure(&kept, part, &programs, jobs)?);
    }
    let fates = test(&kept, &programs, &trials, &chosen, jobs)?;
    let (report, status) = findings::of(&root, &chosen, &fates);
    report.publish(&kept.join("report.html"))?;
    Ok(status)
}

/// Lets the mutants meet the tests.
fn test(
    dir: &Path,
    programs: &[Program],
    trials: &[Trial],
    points: &[&Point],
    jobs: usize,
) -> Result<BTreeMap<String, Fate>> {
    let path = dir.join("results");
    let known = fs::read_to_string(&path).unwrap_or_default();
    let mut fates: BTreeMap<String, Fate> = known.lines().filter_map(Fate::parse).collect();
    let holds = |point: &Point| {
        let fate = fates.get(&point.key)?;
        let decided = |program: &Program| fate.hashes.contains(&program.hash);
        let holds = if fate.survived() {
            of_part(programs, point).all(decided)
        } else {
            let killer = trials.iter().find(|trial| trial.name() == fate.by)?;
            decided(&killer.program)
        };
        holds.then_some(())
    };
    let open: Vec<&Point> = points
        .iter()
        .copied()
        .filter(|point| holds(point).is_none())
        .collect();
    let killers = Killers::default();
    for point in points {
        if let Some(fate) = fates.get(&point.key).filter(|fate| !fate.survived()) {
            learn(&killers, point, &fate.by);
        }
    }
    let file = Mutex::new(OpenOptions::new().append(true).create(true).open(&path)?);
    let new = work::all("mutants", jobs, &open, |_, point| {
        let fate = fate(programs, trials, point, fates.get(&point.key), &killers)?;
        locked(&file).write_all(fate.line(&point.key).as_bytes())?;
        Ok((point.key.clone(), fate))
    })?;
    fates.extend(new);
    let line = |(key, fate): (&String, &Fate)| fate.line(key);
    fs::write(&path, fates.iter().map(line).collect::<String>())?;
    Ok(fates)
}

fn learn(killers: &Killers, point: &Point, by: &str) {
    let mut all = locked(killers);
    all.entry(point.place().into())
        .or_default()
        .insert(by.into());
}

/// What becomes of a mutant, of which `before` is known: tests that it survived are left out.
fn fate(
    programs: &[Program],
    trials: &[Trial],
    point: &Point,
    before: Option<&Fate>,
    killers: &Killers,
) -> Result<Fate> {
    let likely = locked(killers).get(point.place()).cloned();
    let likely = likely.unwrap_or_default();
    let survived = |trial: &Trial| {
        before.is_some_and(|fate| fate.survived() && fate.hashes.contains(&trial.program.hash))
    };
    let mut open: Vec<&Trial> = trials
        .iter()
        .filter(|trial| trial.concerns(point) && !survived(trial))
        .collect();
    // Stable: the quickest first among equals.
    open.sort_by_cached_key(|trial| {
        let name = trial.name();
        let killed = before.is_some_and(|fate| fate.by == name);
        let akin = Reverse(point.kinship(&name));
        (!killed, !likely.contains(&name), akin)
    });
    let mut spent = [Duration::ZERO; 2];
    for trial in open {
        let spent = &mut spent[usize::from(trial.program.schedules)];
        if point.part() == Part::Kernel && *spent >= ENOUGH {
            continue;
        }
        let (notices, time) = trial.notices(point)?;
        *spent += time;
        if notices {
            learn(killers, point, &trial.name());
            return Ok(Fate {
                by: trial.name(),
                hashes: [trial.program.hash].into(),
            });
        }
    }
    Ok(Fate {
        by: SURVIVED.into(),
        hashes: of_part(programs, point)
            .map(|program| program.hash)
            .collect(),
    })
}

/// The programs whose tests may meet a point.
fn of_part<'a>(programs: &'a [Program], point: &Point) -> impl Iterator<Item = &'a Program> {
    let part = point.part();
    programs.iter().filter(move |program| program.part == part)
}
