//! The test programs that mutants meet.

use super::points::{Kind, Point};
use crate::progress::step;
use crate::toolchain;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A test program.
pub struct Program {
    path: PathBuf,
    /// Whether it is a model: it sees orderings.
    model: bool,
    /// How long it takes without a mutant.
    time: Duration,
    /// Points that it reaches.
    reaches: BTreeSet<usize>,
}

/// Builds all of them and runs each once without a mutant. Quickest first.
///
/// # Errors
/// A build, or a program without a mutant, fails.
pub fn build(dir: &Path) -> Result<Vec<Program>> {
    let step = step("building the mutants");
    let tree = dir.join("tree");
    let mut host = toolchain::cargo();
    host.args(["test", "-p", "ksync", "-p", "vm", "-p", "vm-host"]);
    let mut loom = toolchain::cargo();
    loom.args([
        "test",
        "--release",
        "-p",
        "ksync",
        "-p",
        "vm",
        "--test",
        "loom",
    ])
    .env("RUSTFLAGS", "--cfg loom -C debug-assertions")
    .env("CARGO_TARGET_DIR", dir.join("loom"));
    host.env("CARGO_TARGET_DIR", dir.join("host"));
    let mut programs = Vec::new();
    for (mut command, model) in [(host, false), (loom, true)] {
        step.say(if model { "models" } else { "tests" });
        for path in executables(command.current_dir(&tree))? {
            step.say(&format!("once without a mutant: {}", path.display()));
            programs.push(measured(dir, path, model)?);
        }
    }
    programs.sort_by_key(|program| program.time);
    Ok(programs)
}

fn executables(command: &mut Command) -> Result<Vec<PathBuf>> {
    let out = command
        .args(["--no-run", "--message-format=json"])
        .stderr(Stdio::piped())
        .output()
        .context("cannot start cargo")?;
    if !out.status.success() {
        bail!(
            "the mutants do not build:\n{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let path = |line: &str| {
        Some(PathBuf::from(
            line.split_once("\"executable\":\"")?.1.split('"').next()?,
        ))
    };
    Ok(text.lines().filter_map(path).collect())
}

fn command(path: &Path) -> Command {
    let mut command = Command::new(path);
    command
        .current_dir(path.parent().unwrap_or(Path::new(".")))
        .env("RUST_BACKTRACE", "0")
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn measured(dir: &Path, path: PathBuf, model: bool) -> Result<Program> {
    let cover = dir.join("cover");
    let _absent = fs::remove_file(&cover);
    let start = Instant::now();
    let status = command(&path).env("PANTALA_COVER", &cover).status()?;
    if !status.success() {
        bail!("{} fails without a mutant", path.display());
    }
    let time = start.elapsed();
    let reached = fs::read_to_string(&cover).unwrap_or_default();
    let reaches = reached.lines().filter_map(|id| id.parse().ok()).collect();
    Ok(Program {
        path,
        model,
        time,
        reaches,
    })
}

/// The name of the first program that notices the mutant.
///
/// # Errors
/// A program cannot be started.
pub fn killer(programs: &[Program], point: &Point) -> Result<Option<String>> {
    for program in programs {
        if !program.reaches.contains(&point.id) || (point.kind == Kind::Order && !program.model) {
            continue;
        }
        let mut child = command(&program.path)
            .env("PANTALA_MUTANT", point.id.to_string())
            .spawn()?;
        // Twice for the machine's other work, and once more for what a mutant may cost.
        let patience = program.time * 3 + Duration::from_secs(10);
        if !passes(&mut child, patience)? {
            let name = program
                .path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            return Ok(Some(name.split('-').next().unwrap_or_default().into()));
        }
    }
    Ok(None)
}

/// Whether a program succeeds in time.
fn passes(child: &mut Child, patience: Duration) -> Result<bool> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if start.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
