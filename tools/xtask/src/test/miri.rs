//! Tests under Miri, which interprets them and checks each access by the language's rules: aliasing, data races, leaks.
//!
//! Both models of aliasing are tried, for it is not settled which will be the language's. An interpreter is some hundred
//! times slower than the machine, so what takes long there is left out here.

use super::{Totals, host};
use crate::tools;
use anyhow::Result;
use std::process::{Command, Stdio};

/// The toolchain; Miri comes with nightly ones alone.
const TOOLCHAIN: &str = "+nightly";

/// What is run: package, and arguments of `cargo test`.
const RUNS: &[(&str, &[&str])] = &[
    ("ksync", &["--test", "reclaim", "--test", "locks"]),
    ("vm", &["--lib", "--", "page::", "slots::", "map::"]),
];

/// By name and by the flag that chooses it.
const MODELS: &[(&str, &str)] = &[
    ("stacked borrows", ""),
    ("tree borrows", " -Zmiri-tree-borrows"),
];

/// Runs all of them.
///
/// # Errors
/// cargo cannot be started.
pub fn run() -> Result<u8> {
    let asked = cargo().args(["miri", "--version"]).output();
    if !asked.is_ok_and(|out| out.status.success()) {
        println!(
            "no Miri here: it needs rustup and a nightly toolchain,\n\
             rustup toolchain install nightly --component miri,rust-src"
        );
        return Ok(1);
    }
    let mut totals = Totals::default();
    for (model, flag) in MODELS {
        for (package, args) in RUNS {
            let mut command = cargo();
            command
                .args(["miri", "test", "--no-fail-fast", "--package", package])
                .args(*args)
                .env("MIRIFLAGS", format!("-Zmiri-disable-isolation{flag}"))
                .env("CARGO_TARGET_DIR", tools::root().join("target/miri"));
            totals.add(host::cargo_test(&format!("{package}, {model}"), command)?);
        }
    }
    Ok(totals.finish())
}

/// rustup's cargo: the one that runs this program may be a toolchain's own, which knows no other toolchain.
fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command
        .arg(TOOLCHAIN)
        .current_dir(tools::root())
        .stdin(Stdio::null())
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .env_remove("RUSTC");
    command
}
