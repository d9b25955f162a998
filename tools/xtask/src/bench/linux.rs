//! Linux to compare with: Debian's cloud kernel, fetched by apt, with what slows it down switched off.

use super::guest::{Guest, Kind, Lab};
use super::settings::Settings;
use super::symbols::Symbols;
use crate::progress::step;
use crate::tools;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PACKAGE: &str = "linux-image-cloud-amd64";

/// No mitigations, no page-table isolation, no memory cgroups; the fast clock, which emulation otherwise makes it distrust;
/// fixed addresses, so that symbols can be named.
const OPTIONS: &str = "quiet mitigations=off pti=off nokaslr cgroup_disable=memory tsc=reliable";

/// Fetches the kernel and learns its symbols from one boot; both are kept in `build/bench/`.
///
/// # Errors
/// apt does not know the version or cannot fetch it, or the kernel does not boot.
pub fn guest(lab: &Lab, settings: &Settings) -> Result<Guest> {
    let (package, version) = choose(&settings.linux)?;
    let tree = fetch(&lab.dir, &package, &version)?;
    let mut guest = Guest {
        system: "linux",
        title: format!("Linux {version} ({package})"),
        kernel: kernel_in(&tree)?,
        options: format!("{OPTIONS} transparent_hugepage={}", settings.thp),
        symbols: Symbols::parse(""),
        watches: Vec::new(),
    };
    let file = tree.join("symbols");
    if !file.is_file() {
        let _step = step("asking Linux for its symbols");
        // Only the text half, address and name: the console is slow.
        let ask = "sed -nE '/ [tT] [^.]+$/p' /proc/kallsyms";
        let boot = lab.boot(&guest, ask, 1, Kind::Rate, Duration::from_secs(180))?;
        anyhow::ensure!(boot.failed.is_empty(), "Linux: {}", boot.failed.join("; "));
        fs::write(&file, boot.console)?;
    }
    guest.symbols = Symbols::parse(&fs::read_to_string(&file)?);
    guest.watches = guest.symbols.linux_interrupts()?;
    Ok(guest)
}

/// The newest version known to apt that begins with `wanted`, and the package that has the kernel.
fn choose(wanted: &str) -> Result<(String, String)> {
    let list = tools::output(
        Command::new("apt-cache").args(["madison", PACKAGE]),
        "apt-cache madison",
    )?;
    let versions = list
        .lines()
        .filter_map(|line| line.split('|').nth(1))
        .map(str::trim);
    let fits = |version: &&str| {
        version
            .strip_prefix(wanted)
            .is_some_and(|rest| rest.starts_with(['.', '-', '~']))
    };
    let Some(version) = versions.clone().find(fits) else {
        let known: Vec<&str> = versions.collect();
        bail!(
            "apt knows no {PACKAGE} of version {wanted} (only: {}); run `apt-get update`, and for 6.12 add bookworm-backports",
            known.join(", ")
        );
    };
    let show = tools::output(
        Command::new("apt-cache").args(["show", &format!("{PACKAGE}={version}")]),
        "apt-cache show",
    )?;
    let depends = show
        .lines()
        .find_map(|line| line.strip_prefix("Depends: "))
        .unwrap_or_default();
    let package = depends
        .split([' ', ','])
        .find(|word| word.starts_with("linux-image-"));
    let package = package.with_context(|| format!("{PACKAGE} {version} depends on no kernel"))?;
    Ok((package.to_owned(), version.to_owned()))
}

fn fetch(dir: &Path, package: &str, version: &str) -> Result<PathBuf> {
    let tree = dir.join(format!("{package}_{version}"));
    if tree.is_dir() {
        return Ok(tree);
    }
    let _step = step(format!("fetching {package}"));
    let mut download = Command::new("apt-get");
    download
        .current_dir(dir)
        .args(["-qq", "download", &format!("{package}={version}")]);
    tools::output(&mut download, "apt-get download")?;
    let deb = fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            name.starts_with(&format!("{package}_")) && name.ends_with(".deb")
        })
        .context("apt-get download left no file")?;
    let half = tree.with_extension("half");
    let _ = fs::remove_dir_all(&half);
    tools::output(
        Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&half),
        "dpkg-deb",
    )?;
    fs::remove_file(&deb)?;
    fs::rename(&half, &tree)?;
    Ok(tree)
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
