//! Tests under a model checker: the files `tests/CHECKER*.rs` of the crates, built with `--cfg CHECKER`.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The model checkers.
pub const CHECKERS: [&str; 2] = ["loom", "shuttle"];

/// The packages in these directories of the tree that have tests under a model checker, and the names of the tests.
///
/// # Errors
/// A directory cannot be read.
pub fn files(root: &Path, rooms: &[&str], checker: &str) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for room in rooms {
        let at = root.join(room);
        for entry in fs::read_dir(&at).with_context(|| format!("cannot read {}", at.display()))? {
            of_package(&entry?.path(), checker, &mut found)?;
        }
    }
    found.sort();
    Ok(found)
}

fn of_package(dir: &Path, checker: &str, found: &mut Vec<(String, String)>) -> Result<()> {
    let Ok(tests) = fs::read_dir(dir.join("tests")) else {
        return Ok(());
    };
    let package = dir.file_name().unwrap_or_default().to_string_lossy();
    for test in tests {
        let name = test?.file_name().to_string_lossy().into_owned();
        if let Some(stem) = name
            .strip_suffix(".rs")
            .filter(|stem| stem.starts_with(checker))
        {
            found.push((package.to_string(), stem.to_owned()));
        }
    }
    Ok(())
}

/// Has a cargo command build for `checker`. Models want optimised code, not the kernel's slow link.
pub fn build_for(command: &mut Command, checker: &str) {
    command
        .env("RUSTFLAGS", format!("--cfg {checker} -C debug-assertions"))
        .env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
}
