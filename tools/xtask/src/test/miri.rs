//! Tests under Miri, which interprets them and checks each access by the language's rules: aliasing, data races, leaks.
//!
//! Both models of aliasing are tried, for it is not settled which will be the language's. An interpreter is some hundred
//! times slower than the machine, so the tests do fewer rounds there, and what would take long yet is left out here;
//! `doc/miri.md` has the reasons. Each test program runs once under each model, as many at once as there are processors.

use super::Totals;
use anyhow::{Context, Result};
use machine::progress::step;
use machine::tools;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The toolchain; Miri comes with nightly ones alone.
const TOOLCHAIN: &str = "nightly";

/// Test programs, by package and cargo's name; the longest first, so that none is left alone at the end.
const PROGRAMS: &[(&str, &str)] = &[
    ("vm-host", "pmap"),
    ("vm-host", "shared_memory"),
    ("vm-host", "device"),
    ("ksync", "reclaim"),
    ("ksync", "hubs"),
    ("ksync", "hub_walks"),
    ("ksync", "locks"),
    ("vm", LIB),
    ("ksync", "wait"),
    ("ksync", "keyed_queue"),
    ("ksync", "hub_memory"),
    ("ksync", LIB),
];

/// The unit tests of a package.
const LIB: &str = "";

/// By name and by the flag that chooses it.
const MODELS: &[(&str, &str)] = &[
    ("stacked borrows", ""),
    ("tree borrows", " -Zmiri-tree-borrows"),
];

/// Clocks and the environment are the host's. A page names its object by a number, of which a pointer is made.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-permissive-provenance";

/// Runs all of them.
///
/// # Errors
/// cargo cannot be started.
pub fn run() -> Result<u8> {
    let asked = cargo().args(["miri", "--version"]).output();
    if !asked.is_ok_and(|out| out.status.success()) {
        println!(
            "no Miri here: it needs rustup and `rustup toolchain install {TOOLCHAIN} --component miri,rust-src`"
        );
        return Ok(1);
    }
    let began = Instant::now();
    let runs = PROGRAMS
        .iter()
        .flat_map(|program| MODELS.iter().map(move |model| (program, model)));
    let (next, all) = (Mutex::new(runs), Mutex::new((Totals::default(), 0)));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || -> Result<()> {
        loop {
            let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((program, model)) = taken else {
                return Ok(());
            };
            let (totals, left_out) = one(program, model)?;
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.0.add(totals);
            all.1 += left_out;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let results = workers.into_iter().map(|w| w.join().expect("no panic"));
        results.collect::<Result<Vec<()>>>()
    })?;
    let (totals, left_out) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    let minutes = began.elapsed().as_secs().div_ceil(60);
    println!("\nboth models of aliasing: {left_out} tests left out (doc/miri.md), {minutes} min");
    Ok(totals.finish())
}

/// One program under one model: what its tests came to, and how many are left out.
fn one(program: &(&str, &str), model: &(&str, &str)) -> Result<(Totals, u64)> {
    let ((package, test), (name, flag)) = (program, model);
    let what = match *test {
        LIB => format!("{package}, unit tests, {name}"),
        test => format!("{package}, {test}, {name}"),
    };
    let step = step(&what);
    let mut command = cargo();
    command.args(["miri", "test", "--package", package]);
    match *test {
        LIB => command.arg("--lib"),
        test => command.args(["--test", test]),
    };
    let began = Instant::now();
    let out = command
        .env("MIRIFLAGS", format!("{FLAGS}{flag}"))
        .env("CARGO_TARGET_DIR", tools::root().join("target/miri"))
        .output()
        .context("cannot start cargo")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let results = |suffix: &str| {
        let tests = text.lines().filter(|line| line.starts_with("test "));
        tests.filter(|line| line.contains(suffix)).count() as u64
    };
    let (passed, left_out) = (results("... ok"), results("... ignored"));
    let failed = match out.status.success() {
        true => 0,
        // What the language does not allow ends the program, and with it the tests to come; a leak shows at its end.
        false => results("... FAILED").max(1),
    };
    let seconds = began.elapsed().as_secs();
    let counts =
        format!("{what}: {passed} passed, {failed} failed, {left_out} left out, {seconds} s");
    if failed > 0 {
        let errors = String::from_utf8_lossy(&out.stderr);
        step.line(&format!("{text}{errors}\nFAIL  {counts}"));
    } else {
        step.line(&format!("ok    {counts}"));
    }
    Ok((Totals { passed, failed }, left_out))
}

/// rustup's cargo of that toolchain: the one that runs this program knows no other toolchain than its own.
fn cargo() -> Command {
    let mut command = Command::new("rustup");
    command
        .args(["run", TOOLCHAIN, "cargo"])
        .current_dir(tools::root())
        .stdin(Stdio::null())
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    command
}
