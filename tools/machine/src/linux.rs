//! Linux to compare with: Debian's cloud kernel, fetched by apt, with what slows it down switched off.

use crate::apt::{self, Offer};
use crate::tools;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

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

/// Fetches the newest kernel of series `wanted`; files go to `build/bench`.
///
/// # Errors
/// apt does not know the version or cannot fetch it.
pub fn kernel(wanted: &str) -> Result<Found> {
    let dir = tools::build_dir()?.join("bench");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let Offer { version, apt } = apt::find(PACKAGE, wanted, &dir)?;
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

/// The processor on which `linux` and Pantala run under a QEMU of version `qemu`.
///
/// Without the promise of fast byte-wise string instructions: emulation goes byte by byte then, and a kernel that believes
/// it would clear a page in eight times as many steps. QEMU 10 cannot count instructions with an x2APIC.
/// Before version 8, QEMU leaves stray flags behind a `cmpxchg16b`; Linux after 6.1 branches on them, and where an interrupt
/// comes between the two it goes on with the trap flag set, say, and dies.
pub fn processor(linux: &str, qemu: u32) -> String {
    let stray_flags = qemu < 8 && linux != "6.1";
    let without = if stray_flags { ",-cx16" } else { "" };
    format!("max,-erms,-fsrm,-x2apic{without}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_old_qemu_gets_wrong_is_kept_from_a_new_linux() {
        assert!(processor("6.12", 7).ends_with(",-cx16"));
        assert_eq!(processor("6.12", 10), processor("6.1", 7));
    }
}
