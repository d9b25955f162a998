//! Builds the kernel and the programs of the image.

use crate::options::{self, Profile, Rmap};
use crate::progress::step;
use crate::{symbols, toolchain, tools};
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Target of the programs of the image.
const USER_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Programs of the image and where they lie in it.
pub const PROGRAMS: &[(&str, &str)] = &[
    ("init", "init"),
    ("vmbench", "usr/bin/vmbench"),
    ("abitest", "usr/bin/abitest"),
    ("abifuzz", "usr/bin/abifuzz"),
    ("commute", "usr/bin/commute"),
    ("sysdiff", "usr/bin/sysdiff"),
    ("memhog", "usr/bin/memhog"),
    ("systat", "usr/bin/systat"),
    ("counters", "usr/bin/counters"),
    ("exhaust", "usr/bin/exhaust"),
    ("superpages", "usr/bin/superpages"),
    ("pipes", "usr/bin/pipes"),
    ("sections", "usr/bin/sections"),
    ("threads", "usr/bin/threads"),
    ("terminals", "usr/bin/terminals"),
    ("forkbomb", "usr/bin/forkbomb"),
    ("hoard", "usr/bin/hoard"),
    ("tiny-true", "usr/bin/tiny-true"),
    ("true-static", "usr/bin/true-static"),
];

/// Builds the kernel; the file is `build/pantala`, or `build/pantala-debug`; and with another reverse map its name is
/// part of it.
///
/// # Errors
/// The build fails.
pub fn kernel(profile: Profile, rmap: Rmap) -> Result<PathBuf> {
    tools::need(&[("cc", "gcc")])?;
    let (flag, dir, suffix) = match profile {
        Profile::Release => (Some("--release"), "release", ""),
        Profile::Debug => (None, "debug", "-debug"),
    };
    let design = rmap.feature();
    let what = design.map_or_else(|| dir.to_owned(), |name| format!("{dir}, {name}"));
    let step = step(format!("building the kernel ({what})"));
    let mut command = toolchain::cargo();
    command
        .current_dir(tools::root())
        .args(["build", "--quiet", "--package", "pantala"])
        .args(flag)
        .args(design.iter().flat_map(|name| ["--features", name]));
    toolchain::for_kernel(&mut command)?;
    tools::run(&mut command, "the kernel's build")?;
    drop(step);
    let built = tools::target_dir()
        .join(toolchain::KERNEL_TARGET)
        .join(dir)
        .join("pantala");
    let name = design.map_or_else(String::new, |name| format!("-{name}"));
    let wanted = tools::build_dir()?.join(format!("pantala{name}{suffix}"));
    fs::copy(&built, &wanted).with_context(|| format!("cannot copy {}", built.display()))?;
    symbols::embed(&wanted)?;
    Ok(wanted)
}

/// Builds the kernel that tells the plugin what its heap holds, with types in its debug information and in its symbols;
/// the file is `build/pantala-labels`.
///
/// # Errors
/// The build fails.
pub fn labelled_kernel() -> Result<PathBuf> {
    tools::need(&[("cc", "gcc")])?;
    let _step = step("building the kernel with labels");
    let target = tools::root().join("target/labels");
    let mut command = toolchain::cargo();
    command
        .current_dir(tools::root())
        .args(["build", "--quiet", "--release", "--package", "pantala"])
        .args(["--features", "heap-labels"])
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "2")
        // Those of .cargo/config.toml, which the variable replaces, and names that have their types in them.
        .env(
            "RUSTFLAGS",
            "-C relocation-model=static -C force-frame-pointers=yes -C symbol-mangling-version=v0",
        );
    toolchain::for_kernel(&mut command)?;
    tools::run(&mut command, "the kernel's build")?;
    let built = target
        .join(toolchain::KERNEL_TARGET)
        .join("release/pantala");
    let wanted = tools::build_dir()?.join("pantala-labels");
    fs::copy(&built, &wanted).with_context(|| format!("cannot copy {}", built.display()))?;
    symbols::embed(&wanted)?;
    Ok(wanted)
}

/// The kernel file that is asked for, or else the kernel, built.
///
/// # Errors
/// The build fails.
pub fn kernel_for(asked: &options::Kernel, profile: Profile) -> Result<PathBuf> {
    let given = asked.kernel.clone();
    given.map_or_else(|| kernel(profile, asked.design.rmap), Ok)
}

/// Builds one of the programs in `tools/`; returns its file. The first time that takes a minute or two, in which cargo shows how
/// far it is.
///
/// # Errors
/// The build fails.
pub fn tool(name: &str) -> Result<PathBuf> {
    let root = tools::root();
    let mut command = toolchain::cargo();
    command
        .current_dir(&root)
        .args(["build", "--package", name]);
    let doing = format!("building tools/{name}");
    let _step = if tools::target_dir().join("debug").join(name).is_file() {
        command.arg("--quiet");
        Some(step(doing))
    } else {
        eprintln!("{doing} (the first time: a minute or two)");
        None
    };
    let what = format!("the build of tools/{name}");
    executables(&mut command, &what)?
        .pop()
        .with_context(|| format!("cargo names no program of tools/{name}"))
}

/// Runs a build, whose errors go to the terminal; returns the programs that cargo says it has built.
///
/// # Errors
/// The build fails; `what` names it.
pub fn executables(command: &mut Command, what: &str) -> Result<Vec<PathBuf>> {
    command
        .args(["--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit());
    let told = tools::output(command, what)?;
    let path = |line: &str| {
        let (_, rest) = line.split_once("\"executable\":\"")?;
        Some(PathBuf::from(rest.split('"').next()?))
    };
    Ok(told.lines().filter_map(path).collect())
}

/// Builds the programs of the image; they lie in the directory that is returned.
///
/// # Errors
/// The build fails.
pub fn user() -> Result<PathBuf> {
    tools::need(&[("cc", "gcc")])?;
    let _step = step("building the image's programs");
    let dir = tools::root().join("user");
    let mut command = toolchain::cargo();
    command
        .current_dir(&dir)
        .args(["build", "--quiet", "--release"]);
    // What the outer cargo exports for this workspace is not meant for that one.
    command
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS");
    tools::run(&mut command, "the build of the image's programs")?;
    Ok(dir.join("target").join(USER_TARGET).join("release"))
}

/// Removes everything that was built; downloaded packages go too.
///
/// # Errors
/// Something cannot be removed.
pub fn clean() -> Result<()> {
    for dir in ["build", "user/target", "target"] {
        let dir = tools::root().join(dir);
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
    }
    Ok(())
}
