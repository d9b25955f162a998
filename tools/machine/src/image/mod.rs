//! Makes an initramfs: Debian packages, the files that no package has, and this project's programs.

mod cpio;
mod packages;
mod tree;

use crate::options;
use crate::progress::step;
use crate::{build, tools};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use tree::Tree;

/// In every image. What they depend on comes along.
const DEFAULT_PACKAGES: &[&str] = &[
    "busybox-static",
    "bash",
    "coreutils",
    "grep",
    "sed",
    "gawk",
    "findutils",
    "procps",
];

/// Directories that programs expect and packages may not bring, with their modes.
const DIRECTORIES: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr/bin", 0o755),
    ("usr/lib/pantala", 0o755),
    ("usr/sbin", 0o755),
    ("var/tmp", 0o1777),
];

/// Names that Debian's maintainer scripts would have linked, first candidate that is there.
const LINKS: &[(&str, &[&str])] = &[
    ("usr/bin/awk", &["gawk", "mawk"]),
    ("usr/bin/cc", &["gcc"]),
    ("usr/bin/c++", &["g++"]),
    ("usr/bin/pager", &["less", "more"]),
    ("usr/bin/sh", &["dash", "bash", "busybox"]),
    ("usr/bin/which", &["which.debianutils"]),
];

const FILES: &[(&str, &str)] = &[
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    ),
    ("etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"),
    ("etc/hostname", "pantala\n"),
    ("etc/hosts", "127.0.0.1 localhost\n"),
    (
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files\n",
    ),
    ("root/.bashrc", "PS1='pantala:\\w# '\n"),
];

/// Makes the image that `asked` describes and returns its path.
///
/// # Errors
/// A package cannot be had, or a file cannot be read or written.
pub fn make(asked: &options::Image) -> Result<PathBuf> {
    make_as(asked, "initramfs")
}

/// The same, as the file of that name in `build/`, for a job that needs two images.
///
/// # Errors
/// As [`make`].
pub fn make_as(asked: &options::Image, name: &str) -> Result<PathBuf> {
    tools::need(&[
        ("dpkg-deb", "dpkg"),
        ("apt-get", "apt"),
        ("apt-cache", "apt"),
    ])?;
    let programs = build::user()?;
    let mut tree = Tree::merged();
    match &asked.root {
        Some(root) => tree
            .add_root(root)
            .with_context(|| format!("cannot read ROOT={}", root.display()))?,
        None => add_packages(&mut tree, &asked.packages)?,
    }
    let _step = step("writing the image");
    add_own(&mut tree, &programs)?;
    if let Some(dir) = &asked.files {
        tree.add_files(dir)
            .with_context(|| format!("cannot read FILES={}", dir.display()))?;
    }
    let suffix = if asked.gzip { ".gz" } else { "" };
    let path = tools::build_dir()?.join(format!("{name}.cpio{suffix}"));
    write_atomically(&path, |file| cpio::write(&tree, file, asked.gzip))?;
    Ok(path)
}

/// A small Debian: the packages that are always there and `more`, what they depend on, and what their scripts would have made.
fn add_packages(tree: &mut Tree, more: &[String]) -> Result<()> {
    let mut wanted: Vec<String> = DEFAULT_PACKAGES.iter().map(|&name| name.into()).collect();
    wanted.extend(more.iter().cloned());
    let unpacked = packages::unpack(&wanted)?;
    DIRECTORIES
        .iter()
        .for_each(|&(path, mode)| tree.directory(path, mode));
    for dir in &unpacked {
        tree.add_package(dir)
            .with_context(|| format!("cannot read {}", dir.display()))?;
    }
    FILES
        .iter()
        .for_each(|(path, text)| tree.file(path, 0o644, text.as_bytes().to_vec()));
    for (link, candidates) in LINKS {
        let there = |name: &&&str| tree.has(&format!("usr/bin/{name}"));
        if let (false, Some(&target)) = (tree.has(link), candidates.iter().find(there)) {
            tree.symlink(link, target);
        }
    }
    Ok(())
}

/// The programs of `user/` and the scripts that lie beside them.
fn add_own(tree: &mut Tree, programs: &Path) -> Result<()> {
    for (name, path) in build::PROGRAMS {
        let file = programs.join(name);
        let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        tree.file(path, 0o755, bytes);
    }
    tree.symlink("usr/bin/pcm", "systat");
    let share = tools::root().join("user/share");
    for entry in fs::read_dir(&share).with_context(|| format!("cannot read {}", share.display()))? {
        let entry = entry?;
        let path = format!("usr/lib/pantala/{}", entry.file_name().to_string_lossy());
        tree.file(&path, 0o755, fs::read(entry.path())?);
    }
    Ok(())
}

/// Writes beside `path` and renames, so that an interrupted run leaves no half image.
fn write_atomically(path: &Path, write: impl FnOnce(fs::File) -> Result<()>) -> Result<()> {
    let half = path.with_extension("half");
    let file =
        fs::File::create(&half).with_context(|| format!("cannot write {}", half.display()))?;
    write(file)?;
    fs::rename(&half, path).with_context(|| format!("cannot write {}", path.display()))
}
