//! The boots of a run, one after the other, with a bar that tells the time left.

use super::guest::{Guest, Kind, Lab};
use super::samples::{self, Sample};
use super::settings::Settings;
use anyhow::Result;
use coherence::record::{Record, Spot};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

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
            steps.push(Step {
                guest,
                kind: Kind::Transfers,
                cpus: TRANSFER_CPUS,
                run,
            });
            let rates = settings.cpus().iter();
            steps.extend(rates.map(|&cpus| Step {
                guest,
                kind: Kind::Rate,
                cpus,
                run,
            }));
        }
    }
    let wanted = |step: &Step| {
        let name = format!("{:?}", step.kind).to_lowercase();
        settings.kinds.is_empty()
            || settings
                .kinds
                .iter()
                .any(|kind| name.starts_with(&kind[..]))
    };
    steps.retain(wanted);
    steps
}

/// Boots everything that `settings` ask for. A boot that fails costs its own figures only.
///
/// # Errors
/// None of a boot's; those are among the failures.
pub fn carry_out(lab: &Lab, settings: &Settings) -> Result<Outcome> {
    let steps = steps(lab, settings);
    let limit = Duration::from_secs(if settings.quick { 240 } else { 900 });
    let mut outcome = Outcome::default();
    let bar = bar(steps.len() as u64);
    let began = Instant::now();
    for (done, step) in steps.iter().enumerate() {
        let what = format!(
            "{} {:?} on {} CPU(s)",
            step.guest.system, step.kind, step.cpus
        )
        .to_lowercase();
        bar.set_message(what.clone());
        let booted = lab.boot(step.guest, &settings.command(), step.cpus, step.kind, limit);
        match booted {
            Ok(boot) => {
                let more = samples::of(&boot, step.guest.system, step.kind, step.cpus, step.run);
                outcome.samples.extend(more);
                let failed = boot.failed.iter().map(|line| format!("{what}: {line}"));
                outcome.failures.extend(failed);
                if step.kind == Kind::Transfers && step.run == 0 {
                    outcome.hot.extend(hot(step.guest, &boot));
                }
            }
            Err(error) => outcome.failures.push(format!("{what}: {error:#}")),
        }
        bar.inc(1);
        if bar.is_hidden() {
            let elapsed = began.elapsed().as_secs_f64();
            let left = elapsed / (done + 1) as f64 * (steps.len() - done - 1) as f64;
            eprintln!(
                "[{}/{}] {what}: {elapsed:.0} s gone, about {left:.0} s left",
                done + 1,
                steps.len()
            );
        }
    }
    bar.finish_and_clear();
    Ok(outcome)
}

fn bar(len: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed} gone, {eta} left  {msg}")
            .expect("a constant template");
    let bar = ProgressBar::new(len).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn hot(guest: &Guest, boot: &super::guest::Boot) -> Vec<Hot> {
    let of = |line: &super::names::Line| {
        let spots = boot.records.iter().find_map(|record| match record {
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
    boot.lines
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
