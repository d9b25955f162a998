//! How cargo builds for the bare machine with the compiler that is here.
//!
//! A compiler from rustup brings a compiled `core` and `alloc` for the target, once the target is added. Debian's
//! does not, but its package `rust-web-src` has their source: they are built along, which cargo offers
//! only behind an unlock variable.

use crate::tools;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// The kernel's target.
pub const KERNEL_TARGET: &str = "x86_64-unknown-none";

/// A cargo command: the cargo that runs this program.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn rustc() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_default();
    let beside = Path::new(&cargo).with_file_name("rustc");
    Command::new(if beside.is_file() {
        beside
    } else {
        "rustc".into()
    })
}

/// Adds what building for [`KERNEL_TARGET`] takes to a cargo command.
///
/// # Errors
/// Neither a compiled `core` for the target nor its source is here; the message says what to install.
pub fn for_kernel(command: &mut Command) -> Result<()> {
    command.args(["--target", KERNEL_TARGET]);
    let sysroot = tools::output(
        rustc().args(["--print", "sysroot"]),
        "rustc --print sysroot",
    )?;
    let rustlib = Path::new(sysroot.trim()).join("lib/rustlib");
    if rustlib.join(KERNEL_TARGET).join("lib").is_dir() {
        return Ok(());
    }
    if !rustlib.join("src/rust/library/core").is_dir() {
        bail!(
            "no `core` for {KERNEL_TARGET}: run `rustup target add {KERNEL_TARGET}` or install rust-web-src"
        );
    }
    let linker = tools::find("ld.lld").context("missing: ld.lld (package lld)")?;
    command.args([
        "-Zbuild-std=core,alloc,compiler_builtins",
        "-Zbuild-std-features=compiler-builtins-mem",
    ]);
    command.env("RUSTC_BOOTSTRAP", "1");
    command.env("CARGO_TARGET_X86_64_UNKNOWN_NONE_LINKER", linker);
    Ok(())
}
