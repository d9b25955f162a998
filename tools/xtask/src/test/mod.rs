//! Runs the tests: on the host, then in QEMU.

use crate::options::Options;
use anyhow::{Result, bail};

/// Everything.
///
/// # Errors
/// A test could not be run at all.
pub fn all(options: &Options) -> Result<u8> {
    let _ = options;
    bail!("not yet")
}
/// Host tests.
///
/// # Errors
/// A test could not be run at all.
pub fn host_only() -> Result<u8> {
    bail!("not yet")
}
/// Boot tests.
///
/// # Errors
/// A test could not be run at all.
pub fn boot_only(_: &Options) -> Result<u8> {
    bail!("not yet")
}
/// Mutation tests.
///
/// # Errors
/// A test could not be run at all.
pub fn mutants() -> Result<u8> {
    bail!("not yet")
}
