//! The name table of one directory: name → dentry, looked up without a write.
//!
//! Guarantee: a lookup under a [`CpuPin`] takes no lock, writes nothing, and sees each change of a leaf as a whole or not at
//! all. A change takes time proportional to the logarithm of the number of names: it has preemption off for a few small
//! allocations, however large the directory is.
//!
//! Mechanism: a tree over the bits of the name's hash. A leaf is a small immutable array of dentries behind an [`EpochPtr`].
//! A writer, which holds the directory's lock, replaces the leaf and retires the old one. A leaf that is full becomes a fork
//! of sixteen leaves, by the next four bits; a fork that becomes empty is removed. The table is never rebuilt as a whole.
//!
//! Rejected: an array of buckets that doubles. The array is one allocation, so it cannot grow beyond the heap's largest, and
//! doubling moves all names in one section with preemption off.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr;
use ksync::atomic::{AtomicU32, Ordering};

use ksync::{CpuPin, EpochPtr};
use mem::epoch;

use super::error::{FsError, Result};

/// Bits of the hash that select a way at a fork.
const BITS: u32 = 4;
const FAN: usize = 1 << BITS;
/// The most forks above a leaf: then its names share all bits of the hash.
const LEVELS: usize = (u32::BITS / BITS) as usize;
/// Names that a leaf holds before it becomes a fork.
const MOST: usize = 6;

/// What the table holds: something with a name.
pub trait Named: Send + Sync + 'static {
    /// The hash of the name.
    fn hash(&self) -> u32;
    /// Whether `name`, whose hash is `hash`, is its name now.
    fn is_named(&self, pin: &CpuPin, hash: u32, name: &[u8]) -> bool;
}

type Link<D> = EpochPtr<Box<Node<D>>>;

enum Node<D> {
    /// At least one name.
    Leaf(Box<[Arc<D>]>),
    Fork(Fork<D>),
}

struct Fork<D> {
    /// One link for each value of the bits.
    ways: Box<[Link<D>]>,
    /// Links that are not empty, at least one. Written under the directory's lock.
    used: AtomicU32,
}

impl<D> Fork<D> {
    fn count(&self, delta: i32) -> u32 {
        let used = self.used.load(Ordering::Relaxed);
        let used = used.wrapping_add_signed(delta);
        self.used.store(used, Ordering::Relaxed);
        used
    }
}

/// The index of the link that a hash selects at a fork.
fn way(hash: u32, level: usize) -> usize {
    (hash >> (BITS * level as u32)) as usize & (FAN - 1)
}

fn leaf<D>(names: Vec<Arc<D>>) -> Option<Box<Node<D>>> {
    (!names.is_empty()).then(|| Box::new(Node::Leaf(names.into_boxed_slice())))
}

/// The path to the leaf of a hash.
struct Trail<'p, D> {
    /// The forks on the path, each with the link that leads to it.
    forks: [Option<(&'p Link<D>, &'p Fork<D>)>; LEVELS],
    level: usize,
    /// The link of the leaf.
    link: &'p Link<D>,
    names: &'p [Arc<D>],
}

/// The table. The caller of a function that changes it holds the directory's lock.
pub struct NameTable<D> {
    root: Link<D>,
    /// The number of names. Written under the directory's lock.
    len: AtomicU32,
}

impl<D: Named> Default for NameTable<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Named> NameTable<D> {
    /// An empty table, which owns no memory.
    pub const fn new() -> Self {
        NameTable {
            root: EpochPtr::empty(),
            len: AtomicU32::new(0),
        }
    }

    /// The number of names.
    pub fn count(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    /// Finds a name by its hash and its letters. Takes no lock and writes nothing.
    // One copy for all callers, so that what hashes the name before is small enough to be inlined in a walk.
    #[inline(never)]
    pub fn find<'p>(&'p self, pin: &'p CpuPin, hash: u32, name: &[u8]) -> Option<&'p Arc<D>> {
        let mut node = self.root.load(pin)?;
        let mut bits = hash;
        loop {
            match node {
                Node::Leaf(names) => return names.iter().find(|d| d.is_named(pin, hash, name)),
                Node::Fork(fork) => node = fork.ways[bits as usize & (FAN - 1)].load(pin)?,
            }
            bits >>= BITS;
        }
    }

    /// The path to the leaf of `hash`, whose link may be empty. The directory's lock is held.
    fn trail<'p>(&'p self, pin: &'p CpuPin, hash: u32) -> Trail<'p, D> {
        let mut trail = Trail {
            forks: [None; LEVELS],
            level: 0,
            link: &self.root,
            names: &[],
        };
        while let Some(node) = trail.link.load(pin) {
            match node {
                Node::Leaf(names) => {
                    trail.names = names;
                    break;
                }
                Node::Fork(fork) => {
                    trail.forks[trail.level] = Some((trail.link, fork));
                    trail.link = &fork.ways[way(hash, trail.level)];
                    trail.level += 1;
                }
            }
        }
        trail
    }

    /// Replaces the leaf of `hash` by one with `dentry` as the first, or with none, if `stays` is false: in one step for
    /// readers. The directory's lock is held.
    fn edit(&self, hash: u32, dentry: &Arc<D>, stays: bool) {
        let pin = ksync::pin();
        let trail = self.trail(&pin, hash);
        // No larger than a leaf, so the reserve can serve this allocation when memory is short.
        let others = trail.names.iter().filter(|d| !Arc::ptr_eq(d, dentry));
        let first = stays.then_some(dentry).into_iter();
        let names: Vec<Arc<D>> = first.chain(others).cloned().collect();
        let change = i32::from(!names.is_empty()) - i32::from(!trail.names.is_empty());
        trail.link.replace(epoch(), &pin, leaf(names));
        // Removes forks that have become empty, from the leaf upwards.
        for (link, fork) in trail.forks[..trail.level].iter().rev().flatten() {
            if fork.count(change) > 0 {
                return;
            }
            link.replace(epoch(), &pin, None);
        }
    }

    /// Makes room for one more name with this hash. The directory's lock is held.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn reserve(&self, hash: u32) -> Result<()> {
        loop {
            let pin = ksync::pin();
            let trail = self.trail(&pin, hash);
            if trail.names.len() < MOST || trail.level == LEVELS {
                return Ok(());
            }
            let mut lists: [Vec<Arc<D>>; FAN] = Default::default();
            for name in trail.names {
                let list = &mut lists[way(name.hash(), trail.level)];
                list.try_reserve(1).map_err(|_| FsError::NoMemory)?;
                list.push(name.clone());
            }
            let used = lists.iter().filter(|list| !list.is_empty()).count();
            let mut ways = Vec::new();
            ways.try_reserve_exact(FAN).map_err(|_| FsError::NoMemory)?;
            ways.extend(lists.into_iter().map(|list| EpochPtr::new(leaf(list))));
            let fork = Node::Fork(Fork {
                ways: ways.into_boxed_slice(),
                used: AtomicU32::new(used as u32),
            });
            trail.link.replace(epoch(), &pin, Some(Box::new(fork)));
        }
    }

    /// Puts a dentry into the leaf of `hash`, as the one that is found of those with one name. The caller has made room by
    /// [`reserve`](Self::reserve), and updates the number of names; the directory's lock is held.
    pub fn install(&self, hash: u32, dentry: &Arc<D>) {
        self.edit(hash, dentry, true);
    }

    /// Takes a dentry out of the leaf of `hash`. The caller updates the number of names; the directory's lock is held.
    pub fn uninstall(&self, hash: u32, dentry: &Arc<D>) {
        self.edit(hash, dentry, false);
    }

    /// Whether two hashes have the same leaf. The directory's lock is held.
    pub fn same_leaf(&self, a: u32, b: u32) -> bool {
        let pin = ksync::pin();
        ptr::eq(self.trail(&pin, a).link, self.trail(&pin, b).link)
    }

    /// Adds `delta` to the number of names. The directory's lock is held.
    pub fn add_len(&self, delta: i32) {
        self.len.store(
            self.len.load(Ordering::Relaxed).wrapping_add_signed(delta),
            Ordering::Relaxed,
        );
    }

    /// Adds a dentry whose name is not in the table. The directory's lock is held.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn insert(&self, dentry: &Arc<D>) -> Result<()> {
        let hash = dentry.hash();
        self.reserve(hash)?;
        self.install(hash, dentry);
        self.add_len(1);
        Ok(())
    }

    /// Removes a dentry. The directory's lock is held.
    pub fn remove(&self, dentry: &Arc<D>) {
        self.uninstall(dentry.hash(), dentry);
        self.add_len(-1);
    }
}
