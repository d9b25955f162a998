//! `make bench`: Pantala and Linux in the same machine, with the same programs, side by side.
//!
//! Guarantee: both kernels get the same QEMU command line but for `-kernel` and the kernel's own options, which are
//! printed; each figure is the median of its runs and comes with their spread; a case that failed has no figure.
//! Mechanism: a plan of boots ([`plan`]), each of which runs `vmbench` and yields samples ([`guest`], [`samples`]); the
//! samples are kept as JSON lines and shown as a table and as a page ([`table`], [`page`]). See `doc/bench.md`.

mod apt;
pub mod commute;
mod compare;
mod figures;
pub mod guest;
pub mod linux;
mod names;
mod pace;
mod page;
mod plan;
mod resume;
mod samples;
mod settings;
mod svg;
mod symbols;
mod table;
mod targets;

use crate::options::{Options, Profile};
use crate::progress::step;
use crate::{build, image, tools};
use anyhow::{Context, Result};
use figures::Figures;
use guest::{Guest, Lab};
use settings::Settings;
use std::fs;
use std::path::PathBuf;

/// Runs everything and writes `build/bench/`.
///
/// # Errors
/// Something cannot be built, or no boot gave any figure.
pub fn run(options: &Options) -> Result<u8> {
    let settings = Settings::from_environment()?;
    let base = settings.base.as_deref().map(samples::read).transpose()?;
    let lab = lab(options, &settings)?;
    for guest in &lab.guests {
        println!("{}:\n  {}", guest.title, lab.command_line(guest));
    }
    let outcome = plan::carry_out(&lab, &settings)?;
    let figures = Figures::of(&outcome.samples);
    anyhow::ensure!(
        !figures.is_empty(),
        "no run gave a figure:\n{}",
        outcome.failures.join("\n")
    );
    print!("{}", table::render(&figures));
    let change = base.map(|base| compare::render(&figures, &Figures::of(&base)));
    print!("{}", change.as_deref().unwrap_or_default());
    outcome
        .failures
        .iter()
        .for_each(|failure| println!("failed: {failure}"));
    let report = lab.dir.join("report.html");
    let page = page::render(&lab, &settings, &figures, &outcome, change.as_deref());
    fs::write(&report, page).with_context(|| format!("cannot write {}", report.display()))?;
    println!(
        "report: {}\nsamples: {}",
        report.display(),
        lab.samples().display()
    );
    Ok(u8::from(!outcome.failures.is_empty()))
}

/// Builds and fetches what boots of the kernels asked for need; files go to `build/bench/`.
fn lab(options: &Options, settings: &Settings) -> Result<Lab> {
    tools::need(&[
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("nm", "binutils"),
    ])?;
    let dir = tools::build_dir()?.join("bench");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let programs = build::user()?;
    let mut lab = Lab {
        initrd: image::make(options)?,
        plugin: plugin()?,
        names: names::of(&programs.join("vmbench"))?,
        tsc_khz: names::tsc_khz(&programs.join("vmbench"))?,
        dir,
        cpu: guest::processor(&settings.linux, crate::qemu::version()?),
        guests: Vec::new(),
        missing: Vec::new(),
    };
    if settings.wants("pantala") {
        lab.guests.push(pantala(options)?);
    }
    if settings.wants("linux") {
        // Without it, say where there is no network, one kernel's figures are better than none.
        match linux::guest(&lab, settings) {
            Ok(linux) => lab.guests.push(linux),
            Err(error) => lab.missing.push(format!("no Linux: {error:#}")),
        }
    }
    anyhow::ensure!(!lab.guests.is_empty(), lab.missing.join("\n"));
    lab.missing.iter().for_each(|missing| println!("{missing}"));
    Ok(lab)
}

/// Builds the plugin; returns its file.
///
/// # Errors
/// The build fails.
pub fn plugin() -> Result<PathBuf> {
    let _step = step("building the plugin");
    let mut command = crate::toolchain::cargo();
    command.current_dir(tools::root()).args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "coherence-plugin",
    ]);
    tools::run(&mut command, "the plugin's build")?;
    Ok(tools::root().join("target/release/libcoherence_plugin.so"))
}

fn pantala(options: &Options) -> Result<Guest> {
    let kernel = build::kernel_for(options, Profile::Release)?;
    let symbols = symbols::of_program(&kernel)?;
    Ok(Guest {
        system: "pantala",
        title: "Pantala".into(),
        watches: symbols.pantala_interrupts()?,
        symbols,
        options: options.append.clone(),
        clock_options: String::new(),
        kernel,
    })
}
