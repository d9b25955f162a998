//! Linux to compare with: Debian's cloud kernel, fetched by apt, with what slows it down switched off.

use super::apt::{self, Offer};
use super::guest::{Guest, Kind, Lab, Trial};
use super::settings::Settings;
use super::symbols::Symbols;
use crate::progress::step;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PACKAGE: &str = "linux-image-cloud-amd64";

/// No mitigations, no page-table isolation, no memory cgroups; the fast clock, which emulation otherwise makes it distrust;
/// fixed addresses, so that symbols can be named; no self-tests of ciphers, which 6.12 makes in the background for seconds
/// after it has booted; the end, not a hung machine, after a mistake.
pub const OPTIONS: &str = "quiet mitigations=off pti=off nokaslr cgroup_disable=memory tsc=reliable cryptomgr.notests oops=panic";

/// A kernel that has been fetched.
pub struct Found {
    /// The name for people.
    pub title: String,
    /// Its files.
    pub tree: PathBuf,
    /// The kernel among them.
    pub file: PathBuf,
}

/// Fetches the newest kernel of series `wanted`; files go to `dir`.
///
/// # Errors
/// apt does not know the version or cannot fetch it.
pub fn kernel(dir: &Path, wanted: &str) -> Result<Found> {
    let Offer { version, apt } = apt::find(PACKAGE, wanted, dir)?;
    let depends = apt.depends(PACKAGE, &version)?;
    let package = apt::kernel_among(&depends)?;
    let tree = dir.join(format!("{package}_{version}"));
    apt.unpack(package, &version, &tree)?;
    Ok(Found {
        title: format!("Linux {version} ({package})"),
        file: kernel_in(&tree)?,
        tree,
    })
}

/// Fetches the kernel and learns its symbols from one boot; both are kept in `build/bench/`.
///
/// # Errors
/// apt does not know the version or cannot fetch it, or the kernel does not boot.
pub fn guest(lab: &Lab, settings: &Settings) -> Result<Guest> {
    let Found { title, tree, file } = kernel(&lab.dir, &settings.linux)?;
    let mut guest = Guest {
        system: "linux",
        title,
        kernel: file,
        options: format!("{OPTIONS} transparent_hugepage={}", settings.thp),
        // It would measure that at boot, wrongly where the host is busy, and have too many or too few ticks.
        clock_options: format!(" tsc_early_khz={}", lab.tsc_khz),
        symbols: Symbols::parse(""),
        watches: Vec::new(),
    };
    let file = tree.join("symbols-all");
    if !file.is_file() {
        let _step = step("asking Linux for its symbols");
        // Only what names code and data: the console is slow.
        let ask = "sed -nE '/ [tTdDbB] [^.]+$/p' /proc/kallsyms";
        let trial = Trial {
            cmd: ask,
            cpus: 1,
            kind: Kind::Rate,
            run: 0,
        };
        let boot = lab.boot(&guest, &trial, Duration::from_secs(300))?;
        anyhow::ensure!(boot.failed.is_empty(), "Linux: {}", boot.failed.join("; "));
        fs::write(&file, boot.console)?;
    }
    guest.symbols = Symbols::parse(&fs::read_to_string(&file)?);
    guest.watches = guest.symbols.linux_interrupts()?;
    Ok(guest)
}

fn kernel_in(tree: &Path) -> Result<PathBuf> {
    let boot = tree.join("boot");
    let entries = fs::read_dir(&boot).with_context(|| format!("cannot read {}", boot.display()))?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
        })
        .context("the package has no kernel")
}
