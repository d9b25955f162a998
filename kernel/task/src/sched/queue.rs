//! A CPU's run queue: a calendar of virtual times.
//!
//! Guarantee: choosing, adding and removing a thread take constant time and allocate nothing; no runnable thread starves;
//! threads get CPU time in proportion to their weights. Mechanism: a thread's virtual time advances by the time that it runs,
//! divided by its weight. The queue has 64 lists in a ring, each for 4 ms of virtual time. The ring begins at the queue's
//! *base*, and the first thread of the first list that has one is chosen next; the base moves up to that list. New threads are
//! put on the first list only for a limited time, that in which threads that share this CPU in proportion to their weights
//! advance by the time of one list. After that they are put on the second list, however little they have run. So the first list
//! empties, and every list becomes the first in turn. Within a list, threads run in order of arrival. (This is the calendar
//! that ULE keeps for timesharing threads, with virtual time in place of priority.)

use ksync::CpuPin;

use super::entity::NICE_0_WEIGHT;
use crate::idlist::IdList;
use crate::ids::{self, Runnable};
use crate::thread::Thread;

/// Nanoseconds of virtual time of a list, as a power of two: about 4 ms, a time slice.
pub const BUCKET_SHIFT: u32 = 22;
const BUCKETS: u64 = 64;
/// Nanoseconds for which the first list takes new threads if the weights of all threads of the CPU add up to that of nice 0.
const OPEN_NS: u64 = 1 << BUCKET_SHIFT;

/// Most threads that a choice puts back because their time has not come. It then runs the next one, so it takes constant time.
const PUT_BACK: usize = 4;

/// The runnable threads of a CPU, without the one that runs.
pub struct Queue {
    buckets: [IdList<Runnable>; BUCKETS as usize],
    /// Bit set of the lists that have a thread.
    used: u64,
    /// The bucket (virtual time divided by a list's length) of the first list.
    base: u64,
    /// When that list became the first, in monotonic nanoseconds.
    base_since: u64,
    /// When the CPU last chose a thread, in monotonic nanoseconds.
    chosen_at: u64,
    /// The sum of the weights of the queued threads, and the weight of the thread that was chosen last.
    queued_weight: u64,
    running_weight: u64,
}

/// The bucket of a virtual time.
pub fn bucket(vt: u64) -> u64 {
    vt >> BUCKET_SHIFT
}

impl Queue {
    pub const fn new() -> Self {
        Queue {
            buckets: [const { IdList::new() }; BUCKETS as usize],
            used: 0,
            base: 0,
            base_since: 0,
            chosen_at: 0,
            queued_weight: 0,
            running_weight: 0,
        }
    }

    /// The virtual time at the queue's base.
    pub fn base_vt(&self) -> u64 {
        self.base << BUCKET_SHIFT
    }

    /// Moves the base up to `vt`, the virtual time of the running thread, but not past a queued thread.
    pub fn follow(&mut self, vt: u64) {
        let target = self
            .first()
            .map_or(bucket(vt), |first| first.min(bucket(vt)));
        self.move_base(self.base.max(target));
    }

    fn move_base(&mut self, base: u64) {
        if base != self.base {
            self.base = base;
            self.base_since = self.chosen_at;
        }
    }

    /// Records when the CPU is about to choose a thread.
    pub fn begin_choice(&mut self, now: u64) {
        self.chosen_at = now;
    }

    /// The bucket of the thread that is to run next.
    pub fn first(&self) -> Option<u64> {
        if self.used == 0 {
            return None;
        }
        let ahead = self
            .used
            .rotate_right((self.base % BUCKETS) as u32)
            .trailing_zeros();
        Some(self.base + u64::from(ahead))
    }

    /// Whether the first list still takes new threads: until the time has passed in which virtual time would have got to the
    /// next list if all threads had had their shares.
    fn is_open(&self) -> bool {
        let weight = (self.queued_weight + self.running_weight).max(NICE_0_WEIGHT);
        let since = self.chosen_at.saturating_sub(self.base_since);
        since.saturating_mul(NICE_0_WEIGHT) < weight * OPEN_NS
    }

    /// Takes the weight of a thread that leaves the queue out of the sum, and returns it.
    fn leaves(&mut self, t: &Thread) -> u64 {
        let weight = t.sched.counted();
        self.queued_weight = self.queued_weight.saturating_sub(weight);
        weight
    }

    /// Adds a thread at virtual time `vt`. Returns the virtual time that the thread has got: `vt`, or the beginning of the
    /// list that it was put on if that is later. A thread whose time is past the ring is put on the last list.
    pub fn push(&mut self, pin: &CpuPin, t: &Thread, vt: u64) -> u64 {
        // Its own weight counts: a list whose last thread is heavy is open until that thread has had its share.
        self.queued_weight += t.sched.count_weight();
        let first = self.base + u64::from(!self.is_open());
        let b = bucket(vt).clamp(first, self.base + BUCKETS - 1);
        let slot = (b % BUCKETS) as usize;
        t.sched.set_list(slot as u8);
        self.buckets[slot].push_back(pin, t.tid());
        self.used |= 1 << slot;
        vt.max(b << BUCKET_SHIFT)
    }

    /// Takes the thread that is to run next off the queue. With `running`, the virtual time of a thread that may go on: `None` if
    /// that one is to run first.
    pub fn pop<'p>(&mut self, pin: &'p CpuPin, running: Option<u64>) -> Option<&'p Thread> {
        let before = |due| running.is_some_and(|vt| bucket(vt) < due);
        let weight = self.running_weight;
        for _ in 0..PUT_BACK {
            let t = self.pop_first(pin)?;
            let due = bucket(t.sched.vt());
            if due <= self.base || self.used == 0 && !before(due) {
                return Some(t);
            }
            // Its time was past the ring when it was added, and has not come yet.
            self.push(pin, t, t.sched.vt());
            if self.first().is_some_and(before) {
                self.running_weight = weight;
                return None;
            }
        }
        self.pop_first(pin)
    }

    fn pop_first<'p>(&mut self, pin: &'p CpuPin) -> Option<&'p Thread> {
        let first = self.first()?;
        self.move_base(first);
        let slot = (first % BUCKETS) as usize;
        let tid = self.buckets[slot].pop_front(pin)?;
        self.note_if_empty(slot);
        let t = ids::thread(pin, tid)?;
        self.running_weight = self.leaves(t);
        Some(t)
    }

    /// Takes `t`, which is on this queue, off it.
    pub fn remove(&mut self, pin: &CpuPin, t: &Thread) {
        let slot = usize::from(t.sched.list());
        self.buckets[slot].remove(pin, t.tid());
        self.note_if_empty(slot);
        self.leaves(t);
    }

    /// Removes a thread that `fits` accepts from the queue, for another CPU. Begins with the list that is farthest from the base,
    /// whose threads would wait longest here. Looks at no more than `limit` threads, at least one.
    pub fn steal(&mut self, pin: &CpuPin, limit: usize, fits: impl Fn(u32) -> bool) -> Option<u32> {
        let mut left = limit;
        for back in 1..=BUCKETS {
            let slot = ((self.base + BUCKETS - back) % BUCKETS) as usize;
            if self.used & 1 << slot == 0 {
                continue;
            }
            let mut found = None;
            self.buckets[slot].each(pin, |tid| {
                left -= 1;
                if fits(tid) {
                    found = Some(tid);
                }
                found.is_none() && left > 0
            });
            if let Some(tid) = found {
                self.buckets[slot].remove(pin, tid);
                self.note_if_empty(slot);
                if let Some(t) = ids::thread(pin, tid) {
                    self.leaves(t);
                }
                return found;
            }
            if left == 0 {
                return None;
            }
        }
        None
    }

    fn note_if_empty(&mut self, slot: usize) {
        if self.buckets[slot].is_empty() {
            self.used &= !(1 << slot);
        }
    }
}
