//! Nodes whose content is made when it is read: what procfs and sysfs consist of.
//!
//! A dynamic directory makes an inode for each successful lookup and keeps none, so nothing is left of a process that has
//! gone. A dynamic file is printed into a [`Text`] at its first read, and again at each read from position 0.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

use cred::{MemoryCharge, Payer};
use fscore::path::Secret;
use hal::PAGE_SIZE;
use hal::uio::IoBuf;
use task::current::current;

use super::dentry::Dir;
use super::error::{FsError, Result};
use super::inode::{Inode, NewInode, Node, mode};
use super::place::Path;

/// Largest text that one file may print.
const TEXT_LIMIT: usize = 16 << 20;

/// A text that is being printed. If memory runs out, the rest is dropped, and [`Text::finish`] fails. While it is longer than
/// a page, it is charged to the caller's user.
pub struct Text {
    bytes: Vec<u8>,
    charge: MemoryCharge,
    failed: bool,
}

impl Default for Text {
    fn default() -> Self {
        Self::new()
    }
}

impl Text {
    /// An empty text.
    pub const fn new() -> Self {
        Text {
            bytes: Vec::new(),
            charge: MemoryCharge::NONE,
            failed: false,
        }
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes.capacity() - self.bytes.len();
        if self.failed || room < bytes.len() && !self.grow(bytes.len()) {
            self.failed = true;
            return;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Makes room for `more` bytes; returns whether there is memory for it, and the text may become so long.
    fn grow(&mut self, more: usize) -> bool {
        if self.bytes.len() + more > TEXT_LIMIT || self.bytes.try_reserve(more).is_err() {
            return false;
        }
        if self.bytes.capacity() > PAGE_SIZE {
            self.charge();
        }
        true
    }

    /// Charges the memory that the text has now.
    fn charge(&mut self) {
        let bytes = self.bytes.capacity();
        if self.charge.bytes() == 0 {
            self.charge = MemoryCharge::new(current().payer(), bytes);
        } else {
            self.charge.resize(bytes);
        }
    }

    /// The number of bytes so far.
    pub fn position(&self) -> usize {
        self.bytes.len()
    }

    /// Pads with spaces until `column` bytes after `start`.
    pub fn pad(&mut self, start: usize, column: usize) {
        while !self.failed && self.bytes.len() < start + column {
            self.push(b" ");
        }
    }

    /// The bytes.
    ///
    /// # Errors
    /// `NoMemory` if memory ran out, or the text became longer than 16 MiB.
    pub fn finish(self) -> Result<Vec<u8>> {
        if self.failed {
            Err(FsError::NoMemory)
        } else {
            Ok(self.bytes)
        }
    }

    /// The bytes, and the charge for them, however few they are: for a caller that keeps them.
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish).
    pub fn keep(mut self) -> Result<(Vec<u8>, MemoryCharge)> {
        self.charge();
        let charge = core::mem::replace(&mut self.charge, MemoryCharge::NONE);
        Ok((self.finish()?, charge))
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s.as_bytes());
        Ok(())
    }
}

/// Prints into a [`Text`]. Returns nothing: an error is reported by [`Text::finish`](crate::dynamic::Text::finish).
#[macro_export]
macro_rules! put {
    ($text:expr, $($arg:tt)*) => {{
        use core::fmt::Write as _;
        let _ = write!($text, $($arg)*);
    }};
}

/// An entry, as it is passed to a reader of the directory.
pub struct Entry<'a> {
    /// The cookie from which to go on after this entry.
    pub next: u64,
    /// Inode number.
    pub ino: u64,
    /// The type bits of `st_mode`.
    pub kind: u32,
    /// The name.
    pub name: &'a [u8],
}

/// Takes one entry; returns false if there is no room for it.
pub type Emit<'a> = dyn FnMut(Entry) -> bool + 'a;

/// A directory whose entries are made on demand.
pub trait DynDir: Send + Sync {
    /// Makes the inode of `name`; `this` is the inode of the directory.
    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>>;
    /// Passes the entries from cookie `from` (at least 2) on to `emit`, until that returns false.
    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()>;
    /// Whether the caller may read or search the directory although its mode bits forbid it.
    fn is_callers(&self) -> bool {
        false
    }
    /// The directory as a value of its own type, for the operations that are for one file system alone.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

impl Inode {
    /// The directory that this inode is, if its entries are made on demand by a `T`.
    pub fn made_by<T: Any>(&self) -> Option<&T> {
        match &self.node {
            Node::Dynamic(Dynamic::Dir(dir)) => dir.as_any()?.downcast_ref(),
            _ => None,
        }
    }

    /// Finds a name in this directory, if its entries are made on demand; `None` in another one.
    ///
    /// # Errors
    /// Those of [`DynDir::lookup`]: `NotFound`.
    pub fn made(&self, name: &[u8]) -> Result<Option<Arc<Inode>>> {
        match &self.node {
            Node::Dynamic(Dynamic::Dir(dir)) => dir.lookup(self, name).map(Some),
            _ => Ok(None),
        }
    }

    /// The directory in memory in which `name` is to be made.
    ///
    /// # Errors
    /// `NotDir`. In a directory whose entries are made on demand, `Exists` or `NotFound`, as in procfs of Linux.
    pub fn dir_to_add(&self, name: &[u8]) -> Result<&Dir> {
        match self.made(name)? {
            Some(_) => Err(FsError::Exists),
            None => self.dir(),
        }
    }
}

/// A file whose content is made on demand.
pub trait DynFile: Send + Sync {
    /// Prints the content.
    fn print(&self, out: &mut Text) -> Result<()>;
    /// Prints a part of the content, for files that may be long: from `from` on, which is 0 for the first part, and for others
    /// what the part before returned. Returns that of the next part; `None` after the last one.
    fn print_part(&self, _from: u64, out: &mut Text) -> Result<Option<u64>> {
        self.print(out).map(|()| None)
    }
    /// Called when the file is opened, with the flags of open(2). If it returns a file, the open file prints and takes what
    /// that one does: its content is decided at the time of the open.
    fn open(&self, _flags: u32) -> Result<Option<Box<dyn DynFile>>> {
        Ok(None)
    }
    /// Whether an epoll takes the open file, which is then ready always.
    fn pollable(&self) -> bool {
        true
    }
    /// The content, if it is no text but has a value at each position.
    fn values(&self) -> Option<&dyn Values> {
        None
    }
    /// Takes what a program writes, in one call.
    fn store(&self, _data: &[u8]) -> Result<()> {
        Err(FsError::Invalid)
    }
}

/// The content of a file that is not printed: nothing of it is kept, and it has no end.
pub trait Values {
    /// Copies what is at position `pos` to `buf`, as much as that has room for. Returns how many bytes that was.
    fn read_at(&self, buf: &mut IoBuf, pos: u64) -> Result<usize>;
}

/// The target of a dynamic link.
pub enum Target {
    /// A place in the tree, even if it has no name any more.
    Place(Path),
    /// A path.
    Text(Vec<u8>),
}

/// A link whose target is found on demand.
pub trait DynLink: Send + Sync {
    /// The target, for a walk that follows the link.
    fn target(&self) -> Result<Target>;
    /// Prints the text that readlink(2) returns.
    fn text(&self, out: &mut Text) -> Result<()>;
}

/// The content of a node that is made on demand.
pub enum Dynamic {
    /// A directory.
    Dir(Box<dyn DynDir>),
    /// A file.
    File(Box<dyn DynFile>),
    /// A link.
    Link(Box<dyn DynLink>),
}

impl Dynamic {
    /// Makes an inode of the node, with the permissions `perm`, owned by `owner` (user and group). It is charged to no user.
    pub fn inode(self, dev: u64, ino: u64, perm: u32, owner: (u32, u32)) -> Arc<Inode> {
        let kind = match &self {
            Dynamic::Dir(_) => mode::DIR,
            Dynamic::File(_) => mode::REG,
            Dynamic::Link(_) => mode::LNK,
        };
        let (uid, gid) = owner;
        let new = NewInode {
            ino,
            dev,
            mode: kind | perm,
            uid,
            gid,
            rdev: 0,
            charge: None,
            payer: Payer::NOBODY,
        };
        Arc::new(Inode::new(new, Node::Dynamic(self)))
    }
}

/// A node of a fixed tree.
pub enum Fixed {
    /// A directory with these entries, readable by all.
    Dir(&'static [(&'static str, Fixed)]),
    /// A directory with these entries, to which only its owner, root, has access.
    Private(&'static [(&'static str, Fixed)]),
    /// A read-only file.
    File(Print),
    /// A read-only file. The function is called when the file is opened, and returns what that open file prints: so it can
    /// depend on the rights of the caller of open(2), whatever those of its readers are.
    Judged(fn() -> Box<dyn DynFile>),
    /// A file that all may read and root may write.
    Setting(Print, Store),
    /// A link with a fixed text.
    Link(&'static str),
    /// A directory made on demand; the function makes it at each lookup.
    Made(fn() -> Box<dyn DynDir>),
}

/// Prints the content of a fixed file.
pub type Print = fn(&mut Text) -> Result<()>;
/// Takes the new value of a setting.
pub type Store = fn(&[u8]) -> Result<()>;

struct FixedFile(Print, Option<Store>);

impl DynFile for FixedFile {
    fn print(&self, out: &mut Text) -> Result<()> {
        (self.0)(out)
    }
    fn store(&self, data: &[u8]) -> Result<()> {
        self.1.map_or(Err(FsError::Invalid), |store| store(data))
    }
}

struct JudgedFile(fn() -> Box<dyn DynFile>);

impl DynFile for JudgedFile {
    fn print(&self, out: &mut Text) -> Result<()> {
        (self.0)().print(out)
    }
    fn open(&self, _: u32) -> Result<Option<Box<dyn DynFile>>> {
        Ok(Some((self.0)()))
    }
}

struct FixedLink(&'static str);

impl DynLink for FixedLink {
    fn target(&self) -> Result<Target> {
        Ok(Target::Text(self.0.as_bytes().to_vec()))
    }
    fn text(&self, out: &mut Text) -> Result<()> {
        out.push(self.0.as_bytes());
        Ok(())
    }
}

/// A directory of a fixed tree.
pub struct FixedDir(pub &'static [(&'static str, Fixed)]);

/// The inode number of the name `name` in the directory with inode number `dir`: the same at each lookup.
pub fn ino_below(dir: u64, name: &[u8]) -> u64 {
    let h = u64::from(fscore::path::hash(Secret::NONE, name)) | 1 << 32;
    (dir.rotate_left(21) ^ h).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8
}

impl Fixed {
    fn kind(&self) -> u32 {
        match self {
            Fixed::Dir(_) | Fixed::Private(_) | Fixed::Made(_) => mode::DIR,
            Fixed::File(_) | Fixed::Judged(_) | Fixed::Setting(..) => mode::REG,
            Fixed::Link(_) => mode::LNK,
        }
    }

    fn inode(&self, this: &Inode, name: &[u8]) -> Arc<Inode> {
        let (node, perm) = match self {
            Fixed::Dir(entries) => (Dynamic::Dir(Box::new(FixedDir(entries))), 0o555),
            Fixed::Private(entries) => (Dynamic::Dir(Box::new(FixedDir(entries))), 0o700),
            Fixed::Made(make) => (Dynamic::Dir(make()), 0o555),
            Fixed::File(print) => (Dynamic::File(Box::new(FixedFile(*print, None))), 0o444),
            Fixed::Judged(open) => (Dynamic::File(Box::new(JudgedFile(*open))), 0o444),
            Fixed::Setting(print, store) => (
                Dynamic::File(Box::new(FixedFile(*print, Some(*store)))),
                0o644,
            ),
            Fixed::Link(text) => (Dynamic::Link(Box::new(FixedLink(text))), 0o777),
        };
        node.inode(this.dev, ino_below(this.ino, name), perm, (0, 0))
    }
}

impl DynDir for FixedDir {
    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let (_, node) = self
            .0
            .iter()
            .find(|(n, _)| n.as_bytes() == name)
            .ok_or(FsError::NotFound)?;
        Ok(node.inode(this, name))
    }

    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()> {
        for (i, (name, node)) in self.0.iter().enumerate().skip(from as usize - 2) {
            let name = name.as_bytes();
            let ino = ino_below(this.ino, name);
            if !emit(Entry {
                next: i as u64 + 3,
                ino,
                kind: node.kind(),
                name,
            }) {
                break;
            }
        }
        Ok(())
    }
}
