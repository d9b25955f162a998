//! Mutation tests of `ksync` and `vm`, by cargo-mutants.

use crate::{toolchain, tools};
use anyhow::Result;

/// Runs them; the report lies in `build/mutants.out`.
///
/// # Errors
/// cargo-mutants is missing.
pub fn run() -> Result<u8> {
    if tools::find("cargo-mutants").is_none() {
        anyhow::bail!(
            "missing: cargo-mutants (install with: cargo install --locked cargo-mutants)"
        );
    }
    let mut command = toolchain::cargo();
    command
        .current_dir(tools::root())
        .args(["mutants", "--package", "ksync", "--package", "vm"]);
    command
        .args([
            "--test-package",
            "ksync,vm,vm-host",
            "--jobs",
            "2",
            "--output",
        ])
        .arg(tools::build_dir()?);
    let status = command.status()?;
    Ok(status
        .code()
        .map_or(1, |code| u8::try_from(code).unwrap_or(1)))
}
