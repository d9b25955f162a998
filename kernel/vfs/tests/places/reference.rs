//! A tree of directories, files, links and mounts as simple as can be: what Linux answers to each call.

use std::collections::BTreeMap;

use vfs::error::FsError;

type Result<R> = std::result::Result<R, FsError>;

/// Links that a lookup follows.
const MAX_LINKS: usize = 40;

/// A file, with its inode number in the kernel.
struct Node {
    ino: u64,
    kind: Kind,
}

enum Kind {
    Dir {
        names: BTreeMap<String, usize>,
        /// `None` for the root of a file system.
        parent: Option<usize>,
        removed: bool,
        /// Whether ordinary users may search it.
        open: bool,
    },
    File,
    Link(String),
}

/// A mount, with its number in the kernel.
struct Mount {
    id: u32,
    root: usize,
    over: Option<Place>,
    read_only: bool,
    live: bool,
}

/// A mount, and a node seen through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    mount: usize,
    node: usize,
}

/// A lookup: from where, and by which user.
#[derive(Clone, Copy)]
pub struct From {
    pub root: Place,
    pub base: Place,
    pub is_root_user: bool,
}

/// The tree. Neither nodes nor mounts are ever removed from the lists.
pub struct Places {
    nodes: Vec<Node>,
    mounts: Vec<Mount>,
}

/// A directory, and a name in it.
struct Slot {
    dir: Place,
    name: String,
}

pub const TOP: Place = Place { mount: 0, node: 0 };
pub const BY_ROOT: From = From {
    root: TOP,
    base: TOP,
    is_root_user: true,
};

impl Places {
    /// The tree of an empty root directory.
    pub fn new(ino: u64, id: u32) -> Places {
        let mut places = Places {
            nodes: Vec::new(),
            mounts: Vec::new(),
        };
        places.add_dir(ino, None);
        places.add_mount(id, 0, None, false);
        places
    }

    fn add_dir(&mut self, ino: u64, parent: Option<usize>) -> usize {
        self.add(
            ino,
            Kind::Dir {
                names: BTreeMap::new(),
                parent,
                removed: false,
                open: true,
            },
        )
    }

    fn add(&mut self, ino: u64, kind: Kind) -> usize {
        self.nodes.push(Node { ino, kind });
        self.nodes.len() - 1
    }

    fn add_mount(&mut self, id: u32, root: usize, over: Option<Place>, read_only: bool) {
        self.mounts.push(Mount {
            id,
            root,
            over,
            read_only,
            live: true,
        });
    }

    /// The numbers by which the kernel knows a place.
    pub fn numbers(&self, place: Place) -> (u32, u64) {
        (self.mounts[place.mount].id, self.nodes[place.node].ino)
    }

    fn is_dir(&self, node: usize) -> bool {
        matches!(self.nodes[node].kind, Kind::Dir { .. })
    }

    fn names(&self, node: usize) -> Result<&BTreeMap<String, usize>> {
        match &self.nodes[node].kind {
            Kind::Dir { names, .. } => Ok(names),
            _ => Err(FsError::NotDir),
        }
    }

    fn parent(&self, node: usize) -> Option<usize> {
        match self.nodes[node].kind {
            Kind::Dir { parent, .. } => parent,
            _ => None,
        }
    }

    /// Whether `node` is `above` or lies below it.
    fn is_within(&self, mut node: usize, above: usize) -> bool {
        loop {
            match self.parent(node) {
                _ if node == above => return true,
                Some(up) => node = up,
                None => return false,
            }
        }
    }

    fn cover(&self, mut place: Place) -> Place {
        let covers = |place| {
            let mut mounts = self.mounts.iter();
            mounts.rposition(|m| m.live && m.over == Some(place))
        };
        while let Some(mount) = covers(place) {
            let node = self.mounts[mount].root;
            place = Place { mount, node };
        }
        place
    }

    /// Fails with `NotFound` where a directory has moved out of what its mount shows, and so lies nowhere.
    fn up(&self, mut place: Place, root: Place) -> Result<Place> {
        loop {
            let mount = &self.mounts[place.mount];
            if place == root {
                return Ok(place);
            }
            if place.node != mount.root {
                break;
            }
            match mount.over {
                Some(over) => place = over,
                None => return Ok(place),
            }
        }
        if !self.is_within(place.node, self.mounts[place.mount].root) {
            return Err(FsError::NotFound);
        }
        let node = self.parent(place.node).expect("below a root");
        Ok(self.cover(Place { node, ..place }))
    }

    fn step(&self, from: From, at: Place, name: &str) -> Result<Place> {
        let Kind::Dir { names, open, .. } = &self.nodes[at.node].kind else {
            return Err(FsError::NotDir);
        };
        if !from.is_root_user && !open {
            return Err(FsError::Access);
        }
        match name {
            "." => Ok(at),
            ".." => self.up(at, from.root),
            _ => {
                let node = *names.get(name).ok_or(FsError::NotFound)?;
                Ok(self.cover(Place { node, ..at }))
            }
        }
    }

    fn walk(&self, from: From, path: &str, follow: bool, links: &mut usize) -> Result<Place> {
        let mut at = match path.starts_with('/') {
            true => from.root,
            false => from.base,
        };
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        for (i, part) in parts.iter().enumerate() {
            let last = i + 1 == parts.len();
            let slash = last && path.ends_with('/');
            let mut next = self.step(from, at, part)?;
            if let Kind::Link(text) = &self.nodes[next.node].kind
                && (!last || slash || follow)
            {
                *links += 1;
                if *links > MAX_LINKS {
                    return Err(FsError::Loop);
                }
                next = self.walk(From { base: at, ..from }, text, true, links)?;
            }
            if slash && !self.is_dir(next.node) {
                return Err(FsError::NotDir);
            }
            at = next;
        }
        Ok(at)
    }

    /// The place at a path.
    pub fn find(&self, from: From, path: &str, follow: bool) -> Result<Place> {
        self.walk(from, path, follow, &mut 0)
    }

    /// The directory of an absolute path's last name.
    fn slot(&self, path: &str) -> Result<Slot> {
        let (dir, name) = path.rsplit_once('/').expect("an absolute path");
        let dir = self.find(BY_ROOT, &format!("{dir}/"), true)?;
        self.names(dir.node)?;
        let name = name.to_owned();
        Ok(Slot { dir, name })
    }

    fn get(&self, slot: &Slot) -> Option<usize> {
        self.names(slot.dir.node).ok()?.get(&slot.name).copied()
    }

    fn is_read_only(&self, slot: &Slot) -> bool {
        self.mounts[slot.dir.mount].read_only
    }

    /// Whether something is mounted on the node, through whichever mount.
    fn is_mountpoint(&self, node: usize) -> bool {
        let on_it = |m: &Mount| m.live && m.over.is_some_and(|over| over.node == node);
        self.mounts.iter().any(on_it)
    }

    fn set(&mut self, slot: &Slot, node: usize) {
        if let Kind::Dir { names, .. } = &mut self.nodes[slot.dir.node].kind {
            names.insert(slot.name.clone(), node);
        }
        if let Kind::Dir { parent, .. } = &mut self.nodes[node].kind {
            *parent = Some(slot.dir.node);
        }
    }

    fn clear(&mut self, slot: &Slot) {
        if let Kind::Dir { names, .. } = &mut self.nodes[slot.dir.node].kind {
            names.remove(&slot.name);
        }
    }

    /// Whether something could be made at a path.
    pub fn may_make(&self, path: &str) -> Result<()> {
        let slot = self.slot(path)?;
        match self.nodes[slot.dir.node].kind {
            Kind::Dir { removed: true, .. } => Err(FsError::NotFound),
            _ if self.get(&slot).is_some() => Err(FsError::Exists),
            _ if self.is_read_only(&slot) => Err(FsError::ReadOnly),
            _ => Ok(()),
        }
    }

    /// Makes a directory, a link if there is a text, or a file.
    pub fn make(&mut self, path: &str, ino: u64, dir: bool, text: Option<&str>) {
        let slot = self.slot(path).expect("it may be made");
        let node = match text {
            Some(text) => self.add(ino, Kind::Link(text.to_owned())),
            None if dir => self.add_dir(ino, Some(slot.dir.node)),
            None => self.add(ino, Kind::File),
        };
        self.set(&slot, node);
    }

    /// unlink(2) or rmdir(2).
    pub fn remove(&mut self, path: &str, as_dir: bool) -> Result<()> {
        let slot = self.slot(path)?;
        if self.is_read_only(&slot) {
            return Err(FsError::ReadOnly);
        }
        let node = self.get(&slot).ok_or(FsError::NotFound)?;
        match (as_dir, self.is_dir(node)) {
            (true, false) => return Err(FsError::NotDir),
            (false, true) => return Err(FsError::IsDir),
            _ if self.is_mountpoint(node) => return Err(FsError::Busy),
            (true, true) if !self.names(node)?.is_empty() => return Err(FsError::NotEmpty),
            _ => {}
        }
        self.clear(&slot);
        self.bury(node);
        Ok(())
    }

    fn bury(&mut self, node: usize) {
        if let Kind::Dir { removed, .. } = &mut self.nodes[node].kind {
            *removed = true;
        }
    }

    /// rename(2).
    pub fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.slot(from)?, self.slot(to)?);
        if from.dir.mount != to.dir.mount {
            return Err(FsError::CrossDevice);
        }
        if self.is_read_only(&from) {
            return Err(FsError::ReadOnly);
        }
        for dir in [from.dir.node, to.dir.node] {
            if let Kind::Dir { removed: true, .. } = self.nodes[dir].kind {
                return Err(FsError::NotFound);
            }
        }
        let source = self.get(&from).ok_or(FsError::NotFound)?;
        let target = self.get(&to);
        if self.is_dir(source) && self.is_within(to.dir.node, source) {
            return Err(FsError::Invalid);
        }
        if target.is_some_and(|t| self.is_dir(t) && self.is_within(from.dir.node, t)) {
            return Err(FsError::NotEmpty);
        }
        if target == Some(source) {
            return Ok(());
        }
        match target.map(|t| (self.is_dir(source), self.is_dir(t))) {
            Some((true, false)) => return Err(FsError::NotDir),
            Some((false, true)) => return Err(FsError::IsDir),
            _ => {}
        }
        if self.is_mountpoint(source) || target.is_some_and(|t| self.is_mountpoint(t)) {
            return Err(FsError::Busy);
        }
        if target.is_some_and(|t| self.names(t).is_ok_and(|names| !names.is_empty())) {
            return Err(FsError::NotEmpty);
        }
        target.into_iter().for_each(|t| self.bury(t));
        self.clear(&from);
        self.set(&to, source);
        Ok(())
    }

    /// Whether something can be mounted on the place at a path, and the place.
    pub fn may_mount(&self, over: &str) -> Result<Place> {
        let place = self.find(BY_ROOT, over, true)?;
        match self.nodes[place.node].kind {
            Kind::Dir { removed: true, .. } => Err(FsError::NotFound),
            _ => Ok(place),
        }
    }

    /// Mounts a new file system with a root of that number.
    pub fn mount(&mut self, over: Place, id: u32, ino: u64) {
        let root = self.add_dir(ino, None);
        self.add_mount(id, root, Some(over), false);
    }

    /// Mounts what is at `from` once more.
    pub fn bind(&mut self, from: Place, over: Place, id: u32, read_only: bool) {
        self.add_mount(id, from.node, Some(over), read_only);
    }

    /// umount2(2), of what is seen at a path.
    pub fn umount(&mut self, path: &str, detach: bool) -> Result<()> {
        let place = self.find(BY_ROOT, path, true)?;
        if self.mounts[place.mount].root != place.node {
            return Err(FsError::Invalid);
        }
        let mut below = vec![place.mount];
        for (n, mount) in self.mounts.iter().enumerate() {
            if mount.live && mount.over.is_some_and(|on| below.contains(&on.mount)) {
                below.push(n);
            }
        }
        if place.mount == 0 || !detach && below.len() > 1 {
            return Err(FsError::Busy);
        }
        below.into_iter().for_each(|n| self.mounts[n].live = false);
        Ok(())
    }

    /// Lets ordinary users search the directory at a path, or no longer. Returns whether it is one.
    pub fn set_open(&mut self, path: &str, new: bool) -> bool {
        let Ok(place) = self.find(BY_ROOT, path, true) else {
            return false;
        };
        match &mut self.nodes[place.node].kind {
            Kind::Dir { open, .. } => {
                *open = new;
                true
            }
            _ => false,
        }
    }
}
