//! `make bench KINDS=jobs`: what whole jobs of programs cost on Pantala and on Linux.
//!
//! Guarantee: as for `make bench` ([`measure`](crate::measure)); each job checks its own results, and one that fails has no figure. Both
//! kernels place programs at the same addresses in each run (`norandmaps`): an emulator translates code anew at each new address,
//! which alone makes a build up to twice as slow.
//! Mechanism: a job is a case of `vmbench`, which runs alone, in an image with its own packages; `user/share/jobs` has what it does.

use crate::figures::Figures;
use crate::guest::Lab;
use crate::plan::{self, Outcome};
use crate::samples::{self, JOB};
use crate::settings::{Settings, What};
use crate::{findings, lab, lua, sections, svg};
use anyhow::{Context, Result};
use machine::options::{self, Image};
use machine::{apt, image};
use report::{Medium, Report, Text};
use std::fs;
use std::path::{Path, PathBuf};

/// How `KINDS` names these boots: alone, or before the name of a kind.
const KIND: &str = "jobs";

/// Memory of the machines, in MiB: a compiler's image has room, which is unpacked, and what comes to be in files.
const MEMORY: u64 = 3072;

struct Of {
    /// Its case, less [`JOB`].
    name: &'static str,
    /// What its image needs.
    packages: &'static [&'static str],
    /// Makes what is to be in `/src`, with the help of a directory for what is fetched.
    source: Option<fn(&Path) -> Result<PathBuf>>,
}

const fn of(name: &'static str, packages: &'static [&'static str]) -> Of {
    Of {
        name,
        packages,
        source: None,
    }
}

const POSTGRES: &[&str] = &["postgresql-15", "util-linux"];

const JOBS: [Of; 11] = [
    Of {
        source: Some(lua::laid_out),
        ..of("lua", &lua::PACKAGES)
    },
    Of {
        source: Some(zlib),
        ..of("configure", &["gcc", "make", "libc6-dev", "binutils"])
    },
    of("cargo", &["cargo", "gcc", "libc6-dev"]),
    of("hackbench", &["rt-tests"]),
    of("redis", &["redis-server", "redis-tools"]),
    of("nginx", &["nginx-light", "curl"]),
    of("selects", POSTGRES),
    of("tpcb", POSTGRES),
    of("sqlite", &["sqlite3"]),
    of("git", &["git"]),
    of("python", &["python3"]),
];

/// Whether a word of `KINDS` means these boots.
pub fn is_kind(word: &str) -> bool {
    word == KIND || word.starts_with("jobs-")
}

/// Runs the jobs that are asked for, all if none is named, and writes `build/bench/jobs/`.
///
/// # Errors
/// Something cannot be built or fetched, or no job gave a figure.
pub fn run(asked: &options::Bench) -> Result<u8> {
    anyhow::ensure!(
        asked.kinds.iter().all(|kind| is_kind(kind)),
        "KINDS: jobs are measured alone, without other kinds"
    );
    let mut lab = lab::of(&asked.system, &asked.kernels, "bench")?;
    for guest in &mut lab.guests {
        guest.options += " norandmaps";
    }
    lab.memory = MEMORY;
    let dir = lab.dir.join(KIND);
    let mut all = Outcome::default();
    let mut last = None;
    for job in JOBS.iter().filter(|job| is_asked(job.name, &asked.only)) {
        let settings = settings(asked, job, &dir.join(job.name));
        prepare(&mut lab, asked, job, &dir)?;
        println!("job {}:", job.name);
        let mut outcome = plan::carry_out(&lab, &settings)?;
        outcome
            .samples
            .retain(|sample| sample.case.starts_with(JOB));
        let failed = outcome.failures.drain(..);
        all.failures
            .extend(failed.map(|line| format!("{}: {line}", job.name)));
        all.samples.append(&mut outcome.samples);
        all.hot.append(&mut outcome.hot);
        last = Some(settings);
    }
    let settings = last.context("ONLY: there is no such job")?;
    let figures = all.figures()?;
    samples::write(&dir.join("samples.jsonl"), &all.samples)?;
    tell(&lab, &settings, &figures, &all).publish(&dir.join("report.html"))?;
    Ok(u8::from(!all.failures.is_empty()))
}

fn is_asked(name: &str, only: &[String]) -> bool {
    let fits = |prefix: &String| name.starts_with(prefix.strip_prefix(JOB).unwrap_or(prefix));
    only.is_empty() || only.iter().any(fits)
}

fn settings(asked: &options::Bench, job: &Of, dir: &Path) -> Settings {
    let kinds = asked.kinds.iter();
    Settings {
        only: vec![format!("{JOB}{}", job.name)],
        kinds: kinds
            .filter_map(|kind| Some(kind.strip_prefix("jobs-")?.to_owned()))
            .collect(),
        // A job that the last run did not come to is begun.
        resume: asked.resume && dir.join("boots.done").is_file(),
        ..Settings::of(asked, What::Jobs)
    }
}

/// Makes the job's image, and a place for what its boots leave.
fn prepare(lab: &mut Lab, asked: &options::Bench, job: &Of, dir: &Path) -> Result<()> {
    let mut image = Image {
        gzip: false,
        ..asked.system.image.clone()
    };
    image
        .packages
        .0
        .extend(job.packages.iter().map(|&name| name.to_owned()));
    if let Some(source) = job.source {
        image.files = Some(source(dir)?);
    }
    lab.initrd = image::make_as(&image, "initramfs-job")?;
    lab.dir = dir.join(job.name);
    fs::create_dir_all(&lab.dir).with_context(|| format!("cannot make {}", lab.dir.display()))
}

/// A directory with zlib's files in `src`.
fn zlib(dir: &Path) -> Result<PathBuf> {
    let root = dir.join("zlib");
    let to = root.join("src");
    if !to.is_dir() {
        let source = apt::source("zlib", &dir.join("source"))?;
        fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
        fs::rename(source, &to).context("cannot lay out zlib's source")?;
    }
    Ok(root)
}

fn tell(lab: &Lab, settings: &Settings, figures: &Figures, outcome: &Outcome) -> Report {
    let mut report = Report::new("Whole jobs on Pantala and Linux", svg::STYLE);
    let text = format!(
        "Same machine (QEMU, emulated), same image, same work, whose results are checked; {} run(s), medians. Programs lie at the same \
         addresses in each run of either kernel. Seconds are those of an emulator on this host.",
        settings.runs
    );
    report.add(Medium::Page, Text::from(text));
    report.add(Medium::Page, svg::key(svg::SYSTEMS, &["Pantala", "Linux"]));
    findings::failures(&mut report, Medium::Page, outcome);
    for section in sections::jobs(figures) {
        findings::part(&mut report, figures, &section);
    }
    findings::repeatability(&mut report, figures);
    findings::failures(&mut report, Medium::Terminal, outcome);
    findings::functions(&mut report, &outcome.hot);
    findings::machines(&mut report, lab, settings);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_chosen_with_and_without_the_word() {
        let only = |words: &[&str]| Vec::from_iter(words.iter().map(|&word| word.to_owned()));
        assert!(is_asked("lua", &only(&[])) && is_asked("lua", &only(&["job-l"])));
        assert!(is_asked("selects", &only(&["tpcb", "sel"])) && !is_asked("git", &only(&["g1"])));
        assert!(is_kind("jobs") && is_kind("jobs-rate") && !is_kind("rate"));
    }
}
