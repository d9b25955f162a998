//! Tests under a model checker: the files `tests/CHECKER*.rs` of the crates, built with `--cfg CHECKER`.

use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The model checkers.
pub const CHECKERS: [&str; 2] = ["loom", "shuttle"];

/// The packages and names of the tests under a model checker.
///
/// # Errors
/// A directory cannot be read.
pub fn files(root: &Path, checker: &str) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let crates = fs::read_dir(root.join("crates"))?;
    for entry in crates.chain(fs::read_dir(root.join("kernel"))?) {
        let dir: PathBuf = entry?.path();
        let Ok(tests) = fs::read_dir(dir.join("tests")) else {
            continue;
        };
        for test in tests {
            let name = test?.file_name().to_string_lossy().into_owned();
            if let Some(stem) = name
                .strip_suffix(".rs")
                .filter(|stem| stem.starts_with(checker))
            {
                let package = dir.file_name().unwrap_or_default().to_string_lossy();
                found.push((package.into_owned(), stem.to_owned()));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Has a cargo command build for `checker`. Models want optimised code, not the kernel's slow link.
pub fn build_for(command: &mut Command, checker: &str) {
    command
        .env("RUSTFLAGS", format!("--cfg {checker} -C debug-assertions"))
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
}
