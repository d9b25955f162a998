//! The pseudo-terminals of one devpts: their numbers and their names.
//!
//! Guarantee: a number names one pseudo-terminal from the open of its master until master and terminal are closed; the name exists from
//! that open until the master is closed. There are at most [`LIMIT`] less one at a time, of all file systems of this type together.
//! Mechanism: a table by number, under a spin lock. A `Number` gives its place back when it is dropped.

use alloc::sync::Arc;
use alloc::vec::Vec;
use ksync::atomic::{AtomicU32, Ordering::Relaxed};

use cred::{Cred, Payer};
use ksync::Spin;
use proc::group::Terminal;
use vfs::devices::number;
use vfs::error::{FsError, Result};
use vfs::inode::{Inode, NewInode, Node, mode};

ksync::lock_class!(pub PtsLock, "pseudo-terminals", rank = 85);

/// The most that [`LIMIT`] may be, and numbers there are.
pub const MOST: u32 = 1 << 20;
/// The major number of the terminals.
const MAJOR: u32 = 136;
/// Inode numbers, as in Linux.
const PTMX_INO: u64 = 2;
const FIRST_INO: u64 = 3;

hal::machine_static! {
    /// How many pseudo-terminals there are. Atomic.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    /// There are always fewer than this: kernel.pty.max. Atomic.
    pub static LIMIT: AtomicU32 = AtomicU32::new(4096);
    /// kernel.pty.reserve: how many of these are for file systems that the first mount namespace has mounted. There is no other
    /// namespace. Atomic.
    pub static RESERVE: AtomicU32 = AtomicU32::new(1024);
}

/// How many pseudo-terminals there are.
pub fn count() -> u32 {
    COUNT.load(Relaxed)
}

/// Options of mount(2).
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The owner of new terminals, instead of the user that opens the master.
    pub uid: Option<u32>,
    /// Their group, instead of that user's.
    pub gid: Option<u32>,
    /// Their permissions.
    pub mode: u32,
    /// The permissions of `ptmx`.
    pub ptmx_mode: u32,
    /// All numbers are below this.
    pub max: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            uid: None,
            gid: None,
            mode: 0o600,
            ptmx_mode: 0,
            max: MOST,
        }
    }
}

/// The place of a number.
#[derive(Clone)]
enum Slot {
    Free,
    /// The number is in use, and has no name: the master is being opened, or was closed.
    Nameless,
    Named(Arc<Inode>, Arc<dyn Terminal>),
}

struct Table {
    slots: Vec<Slot>,
    /// No place before this one is free.
    hint: usize,
    options: Options,
}

/// See the module.
pub struct Pts {
    /// The device number of the file system. Constant.
    dev: u64,
    table: Spin<Table, PtsLock>,
    /// The node that opens a master. Constant.
    ptmx: Arc<Inode>,
}

fn device(dev: u64, ino: u64, perm: u32, owner: (u32, u32), rdev: u64) -> Arc<Inode> {
    let new = NewInode {
        ino,
        dev,
        mode: mode::CHR | perm,
        uid: owner.0,
        gid: owner.1,
        rdev,
        charge: None,
        payer: Payer::NOBODY,
    };
    Arc::new(Inode::new(new, Node::Device))
}

impl Pts {
    /// Without terminals, for the file system with device number `dev`.
    pub fn new(dev: u64, options: Options) -> Arc<Pts> {
        let ptmx = device(dev, PTMX_INO, options.ptmx_mode, (0, 0), number(5, 2));
        Arc::new(Pts {
            dev,
            table: Spin::new(Table {
                slots: Vec::new(),
                hint: 0,
                options,
            }),
            ptmx,
        })
    }

    /// The options.
    pub fn options(&self) -> Options {
        self.table.lock().options
    }

    /// Replaces the options, for new terminals and for `ptmx`. Sleeps.
    pub fn set_options(&self, options: Options) {
        let _lock = self.ptmx.lock.lock();
        self.table.lock().options = options;
        self.ptmx.set_permissions(options.ptmx_mode);
    }

    /// The node that opens a master.
    pub fn ptmx(&self) -> &Arc<Inode> {
        &self.ptmx
    }

    /// The node of a terminal.
    pub fn node(&self, number: u32) -> Option<Arc<Inode>> {
        match self.table.lock().slots.get(number as usize)? {
            Slot::Named(inode, _) => Some(inode.clone()),
            _ => None,
        }
    }

    /// The first number at or above `from` that has a name.
    pub fn next(&self, from: u32) -> Option<u32> {
        let table = self.table.lock();
        let mut slots = table.slots.iter().skip(from as usize);
        let at = slots.position(|slot| matches!(slot, Slot::Named(..)))?;
        Some(from + at as u32)
    }

    /// The terminal whose node is `node`; `None` if its master has been closed.
    pub(super) fn terminal(&self, node: &Arc<Inode>) -> Option<Arc<dyn Terminal>> {
        let at = node.ino.checked_sub(FIRST_INO)?;
        match self.table.lock().slots.get(usize::try_from(at).ok()?)? {
            Slot::Named(inode, tty) if Arc::ptr_eq(inode, node) => Some(tty.clone()),
            _ => None,
        }
    }

    /// Takes the lowest free number.
    ///
    /// # Errors
    /// `NoSpace`; `NoMemory`.
    pub(super) fn claim(self: &Arc<Self>) -> Result<Number> {
        if COUNT.fetch_add(1, Relaxed) + 1 >= LIMIT.load(Relaxed) {
            COUNT.fetch_sub(1, Relaxed);
            return Err(FsError::NoSpace);
        }
        let index = self.table.lock().claim().inspect_err(|_| {
            COUNT.fetch_sub(1, Relaxed);
        })?;
        Ok(Number {
            pts: self.clone(),
            index,
        })
    }

    /// Gives the terminal with that number, which has no name, its name; the node belongs to the user of `cred` unless the options say
    /// otherwise.
    pub(super) fn name(&self, number: u32, tty: Arc<dyn Terminal>, cred: &Cred) {
        let options = self.options();
        let owner = (
            options.uid.unwrap_or(cred.fsuid),
            options.gid.unwrap_or(cred.fsgid),
        );
        let ino = FIRST_INO + u64::from(number);
        let node = device(self.dev, ino, options.mode, owner, tty.number());
        if let Some(slot) = self.table.lock().slots.get_mut(number as usize) {
            *slot = Slot::Named(node, tty);
        }
    }

    /// Takes the name from a terminal.
    pub(super) fn withdraw(&self, number: u32) {
        let mut table = self.table.lock();
        let slot = table.slots.get_mut(number as usize);
        let old = slot.map(|slot| core::mem::replace(slot, Slot::Nameless));
        drop(table);
        drop(old);
    }
}

impl Table {
    fn claim(&mut self) -> Result<u32> {
        let free = |slot: &Slot| matches!(slot, Slot::Free);
        let behind = &self.slots[self.hint..];
        let at = behind.iter().position(free).unwrap_or(behind.len()) + self.hint;
        if at >= self.options.max as usize {
            return Err(FsError::NoSpace);
        }
        if at == self.slots.len() {
            self.slots.try_reserve(1).map_err(|_| FsError::NoMemory)?;
            self.slots.push(Slot::Nameless);
        } else {
            self.slots[at] = Slot::Nameless;
        }
        self.hint = at + 1;
        Ok(at as u32)
    }

    fn give_back(&mut self, number: u32) {
        let at = number as usize;
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Slot::Free;
        }
        while matches!(self.slots.last(), Some(Slot::Free)) {
            self.slots.pop();
        }
        if self.slots.is_empty() {
            self.slots = Vec::new();
        }
        self.hint = self.hint.min(at).min(self.slots.len());
    }
}

/// A number in use; it is free when this is dropped, which takes the table's lock.
pub(super) struct Number {
    /// The terminals of the file system.
    pub pts: Arc<Pts>,
    /// The number.
    pub index: u32,
}

impl Number {
    /// The device number of the terminal.
    pub fn device(&self) -> u64 {
        number(MAJOR, self.index)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.pts.table.lock().give_back(self.index);
        COUNT.fetch_sub(1, Relaxed);
    }
}
