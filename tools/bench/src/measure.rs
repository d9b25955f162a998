//! `make bench`: Pantala and Linux in the same machine, with the same programs, side by side.
//!
//! Guarantee: both kernels get the same QEMU command line but for `-kernel` and the kernel's own options, which are
//! printed; each figure is the median of its runs and comes with their spread; a case that failed has no figure.
//! Mechanism: a plan of boots ([`plan`]), each of which runs `vmbench` and yields [`samples`]; the samples are kept as JSON
//! lines, and told as [`findings`]. See `doc/bench.md`.

use crate::figures::Figures;
use crate::plan;
use crate::settings::{Settings, What};
use crate::{findings, jobs, lab, samples};
use anyhow::Result;
use machine::options;

/// Runs everything and writes `build/bench/`.
///
/// # Errors
/// Something cannot be built, or no boot gave any figure.
pub fn run(asked: &options::Bench) -> Result<u8> {
    if asked.kinds.iter().any(|kind| jobs::is_kind(kind)) {
        return jobs::run(asked);
    }
    let settings = Settings::of(asked, What::Kernels);
    let base = asked.base.as_deref().map(samples::read).transpose()?;
    let lab = lab::of(&asked.system, &asked.kernels, "bench")?;
    for guest in &lab.guests {
        println!("{}:\n  {}", guest.title, lab.command_line(guest));
    }
    let outcome = plan::carry_out(&lab, &settings)?;
    let figures = outcome.figures()?;
    let base = base.map(|base| Figures::of(&base));
    let findings = findings::report(&lab, &settings, &figures, &outcome, base.as_ref());
    findings.publish(&lab.dir.join("report.html"))?;
    println!("samples: {}", lab.samples().display());
    Ok(u8::from(!outcome.failures.is_empty()))
}
