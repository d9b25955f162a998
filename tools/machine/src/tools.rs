//! The programs of the host that jobs need, and the Debian packages that have them.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The root of the checkout that cargo runs this program in. Where cargo does not, the one that it was built in: cargo takes the
/// programs of a checkout that was copied whole for its own.
pub fn root() -> PathBuf {
    let running = std::env::var_os("CARGO_MANIFEST_DIR");
    let running = running.and_then(|dir| above(Path::new(&dir)));
    let built = || above(Path::new(env!("CARGO_MANIFEST_DIR")));
    running
        .or_else(built)
        .expect("this crate lies two directories below the root")
}

/// Where cargo puts what it builds of this workspace: the variable's directory, as for cargo itself, or `target`.
pub fn target_dir() -> PathBuf {
    let asked = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(asked)
}

/// The root, two directories above a crate of the tools.
fn above(krate: &Path) -> Option<PathBuf> {
    let root = krate.ancestors().nth(2)?;
    let is_root = root.join("tools/machine").is_dir();
    is_root.then(|| root.to_owned())
}

/// `build/`, made if it is not there.
///
/// # Errors
/// It cannot be made.
pub fn build_dir() -> Result<PathBuf> {
    let dir = root().join("build");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// Where `program` lies on PATH (or in the directories that root alone has there).
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(["/usr/sbin", "/sbin"]);
    dirs.map(|dir| Path::new(dir).join(program))
        .find(|candidate| candidate.is_file())
}

/// Makes sure that each (program, package) is there: installs packages where that is allowed.
///
/// # Errors
/// Which programs are missing, and the packages that have them.
pub fn need(wanted: &[(&str, &str)]) -> Result<()> {
    let missing = || {
        wanted
            .iter()
            .filter(|(program, _)| find(program).is_none())
            .collect::<Vec<_>>()
    };
    let absent = missing();
    if absent.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = absent.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    install(&packages);
    let absent = missing();
    if absent.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = absent
        .iter()
        .map(|(program, package)| format!("{program} (package {package})"))
        .collect();
    bail!(
        "missing: {}\ninstall with: apt-get install {}",
        list.join(", "),
        packages.join(" ")
    )
}

/// Installs Debian packages if this is root or sudo asks for no password; what became of it is seen after.
fn install(packages: &[&str]) {
    let Some(prefix) = as_root() else { return };
    eprintln!("installing {}", packages.join(" "));
    let apt = |arguments: &[&str]| {
        let mut words = prefix
            .iter()
            .copied()
            .chain(["apt-get", "-qq"])
            .chain(arguments.iter().copied());
        let program = words.next().expect("never empty");
        Command::new(program)
            .args(words)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null())
            .status()
    };
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(packages);
    if !apt(&install).is_ok_and(|status| status.success()) {
        let _ = apt(&["update"]);
        let _ = apt(&install);
    }
}

fn as_root() -> Option<&'static [&'static str]> {
    let output = |program: &str, args: &[&str]| {
        Command::new(program)
            .args(args)
            .stderr(Stdio::null())
            .output()
            .ok()
    };
    if output("id", &["-u"]).is_some_and(|out| out.stdout == b"0\n") {
        return Some(&[]);
    }
    output("sudo", &["-n", "true"])
        .filter(|out| out.status.success())
        .map(|_| &["sudo", "-n"][..])
}

/// Runs `command` to its end.
///
/// # Errors
/// It cannot be started or fails; `what` names it.
pub fn run(command: &mut Command, what: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {what}"))?;
    if status.success() {
        Ok(())
    } else {
        bail!("{what} failed: {status}")
    }
}

/// Runs `command` and takes what it prints.
///
/// # Errors
/// It cannot be started or fails; its error output is part of the message.
pub fn output(command: &mut Command, what: &str) -> Result<String> {
    let out = command
        .output()
        .with_context(|| format!("cannot start {what}"))?;
    if !out.status.success() {
        bail!(
            "{what} failed: {}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
