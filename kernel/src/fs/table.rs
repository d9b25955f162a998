//! The name table of one directory: name → [`Dentry`], looked up without writing anything.
//!
//! Guarantee: a lookup under a [`CpuPin`] sees each name either before or after a change, never
//! neither, and touches only memory that it reads. Mechanism: buckets are small immutable arrays
//! behind [`EpochPtr`]s; a writer, alone by the directory's lock, replaces a bucket (or, to grow,
//! the whole array of buckets) and retires the old one.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use ksync::{CpuPin, EpochPtr};

use super::dentry::Dentry;
use super::epoch;
use super::error::{FsError, Result};

/// Buckets of a directory's first table.
const FIRST: usize = 4;
/// Names a bucket holds on average before the table doubles.
const LOAD: usize = 3;

/// One bucket: the dentries whose hash falls here.
struct Bucket(Box<[Arc<Dentry>]>);

struct Buckets {
    slots: Box<[EpochPtr<Bucket>]>,
}

impl Buckets {
    fn with(n: usize) -> Result<Self> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(n).map_err(|_| FsError::NoMemory)?;
        slots.resize_with(n, EpochPtr::empty);
        Ok(Buckets {
            slots: slots.into_boxed_slice(),
        })
    }

    fn slot(&self, hash: u32) -> &EpochPtr<Bucket> {
        &self.slots[hash as usize & (self.slots.len() - 1)]
    }
}

/// The table. Changes need the directory's lock.
pub struct NameTable {
    buckets: EpochPtr<Buckets>,
    /// Names. Written under the directory's lock.
    len: AtomicU32,
}

impl Default for NameTable {
    fn default() -> Self {
        Self::new()
    }
}

impl NameTable {
    /// An empty table; it owns no memory.
    pub const fn new() -> Self {
        NameTable {
            buckets: EpochPtr::empty(),
            len: AtomicU32::new(0),
        }
    }

    /// Names held.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    /// Finds a name.
    pub fn find<'p>(&'p self, pin: &'p CpuPin, hash: u32, name: &[u8]) -> Option<&'p Arc<Dentry>> {
        let bucket = self.buckets.load(pin)?.slot(hash).load(pin)?;
        bucket.0.iter().find(|d| d.is_named(pin, hash, name))
    }

    /// Replaces the bucket of `hash` by one without `gone` and with `new`, in one step for
    /// readers. The directory's lock is held.
    fn edit(&self, hash: u32, gone: &[&Arc<Dentry>], new: Option<&Arc<Dentry>>) {
        let pin = ksync::pin();
        let Some(buckets) = self.buckets.load(&pin) else {
            return;
        };
        let slot = buckets.slot(hash);
        let old: &[Arc<Dentry>] = slot.load(&pin).map_or(&[], |b| &b.0);
        // Small by the table's load, so the reserve behind the kernel heap may pay for it.
        let list: Vec<Arc<Dentry>> = old
            .iter()
            .filter(|d| !gone.iter().any(|g| Arc::ptr_eq(g, d)))
            .chain(new)
            .cloned()
            .collect();
        let fresh = (!list.is_empty()).then(|| Box::new(Bucket(list.into_boxed_slice())));
        slot.replace(epoch(), &pin, fresh);
    }

    /// Makes room for one more name. The directory's lock is held.
    pub fn reserve(&self) -> Result<()> {
        self.grow()
    }

    /// Puts a dentry into the bucket of its name, in place of `old` of the same name. Room has
    /// been reserved; the directory's lock is held. The count is the caller's.
    pub fn install(&self, new: &Arc<Dentry>, old: Option<&Arc<Dentry>>) {
        match old {
            Some(old) => self.edit(new.hash(), &[new, old], Some(new)),
            None => self.edit(new.hash(), &[new], Some(new)),
        }
    }

    /// Takes a dentry out of the bucket of `hash`. The directory's lock is held. The count is
    /// the caller's.
    pub fn uninstall(&self, hash: u32, dentry: &Arc<Dentry>) {
        self.edit(hash, &[dentry], None);
    }

    /// Whether two hashes share a bucket. The directory's lock is held.
    pub fn same_bucket(&self, a: u32, b: u32) -> bool {
        let pin = ksync::pin();
        self.buckets
            .load(&pin)
            .is_some_and(|t| (a ^ b) as usize & (t.slots.len() - 1) == 0)
    }

    /// Changes the count of names. The directory's lock is held.
    pub fn add_len(&self, delta: i32) {
        self.len.store(
            self.len.load(Ordering::Relaxed).wrapping_add_signed(delta),
            Ordering::Relaxed,
        );
    }

    /// Adds a dentry. The directory's lock is held and the name is free.
    pub fn insert(&self, dentry: &Arc<Dentry>) -> Result<()> {
        self.reserve()?;
        self.install(dentry, None);
        self.add_len(1);
        Ok(())
    }

    /// Removes a dentry. The directory's lock is held.
    pub fn remove(&self, dentry: &Arc<Dentry>) {
        self.uninstall(dentry.hash(), dentry);
        self.add_len(-1);
    }

    /// Doubles the table when it is full (or makes the first).
    fn grow(&self) -> Result<()> {
        let pin = ksync::pin();
        let len = self.len();
        let old = self.buckets.load(&pin);
        let have = old.map_or(0, |b| b.slots.len());
        if len < have * LOAD {
            return Ok(());
        }
        let fresh = Buckets::with((have * 2).max(FIRST))?;
        let mut lists: Vec<Vec<Arc<Dentry>>> = Vec::new();
        lists
            .try_reserve_exact(fresh.slots.len())
            .map_err(|_| FsError::NoMemory)?;
        lists.resize_with(fresh.slots.len(), Vec::new);
        let mask = fresh.slots.len() - 1;
        for slot in old.iter().flat_map(|b| b.slots.iter()) {
            for d in slot.load(&pin).iter().flat_map(|b| b.0.iter()) {
                let list = &mut lists[d.hash() as usize & mask];
                list.try_reserve(1).map_err(|_| FsError::NoMemory)?;
                list.push(d.clone());
            }
        }
        for (slot, list) in fresh.slots.iter().zip(lists) {
            if !list.is_empty() {
                slot.replace(
                    epoch(),
                    &pin,
                    Some(Box::new(Bucket(list.into_boxed_slice()))),
                );
            }
        }
        self.buckets.replace(epoch(), &pin, Some(Box::new(fresh)));
        Ok(())
    }
}
