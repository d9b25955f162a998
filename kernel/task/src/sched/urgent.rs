//! The part of a CPU's run queue that is about real-time priorities.
//!
//! A list for each priority, of which a bit set tells the highest that has a thread: adding, choosing and removing take constant
//! time and allocate nothing. Within a list, threads run in its order.
//!
//! [`Urgent::shown`] is stored in a word of the CPU (`Cpu::urgency`) at each change, under the queue's lock: each choice of a thread asks that word
//! whether a real-time priority is to be thought of at all.

use ksync::CpuPin;

use super::bound::Used;
use super::class::HIGHEST;
use crate::idlist::IdList;
use crate::ids::Runnable;
use crate::thread::Thread;

/// One list for each priority, and for 0, which stays empty.
pub const LISTS: usize = HIGHEST as usize + 1;

/// Above all priorities: the CPU is about to look.
pub const LOOK: u8 = u8::MAX;

/// The queued threads of a CPU that have a real-time priority, and what the CPU knows of the thread that it runs.
pub struct Urgent {
    /// The priority of the running thread as of the last choice or tick, 0 for none.
    running: u8,
    /// Whether that may be another one now.
    look: bool,
    /// Bit set of the lists that have a thread.
    used: u128,
    lists: [IdList<Runnable>; LISTS],
    /// Up to when the running thread's time has been counted, in monotonic nanoseconds.
    pub(super) since: u64,
    /// What such threads have used of this CPU.
    pub(super) time: Used,
}

impl Urgent {
    /// No such thread.
    pub const fn new() -> Self {
        Urgent {
            running: 0,
            look: false,
            used: 0,
            lists: [const { IdList::new() }; LISTS],
            since: 0,
            time: Used::new(),
        }
    }

    /// The highest priority of the running thread and those on the queue, 0 for none; [`LOOK`] if that of the running one may be another
    /// one now.
    pub fn shown(&self) -> u8 {
        if self.look {
            LOOK
        } else {
            self.running.max(self.highest())
        }
    }

    /// The running thread's priority may have changed: the next choice looks.
    pub fn look(&mut self) {
        self.look = true;
    }

    /// The thread that runs has that priority, 0 for none.
    pub fn runs(&mut self, priority: u8) {
        (self.running, self.look) = (priority, false);
    }

    /// The priority of the thread that runs, as it was last looked at; 0 for none.
    pub fn running(&self) -> u8 {
        self.running
    }

    /// The highest priority of a queued thread, 0 for none.
    pub fn highest(&self) -> u8 {
        (127 - (self.used | 1).leading_zeros()) as u8
    }

    pub(super) fn push(&mut self, pin: &CpuPin, t: &Thread, priority: u8, first: bool) {
        let list = &mut self.lists[usize::from(priority)];
        list.append(pin, t.tid(), &t.run_links);
        if first {
            list.make_first(t.tid());
        }
        self.used |= 1 << priority;
    }

    pub(super) fn pop(&mut self, pin: &CpuPin) -> Option<u32> {
        let highest = self.highest();
        let tid = self.lists[usize::from(highest)].pop_front(pin)?;
        self.note_removal(highest);
        Some(tid)
    }

    pub(super) fn remove(&mut self, pin: &CpuPin, t: &Thread, priority: u8) {
        self.lists[usize::from(priority)].remove(pin, t.tid());
        self.note_removal(priority);
    }

    fn note_removal(&mut self, priority: u8) {
        if self.lists[usize::from(priority)].is_empty() {
            self.used &= !(1 << priority);
        }
    }

    /// The first thread that `fits` accepts, of the highest priority first, among `limit` threads.
    pub(super) fn find(
        &self,
        pin: &CpuPin,
        limit: usize,
        fits: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let (mut left, mut found) = (limit, None);
        let has_thread = |&priority: &usize| self.used & 1 << priority != 0;
        for priority in (1..LISTS).rev().filter(has_thread) {
            self.lists[priority].each(pin, |tid| {
                left -= 1;
                found = fits(tid).then_some(tid);
                found.is_none() && left > 0
            });
            if found.is_some() || left == 0 {
                break;
            }
        }
        found
    }
}
