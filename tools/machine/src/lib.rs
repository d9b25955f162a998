//! What builds the kernel and the image, and boots them: shared by `xtask`, `bench` and `mutants`.
//!
//! Guarantee: a missing tool is named with the Debian package that has it; everything made lies under `build/` and `target/`;
//! what a job may be asked for is declared once, in [`options`].
//! The arrows point one way: this crate knows none of the three programs.

pub mod apt;
pub mod build;
pub mod console;
pub mod help;
pub mod image;
mod kvm;
pub mod linux;
mod lock;
pub mod models;
pub mod options;
pub mod progress;
pub mod qemu;
mod symbols;
pub mod toolchain;
pub mod tools;

pub use lock::locked;

use anyhow::Result;
use options::Job;
use std::process::ExitCode;

/// The whole of a program: reads what is asked for and does it; the status is that of `work`, or 1 after an error, which is
/// printed behind the program's name.
pub fn main(program: &str, work: impl FnOnce(&Job) -> Result<u8>) -> ExitCode {
    match work(&options::read()) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
