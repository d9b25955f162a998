//! Objects of one kind by id and by key.
//!
//! Guarantee: an operation on an object that it knows by id takes no lock that other objects share. An id is not given out again before 65,535
//! others of its kind were; a key leads to one object at a time.
//!
//! Mechanism: an id is an index, and a sequence number above it. The table by index is read without a lock. Keys are under a lock that
//! sleeps, indices under a spin lock, since the last detachment of removed memory gives one back under the lock of a map.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use ksync::atomic::{AtomicU32, Ordering::Relaxed};

use ksync::{Mutex, MutexGuard, Spin};
use task::id_table::ArcTable;

use super::error::{Result, SysvError};
use super::perm::{Caller, PRIVATE, Perm, flag};

ksync::lock_class!(pub SysvKeysLock, "System V keys", rank = 57);
ksync::lock_class!(pub SysvIndicesLock, "System V indices", rank = 83);

/// Bits of an id that are the index.
pub const INDEX_BITS: u32 = 15;
/// Most objects of a kind.
pub const MOST: usize = 1 << INDEX_BITS;
const WORDS: usize = MOST / 64;
/// Sequence numbers.
const SEQUENCES: u32 = 1 << (31 - INDEX_BITS);

/// An object that has an id.
pub trait Object: Send + Sync + Sized + 'static {
    /// Its id. Constant.
    fn id(&self) -> i32;
    /// Its owner and mode now. Does not sleep: the keys of all objects are locked meanwhile.
    fn perm(&self) -> Perm;
    /// Bytes of the heap that it takes.
    fn bytes(&self) -> usize;
    /// Gives back what its maker was charged for it, except for what is freed later: it has left the table.
    fn give_back(&self);
}

/// Which indices are in use.
struct Indices {
    used: Box<[u64; WORDS]>,
    count: usize,
    /// The sequence number of the next object.
    sequence: u32,
}

impl Indices {
    /// The lowest index that is not in use, as an id with the next sequence number.
    fn take(&mut self) -> Option<i32> {
        let word = self.used.iter().position(|&word| word != u64::MAX)?;
        let bit = self.used[word].trailing_ones();
        self.used[word] |= 1 << bit;
        self.count += 1;
        let sequence = self.sequence;
        self.sequence = (sequence + 1) % SEQUENCES;
        Some(((sequence << INDEX_BITS) | (word as u32 * 64 + bit)) as i32)
    }

    fn give_back(&mut self, index: u32) {
        let (word, bit) = (index as usize / 64, index % 64);
        debug_assert!(self.used[word] & 1 << bit != 0, "an index was in use");
        self.used[word] &= !(1 << bit);
        self.count -= 1;
    }
}

/// The keys that lead to an object, and its index.
pub type Keys = BTreeMap<i32, u32>;

/// What a caller of the call that finds or makes an object asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The key.
    pub key: i32,
    /// Of [`flag`], and nine mode bits.
    pub flags: u32,
}

/// The objects of one kind. See the module.
pub struct Registry<T: Object> {
    table: ArcTable<T>,
    keys: Mutex<Keys, SysvKeysLock>,
    indices: Spin<Indices, SysvIndicesLock>,
    /// One more than the highest index that was ever in use. Atomic.
    end: AtomicU32,
}

fn index_of(id: i32) -> u32 {
    id as u32 % MOST as u32
}

impl<T: Object> Registry<T> {
    /// One without objects.
    pub fn new() -> Self {
        Registry {
            table: ArcTable::new(),
            keys: Mutex::new(Keys::new()),
            indices: Spin::new(Indices {
                used: Box::new([0; WORDS]),
                count: 0,
                sequence: 0,
            }),
            end: AtomicU32::new(0),
        }
    }

    /// The object with that id.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn find(&self, id: i32) -> Result<Arc<T>> {
        let found = u32::try_from(id).ok().and_then(|_| self.at(index_of(id)));
        found
            .filter(|object| object.id() == id)
            .ok_or(SysvError::Invalid)
    }

    /// Whether there is an object with that id. Takes no reference, so that a caller with a spin lock may ask.
    pub fn has(&self, id: i32) -> bool {
        let pin = ksync::pin();
        let found = self.table.get(&pin, index_of(id));
        found.is_some_and(|object| object.id() == id)
    }

    /// The object at an index.
    pub fn at(&self, index: u32) -> Option<Arc<T>> {
        self.table.hold(index)
    }

    /// As [`at`](Self::at), for an argument of a call. As in Linux, an id stands for its index.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn at_argument(&self, index: i32) -> Result<Arc<T>> {
        let index = u32::try_from(index).map_err(|_| SysvError::Invalid)?;
        self.at(index % MOST as u32).ok_or(SysvError::Invalid)
    }

    /// Finds the object with a key, or makes one with `make`, which gets its id; `fits` says whether one that is there is what the caller
    /// asks for. `most` is the limit on objects. Returns the id. Sleeps.
    ///
    /// # Errors
    /// As shmget(2), semget(2) and msgget(2) say; those of `make` and `fits`.
    pub fn get(
        &self,
        wanted: Wanted,
        caller: Caller<'_>,
        most: u64,
        fits: impl FnOnce(&T) -> Result<()>,
        make: impl FnOnce(i32) -> Result<Arc<T>>,
    ) -> Result<i32> {
        let mut keys = self.keys.lock();
        let found = keys.get(&wanted.key).and_then(|&index| self.at(index));
        if let Some(object) = found.filter(|_| wanted.key != PRIVATE) {
            if wanted.flags & (flag::CREATE | flag::EXCLUSIVE) == flag::CREATE | flag::EXCLUSIVE {
                return Err(SysvError::Exists);
            }
            fits(&object)?;
            object.perm().check(wanted.flags, caller.cred)?;
            return Ok(object.id());
        }
        if wanted.key != PRIVATE && wanted.flags & flag::CREATE == 0 {
            return Err(SysvError::NotFound);
        }
        mem::admit()?;
        let id = self.take_index(most)?;
        let index = index_of(id);
        let published = make(id).and_then(|object| {
            let put = self.table.publish(index, object);
            put.then_some(()).ok_or(SysvError::NoMemory)
        });
        if let Err(why) = published {
            self.indices.lock().give_back(index);
            return Err(why);
        }
        self.end.fetch_max(index + 1, Relaxed);
        if wanted.key != PRIVATE {
            keys.insert(wanted.key, index);
        }
        Ok(id)
    }

    fn take_index(&self, most: u64) -> Result<i32> {
        let mut indices = self.indices.lock();
        if indices.count as u64 >= most {
            return Err(SysvError::NoSpace);
        }
        indices.take().ok_or(SysvError::NoSpace)
    }

    /// Takes an object out of the table (IPC_RMID), once: neither its id nor its key leads to it any more. `take_key` says whether the caller may,
    /// and returns the owner and mode from before. Sleeps, but not for the object's lock: others may wait for the keys.
    ///
    /// # Errors
    /// `Invalid` if there is none with that id; those of `take_key`.
    pub fn remove(&self, id: i32, take_key: impl FnOnce(&T) -> Result<Perm>) -> Result<Arc<T>> {
        let mut keys = self.keys.lock();
        let object = self.find(id)?;
        let perm = take_key(&object)?;
        Self::forget_key(&mut keys, &perm);
        self.withdraw(&object);
        Ok(object)
    }

    /// Keeps keys from changing. Sleeps. To be taken before the lock of an object that is removed.
    pub fn lock_keys(&self) -> MutexGuard<'_, Keys, SysvKeysLock> {
        self.keys.lock()
    }

    /// Makes the key of an object lead nowhere, if it has one.
    pub fn forget_key(keys: &mut Keys, perm: &Perm) {
        if perm.key != PRIVATE {
            keys.remove(&perm.key);
        }
    }

    /// Takes an object out of the table, once, and gives back what it was charged. Its key leads nowhere by now. The table's reference
    /// is dropped after a grace period.
    pub fn withdraw(&self, object: &T) {
        let index = index_of(object.id());
        self.table.withdraw(index);
        object.give_back();
        self.indices.lock().give_back(index);
    }

    /// The number of objects.
    pub fn count(&self) -> usize {
        self.indices.lock().count
    }

    /// The highest index in use; 0 if there is none, as in Linux.
    pub fn highest(&self) -> u32 {
        let indices = self.indices.lock();
        let word = indices.used.iter().rposition(|&word| word != 0);
        word.map_or(0, |word| word as u32 * 64 + indices.used[word].ilog2())
    }

    /// Calls `f` with each object that is there throughout, by index.
    pub fn each(&self, mut f: impl FnMut(&T)) {
        for index in 0..self.end.load(Relaxed) {
            if let Some(object) = self.at(index) {
                f(&object);
            }
        }
    }

    /// Bytes of the tables, and of the objects.
    pub fn bytes(&self) -> usize {
        let mut sum = self.table.bytes() + WORDS * 8;
        self.each(|object| sum += object.bytes());
        sum
    }
}

impl<T: Object> Default for Registry<T> {
    fn default() -> Self {
        Self::new()
    }
}
