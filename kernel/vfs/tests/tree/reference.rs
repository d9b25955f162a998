//! A file tree as simple as can be: what Linux answers to each call.

use std::collections::BTreeMap;

use vfs::error::FsError;
use vfs::rename::RenameMode;

type Result<R> = std::result::Result<R, FsError>;

/// Links that a lookup follows.
const MAX_LINKS: usize = 40;

enum Node {
    Dir {
        names: BTreeMap<String, usize>,
        parent: usize,
    },
    File {
        bytes: Vec<u8>,
        links: u32,
    },
    Link(String),
}

/// The tree. Nodes are never removed from the list; those without a name are not found.
pub struct Tree {
    nodes: Vec<Node>,
}

/// A directory, and a name in it that may or may not exist.
struct Slot {
    dir: usize,
    name: String,
}

impl Tree {
    pub fn new() -> Tree {
        let names = BTreeMap::new();
        Tree {
            nodes: vec![Node::Dir { names, parent: 0 }],
        }
    }

    fn names(&self, dir: usize) -> Result<&BTreeMap<String, usize>> {
        match &self.nodes[dir] {
            Node::Dir { names, .. } => Ok(names),
            _ => Err(FsError::NotDir),
        }
    }

    fn is_dir(&self, node: usize) -> bool {
        matches!(self.nodes[node], Node::Dir { .. })
    }

    fn set(&mut self, slot: &Slot, node: usize) {
        if let Node::Dir { parent, .. } = &mut self.nodes[node] {
            *parent = slot.dir;
        }
        if let Node::Dir { names, .. } = &mut self.nodes[slot.dir] {
            names.insert(slot.name.clone(), node);
        }
    }

    fn clear(&mut self, slot: &Slot) {
        if let Node::Dir { names, .. } = &mut self.nodes[slot.dir] {
            names.remove(&slot.name);
        }
    }

    /// One component of a lookup in `dir`.
    fn step(&self, dir: usize, name: &str) -> Result<usize> {
        let names = self.names(dir)?;
        match (name, &self.nodes[dir]) {
            (".", _) => Ok(dir),
            ("..", Node::Dir { parent, .. }) => Ok(*parent),
            _ => names.get(name).copied().ok_or(FsError::NotFound),
        }
    }

    /// The node at `path`, seen from `dir`. A link at the end is followed if `follow` says so.
    fn walk(&self, dir: usize, path: &str, follow: bool, links: &mut usize) -> Result<usize> {
        let mut at = if path.starts_with('/') { 0 } else { dir };
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        for (i, part) in parts.iter().enumerate() {
            let next = self.step(at, part)?;
            let last = i + 1 == parts.len();
            at = match &self.nodes[next] {
                Node::Link(to) if !last || follow => {
                    *links += 1;
                    if *links > MAX_LINKS {
                        return Err(FsError::Loop);
                    }
                    self.walk(at, to, true, links)?
                }
                _ => next,
            };
        }
        Ok(at)
    }

    fn find(&self, path: &str, follow: bool) -> Result<usize> {
        self.walk(0, path, follow, &mut 0)
    }

    fn slot(&self, path: &str) -> Result<Slot> {
        let (parent, name) = path.rsplit_once('/').expect("an absolute path");
        let dir = self.find(parent, true)?;
        self.names(dir)?;
        let name = name.to_owned();
        Ok(Slot { dir, name })
    }

    fn get(&self, slot: &Slot) -> Option<usize> {
        self.step(slot.dir, &slot.name).ok()
    }

    fn make(&mut self, path: &str, node: Node) -> Result<()> {
        let slot = self.slot(path)?;
        if self.get(&slot).is_some() {
            return Err(FsError::Exists);
        }
        self.nodes.push(node);
        self.set(&slot, self.nodes.len() - 1);
        Ok(())
    }

    pub fn mkdir(&mut self, path: &str) -> Result<()> {
        let names = BTreeMap::new();
        self.make(path, Node::Dir { names, parent: 0 })
    }

    pub fn symlink(&mut self, to: &str, path: &str) -> Result<()> {
        self.make(path, Node::Link(to.to_owned()))
    }

    pub fn create(&mut self, path: &str) -> Result<()> {
        let bytes = Vec::new();
        self.make(path, Node::File { bytes, links: 1 })
    }

    fn file(&mut self, path: &str) -> Result<&mut Vec<u8>> {
        let node = self.find(path, true)?;
        match &mut self.nodes[node] {
            Node::File { bytes, .. } => Ok(bytes),
            _ => Err(FsError::IsDir),
        }
    }

    pub fn write(&mut self, path: &str, pos: u64, new: &[u8]) -> Result<usize> {
        let bytes = self.file(path)?;
        let end = pos as usize + new.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[pos as usize..end].copy_from_slice(new);
        Ok(new.len())
    }

    pub fn read(&mut self, path: &str) -> Result<Vec<u8>> {
        self.file(path).cloned()
    }

    pub fn truncate(&mut self, path: &str, size: u64) -> Result<()> {
        self.file(path)?.resize(size as usize, 0);
        Ok(())
    }

    /// A name of `node` is gone.
    fn drop_name(&mut self, node: usize) {
        if let Node::File { links, .. } = &mut self.nodes[node] {
            *links -= 1;
        }
    }

    pub fn unlink(&mut self, path: &str) -> Result<()> {
        let slot = self.slot(path)?;
        let node = self.get(&slot).ok_or(FsError::NotFound)?;
        if self.is_dir(node) {
            return Err(FsError::IsDir);
        }
        self.clear(&slot);
        self.drop_name(node);
        Ok(())
    }

    pub fn rmdir(&mut self, path: &str) -> Result<()> {
        let slot = self.slot(path)?;
        let node = self.get(&slot).ok_or(FsError::NotFound)?;
        if !self.names(node)?.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.clear(&slot);
        Ok(())
    }

    pub fn link(&mut self, from: &str, to: &str) -> Result<()> {
        let node = self.find(from, false)?;
        let slot = self.slot(to)?;
        if self.get(&slot).is_some() {
            return Err(FsError::Exists);
        }
        if self.is_dir(node) {
            return Err(FsError::Perm);
        }
        self.set(&slot, node);
        if let Node::File { links, .. } = &mut self.nodes[node] {
            *links += 1;
        }
        Ok(())
    }

    /// Whether `dir` is `node` or lies below it.
    fn is_within(&self, mut dir: usize, node: usize) -> bool {
        loop {
            match &self.nodes[dir] {
                _ if dir == node => return true,
                Node::Dir { parent, .. } if dir != 0 => dir = *parent,
                _ => return false,
            }
        }
    }

    pub fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let (from, to) = (self.slot(from)?, self.slot(to)?);
        let source = self.get(&from).ok_or(FsError::NotFound)?;
        let target = self.get(&to);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            _ => {}
        }
        if self.is_dir(source) && self.is_within(to.dir, source) {
            return Err(FsError::Invalid);
        }
        if let Some(target) = target {
            if self.is_dir(target) && self.is_within(from.dir, target) {
                return Err(match mode {
                    RenameMode::Exchange => FsError::Invalid,
                    _ => FsError::NotEmpty,
                });
            }
            if source == target {
                return Ok(());
            }
            if mode == RenameMode::Exchange {
                self.set(&from, target);
                self.set(&to, source);
                return Ok(());
            }
            match (self.is_dir(source), self.is_dir(target)) {
                (true, false) => return Err(FsError::NotDir),
                (false, true) => return Err(FsError::IsDir),
                (true, true) if !self.names(target)?.is_empty() => return Err(FsError::NotEmpty),
                _ => {}
            }
            self.drop_name(target);
        }
        self.clear(&from);
        self.set(&to, source);
        Ok(())
    }

    pub fn readlink(&self, path: &str) -> Result<String> {
        match &self.nodes[self.find(path, false)?] {
            Node::Link(to) => Ok(to.clone()),
            _ => Err(FsError::Invalid),
        }
    }

    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        Ok(self
            .names(self.find(path, true)?)?
            .keys()
            .cloned()
            .collect())
    }

    /// Number of links and size, as stat(2) tells them, of what is at `path`; of a directory only the links.
    pub fn stat(&self, path: &str) -> Result<(u32, Option<u64>)> {
        Ok(match &self.nodes[self.find(path, true)?] {
            Node::Dir { names, .. } => {
                let below = names.values().filter(|&&node| self.is_dir(node)).count();
                (2 + below as u32, None)
            }
            Node::File { bytes, links } => (*links, Some(bytes.len() as u64)),
            Node::Link(_) => unreachable!("links are followed"),
        })
    }

    /// All paths.
    pub fn paths(&self) -> Vec<String> {
        let mut found = vec![String::from("/")];
        let mut next = 0;
        while let Some(path) = found.get(next).cloned() {
            next += 1;
            let Ok(node) = self.find(&path, false) else {
                continue;
            };
            if let Ok(names) = self.names(node) {
                let base = path.trim_end_matches('/');
                found.extend(names.keys().map(|name| format!("{base}/{name}")));
            }
        }
        found
    }
}
