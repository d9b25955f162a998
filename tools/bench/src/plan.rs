//! The boots of a run, one after the other, with a bar that tells the time left.

use crate::figures::Figures;
use crate::guest::{Guest, Kind, Lab, Trial};
use crate::hubs;
use crate::names::Line;
use crate::pace::{self, Pace};
use crate::resume::Done;
use crate::samples::{self, Sample};
use crate::settings::Settings;
use anyhow::Result;
use coherence::record::{Record, Spot};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use machine::{locked, progress};
use std::fmt::Write;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Lines moved are counted on this many CPUs.
pub const TRANSFER_CPUS: u32 = 4;

/// What all boots yielded.
#[derive(Default)]
pub struct Outcome {
    /// Every value.
    pub samples: Vec<Sample>,
    /// What went wrong, with the kernel it went wrong with.
    pub failures: Vec<String>,
    /// Where lines moved.
    pub hot: Vec<Hot>,
}

/// The instructions that moved most lines in a case of one kernel.
pub struct Hot {
    /// The kernel's key.
    pub system: &'static str,
    /// Case and phase.
    pub case: String,
    /// Operations that were counted.
    pub ops: f64,
    /// Functions, with moves and false ones of them.
    pub functions: Vec<(String, u64, u64)>,
}

struct Step<'a> {
    guest: &'a Guest,
    kind: Kind,
    cpus: u32,
    run: u32,
}

impl Step<'_> {
    /// What it is called where it is noted.
    fn name(&self) -> String {
        samples::boot_name(self.guest.system, self.kind, self.cpus, self.run)
    }

    /// What people call it.
    fn what(&self) -> String {
        let (kernel, kind) = (self.guest.system, self.kind.name());
        format!("{kernel} {kind} on {} CPU(s)", self.cpus)
    }
}

/// Every boot: the runs of one kind are spread over the whole time, so that a slow minute hits all alike.
fn steps<'a>(lab: &'a Lab, settings: &Settings) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
    for run in 0..settings.runs {
        for guest in &lab.guests {
            steps.push(Step {
                guest,
                kind: Kind::Count,
                cpus: 1,
                run,
            });
            let of = |kind, cpus: &'static [u32]| {
                cpus.iter().map(move |&cpus| Step {
                    guest,
                    kind,
                    cpus,
                    run,
                })
            };
            // Linux has no entries that could run out, and no hubs.
            if guest.system != "linux" && !settings.scarce().is_empty() {
                steps.extend(of(Kind::Scarce, &[1]));
            }
            if guest.system != "linux" && !settings.hubs().is_empty() {
                steps.extend(of(Kind::Hubs, &[1]));
            }
            if lab.builds.is_some() {
                steps.extend(of(Kind::Build, &[1]));
            }
            steps.extend(of(Kind::Transfers, settings.transfer_cpus()));
            steps.extend(of(Kind::Rate, settings.cpus()));
        }
    }
    for guest in &lab.guests {
        let scales = settings.scales().iter();
        steps.extend(scales.map(|&processes| Step {
            guest,
            kind: Kind::Scale(processes),
            cpus: 1,
            run: 0,
        }));
    }
    let wanted = |step: &Step| {
        let name = step.kind.name();
        let kinds = &settings.kinds;
        let asked = kinds.is_empty() || kinds.iter().any(|kind| name.starts_with(&kind[..]));
        asked && (step.kind == Kind::Build || !settings.only_builds())
    };
    steps.retain(wanted);
    steps
}

/// Boots everything that `settings` ask for. A boot that fails is made once more, and costs its own figures only.
///
/// # Errors
/// The samples cannot be written. A boot's own errors are among the failures.
pub fn carry_out(lab: &Lab, settings: &Settings) -> Result<Outcome> {
    let (mut done, samples) = Done::begin(lab, settings)?;
    let mut outcome = Outcome {
        samples,
        failures: lab.missing.clone(),
        ..Outcome::default()
    };
    let mut steps = steps(lab, settings);
    for step in steps.extract_if(.., |step| done.has(&step.name())) {
        if let Some((lines, records)) = lab.left_behind(step.guest, step.cpus, step.kind) {
            outcome.heat(&step, &lines, &records);
        }
    }
    let limit = Duration::from_secs(settings.limit());
    let weight =
        |step: &Step| pace::weight(step.guest.system, step.kind, step.cpus, settings.quick);
    let pace = Arc::new(Mutex::new(Pace::new(steps.iter().map(weight).collect())));
    let bar = bar(steps.len() as u64, Arc::clone(&pace));
    for (number, step) in steps.iter().enumerate() {
        bar.set_message(step.what());
        let cmd = settings.command(step.kind);
        if outcome.carry_out(lab, step, &cmd, limit) {
            done.add(step.name())?;
        }
        // What there is by now is not lost if somebody ends the run.
        samples::write(&lab.samples(), &outcome.samples)?;
        let mut pace = locked(&pace);
        pace.step();
        bar.inc(1);
        if bar.is_hidden() {
            eprintln!(
                "[{}/{}] {}: {} gone, about {} left",
                number + 1,
                steps.len(),
                step.what(),
                pace::people(pace.gone()),
                pace::people(pace.left())
            );
        }
    }
    bar.finish_and_clear();
    Ok(outcome)
}

impl Outcome {
    /// The samples brought together.
    ///
    /// # Errors
    /// There is none; the message says what went wrong.
    pub fn figures(&self) -> Result<Figures> {
        let figures = Figures::of(&self.samples);
        anyhow::ensure!(
            !figures.is_empty(),
            "no run gave a figure:\n{}",
            self.failures.join("\n")
        );
        Ok(figures)
    }

    /// Makes one boot, and once more if it failed before its time was over; returns whether one ended well. The second one's
    /// figures count; a failure is told in any case, and its console kept.
    fn carry_out(&mut self, lab: &Lab, step: &Step, cmd: &str, limit: Duration) -> bool {
        let &Step {
            guest,
            kind,
            cpus,
            run,
        } = step;
        let trial = Trial {
            cmd,
            cpus,
            kind,
            run,
        };
        for again in [false, true] {
            let boot = match lab.boot(guest, &trial, limit) {
                Ok(boot) => boot,
                Err(error) => {
                    self.failures.push(format!("{}: {error:#}", step.what()));
                    continue;
                }
            };
            let which = if again { ", the second time" } else { "" };
            let failed = boot.failed.iter();
            let failed = failed.map(|line| format!("{}{which}: {line}", step.what()));
            self.failures.extend(failed);
            if !boot.failed.is_empty() && !boot.timed_out && !again {
                let log = lab.log(guest, cpus, kind);
                let _ = fs::rename(&log, log.with_extension("failed.log"));
                continue;
            }
            let samples = samples::of(&boot, guest.system, kind, cpus, run);
            self.samples.extend(samples);
            if kind == Kind::Hubs {
                match hubs::samples(guest, &boot, run) {
                    Ok(samples) => self.samples.extend(samples),
                    Err(error) => self.failures.push(format!("{}: {error:#}", step.what())),
                }
            }
            self.heat(step, &boot.lines, &boot.records);
            return boot.failed.is_empty();
        }
        false
    }

    /// Keeps where lines moved in a first run.
    fn heat(&mut self, step: &Step, lines: &[Line], records: &[Record]) {
        if step.kind == Kind::Transfers && step.cpus == TRANSFER_CPUS && step.run == 0 {
            self.hot.extend(hot(step.guest, lines, records));
        }
    }
}

fn bar(len: u64, pace: Arc<Mutex<Pace>>) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len}  {gone} gone, about {left} left  {msg}")
            .expect("a constant template");
    let other = Arc::clone(&pace);
    let show = move |pace: &Mutex<Pace>, out: &mut dyn Write, which: fn(&Pace) -> Duration| {
        let time = which(&locked(pace));
        let _ = out.write_str(&pace::people(time));
    };
    let style = style
        .with_key("gone", move |_: &ProgressState, out: &mut dyn Write| {
            show(&pace, out, Pace::gone)
        })
        .with_key("left", move |_: &ProgressState, out: &mut dyn Write| {
            show(&other, out, Pace::left)
        });
    progress::bar(len, style)
}

fn hot(guest: &Guest, lines: &[Line], records: &[Record]) -> Vec<Hot> {
    let of = |line: &Line| {
        let spots = records.iter().find_map(|record| match record {
            Record::Phase {
                case,
                phase,
                instructions,
                ..
            } if line.key == Some((*case, *phase)) => Some(instructions),
            _ => None,
        })?;
        let functions = by_function(guest, spots);
        Some(Hot {
            system: guest.system,
            case: line.name.clone(),
            ops: line.ops,
            functions,
        })
    };
    lines
        .iter()
        .filter_map(of)
        .filter(|hot| !hot.functions.is_empty())
        .collect()
}

fn by_function(guest: &Guest, spots: &[Spot]) -> Vec<(String, u64, u64)> {
    let mut functions: Vec<(String, u64, u64)> = Vec::new();
    for spot in spots
        .iter()
        .filter(|spot| spot.addr >= coherence::insn::KERNEL)
    {
        let name = guest.symbols.name(spot.addr);
        match functions.iter_mut().find(|(known, _, _)| *known == name) {
            Some((_, moves, falsely)) => {
                (*moves, *falsely) = (*moves + spot.moves, *falsely + spot.false_sharing)
            }
            None => functions.push((name, spot.moves, spot.false_sharing)),
        }
    }
    functions.sort_by_key(|(_, moves, _)| std::cmp::Reverse(*moves));
    functions
}
