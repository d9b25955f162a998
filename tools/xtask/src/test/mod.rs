//! Runs the tests: those of the host, those in QEMU, and a comparison with Linux's answers.
//!
//! Guarantee: every test that was chosen is counted once, as passed or failed; the last line of output is
//! `N passed, N failed`, and the status is 0 only if none failed and at least one ran.

mod boot;
pub mod guest;
mod host;
mod miri;
pub mod spec;

use anyhow::{Result, anyhow};
use machine::options::{BootTests, Design, Setup, Soak};

/// Counts of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed, or could not be run.
    pub failed: u64,
}

impl Totals {
    /// Adds one test.
    pub fn count(&mut self, passed: bool) {
        self.passed += u64::from(passed);
        self.failed += u64::from(!passed);
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: Totals) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    fn finish(self) -> u8 {
        println!("\n{} passed, {} failed", self.passed, self.failed);
        u8::from(self.failed > 0 || self.passed == 0)
    }
}

/// Everything.
///
/// # Errors
/// Tests could not be run at all.
pub fn all(setup: &Setup) -> Result<u8> {
    // A kernel's last step of building takes a minute of one CPU, and tests of the host seldom use all.
    let (boots, totals) = std::thread::scope(|scope| {
        let boots = scope.spawn(|| boot::Ready::prepare(setup, &boot::Choice::usual(&[])));
        let totals = host::run(setup.system.kernel.design.rmap);
        (boots.join(), totals)
    });
    let mut totals = totals?;
    totals.add(boots.map_err(|_| anyhow!("the builder panicked"))??.run());
    totals.count(crate::diff::test(setup)?);
    Ok(totals.finish())
}

/// The comparison with Linux's answers alone.
///
/// # Errors
/// It could not be run at all.
pub fn diff_only(setup: &Setup) -> Result<u8> {
    let mut totals = Totals::default();
    totals.count(crate::diff::test(setup)?);
    Ok(totals.finish())
}

/// The host tests alone.
///
/// # Errors
/// They could not be run at all.
pub fn host_only(asked: Design) -> Result<u8> {
    Ok(host::run(asked.rmap)?.finish())
}

/// The boot tests alone, those that are named or all.
///
/// # Errors
/// They could not be run at all.
pub fn boot_only(asked: &BootTests) -> Result<u8> {
    let choice = boot::Choice::usual(&asked.names);
    Ok(boot::Ready::prepare(&asked.setup, &choice)?.run().finish())
}

/// The boot tests that take too long for every day.
///
/// # Errors
/// They could not be run at all.
pub fn soak(asked: &Soak) -> Result<u8> {
    let choice = boot::Choice::long(&asked.names, asked.minutes);
    Ok(boot::Ready::prepare(&asked.setup, &choice)?.run().finish())
}

pub use miri::run as miri;
