//! Asks apt for a package of a version that this machine's own sources may not offer.
//!
//! Guarantee: apt's configuration and lists stay as they are. Mechanism: what the machine's own lists do not know is looked
//! up in lists of our own, kept in `build/bench/apt`, made from other suites of the mirror that the machine's sources
//! name, and checked with the key they name.

use crate::progress::step;
use crate::tools;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Suites in which older and newer versions lie, whatever release the machine runs.
const SUITES: [&str; 2] = ["bookworm", "bookworm-backports"];

/// apt, with the machine's own sources or with ours.
pub struct Apt {
    options: Vec<String>,
}

/// A version of a package, and the apt that knows it.
pub struct Offer {
    /// The version.
    pub version: String,
    /// Whom to ask for it.
    pub apt: Apt,
}

/// What the authors of a program released, as Debian's source package has it, unpacked, without Debian's patches. It and apt's lists
/// lie in `dir`, and are fetched once.
///
/// # Errors
/// There is no mirror or no network, or the package has no archive of that kind.
pub fn source(package: &str, dir: &Path) -> Result<PathBuf> {
    let tree = dir.join(package);
    if tree.is_dir() {
        return Ok(tree);
    }
    tools::need(&[("tar", "tar")])?;
    let apt = Apt::with_lists_in(&dir.join("apt"), "deb-src", &SUITES[..1])?;
    let _step = step(format!("fetching the source of {package}"));
    let half = dir.join(format!("{package}.half"));
    let _ = fs::remove_dir_all(&half);
    let unpacked = half.join("unpacked");
    fs::create_dir_all(&unpacked)?;
    let mut download = apt.command("apt-get");
    download
        .current_dir(&half)
        .args(["-qq", "source", "--download-only", package]);
    tools::output(&mut download, "apt-get source")?;
    let files = fs::read_dir(&half)?.filter_map(|entry| Some(entry.ok()?.path()));
    let archive = files
        .filter(|path| path.to_string_lossy().contains(".orig.tar."))
        .find(|path| path.extension().is_none_or(|suffix| suffix != "asc"))
        .with_context(|| format!("the source of {package} has no archive of its authors"))?;
    let mut unpack = Command::new("tar");
    unpack
        .args(["--strip-components=1", "-xf"])
        .arg(&archive)
        .arg("-C")
        .arg(&unpacked);
    tools::output(&mut unpack, "tar")?;
    fs::rename(&unpacked, &tree)?;
    fs::remove_dir_all(&half)?;
    Ok(tree)
}

/// The newest version of `package` that begins with `wanted`: of the machine's own sources, else of its mirror's other suites.
///
/// # Errors
/// Neither has one, or there is no mirror or no network.
pub fn find(package: &str, wanted: &str, dir: &Path) -> Result<Offer> {
    let own = Apt {
        options: Vec::new(),
    };
    let ours = || Apt::with_lists_in(&dir.join("apt"), "deb", &SUITES);
    let mut known = own.versions(package)?;
    let mut apt = own;
    if newest(&known, wanted).is_none() {
        apt = ours()?;
        let more = apt.versions(package)?;
        known.extend(more);
    }
    let version = newest(&known, wanted).with_context(|| {
        format!(
            "apt knows no {package} of version {wanted}, only {}",
            known.join(", ")
        )
    })?;
    Ok(Offer {
        version: version.to_owned(),
        apt,
    })
}

/// apt lists newest versions first.
fn newest<'a>(known: &'a [String], wanted: &str) -> Option<&'a str> {
    let fits = |version: &&String| {
        version
            .strip_prefix(wanted)
            .is_some_and(|rest| rest.starts_with(['.', '-', '~']))
    };
    known.iter().find(fits).map(String::as_str)
}

impl Apt {
    /// Lists of our own in `dir`, of programs (`deb`) or their sources (`deb-src`) in `suites`, fetched at most once a day.
    fn with_lists_in(dir: &Path, kind: &str, suites: &[&str]) -> Result<Apt> {
        fs::create_dir_all(dir.join("lists/partial"))?;
        fs::create_dir_all(dir.join("cache/archives/partial"))?;
        let sources = dir.join("sources.list");
        let text = sources_text(kind, suites)?;
        let set = |name: &str, path: PathBuf| format!("{name}={}", path.display());
        let options = vec![
            set("Dir::State::Lists", dir.join("lists")),
            set("Dir::Cache", dir.join("cache")),
            set("Dir::Etc::SourceList", sources.clone()),
            set("Dir::Etc::SourceParts", dir.join("none")),
            // The user that apt downloads as may not be able to write here.
            "APT::Sandbox::User=root".into(),
        ];
        let apt = Apt { options };
        let fresh = fs::metadata(dir.join("fetched"))
            .and_then(|meta| meta.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age.as_secs() < 86_400));
        if !fresh || fs::read_to_string(&sources).ok().as_ref() != Some(&text) {
            let _step = step("asking the mirror for more suites");
            fs::write(&sources, text)?;
            tools::output(
                apt.command("apt-get").args(["-q", "update"]),
                "apt-get update",
            )?;
            fs::write(dir.join("fetched"), "")?;
        }
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }

    fn versions(&self, package: &str) -> Result<Vec<String>> {
        let list = tools::output(
            self.command("apt-cache").args(["madison", package]),
            "apt-cache madison",
        )?;
        let versions = list.lines().filter_map(|line| line.split('|').nth(1));
        Ok(versions.map(|version| version.trim().to_owned()).collect())
    }

    /// What this version of `package` depends on, as apt writes it.
    ///
    /// # Errors
    /// apt does not know the version.
    pub fn depends(&self, package: &str, version: &str) -> Result<String> {
        let show = tools::output(
            self.command("apt-cache")
                .args(["show", &format!("{package}={version}")]),
            "apt-cache show",
        )?;
        let depends = show
            .lines()
            .find_map(|line| line.strip_prefix("Depends: "))
            .unwrap_or_default();
        Ok(depends.to_owned())
    }

    /// Downloads a package and unpacks it to `tree`, unless that is there.
    ///
    /// # Errors
    /// It cannot be downloaded or unpacked.
    pub fn unpack(&self, package: &str, version: &str, tree: &Path) -> Result<()> {
        if tree.is_dir() {
            return Ok(());
        }
        let _step = step(format!("fetching {package}"));
        let half = tree.with_extension("half");
        let _ = fs::remove_dir_all(&half);
        fs::create_dir_all(&half)?;
        let mut download = self.command("apt-get");
        download
            .current_dir(&half)
            .args(["-qq", "download", &format!("{package}={version}")]);
        tools::output(&mut download, "apt-get download")?;
        let mut files = fs::read_dir(&half)?.filter_map(|entry| Some(entry.ok()?.path()));
        let deb = files
            .find(|path| path.extension().is_some_and(|suffix| suffix == "deb"))
            .context("apt-get download left no file")?;
        tools::output(
            Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&half),
            "dpkg-deb",
        )?;
        fs::remove_file(&deb)?;
        Ok(fs::rename(&half, tree)?)
    }
}

/// Our sources: `suites` of the mirror of the first Debian source of this machine.
fn sources_text(kind: &str, suites: &[&str]) -> Result<String> {
    let format = "$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(SIGNED_BY)";
    let list = tools::output(
        Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]),
        "apt-get indextargets",
    )?;
    let mirror = list.lines().find_map(mirror).or_else(mirror_in_files);
    let (uri, key) = mirror.context("this machine's apt sources name no mirror of Debian")?;
    let line = |suite: &&str| format!("{kind} [signed-by={key}] {uri} {suite} main\n");
    Ok(suites.iter().map(line).collect())
}

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Address and key of a line of apt's that is about Debian proper.
fn mirror(line: &str) -> Option<(String, String)> {
    let mut words = line.split('|');
    let uri = words.next()?;
    let debian = words.next()? == "Debian" && words.next()? == "Debian";
    let key = words
        .next()
        .filter(|key| key.starts_with('/'))
        .unwrap_or(KEYRING);
    debian.then(|| (uri.to_owned(), key.to_owned()))
}

/// Where apt has no lists yet it knows no origins: the first address in its files that ends in `/debian`.
fn mirror_in_files() -> Option<(String, String)> {
    let parts = fs::read_dir("/etc/apt/sources.list.d").ok();
    let parts = parts
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let wanted = |path: &PathBuf| {
        path.extension()
            .is_some_and(|suffix| suffix == "list" || suffix == "sources")
    };
    let files = std::iter::once(PathBuf::from("/etc/apt/sources.list")).chain(parts.filter(wanted));
    files
        .filter_map(|file| fs::read_to_string(file).ok())
        .find_map(|text| {
            let mut lines = text
                .lines()
                .filter(|line| !line.trim_start().starts_with('#'));
            lines.find_map(|line| {
                line.split_whitespace()
                    .find(|word| is_debian(word))
                    .map(str::to_owned)
            })
        })
        .map(|uri| (uri, KEYRING.to_owned()))
}

fn is_debian(word: &str) -> bool {
    word.contains("://") && word.trim_end_matches('/').ends_with("/debian")
}

/// The package of a kernel among what `depends` lists.
///
/// # Errors
/// There is none.
pub fn kernel_among(depends: &str) -> Result<&str> {
    let package = depends
        .split([' ', ','])
        .find(|word| word.starts_with("linux-image-"));
    ensure!(package.is_some(), "no kernel among \"{depends}\"");
    Ok(package.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_a_series_is_taken() {
        let known: Vec<String> = ["6.12.9-1~bpo12+1", "6.1.192-2", "6.1.176-1"]
            .map(str::to_owned)
            .into();
        assert_eq!(newest(&known, "6.1"), Some("6.1.192-2"));
        assert_eq!(newest(&known, "6.12"), Some("6.12.9-1~bpo12+1"));
        assert_eq!(newest(&known, "6.13"), None);
    }

    #[test]
    fn the_mirror_is_that_of_debian_proper() {
        let line = "http://mirror/debian/|Debian|Debian|/usr/share/keyrings/x.gpg";
        let want = (
            "http://mirror/debian/".to_owned(),
            "/usr/share/keyrings/x.gpg".to_owned(),
        );
        assert_eq!(mirror(line), Some(want));
        assert_eq!(
            mirror("http://mirror/debian-security/|Debian|Debian-Security|"),
            None
        );
        assert_eq!(
            mirror("http://mirror/debian/|Debian|Debian|$(SIGNED_BY)")
                .unwrap()
                .1,
            KEYRING
        );
        assert!(is_debian("http://mirror/debian") && !is_debian("http://mirror/debian-security"));
    }

    #[test]
    fn the_kernel_is_found_among_dependencies() {
        let depends = "foo (>= 1), linux-image-6.1.0-9-cloud-amd64 (= 6.1.192-2)";
        assert_eq!(
            kernel_among(depends).unwrap(),
            "linux-image-6.1.0-9-cloud-amd64"
        );
        assert!(kernel_among("foo").is_err());
    }
}
