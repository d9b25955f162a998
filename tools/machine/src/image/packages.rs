//! Fetches Debian packages with what they depend on, and unpacks them.
//!
//! Packages lie in `build/packages/NAME_VERSION_ARCH.deb`, unpacked beside them in a directory of the same name
//! without the suffix; either is used again as long as apt offers the same version.

use crate::progress::{Step, step};
use crate::tools;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages that others depend on only for their maintainer scripts, which an image never runs.
const FOR_SCRIPTS: &[&str] = &[
    "adduser",
    "debconf",
    "dpkg",
    "init-system-helpers",
    "install-info",
    "passwd",
    "sysvinit-utils",
    "ucf",
];

/// Has apt offer what its sources have: what is installed on the host may come from elsewhere, and cannot be fetched then.
const NOTHING_INSTALLED: [&str; 2] = ["-o", "Dir::State::status=/dev/null"];

/// What apt tells of a package.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Record {
    name: String,
    file: String,
    /// Each dependency is a list of alternatives.
    depends: Vec<Vec<String>>,
}

/// Unpacks `wanted` and everything they need; a directory each.
///
/// # Errors
/// apt does not know a package, or it cannot be fetched or unpacked.
pub fn unpack(wanted: &[String]) -> Result<Vec<PathBuf>> {
    let step = step("fetching Debian packages");
    let cache = tools::build_dir()?.join("packages");
    fs::create_dir_all(&cache)?;
    let records = match remembered(&cache, wanted) {
        Some(records) => records,
        None => closure(wanted, &step).and_then(|records| remember(&cache, wanted, records))?,
    };
    let missing: Vec<&Record> = records
        .iter()
        .filter(|record| !unpacked_dir(&cache, record).is_dir())
        .collect();
    download(&cache, &missing, &step)?;
    for record in &missing {
        step.say(&format!("unpacking {}", record.name));
        unpack_one(&cache, record)?;
    }
    Ok(records
        .iter()
        .map(|record| unpacked_dir(&cache, record))
        .collect())
}

/// Where the closure of `wanted` is written down: asking apt takes seconds. Its name is short however many they are, for
/// a file's name has a limit; the file's first line says for which packages it is.
fn memo(cache: &Path, wanted: &[String]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    wanted.hash(&mut hasher);
    cache.join(format!("{:016x}.closure", hasher.finish()))
}

/// The closure as written down, unless apt has learnt of packages since.
fn remembered(cache: &Path, wanted: &[String]) -> Option<Vec<Record>> {
    let file = memo(cache, wanted);
    let changed = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    if changed(Path::new("/var/lib/apt/lists"))? > changed(&file)? {
        return None;
    }
    let text = fs::read_to_string(file).ok()?;
    let (first, lines) = text.split_once('\n')?;
    if first != wanted.join(" ") {
        return None;
    }
    let record = |line: &str| {
        let (name, file) = line.split_once(' ')?;
        Some(Record {
            name: name.into(),
            file: file.into(),
            depends: Vec::new(),
        })
    };
    lines.lines().map(record).collect()
}

fn remember(cache: &Path, wanted: &[String], records: Vec<Record>) -> Result<Vec<Record>> {
    let mut text = wanted.join(" ") + "\n";
    for record in &records {
        text += &format!("{} {}\n", record.name, record.file);
    }
    fs::write(memo(cache, wanted), text)?;
    Ok(records)
}

fn unpacked_dir(cache: &Path, record: &Record) -> PathBuf {
    cache.join(record.file.trim_end_matches(".deb"))
}

fn unpack_one(cache: &Path, record: &Record) -> Result<()> {
    let dir = unpacked_dir(cache, record);
    let half = dir.with_extension("half");
    if half.exists() {
        fs::remove_dir_all(&half)?;
    }
    let mut command = Command::new("dpkg-deb");
    tools::output(
        command.arg("-x").arg(cache.join(&record.file)).arg(&half),
        "dpkg-deb",
    )?;
    fs::rename(&half, &dir)?;
    Ok(())
}

fn download(cache: &Path, records: &[&Record], step: &Step) -> Result<()> {
    let absent: Vec<&&Record> = records
        .iter()
        .filter(|record| !cache.join(&record.file).is_file())
        .collect();
    if absent.is_empty() {
        return Ok(());
    }
    step.line(&format!("fetching {} Debian packages", absent.len()));
    let names: Vec<&str> = absent.iter().map(|record| record.name.as_str()).collect();
    let fetch = || {
        let mut command = Command::new("apt-get");
        // A user's own directory is not readable for apt's download user; this is harmless and it says so at length.
        command
            .current_dir(cache)
            .args(NOTHING_INSTALLED)
            .args(["-q", "download"])
            .args(&names);
        tools::output(&mut command, "apt-get download")
    };
    fetch()
        .with_context(|| format!("cannot fetch {}; is `apt-get update` due?", names.join(" ")))?;
    for record in absent {
        if !cache.join(&record.file).is_file() {
            bail!(
                "apt-get download left no {} in {}",
                record.file,
                cache.display()
            );
        }
    }
    Ok(())
}

/// `wanted` and what they need, by name.
fn closure(wanted: &[String], step: &Step) -> Result<Vec<Record>> {
    let mut known: BTreeMap<String, Record> = BTreeMap::new();
    let mut virtual_names: BTreeSet<String> = BTreeSet::new();
    let mut next: BTreeSet<String> = wanted.iter().cloned().collect();
    while !next.is_empty() {
        step.say(&format!(
            "asking apt about {} packages",
            known.len() + next.len()
        ));
        let found = show(&next)?;
        for name in &next {
            match found.get(name) {
                Some(record) => drop(known.insert(name.clone(), record.clone())),
                None if wanted.contains(name) => {
                    bail!("apt knows no package named {name} (try `apt-get update`)")
                }
                // Provided by others, such as awk; an image that is to have one names the provider.
                None => drop(virtual_names.insert(name.clone())),
            }
        }
        next = known
            .values()
            .flat_map(|record| &record.depends)
            .filter(|any| !any.iter().any(|name| FOR_SCRIPTS.contains(&name.as_str())))
            .filter(|any| !any.iter().any(|name| known.contains_key(name)))
            .filter_map(|any| {
                any.iter()
                    .find(|name| !virtual_names.contains(*name))
                    .cloned()
            })
            .collect();
    }
    Ok(known.into_values().collect())
}

fn show(names: &BTreeSet<String>) -> Result<BTreeMap<String, Record>> {
    let mut command = Command::new("apt-cache");
    let out = command
        .args(NOTHING_INSTALLED)
        .args(["show", "--no-all-versions"])
        .args(names)
        .output()
        .context("cannot start apt-cache")?;
    // Its status is 100 if only one name is virtual: what it printed counts.
    let text = String::from_utf8_lossy(&out.stdout);
    let records = text.split("\n\n").filter_map(parse_record);
    Ok(records
        .map(|record| (record.name.clone(), record))
        .collect())
}

fn parse_record(paragraph: &str) -> Option<Record> {
    let field = |key: &str| {
        paragraph
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
            .map(str::to_owned)
    };
    let name = field("Package")?;
    // apt writes the colon of an epoch as %3a in file names.
    let file = format!(
        "{name}_{}_{}.deb",
        field("Version")?.replace(':', "%3a"),
        field("Architecture")?
    );
    let depends = [field("Pre-Depends"), field("Depends")]
        .into_iter()
        .flatten();
    let depends = depends.flat_map(|list| parse_depends(&list)).collect();
    Some(Record {
        name,
        file,
        depends,
    })
}

/// `a (>= 1), b | c:any` gives `[[a], [b, c]]`.
fn parse_depends(list: &str) -> Vec<Vec<String>> {
    let name = |text: &str| {
        text.split(['(', ':'])
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    list.split(',')
        .map(|any| any.split('|').map(name).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_lose_versions_and_architectures() {
        let parsed = parse_depends("libc6 (>= 2.34), debconf (>= 0.5) | debconf-2.0, perl:any");
        assert_eq!(
            parsed,
            [vec!["libc6"], vec!["debconf", "debconf-2.0"], vec!["perl"]]
        );
    }

    #[test]
    fn a_record_names_its_file_as_apt_does() {
        let text = "Package: busybox-static\nVersion: 1:1.35.0-4\nArchitecture: amd64\nPre-Depends: a\nDepends: b | c\n";
        let record = parse_record(text).unwrap();
        assert_eq!(record.file, "busybox-static_1%3a1.35.0-4_amd64.deb");
        assert_eq!(record.depends, [vec!["a"], vec!["b", "c"]]);
        assert_eq!(parse_record("Version: 1"), None);
    }

    #[test]
    fn the_closure_of_many_packages_is_remembered() {
        let cache = std::env::temp_dir().join(format!("closures-{}", std::process::id()));
        fs::create_dir_all(&cache).unwrap();
        let wanted: Vec<String> = (0..100).map(|n| format!("package-{n}")).collect();
        let record = Record {
            name: "package-0".into(),
            file: "package-0_1_amd64.deb".into(),
            depends: Vec::new(),
        };
        let records = remember(&cache, &wanted, vec![record]).unwrap();
        let file = memo(&cache, &wanted);
        // Newer than anything that apt has learnt.
        fs::File::open(&file)
            .unwrap()
            .set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(3600))
            .unwrap();
        let there = Path::new("/var/lib/apt/lists").exists();
        assert_eq!(remembered(&cache, &wanted), there.then_some(records));
        // Another list under the same name is not taken for this one.
        fs::rename(&file, memo(&cache, &wanted[1..])).unwrap();
        assert_eq!(remembered(&cache, &wanted[1..]), None);
        fs::remove_dir_all(&cache).unwrap();
    }
}
