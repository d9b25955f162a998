//! Nodes whose content is made when it is asked for: the stuff of procfs and sysfs.
//!
//! A dynamic directory makes an inode for each successful lookup; nothing is kept between
//! lookups, so a process that is gone leaves nothing behind. A dynamic file is printed into a
//! [`Text`] when it is first read, and again when it is read from its beginning.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use cred::Payer;
use fscore::path::Secret;

use super::error::{FsError, Result};
use super::inode::{Inode, NewInode, Node, mode};
use super::mount::Path;

/// Largest text that one file may print.
const TEXT_LIMIT: usize = 16 << 20;

/// Text being printed. Running out of memory is remembered and reported at the end.
#[derive(Default)]
pub struct Text {
    bytes: Vec<u8>,
    failed: bool,
}

impl Text {
    /// An empty text.
    pub const fn new() -> Self {
        Text {
            bytes: Vec::new(),
            failed: false,
        }
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed
            || self.bytes.len() + bytes.len() > TEXT_LIMIT
            || self.bytes.try_reserve(bytes.len()).is_err()
        {
            self.failed = true;
            return;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes so far.
    pub fn position(&self) -> usize {
        self.bytes.len()
    }

    /// Pads with spaces until `column` bytes after `start`.
    pub fn pad(&mut self, start: usize, column: usize) {
        while !self.failed && self.bytes.len() < start + column {
            self.push(b" ");
        }
    }

    /// The bytes, unless memory ran out.
    pub fn finish(self) -> Result<Vec<u8>> {
        if self.failed {
            Err(FsError::NoMemory)
        } else {
            Ok(self.bytes)
        }
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.push(s.as_bytes());
        Ok(())
    }
}

/// Prints into a [`Text`]; it has no error of its own.
#[macro_export]
macro_rules! put {
    ($text:expr, $($arg:tt)*) => {{
        use core::fmt::Write as _;
        let _ = write!($text, $($arg)*);
    }};
}

/// One entry for a reader of a directory.
pub struct Entry<'a> {
    /// The cookie after it.
    pub next: u64,
    /// Inode number.
    pub ino: u64,
    /// Type bits.
    pub kind: u32,
    /// The name.
    pub name: &'a [u8],
}

/// Takes an entry; false when there is no more room.
pub type Emit<'a> = dyn FnMut(Entry) -> bool + 'a;

/// A directory made on demand.
pub trait DynDir: Send + Sync {
    /// The inode of `name`; `this` is the directory's own.
    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>>;
    /// Lists entries from cookie `from` (at least 2) on until `emit` says stop.
    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()>;
    /// Whether the caller may do with it what its mode bits forbid.
    fn is_callers(&self) -> bool {
        false
    }
}

/// A file made on demand.
pub trait DynFile: Send + Sync {
    /// Prints it.
    fn print(&self, out: &mut Text) -> Result<()>;
    /// Opens it with the flags of open(2): what an open file prints and takes instead, where that is settled now.
    fn open(&self, _flags: u32) -> Result<Option<Box<dyn DynFile>>> {
        Ok(None)
    }
    /// Takes what a program writes, in one piece.
    fn store(&self, _data: &[u8]) -> Result<()> {
        Err(FsError::Invalid)
    }
}

/// Where a dynamic link leads.
pub enum Target {
    /// To a place, whatever its name.
    Place(Path),
    /// To a path.
    Text(Vec<u8>),
}

/// A link made on demand.
pub trait DynLink: Send + Sync {
    /// Where it leads.
    fn target(&self) -> Result<Target>;
    /// What readlink says.
    fn text(&self, out: &mut Text) -> Result<()>;
}

/// A node made on demand.
pub enum Dynamic {
    /// A directory.
    Dir(Box<dyn DynDir>),
    /// A file.
    File(Box<dyn DynFile>),
    /// A link.
    Link(Box<dyn DynLink>),
}

impl Dynamic {
    /// Puts the node into an inode with permissions `perm`, owned by `owner`.
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

/// A part of a fixed tree.
pub enum Fixed {
    /// A directory with its entries.
    Dir(&'static [(&'static str, Fixed)]),
    /// One into which the superuser alone may look.
    Private(&'static [(&'static str, Fixed)]),
    /// A read-only file.
    File(Print),
    /// A read-only file that shows each opener what it may see.
    Judged(fn() -> Print),
    /// A file that the superuser may write.
    Setting(Print, Store),
    /// A link with a fixed text.
    Link(&'static str),
    /// A directory made on demand.
    Made(fn() -> Box<dyn DynDir>),
}

/// Prints a fixed file.
pub type Print = fn(&mut Text) -> Result<()>;
/// Takes a setting's new value.
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

struct JudgedFile(fn() -> Print);

impl DynFile for JudgedFile {
    fn print(&self, out: &mut Text) -> Result<()> {
        (self.0)()(out)
    }
    fn open(&self, _: u32) -> Result<Option<Box<dyn DynFile>>> {
        Ok(Some(Box::new(FixedFile((self.0)(), None))))
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

/// The directory of a fixed tree.
pub struct FixedDir(pub &'static [(&'static str, Fixed)]);

/// A stable inode number for a name below a directory.
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
