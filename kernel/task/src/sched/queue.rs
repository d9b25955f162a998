//! A CPU's run queue: a calendar of virtual times.
//!
//! Guarantee: choosing, adding and removing cost O(1) and allocate nothing, no runnable thread
//! starves, and threads get CPU time in proportion to their weights.  Mechanism: a thread's
//! virtual time advances by its run time, divided by its weight; the queue has 64 lists, each for
//! 4 ms of virtual time, in a ring that begins at the queue's *base*, and runs the first thread
//! of the first list.  The base follows what is chosen, and the first list takes newcomers only for as
//! long as those who run here, by their weights, need to get a list further: what comes later goes to the
//! second, however little it has run, so the first gets empty, and every list becomes the first.  Within
//! a list, order of arrival.  (A calendar as ULE keeps for timesharing threads, with virtual time in
//! the place of priority.)

use ksync::CpuPin;

use super::entity::NICE_0_WEIGHT;
use crate::idlist::IdList;
use crate::ids::{self, Runnable};
use crate::thread::Thread;

/// Virtual nanoseconds of a list, as a power of two: about 4 ms, a slice.
pub const BUCKET_SHIFT: u32 = 22;
const BUCKETS: u64 = 64;
/// For so many nanoseconds the first list takes newcomers where one thread of the usual weight runs.
const OPEN_NS: u64 = 1 << BUCKET_SHIFT;

/// The runnable threads of a CPU, but for the one that runs.
pub struct Queue {
    buckets: [IdList<Runnable>; BUCKETS as usize],
    /// Lists that have a thread.
    used: u64,
    /// Number of the first list's bucket.
    base: u64,
    /// When that became the first, in monotonic nanoseconds.
    base_since: u64,
    /// When the CPU last chose a thread.
    chosen_at: u64,
    /// The sum of the weights of those that are queued, and the weight of the last that was chosen.
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

    /// Virtual time at the queue's base.
    pub fn base_vt(&self) -> u64 {
        self.base << BUCKET_SHIFT
    }

    /// The base follows `vt`, the virtual time of what runs, as far as nobody queued is passed.
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

    /// The CPU is about to choose a thread.
    pub fn begin_choice(&mut self, now: u64) {
        self.chosen_at = now;
    }

    /// The bucket of the thread to run next.
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

    /// Whether the first list still takes newcomers: not once virtual time would have got to the next if all had got their shares.
    fn is_open(&self) -> bool {
        let weight = (self.queued_weight + self.running_weight).max(NICE_0_WEIGHT);
        let since = self.chosen_at.saturating_sub(self.base_since);
        since.saturating_mul(NICE_0_WEIGHT) < weight * OPEN_NS
    }

    /// A thread leaves the queue; returns the weight that it counted with.
    fn leaves(&mut self, pin: &CpuPin, tid: u32) -> u64 {
        let weight = ids::thread(pin, tid).map_or(0, |t| t.sched.counted());
        self.queued_weight = self.queued_weight.saturating_sub(weight);
        weight
    }

    /// Adds a thread at virtual time `vt`; returns the virtual time that it got, which is
    /// within the calendar.
    pub fn push(&mut self, pin: &CpuPin, t: &Thread, vt: u64) -> u64 {
        let first = self.base + u64::from(!self.is_open());
        self.queued_weight += t.sched.count_weight();
        let b = bucket(vt).clamp(first, self.base + BUCKETS - 1);
        let slot = (b % BUCKETS) as usize;
        self.buckets[slot].push_back(pin, t.tid());
        self.used |= 1 << slot;
        if b == bucket(vt) {
            vt
        } else {
            b << BUCKET_SHIFT
        }
    }

    /// Takes the thread to run next off.
    pub fn pop(&mut self, pin: &CpuPin) -> Option<u32> {
        let first = self.first()?;
        self.move_base(first);
        let slot = (first % BUCKETS) as usize;
        let tid = self.buckets[slot].pop_front(pin)?;
        self.settle(slot);
        self.running_weight = self.leaves(pin, tid);
        Some(tid)
    }

    /// Takes off, for another CPU, a thread that `fits`: from the far end, where those are that
    /// would wait longest here.  Looks at no more than `limit` threads.
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
                self.settle(slot);
                self.leaves(pin, tid);
                return found;
            }
            if left == 0 {
                return None;
            }
        }
        None
    }

    fn settle(&mut self, slot: usize) {
        if self.buckets[slot].is_empty() {
            self.used &= !(1 << slot);
        }
    }
}
