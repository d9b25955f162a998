//! What waits for a process to have used so much CPU time: timers, of any process, and sleepers.
//!
//! Guarantee: only the threads of a process for whose CPU time something waits look for that. An entry is in the watch while its timer is armed,
//! or its thread sleeps. Its memory is its timer's or sleeper's, and charged with that: so arming does not fail, there is no limit that one process
//! could use up to the disadvantage of another, and a watch keeps nothing after a peak.
//!
//! Each hold of the lock is bounded: entries are in the order of their clock and time (`SortedTree`), so a look sees the first of each clock alone. It
//! takes off up to [`BATCH`] entries of the process itself, and looks at the clock of the process, at that of the thread that looks, and at those of
//! [`CLOCKS`] other threads, in turn. Entries of other processes have places of their own in that order, so that no number of them delays those
//! of the process.
//!
//! A timer keeps the watch, which is small, and not the process: that may be reaped, and its pid be another's.

use alloc::boxed::Box;
use alloc::sync::Arc;

use ksync::{CpuPin, IrqSpin, Registration, SortedTree, TreeNode};

use super::state::GONE;
use crate::lock;

/// Which part of the CPU time a clock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// That in user mode.
    User,
    /// All of it.
    All,
}

/// Whose CPU time a clock shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// That of all threads of the process.
    Process,
    /// That of the thread with this tid.
    Thread(u32),
}

/// What one clock of a process shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shown {
    pub whose: Whose,
    pub part: Part,
}

/// A clock of CPU time, for as long as a timer or a sleeper needs it.
#[derive(Clone)]
pub struct CpuClock {
    pub(super) watch: Arc<Watch>,
    pub(super) shown: Shown,
}

/// What waits.
#[derive(Clone, Copy)]
pub(super) enum Owner {
    /// A timer of the process with that pid.
    Timer { pid: u32, id: u32 },
    /// A thread, and what wakes it.
    Sleeper(Registration),
}

/// What sorts entries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub shown: Shown,
    /// The owner is, or is a thread of, another process.
    other: bool,
    /// The CPU time until which it waits, in nanoseconds.
    at: u64,
    /// Unique in the watch for ever.
    number: u64,
}

impl Rank {
    fn first(shown: Shown, other: bool) -> Rank {
        Rank {
            shown,
            other,
            at: 0,
            number: 0,
        }
    }

    /// That of an entry whose thread has ended.
    fn gone(mut self) -> Rank {
        self.shown.whose = Whose::Thread(GONE);
        self
    }
}

/// An entry.
pub(super) type Node = TreeNode<Rank, Owner>;

/// What an owner has of its entry. The memory of the entry is here, or in the watch, or with a thread that has found it due; that one brings it back.
pub(super) struct Handle {
    node: Option<Box<Node>>,
    /// Where it is in the watch, or was last.
    rank: Rank,
}

impl Handle {
    /// Whether that is its entry.
    pub fn is_of(&self, node: &Node) -> bool {
        self.rank.number == node.key().number
    }

    /// Takes the entry back, which has been due.
    pub fn take_back(&mut self, node: Box<Node>) {
        self.node = Some(node);
    }
}

#[derive(Default)]
struct Entries {
    tree: SortedTree<Rank, Owner>,
    /// Entries that were made.
    made: u64,
    /// The thread at whose clock the next look begins, besides that of its own.
    turn: u32,
}

/// What waits for the CPU time of one process.
pub struct Watch {
    pid: u32,
    entries: IrqSpin<Entries, lock::CpuWatchLock>,
}

/// Bytes that are charged for an entry, and for its part of a watch that nothing else keeps.
pub(super) const ENTRY_BYTES: usize = size_of::<Node>() + size_of::<Watch>();

/// Entries of the process itself that one look takes off at most.
pub(super) const BATCH: usize = 16;

/// Other threads' clocks that one look looks at.
const CLOCKS: usize = 8;

/// Entries that one hold of the lock moves at most where a thread ends.
const MOVES: usize = 64;

/// Entries that are due, each with the CPU time that it has waited for.
#[derive(Default)]
pub(super) struct Due {
    pub entries: [Option<(Box<Node>, u64)>; BATCH],
    count: usize,
}

impl Due {
    fn push(&mut self, node: Box<Node>, used: u64) {
        self.entries[self.count] = Some((node, used));
        self.count += 1;
    }
}

impl Entries {
    /// Removes the entry with that rank, which its thread's end may have changed.
    fn remove(&mut self, rank: Rank) -> Option<Box<Node>> {
        let node = self.tree.remove(&rank);
        node.or_else(|| self.tree.remove(&rank.gone()))
    }

    /// Takes off the first entry of a clock that shows `used`, of the process itself or of others, if it is due. Otherwise returns the CPU time that
    /// is left to it.
    fn take_due(&mut self, shown: Shown, other: bool, used: u64) -> Result<Box<Node>, u64> {
        let first = self.tree.first_from(&Rank::first(shown, other));
        let rank = first.map(|node| node.key());
        let rank = rank.filter(|rank| (rank.shown, rank.other) == (shown, other));
        let rank = rank.ok_or(u64::MAX)?;
        if rank.at <= used {
            return self.tree.remove(&rank).ok_or(0);
        }
        Err(match shown.part {
            // Ticks may divide the time anew: the part in user mode can grow at once.
            Part::User => 0,
            Part::All => rank.at - used,
        })
    }

    /// Takes off all entries of the process itself that are due by what `used` has of this one's clocks, as far as there is room. Returns
    /// the CPU time that is left to the next.
    fn take_own(
        &mut self,
        whose: Whose,
        used: &impl Fn(Shown) -> Option<u64>,
        due: &mut Due,
    ) -> u64 {
        let mut left = u64::MAX;
        for part in [Part::All, Part::User] {
            let shown = Shown { whose, part };
            // A thread that ends has no time.
            let Some(used) = used(shown) else { continue };
            left = left.min(loop {
                if due.count == BATCH {
                    break 0;
                }
                match self.take_due(shown, false, used) {
                    Ok(node) => due.push(node, used),
                    Err(left) => break left,
                }
            });
        }
        left
    }

    /// The rank of the first entry that waits for the clock of a thread from `from` on, by tid.
    fn thread_from(&self, from: u32) -> Option<(u32, Rank)> {
        let shown = Shown {
            whose: Whose::Thread(from.max(GONE + 1)),
            part: Part::User,
        };
        let rank = self.tree.first_from(&Rank::first(shown, false))?.key();
        match rank.shown.whose {
            Whose::Thread(tid) => Some((tid, rank)),
            Whose::Process => None,
        }
    }

    /// As [`Self::take_own`], of the clocks of some threads.
    fn take_own_of_threads(
        &mut self,
        me: u32,
        used: &impl Fn(Shown) -> Option<u64>,
        due: &mut Due,
    ) -> u64 {
        let mut left = self.take_own(Whose::Thread(me), used, due);
        let begin = self.turn;
        let mut turned = false;
        for _ in 0..CLOCKS {
            let next = match self.thread_from(self.turn) {
                None if !turned => {
                    turned = true;
                    self.thread_from(0)
                }
                next => next,
            };
            let Some((tid, _)) = next.filter(|(tid, _)| !turned || *tid < begin) else {
                return left;
            };
            self.turn = tid + 1;
            left = left.min(self.take_own(Whose::Thread(tid), used, due));
        }
        // There may be more.
        0
    }
}

impl Watch {
    /// That of the process with this pid. Allocates.
    pub(super) fn new(pid: u32) -> Arc<Watch> {
        Arc::new(Watch {
            pid,
            entries: IrqSpin::new(Entries::default()),
        })
    }

    /// The pid of the process, which may be another's once that has been reaped.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Makes an entry for a timer or a sleeper of the process `pid`. `None` without memory. Allocates.
    pub(super) fn handle(&self, pid: u32) -> Option<Handle> {
        let mut rank = Rank::first(
            Shown {
                whose: Whose::Process,
                part: Part::All,
            },
            pid != self.pid,
        );
        {
            let mut entries = self.entries.lock();
            entries.made += 1;
            rank.number = entries.made;
        }
        let node = TreeNode::new(rank, Owner::Timer { pid, id: 0 })?;
        Some(Handle {
            node: Some(node),
            rank,
        })
    }

    /// Makes the entry of `owner` wait until the clock shows `at`, in place of what it waited for. `lives` says whether a thread that the clock
    /// names has not ended: see [`Watch::thread_ends`]. Where a thread has found the entry due it is not here: that one will bring it back, and
    /// do this.
    pub(super) fn put(
        &self,
        handle: &mut Handle,
        owner: Owner,
        (shown, at): (Shown, u64),
        lives: impl FnOnce(u32) -> bool,
    ) {
        let mut entries = self.entries.lock();
        let here = handle.node.take();
        let Some(mut node) = here.or_else(|| entries.remove(handle.rank)) else {
            return;
        };
        *node.member_mut() = owner;
        let mut rank = Rank {
            shown,
            at,
            ..handle.rank
        };
        if let Whose::Thread(tid) = shown.whose
            && !lives(tid)
        {
            rank = rank.gone();
        }
        handle.rank = rank;
        entries.tree.insert(rank, node);
    }

    /// Takes an entry out of the watch. Returns whether it was there.
    pub(super) fn take(&self, handle: &mut Handle) -> bool {
        let node = self.entries.lock().remove(handle.rank);
        let was_there = node.is_some();
        if was_there {
            handle.node = node;
        }
        was_there
    }

    /// Renews what wakes a sleeper, if its entry is in the watch; returns whether it is.
    pub(super) fn renew(&self, handle: &Handle, sleeper: Registration) -> bool {
        let mut entries = self.entries.lock();
        for rank in [handle.rank, handle.rank.gone()] {
            if let Some(owner) = entries.tree.get_mut(&rank) {
                *owner = Owner::Sleeper(sleeper);
                return true;
            }
        }
        false
    }

    /// The thread with this tid, which is `KILLED`, ends: no other thread that gets the tid is taken for it.
    pub(super) fn thread_ends(&self, tid: u32) {
        while self.some_go(tid) {}
    }

    /// Part of [`Self::thread_ends`]. False if none is left.
    fn some_go(&self, tid: u32) -> bool {
        let mut entries = self.entries.lock();
        for _ in 0..MOVES {
            let first = entries.thread_from(tid);
            let Some((_, rank)) = first.filter(|(of, _)| *of == tid) else {
                return false;
            };
            if let Some(node) = entries.tree.remove(&rank) {
                entries.tree.insert(rank.gone(), node);
            }
        }
        true
    }

    /// Takes off entries of the process itself that are due, until `due` is full. Returns the CPU time that is left to the next. `me` looks; `used`
    /// has the time that a clock shows, `None` if its thread has ended.
    pub(super) fn take_own(
        &self,
        pin: &CpuPin,
        me: u32,
        due: &mut Due,
        used: impl Fn(&CpuPin, Shown) -> Option<u64>,
    ) -> u64 {
        let used = |shown| used(pin, shown);
        let mut entries = self.entries.lock();
        let left = entries.take_own(Whose::Process, &used, due);
        left.min(entries.take_own_of_threads(me, &used, due))
    }

    /// Takes off an entry of another process that is due by the CPU time `used` of the process, in user mode and all of it; also returns which
    /// of them it waited for. Otherwise the CPU time that is left to the next. The two clocks take turns, by the number `n` of the call in one look: entries
    /// of one that are due again and again do not keep those of the other from it. No other process measures single threads.
    pub(super) fn take_other(&self, n: usize, used: [u64; 2]) -> Result<(Box<Node>, u64), u64> {
        let mut entries = self.entries.lock();
        let mut left = u64::MAX;
        let mut clocks = [(Part::User, used[0]), (Part::All, used[1])];
        clocks.rotate_left(n % 2);
        for (part, used) in clocks {
            let shown = Shown {
                whose: Whose::Process,
                part,
            };
            match entries.take_due(shown, true, used) {
                Ok(node) => return Ok((node, used)),
                Err(time) => left = left.min(time),
            }
        }
        Err(left)
    }
}
