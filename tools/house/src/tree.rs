//! The repository as text.

use crate::table;
use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

/// A file that is text.
#[derive(Debug, Clone)]
pub struct Source {
    /// Relative to the repository, with slashes.
    pub path: String,
    /// The contents.
    pub text: String,
}

/// All files of [`table::AREAS`] and those beside them.
#[derive(Debug, Default)]
pub struct Tree {
    sources: Vec<Source>,
    paths: BTreeSet<String>,
}

impl Tree {
    /// Reads the repository at `root`.
    ///
    /// # Errors
    /// A directory or file cannot be read.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let mut tree = Tree::default();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_file() || table::AREAS.contains(&name.as_str()) {
                tree.add(&entry.path(), name)?;
            }
        }
        tree.sources.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// The repository that this crate is built in.
    ///
    /// # Errors
    /// A directory or file cannot be read.
    pub fn here() -> io::Result<Tree> {
        Tree::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
    }

    /// A made-up repository, for tests.
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.sources.push(Source {
                path: (*path).to_owned(),
                text: (*text).to_owned(),
            });
            let mut at = String::new();
            for part in path.split('/') {
                at = if at.is_empty() {
                    part.to_owned()
                } else {
                    format!("{at}/{part}")
                };
                tree.paths.insert(at.clone());
            }
        }
        tree
    }

    fn add(&mut self, at: &Path, path: String) -> io::Result<()> {
        let name = at
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if at.is_dir() {
            if name == "target" {
                return Ok(());
            }
            for entry in fs::read_dir(at)? {
                let entry = entry?;
                let below = format!("{path}/{}", entry.file_name().to_string_lossy());
                self.add(&entry.path(), below)?;
            }
        } else if [".rs", ".md", ".toml", ".svg"]
            .iter()
            .any(|e| name.ends_with(e))
        {
            let text = fs::read_to_string(at)?;
            self.sources.push(Source {
                path: path.clone(),
                text,
            });
        }
        self.paths.insert(path);
        Ok(())
    }

    /// The files whose names end in `extension`, which begins with a dot.
    pub fn with(&self, extension: &str) -> impl Iterator<Item = &Source> {
        self.sources
            .iter()
            .filter(move |s| s.path.ends_with(extension))
    }

    /// One file.
    pub fn file(&self, path: &str) -> Option<&Source> {
        self.sources.iter().find(|s| s.path == path)
    }

    /// Whether a file or directory is there.
    pub fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// All files and directories.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    /// Files and directories whose names end in `/tail`, or are it.
    pub fn ending<'a>(&'a self, tail: &'a str) -> impl Iterator<Item = &'a str> {
        self.paths.iter().map(String::as_str).filter(move |p| {
            *p == tail
                || p.strip_suffix(tail)
                    .is_some_and(|front| front.ends_with('/'))
        })
    }
}
