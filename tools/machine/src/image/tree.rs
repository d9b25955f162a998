//! The files of an image, by path, before they are written.

use anyhow::Result;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
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

/// A user's and a group's id.
pub type Owner = (u32, u32);

const ROOT: Owner = (0, 0);

/// What lies at a path, and whose it is.
#[derive(Debug)]
pub struct Entry {
    /// The permission bits.
    pub mode: u32,
    /// Whose it is.
    pub owner: Owner,
    /// What it is.
    pub node: Node,
}

/// Paths without a leading slash, sorted, so that a directory comes before what is in it.
#[derive(Default)]
pub struct Tree {
    nodes: BTreeMap<String, Entry>,
}

/// The symbolic links of a merged /usr.
const MERGED: &[&str] = &["bin", "sbin", "lib", "lib64"];

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
    /// What every root has: a merged /usr.
    pub fn merged() -> Tree {
        let mut tree = Tree::default();
        for dir in MERGED {
            tree.directory(&format!("usr/{dir}"), 0o755);
            tree.symlink(dir, &format!("usr/{dir}"));
        }
        tree
    }

    fn put(&mut self, path: &str, mode: u32, owner: Owner, node: Node) {
        self.parents(path);
        let mode = mode & 0o7777;
        self.nodes.insert(path.into(), Entry { mode, owner, node });
    }

    /// Adds a directory and those above it.
    pub fn directory(&mut self, path: &str, mode: u32) {
        self.put(path, mode, ROOT, Node::Directory);
    }

    /// Adds a file, in place of what was there.
    pub fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.put(path, mode, ROOT, Node::File(bytes));
    }

    /// Adds a symbolic link, in place of what was there.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.put(path, 0o777, ROOT, Node::Symlink(target.into()));
    }

    /// Whether something lies at `path`.
    pub fn has(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    /// Everything, directories first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.nodes
            .iter()
            .map(|(path, entry)| (path.as_str(), entry))
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
        self.add_directory(dir, "", LEFT_OUT, &|_| ROOT)
    }

    /// Adds what lies in `dir`, in place of what was there.
    ///
    /// # Errors
    /// A file of it cannot be read.
    pub fn add_files(&mut self, dir: &Path) -> Result<()> {
        self.add_directory(dir, "", &[], &|_| ROOT)
    }

    /// Adds the root of a whole system, each file with its owner; the owner of `dir` itself is taken for root. Devices, sockets and named
    /// pipes are left out.
    ///
    /// # Errors
    /// A file of it cannot be read.
    pub fn add_root(&mut self, dir: &Path) -> Result<()> {
        let (user, group) = owner(&dir.metadata()?);
        let as_root = |id, of_root| if id == of_root { 0 } else { id };
        let owned = |meta: &fs::Metadata| {
            let (its_user, its_group) = owner(meta);
            (as_root(its_user, user), as_root(its_group, group))
        };
        self.add_directory(dir, "", &[], &owned)
    }

    fn add_directory(
        &mut self,
        dir: &Path,
        prefix: &str,
        left_out: &[&str],
        owned: &dyn Fn(&fs::Metadata) -> Owner,
    ) -> Result<()> {
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
            let (mode, owner) = (meta.permissions().mode(), owned(&meta));
            // The links of a merged /usr are there.
            if meta.is_symlink() && !MERGED.contains(&raw.as_str()) {
                let target = fs::read_link(entry.path())?;
                let target = target.to_string_lossy().into_owned();
                self.put(&path, mode, owner, Node::Symlink(target));
            } else if meta.is_dir() {
                if !self.has(&path) {
                    self.put(&path, mode, owner, Node::Directory);
                }
                self.add_directory(&entry.path(), &format!("{raw}/"), left_out, owned)?;
            } else if meta.is_file() {
                let bytes = fs::read(entry.path())?;
                self.put(&path, mode, owner, Node::File(bytes));
            }
        }
        Ok(())
    }
}

fn owner(meta: &fs::Metadata) -> Owner {
    (meta.uid(), meta.gid())
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
                .find(|&(at, _)| at == path)
                .map(|(_, entry)| (entry.mode, &entry.node))
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
    fn the_owner_of_a_root_is_root_and_its_links_of_a_merged_usr_are_the_trees() {
        let dir = std::env::temp_dir().join(format!("pantala-root-{}", std::process::id()));
        fs::create_dir_all(dir.join("usr/bin")).unwrap();
        fs::write(dir.join("usr/bin/mine"), b"mine").unwrap();
        std::os::unix::fs::symlink("usr/bin", dir.join("bin")).unwrap();
        // Only root can give a file away.
        let given = std::os::unix::fs::chown(dir.join("usr/bin/mine"), Some(7), Some(8)).is_ok();
        let mut tree = Tree::merged();
        tree.add_root(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let owner = |path: &str| tree.nodes.get(path).map(|entry| entry.owner);
        let mine = if given { (7, 8) } else { ROOT };
        assert_eq!(
            (owner("usr/bin"), owner("usr/bin/mine")),
            (Some(ROOT), Some(mine))
        );
        assert_eq!(tree.nodes["bin"].node, Node::Symlink("usr/bin".into()));
        assert_eq!(tree.nodes["usr/bin"].node, Node::Directory);
    }

    #[test]
    fn directories_come_before_what_is_in_them() {
        let mut tree = Tree::default();
        tree.file("a/b/c", 0o100_644, vec![1]);
        tree.symlink("a/b-link", "b");
        let paths: Vec<&str> = tree.iter().map(|(path, _)| path).collect();
        let at = |wanted: &str| paths.iter().position(|&path| path == wanted).unwrap();
        assert!(at("a") < at("a/b") && at("a/b") < at("a/b/c"));
    }
}
