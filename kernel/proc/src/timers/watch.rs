//! What waits for a process to have used so much CPU time: timers, of any process, and sleepers.
//!
//! Guarantee: only the threads of a process for whose CPU time something waits look for that. An entry is on the list while its timer is armed, or its
//! thread sleeps. Room for it is promised when the timer is made, so arming does not fail.
//!
//! A timer keeps the watch, which is small, and not the process: that may be reaped, and its pid be another's.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ksync::{CpuPin, IrqSpin};
use task::wait::WaitQueue;

use super::state::{GONE, MOST};
use crate::lock;

/// Which part of the CPU time a clock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// That in user mode.
    User,
    /// All of it.
    All,
}

/// Whose CPU time a clock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// That of all threads of the process.
    Process,
    /// That of the thread with this tid.
    Thread(u32),
}

/// A clock of CPU time, for as long as a timer needs it.
#[derive(Clone)]
pub struct CpuClock {
    pub(super) watch: Arc<Watch>,
    pub(super) whose: Whose,
    pub(super) part: Part,
}

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A timer of the process with that pid.
    Timer { pid: u32, id: u32 },
    /// The thread with that tid.
    Sleeper(u32),
}

/// One that waits, until its part of the CPU time has reached `at`, in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub owner: Owner,
    pub whose: Whose,
    pub part: Part,
    pub at: u64,
}

#[derive(Default)]
struct Entries {
    list: Vec<Entry>,
    /// Entries for which `list` has room or is to get it, and those of them that other processes were promised.
    promised: usize,
    others: usize,
}

/// Entries for which a list that had room for them keeps it.
const KEEP: usize = 8;

/// What waits for the CPU time of one process.
pub struct Watch {
    pid: u32,
    entries: IrqSpin<Entries, lock::CpuWatchLock>,
    /// Where sleepers wait, woken when an entry of one of them is due.
    pub(super) sleepers: WaitQueue,
}

/// Bytes that are charged for an entry: a list keeps up to four times the room that it needs.
pub(super) const ENTRY_BYTES: usize = 4 * size_of::<Entry>() + size_of::<Watch>();

impl Watch {
    /// That of the process with this pid. Allocates.
    pub(super) fn new(pid: u32) -> Arc<Watch> {
        Arc::new(Watch {
            pid,
            entries: IrqSpin::new(Entries::default()),
            sleepers: WaitQueue::new(),
        })
    }

    /// The pid of the process, which may be another's once that has been reaped.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Promises room for an entry of the process `pid`. False without memory, or if other processes have as many as they may. Allocates.
    pub(super) fn promise(&self, pid: u32) -> bool {
        let other = usize::from(pid != self.pid);
        loop {
            let mut entries = self.entries.lock();
            let want = entries.promised + 1;
            if entries.others + other > MOST {
                return false;
            }
            if want <= entries.list.capacity() {
                entries.promised = want;
                entries.others += other;
                return true;
            }
            drop(entries);
            if !self.resize(|promised| ((promised + 1) * 2).max(4)) {
                return false;
            }
        }
    }

    /// Ends the promise of room for an entry, which is not on the list, to the process `pid`. Allocates.
    pub(super) fn end_promise(&self, pid: u32) {
        let mut entries = self.entries.lock();
        entries.promised -= 1;
        entries.others -= usize::from(pid != self.pid);
        let (promised, room) = (entries.promised, entries.list.capacity());
        drop(entries);
        if room > KEEP && room / 4 > promised {
            // Without memory it stays as it is, and the next call tries again.
            self.resize(|promised| (promised * 2).max(KEEP));
        }
    }

    /// Gives the list room for as many entries as `want` says, given how many are promised. False if there is no memory.
    fn resize(&self, want: impl Fn(usize) -> usize) -> bool {
        let want = want(self.entries.lock().promised);
        let mut other = Vec::new();
        if other.try_reserve_exact(want).is_err() {
            return false;
        }
        let mut entries = self.entries.lock();
        if entries.promised <= want {
            other.append(&mut entries.list);
            core::mem::swap(&mut entries.list, &mut other);
        }
        drop(entries);
        true
    }

    /// Puts the entry of an owner, for which room is promised, on the list in the place of its last one. `lives` says whether a thread that
    /// it names has not ended: see [`Watch::thread_ends`].
    pub(super) fn put(&self, mut entry: Entry, lives: impl FnOnce(u32) -> bool) {
        let mut entries = self.entries.lock();
        if let Whose::Thread(tid) = entry.whose
            && !lives(tid)
        {
            entry.whose = Whose::Thread(GONE);
        }
        entries.list.retain(|old| old.owner != entry.owner);
        entries.list.push(entry);
    }

    /// Takes the entry of `owner` off, if it is on the list.
    pub(super) fn remove(&self, owner: Owner) {
        self.entries
            .lock()
            .list
            .retain(|entry| entry.owner != owner);
    }

    /// Whether `owner` has an entry on the list.
    pub(super) fn has(&self, owner: Owner) -> bool {
        self.entries
            .lock()
            .list
            .iter()
            .any(|entry| entry.owner == owner)
    }

    /// The thread with this tid, which is `KILLED`, ends: no other thread that gets the tid is taken for it.
    pub(super) fn thread_ends(&self, tid: u32) {
        for entry in &mut self.entries.lock().list {
            if entry.whose == Whose::Thread(tid) {
                entry.whose = Whose::Thread(GONE);
            }
        }
    }

    /// Takes entries that are due off the list, in the order in which they were put there, each with the CPU time that it has waited
    /// for, until `due` is full. Returns how many, and the CPU time that is left to the next. `used` has that of an entry, `None` if
    /// its thread has ended.
    pub(super) fn take_due(
        &self,
        pin: &CpuPin,
        due: &mut [Option<(Entry, u64)>],
        used: impl Fn(&CpuPin, Whose, Part) -> Option<u64>,
    ) -> (usize, u64) {
        let (mut count, mut left) = (0, u64::MAX);
        self.entries.lock().list.retain(|entry| {
            let Some(used) = used(pin, entry.whose, entry.part) else {
                return true;
            };
            if entry.at <= used
                && let Some(slot) = due.get_mut(count)
            {
                *slot = Some((*entry, used));
                count += 1;
                return false;
            }
            left = left.min(match entry.part {
                // Ticks may divide the time anew: the part in user mode can grow at once.
                Part::User => 0,
                Part::All => entry.at.saturating_sub(used),
            });
            true
        });
        (count, left)
    }
}
