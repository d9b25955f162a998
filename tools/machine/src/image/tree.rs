//! The files of an image, by path, before they are written.

use anyhow::Result;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What lies at a path.
#[derive(Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A file with these bytes.
    File(Vec<u8>),
    /// A symbolic link to this.
    Symlink(String),
}

/// Paths without a leading slash, sorted, so that a directory comes before what is in it.
#[derive(Default)]
pub struct Tree {
    nodes: BTreeMap<String, (u32, Node)>,
}

/// Not taken from packages: nobody reads them in there, and they are half of the bytes.
const LEFT_OUT: &[&str] = &[
    "usr/share/doc/",
    "usr/share/info/",
    "usr/share/lintian/",
    "usr/share/locale/",
    "usr/share/man/",
    "usr/lib/x86_64-linux-gnu/gconv/",
];

/// Where `path` of a package lies once /usr is merged.
fn merged(path: &str) -> String {
    let top = path.split('/').next().unwrap_or_default();
    if matches!(top, "bin" | "sbin" | "lib" | "lib32" | "lib64" | "libx32") {
        format!("usr/{path}")
    } else {
        path.into()
    }
}

impl Tree {
    /// Adds a directory and those above it.
    pub fn directory(&mut self, path: &str, mode: u32) {
        self.parents(path);
        self.nodes
            .insert(path.into(), (mode & 0o7777, Node::Directory));
    }

    /// Adds a file, in place of what was there.
    pub fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.parents(path);
        self.nodes
            .insert(path.into(), (mode & 0o7777, Node::File(bytes)));
    }

    /// Adds a symbolic link, in place of what was there.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.nodes
            .insert(path.into(), (0o777, Node::Symlink(target.into())));
    }

    /// Whether something lies at `path`.
    pub fn has(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    /// Everything, directories first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32, &Node)> {
        self.nodes
            .iter()
            .map(|(path, (mode, node))| (path.as_str(), *mode, node))
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/')
            && !self.has(parent)
        {
            self.directory(parent, 0o755);
        }
    }

    /// Adds an unpacked package.
    ///
    /// # Errors
    /// A file of it cannot be read.
    pub fn add_package(&mut self, dir: &Path) -> Result<()> {
        self.add_directory(dir, "", LEFT_OUT)
    }

    /// Adds what lies in `dir`, in place of what was there.
    ///
    /// # Errors
    /// A file of it cannot be read.
    pub fn add_files(&mut self, dir: &Path) -> Result<()> {
        self.add_directory(dir, "", &[])
    }

    fn add_directory(&mut self, dir: &Path, prefix: &str, left_out: &[&str]) -> Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let raw = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let path = merged(&raw);
            if left_out
                .iter()
                .any(|left| format!("{path}/").starts_with(left))
            {
                continue;
            }
            let meta = entry.path().symlink_metadata()?;
            let mode = meta.permissions().mode();
            if meta.is_symlink() {
                let target = fs::read_link(entry.path())?;
                self.symlink(&path, &target.to_string_lossy());
            } else if meta.is_dir() {
                if !self.has(&path) {
                    self.directory(&path, mode);
                }
                self.add_directory(&entry.path(), &format!("{raw}/"), left_out)?;
            } else if meta.is_file() {
                self.file(&path, mode, fs::read(entry.path())?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmerged_paths_move_below_usr() {
        assert_eq!(merged("bin/bash"), "usr/bin/bash");
        assert_eq!(merged("lib64/ld.so"), "usr/lib64/ld.so");
        assert_eq!(merged("lib64"), "usr/lib64");
        assert_eq!(merged("etc/passwd"), "etc/passwd");
        assert_eq!(merged("library"), "library");
    }

    /// As for `make run FILES=DIR`: what a person has built lies where it lay in the directory, and none of it is left out.
    #[test]
    fn files_of_a_person_lie_where_they_lay() {
        let dir = std::env::temp_dir().join(format!("pantala-files-{}", std::process::id()));
        fs::create_dir_all(dir.join("bin")).unwrap();
        fs::create_dir_all(dir.join("usr/share/doc/mine")).unwrap();
        fs::write(dir.join("bin/mine"), b"mine").unwrap();
        fs::set_permissions(dir.join("bin/mine"), fs::Permissions::from_mode(0o751)).unwrap();
        fs::write(dir.join("usr/share/doc/mine/text"), b"text").unwrap();
        std::os::unix::fs::symlink("bin/mine", dir.join("link")).unwrap();
        let mut tree = Tree::default();
        tree.file("usr/bin/mine", 0o644, b"another".to_vec());
        let added = tree.add_files(&dir);
        fs::remove_dir_all(&dir).unwrap();
        added.unwrap();
        let node = |path: &str| {
            tree.iter()
                .find(|&(at, ..)| at == path)
                .map(|(_, m, n)| (m, n))
        };
        let file = |mode, bytes: &[u8]| (mode, Node::File(bytes.to_vec()));
        let (mode, mine) = file(0o751, b"mine");
        assert_eq!(node("usr/bin/mine"), Some((mode, &mine)));
        assert!(tree.has("usr/share/doc/mine/text"));
        assert_eq!(
            node("link"),
            Some((0o777, &Node::Symlink("bin/mine".into())))
        );
        assert!(tree.add_files(&dir).is_err(), "it is not there any more");
    }

    #[test]
    fn directories_come_before_what_is_in_them() {
        let mut tree = Tree::default();
        tree.file("a/b/c", 0o100_644, vec![1]);
        tree.symlink("a/b-link", "b");
        let paths: Vec<&str> = tree.iter().map(|(path, _, _)| path).collect();
        let at = |wanted: &str| paths.iter().position(|&path| path == wanted).unwrap();
        assert!(at("a") < at("a/b") && at("a/b") < at("a/b/c"));
    }
}
