//! `make accept`: the programs of the jobs that Pantala is for, on Pantala and on Linux, in the same machine and image.
//!
//! Guarantee: each program is run once on each kernel that is asked for, and its own results are checked; a result that was
//! right is kept until kernel, image, machine or test change, so a run that was cut off goes on where it was. The last results go to
//! `doc/accept.md`, each with the commit that it is of. The status is 0 only if all that are right on Linux are right
//! on Pantala.
//!
//! A program is a boot test of `tests/accept`: see `doc/testing.md`.

mod kept;
mod table;

use crate::test::guest::{Ended, Guest};
use crate::test::spec::{self, Spec};
use anyhow::{Context, Result};
use kept::{Kept, Outcome, Verdict};
use machine::linux::{self, Found};
use machine::options::{Accept, Image, Machine, Profile, Words};
use machine::progress::{Step, step};
use machine::{build, image, qemu, tools};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel that programs run on.
struct System {
    /// The key in results.
    name: &'static str,
    title: String,
    kernel: PathBuf,
    options: String,
    /// It accounts for its memory at the end.
    own: bool,
}

/// What all boots share.
struct Lab {
    dir: PathBuf,
    cpu: String,
    commit: String,
    systems: Vec<System>,
}

/// Runs the programs that are chosen, or all.
///
/// # Errors
/// No program has that name, or something cannot be built or fetched.
pub fn run(asked: &Accept) -> Result<u8> {
    tools::need(&[("qemu-system-x86_64", "qemu-system-x86")])?;
    let folder = tools::root().join("tests/accept");
    let all = spec::chosen(&folder, &[])?;
    let chosen = spec::chosen(&folder, &asked.names)?;
    let lab = lab(asked)?;
    let mut kept = Kept::read(&lab.dir.join("results"))?;
    let step = step(format!("{} programs", chosen.len()));
    for spec in &chosen {
        step.say(&spec.name);
        for outcome in outcomes(&lab, spec, &kept, &step)? {
            kept.add(outcome)?;
        }
    }
    drop(step);
    let table = table::of(&all, &kept, &titles(&lab));
    println!("{}", table.text());
    let page = tools::root().join("doc/accept.md");
    fs::write(&page, table.page()).context("cannot write doc/accept.md")?;
    Ok(u8::from(table.is_worse(&chosen)))
}

fn titles(lab: &Lab) -> Vec<(&'static str, String)> {
    let title = |system: &System| (system.name, system.title.clone());
    lab.systems.iter().map(title).collect()
}

/// Builds and fetches the kernels.
fn lab(asked: &Accept) -> Result<Lab> {
    let dir = tools::build_dir()?.join("accept");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut systems = Vec::new();
    // An emulator translates code anew at each new address, so random addresses alone make a build 1.2 to 2 times slower.
    if asked.kernels.wants("pantala") {
        systems.push(System {
            name: "pantala",
            title: "Pantala".into(),
            kernel: build::kernel_for(&asked.kernel, Profile::Release)?,
            options: format!("norandmaps leakcheck {}", asked.kernel.append),
            own: true,
        });
    }
    if asked.kernels.wants("linux") {
        let Found { title, file, .. } = linux::kernel(&asked.kernels.linux)?;
        systems.push(System {
            name: "linux",
            title,
            kernel: file,
            options: format!("norandmaps {}", linux::OPTIONS),
            own: false,
        });
    }
    Ok(Lab {
        dir,
        cpu: linux::processor(&asked.kernels.linux, qemu::version()?),
        commit: commit()?,
        systems,
    })
}

/// The tree's commit, with a mark if the tree differs from it.
fn commit() -> Result<String> {
    let mut git = Command::new("git");
    let asked = [
        "describe",
        "--always",
        "--dirty",
        "--abbrev=8",
        "--exclude=*",
    ];
    let told = tools::output(git.current_dir(tools::root()).args(asked), "git describe")?;
    Ok(told.trim().to_owned())
}

/// Results of a program on each kernel that lacks one.
fn outcomes(lab: &Lab, spec: &Spec, kept: &Kept, step: &Step) -> Result<Vec<Outcome>> {
    let asked = Image {
        packages: Words(spec.packages.clone()),
        ..Image::default()
    };
    let image = image::make_as(&asked, "accept-image")?;
    let machine = Machine {
        cpu: lab.cpu.clone(),
        ..spec.on[0].machine(None)?
    };
    let mut outcomes = Vec::new();
    for system in &lab.systems {
        let key = key(system, &image, &machine, spec)?;
        if kept.is_right(&spec.name, system.name, key) {
            step.line(&format!("kept  {} on {}", spec.name, system.title));
            continue;
        }
        let log = lab.dir.join(format!("{}-{}.log", spec.name, system.name));
        let guest = Guest {
            machine: machine.clone(),
            kernel: &system.kernel,
            image: &image,
            options: system.options.clone(),
            log: &log,
        };
        let verdict = match guest.run(spec)? {
            Some(ended) => judge(spec, &ended, system.own),
            None => Verdict::Wrong(format!("not over after {} s", spec.timeout)),
        };
        step.line(&line(spec, system, &verdict, &log));
        outcomes.push(Outcome {
            program: spec.name.clone(),
            system: system.name.to_owned(),
            key,
            verdict,
            commit: lab.commit.clone(),
        });
    }
    Ok(outcomes)
}

fn judge(spec: &Spec, ended: &Ended, own: bool) -> Verdict {
    let Ended { console, status } = ended;
    // Linux panics when init has ended.
    let (console, status) = match qemu::printed_status(console) {
        Some((end, status)) if !own => (&console[..end], Some(status)),
        _ => (&console[..], *status),
    };
    match spec.judge(console, status, own) {
        Ok(()) => Verdict::Right(seconds(&ended.console)),
        Err(why) => Verdict::Wrong(why),
    }
}

/// What a program says it took, in lines like `redis: right (3.2 s)`; several are added up.
fn seconds(console: &str) -> f64 {
    let took = |line: &str| {
        let (_, rest) = line.split_once(": right (")?;
        rest.split_once(" s)")?.0.parse::<f64>().ok()
    };
    console
        .lines()
        .filter_map(took)
        .fold(0.0, |all, one| all + one)
}

fn line(spec: &Spec, system: &System, verdict: &Verdict, log: &Path) -> String {
    match verdict {
        Verdict::Right(seconds) => {
            format!("ok    {} on {} ({seconds:.1} s)", spec.name, system.title)
        }
        Verdict::Wrong(why) => format!(
            "FAIL  {} on {}: {why}\n  makes sure that: {}\n  console: {}",
            spec.name,
            system.title,
            spec.makes_sure,
            log.display()
        ),
    }
}

/// A number that tells a result's kernel, image, machine and test from any others.
fn key(system: &System, image: &Path, machine: &Machine, spec: &Spec) -> Result<u64> {
    let mut hash = DefaultHasher::new();
    fs::read(&system.kernel)?.hash(&mut hash);
    fs::read(image)?.hash(&mut hash);
    (&system.options, &spec.run, spec.timeout).hash(&mut hash);
    format!("{machine:?}").hash(&mut hash);
    qemu::version()?.hash(&mut hash);
    Ok(hash.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_how_long_it_took() {
        let console = "boot\nredis: right (3.2 s)\r\nhackbench: right (1.5 s)\nnginx: WRONG\n";
        assert!((seconds(console) - 4.7).abs() < 1e-9);
        assert_eq!(seconds("redis: right\n"), 0.0);
    }
}
