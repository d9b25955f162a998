//! What boots need: kernels, image, plugin, and the benchmark's own account of its cases.

use crate::guest::{Guest, Lab};
use crate::{linux, lua, names, symbols};
use anyhow::{Context, Result};
use machine::options::{self, Kernels, Profile, Rmap, System};
use machine::progress::step;
use machine::{build, image, qemu, toolchain, tools};
use std::fs;
use std::path::PathBuf;

/// Builds and fetches what boots of the kernels asked for need; what they leave goes to `build/`, into the directory `name`.
///
/// # Errors
/// Something cannot be built, or no kernel can be had.
pub fn of(system: &System, asked: &Kernels, name: &str) -> Result<Lab> {
    tools::need(&[
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("nm", "binutils"),
    ])?;
    let dir = tools::build_dir()?.join(name);
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let programs = build::user()?;
    let mut lab = Lab {
        initrd: image::make(&system.image)?,
        builds: None,
        plugin: plugin()?,
        names: names::of(&programs.join("vmbench"))?,
        tsc_khz: names::tsc_khz(&programs.join("vmbench"))?,
        dir,
        memory: 1024,
        cpu: machine::linux::processor(&asked.linux, qemu::version()?),
        guests: Vec::new(),
        missing: Vec::new(),
    };
    if asked.wants("pantala") {
        lab.guests.push(pantala(&system.kernel, &asked.thp)?);
    }
    add_linux(&mut lab, asked);
    anyhow::ensure!(!lab.guests.is_empty(), lab.missing.join("\n"));
    lab.missing.iter().for_each(|missing| println!("{missing}"));
    Ok(lab)
}

fn add_linux(lab: &mut Lab, asked: &Kernels) {
    if asked.wants("linux") {
        // Without it, say where there is no network, one kernel's figures are better than none.
        match linux::guest(lab, asked) {
            Ok(linux) => lab.guests.push(linux),
            Err(error) => lab.missing.push(format!("no Linux: {error:#}")),
        }
    }
}

/// The image in which a program is built; where it cannot be had, say for want of a network, the other figures are better than none.
pub fn add_builds(lab: &mut Lab, asked: &options::Image) {
    match lua::image(asked, &lab.dir) {
        Ok(image) => lab.builds = Some(image),
        Err(error) => lab.missing.push(format!("no program to build: {error:#}")),
    }
}

/// Kernels of the other reverse maps, after the default's.
///
/// # Errors
/// One cannot be built.
pub fn add_rivals(lab: &mut Lab, asked: &options::Kernel, thp: &str) -> Result<()> {
    for (place, rmap) in [Rmap::PvObm, Rmap::PvStock].into_iter().enumerate() {
        let mut asked = asked.clone();
        asked.design.rmap = rmap;
        let name = rmap.feature().unwrap_or("backings");
        let guest = Guest {
            system: name,
            title: format!("Pantala, {name}"),
            ..pantala(&asked, thp)?
        };
        lab.guests.insert(1 + place, guest);
    }
    Ok(())
}

/// Builds the plugin; returns its file.
///
/// # Errors
/// The build fails.
pub fn plugin() -> Result<PathBuf> {
    let _step = step("building the plugin");
    let mut command = toolchain::cargo();
    command.current_dir(tools::root()).args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "coherence-plugin",
    ]);
    tools::run(&mut command, "the plugin's build")?;
    Ok(tools::target_dir().join("release/libcoherence_plugin.so"))
}

/// Pantala as a guest. Its own default of superpages is measured, unless all memory is to have them on both kernels.
fn pantala(asked: &options::Kernel, thp: &str) -> Result<Guest> {
    let kernel = build::kernel_for(asked, Profile::Release)?;
    let symbols = symbols::of_program(&kernel)?;
    Ok(Guest {
        system: "pantala",
        title: "Pantala".into(),
        watches: symbols.pantala_interrupts()?,
        symbols,
        options: match thp {
            "always" => format!("{} transparent_hugepage=always", asked.append),
            _ => asked.append.clone(),
        },
        clock_options: String::new(),
        kernel,
    })
}
