//! `make commute`: which pairs of commuting operations touch a common line of the kernel, in Pantala and in Linux.
//!
//! Guarantee: both kernels run the same static program in the same machine; a case counts as free only if its operations
//! returned what they should and, in every round that no timer tick disturbed, no line was touched by both CPUs and
//! changed by one. Mechanism: the program `commute` runs the cases of the crate of that name, the plugin's mode `windows`
//! keeps the lines; [`verdict`] judges, [`culprit`] names lines, [`findings`] tells. See `doc/commute.md`.

mod culprit;
mod findings;
mod heat;
mod plan;
mod verdict;

use crate::guest::Guest;
use crate::lab;
use anyhow::{Context, Result, ensure};
use commute::cases::Choice;
use culprit::Culprit;
use machine::options;
use std::fs;
use std::io::Write;
use verdict::Judged;

/// One case in so many is run, and when quick.
const EVERY: [u16; 2] = [4, 32];

/// What a kernel's run yielded.
pub struct Outcome<'a> {
    /// The kernel.
    pub guest: &'a Guest,
    /// Each case, judged.
    pub judged: Vec<Judged>,
    /// The lines in the way, those of most cases first.
    pub culprits: Vec<Culprit>,
    /// What went wrong with the boot as a whole.
    pub failed: Vec<String>,
}

/// Runs everything and writes `build/commute/`.
///
/// # Errors
/// Something cannot be built or fetched, or the choice makes no sense.
pub fn run(asked: &options::Commute) -> Result<u8> {
    let choice = choice(asked);
    let cases = choice.cases().map_err(anyhow::Error::msg)?;
    ensure!(!cases.is_empty(), "no case is chosen");
    let mut lab = lab::of(&asked.system, &asked.kernels, "commute")?;
    for guest in &mut lab.guests {
        if guest.system == "linux" {
            // The program starts the second CPU: see there.
            guest.options += " maxcpus=1";
        }
    }
    let guests: Vec<&Guest> = lab.guests.iter().collect();
    println!("{} cases on each kernel", cases.len());
    let outcomes = if asked.again {
        let guests = guests.iter().copied();
        guests
            .map(|guest| plan::again(&lab, guest, &cases))
            .collect::<Result<Vec<_>>>()?
    } else {
        plan::carry_out(&lab, &guests, &choice, &cases)?
    };
    findings::report(&lab, &outcomes).publish(&lab.dir.join("report.html"))?;
    let raw = lab.dir.join("results.jsonl");
    write(&raw, &outcomes).with_context(|| format!("cannot write {}", raw.display()))?;
    println!("results: {}", raw.display());
    let right = |outcome: &Outcome| {
        outcome.failed.is_empty() && !outcome.judged.iter().any(Judged::is_wrong)
    };
    Ok(u8::from(!outcomes.iter().all(right)))
}

/// What ONLY, EVERY and QUICK choose.
fn choice(asked: &options::Commute) -> Choice {
    let every = match asked.every {
        Some(every) => every,
        None if asked.only.is_empty() || asked.quick => EVERY[usize::from(asked.quick)],
        None => 1,
    };
    Choice {
        only: asked.only.to_vec(),
        every,
    }
}

/// Every case with its verdict and the lines in its way, one a line.
fn write(file: &std::path::Path, outcomes: &[Outcome]) -> Result<()> {
    let mut out = std::io::BufWriter::new(fs::File::create(file)?);
    for outcome in outcomes {
        for judged in &outcome.judged {
            let lines: Vec<_> = judged
                .lines
                .iter()
                .map(|line| culprit::describe(&outcome.guest.symbols, line))
                .collect();
            let record = serde_json::json!({
                "system": outcome.guest.system,
                "case": judged.case.name(),
                "verdict": judged.verdict.name(),
                "lines": lines,
            });
            writeln!(out, "{record}")?;
        }
    }
    Ok(out.flush()?)
}
