//! The tests that mutants meet: built once with all mutants inside, and measured without one.

use crate::points::Part;
use crate::trial::{Program, Trial, list};
use crate::work;
use anyhow::Result;
use machine::options::Rmap;
use machine::progress::step;
use machine::{build, models, toolchain};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The packages that are built together, and whose mutants their tests meet.
const GROUPS: [(Part, &[&str]); 4] = [
    (Part::Vm, &["ksync", "vm", "vm-host"]),
    (Part::Kernel, &["task"]),
    (Part::Kernel, &["vfs"]),
    (Part::Kernel, &["proc"]),
];

/// Builds those of `parts`.
///
/// # Errors
/// A build fails.
pub fn build(dir: &Path, parts: &[Part], rmap: Rmap) -> Result<Vec<Program>> {
    let step = step("building all mutants at once");
    let mut programs = Vec::new();
    for (part, packages) in GROUPS {
        if !parts.contains(&part) {
            continue;
        }
        let (packages, checkers) = match rmap.feature() {
            None => (packages, &["host", "loom", "shuttle"][..]),
            Some(_) => (&["vm-host"][..], &["host", "loom", "shuttle"][..]),
        };
        for checker in checkers {
            step.say(&format!("{} ({checker})", packages.join(", ")));
            for path in executables(dir, packages, checker, rmap)? {
                let room = match part {
                    Part::Vm => "",
                    Part::Kernel => packages[0],
                };
                programs.push(program(path, part, room, checker)?);
            }
        }
    }
    Ok(programs)
}

/// The test programs of these packages, under a model checker or without one (`host`).
fn executables(dir: &Path, packages: &[&str], checker: &str, rmap: Rmap) -> Result<Vec<PathBuf>> {
    let tree = dir.join("tree");
    let mut command = toolchain::cargo();
    command.current_dir(&tree).arg("test");
    if checker == "host" {
        for package in packages {
            command.args(["--package", package]);
        }
    } else {
        let mut models = models::files(&tree, &["crates", "kernel"], checker)?;
        models.retain(|(package, _)| packages.contains(&&**package));
        if models.is_empty() {
            return Ok(Vec::new());
        }
        command.arg("--release");
        for (package, test) in models {
            command.args(["--package", &package, "--test", &test]);
        }
        models::build_for(&mut command, checker);
    }
    if let Some(feature) = rmap.feature() {
        command.args(["--features", feature]);
    }
    command
        .arg("--no-run")
        .env("CARGO_TARGET_DIR", dir.join(checker))
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    build::executables(&mut command, "the mutants' build")
}

/// A test program of a package, or of several if `room` is empty.
fn program(path: PathBuf, part: Part, room: &str, checker: &str) -> Result<Program> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&fs::read(&path)?);
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = stem.rsplit_once('-').map_or(&*stem, |(name, _)| name);
    let name = match room {
        "" => name.into(),
        _ => format!("{room}/{name}"),
    };
    Ok(Program {
        name,
        part,
        hash: hasher.finish(),
        path,
        model: checker == "loom",
        schedules: checker != "host",
    })
}

/// Runs each test of a part without a mutant, unless its program is as it was when it last ran. Quickest first.
///
/// # Errors
/// A test fails.
pub fn measure(dir: &Path, part: Part, programs: &[Program], jobs: usize) -> Result<Vec<Trial>> {
    let file = dir.join(part.reach());
    let programs: Vec<&Program> = programs.iter().filter(|p| p.part == part).collect();
    let known = fs::read_to_string(&file).unwrap_or_default();
    let mut known: BTreeMap<(u64, String), Trial> = known
        .lines()
        .filter_map(|line| parse(line, &programs))
        .map(|trial| ((trial.program.hash, trial.test.clone()), trial))
        .collect();
    let mut open = Vec::new();
    for program in programs.iter().copied() {
        for test in list(program)? {
            if !known.contains_key(&(program.hash, test.clone())) {
                open.push((program, test));
            }
        }
    }
    let new = work::all(
        "tests without a mutant",
        jobs,
        &open,
        |worker, (program, test)| {
            Trial::measure(program, test, &dir.join(format!("cover{worker}")))
        },
    )?;
    known.extend(
        new.into_iter()
            .map(|trial| ((trial.program.hash, trial.test.clone()), trial)),
    );
    let mut trials: Vec<Trial> = known.into_values().collect();
    fs::write(&file, trials.iter().fold(String::new(), line))?;
    trials.sort_by_key(|trial| (trial.time, trial.name()));
    Ok(trials)
}

fn line(mut text: String, trial: &Trial) -> String {
    let ids: Vec<_> = trial.reaches.iter().map(ToString::to_string).collect();
    let _infallible = writeln!(
        text,
        "{:x}\t{}\t{}\t{}\t{}",
        trial.program.hash,
        trial.test,
        trial.time.as_millis(),
        trial.panics,
        ids.join(",")
    );
    text
}

fn parse(line: &str, programs: &[&Program]) -> Option<Trial> {
    let mut fields = line.split('\t');
    let hash = u64::from_str_radix(fields.next()?, 16).ok()?;
    Some(Trial {
        program: (*programs.iter().find(|p| p.hash == hash)?).clone(),
        test: fields.next()?.into(),
        time: Duration::from_millis(fields.next()?.parse().ok()?),
        panics: fields.next()?.parse().ok()?,
        reaches: fields
            .next()?
            .split(',')
            .filter_map(|id| id.parse().ok())
            .collect(),
    })
}
