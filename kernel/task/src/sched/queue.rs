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
//!
//! A thread that wakes, belongs to the first list, and may be put there, is put on a list of *woken* threads, which all run
//! before those of the first list. So it waits for those that woke before it and for the rest of a time slice, not for all
//! threads that compute. It gains no CPU time by that: what it may run before it belongs to the second list is a list's time,
//! which each thread of the first list gets, too.
//!
//! Threads with a real-time priority have lists of their own, beside the ring: see [`Urgent`].

use ksync::CpuPin;

use super::entity::NICE_0_WEIGHT;
use super::urgent::{self, Urgent};
use crate::idlist::IdList;
use crate::ids::{self, Runnable};
use crate::thread::Thread;

/// Nanoseconds of virtual time of a list, as a power of two: about 4 ms, a time slice.
pub const BUCKET_SHIFT: u32 = 22;
const BUCKETS: u64 = 64;
/// The number of the list of woken threads.
const WOKEN: u32 = BUCKETS as u32;
/// The number of the list of priority 0, which nothing is on; those of the real-time priorities follow.
const URGENT: u32 = WOKEN + 1;
/// How many numbers of places each queue has.
const PLACES: u32 = URGENT + urgent::LISTS as u32;
/// Nanoseconds for which the first list takes new threads if the weights of all threads of the CPU add up to that of nice 0.
const OPEN_NS: u64 = 1 << BUCKET_SHIFT;

/// Most threads that a choice puts back because their time has not come. It then runs the next one, so it takes constant time.
const PUT_BACK: usize = 4;

/// The runnable threads of a CPU, without the one that runs.
pub struct Queue {
    /// What a thread records while it is on list 0, at least 1. The numbers of the places of two queues differ. Constant.
    first_place: u32,
    buckets: [IdList<Runnable>; BUCKETS as usize],
    /// Threads that belong to the first list, have woken, and run before those on it.
    woken: IdList<Runnable>,
    /// Bit set of the lists that have a thread.
    used: u64,
    /// The bucket (virtual time divided by a list's length) of the first list.
    base: u64,
    /// When that list became the first, in monotonic nanoseconds.
    base_since: u64,
    /// When the CPU last chose a thread, in monotonic nanoseconds.
    chosen_at: u64,
    /// The sum of the weights of the queued threads without real-time priority, and the weight of the thread that was chosen last, 0 for
    /// one that has such a priority.
    queued_weight: u64,
    running_weight: u64,
    /// Queued threads with real-time priorities, and what the CPU's present thread has of these.
    pub urgent: Urgent,
}

/// The bucket of a virtual time.
pub fn bucket(vt: u64) -> u64 {
    vt >> BUCKET_SHIFT
}

impl Queue {
    /// The queue of CPU `cpu`, empty.
    pub const fn new(cpu: usize) -> Self {
        Queue {
            first_place: cpu as u32 * PLACES + 1,
            buckets: [const { IdList::new() }; BUCKETS as usize],
            woken: IdList::new(),
            used: 0,
            base: 0,
            base_since: 0,
            chosen_at: 0,
            queued_weight: 0,
            running_weight: 0,
            urgent: Urgent::new(),
        }
    }

    /// The sum of the weights of the queued threads.
    pub fn queued_weight(&self) -> u64 {
        self.queued_weight
    }

    /// The virtual time at the queue's base.
    pub fn base_vt(&self) -> u64 {
        self.base << BUCKET_SHIFT
    }

    /// Moves the base up to `vt`, the virtual time of the running thread, but not past a queued thread. Returns what
    /// [`first`](Self::first) does.
    pub fn follow(&mut self, vt: u64) -> Option<u64> {
        let first = self.first();
        let target = first.map_or(bucket(vt), |first| first.min(bucket(vt)));
        self.move_base(self.base.max(target));
        first
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

    /// The bucket of the thread that is to run next, of those without real-time priority.
    pub fn first(&self) -> Option<u64> {
        if !self.woken.is_empty() {
            return Some(self.base);
        }
        if self.used == 0 {
            return None;
        }
        let ahead = self
            .used
            .rotate_right((self.base % BUCKETS) as u32)
            .trailing_zeros();
        Some(self.base + u64::from(ahead))
    }

    /// The virtual time by which the base moves in `ns` nanoseconds, if all threads get their shares.
    pub fn progress(&self, ns: u64) -> u64 {
        ns.saturating_mul(NICE_0_WEIGHT) / self.weight()
    }

    /// The sum of the weights of this CPU's threads, at least that of nice 0.
    fn weight(&self) -> u64 {
        (self.queued_weight + self.running_weight).max(NICE_0_WEIGHT)
    }

    /// Whether the first list still takes new threads: until the time has passed in which virtual time would have got to the
    /// next list if all threads had had their shares.
    fn is_open(&self) -> bool {
        let since = self.chosen_at.saturating_sub(self.base_since);
        since.saturating_mul(NICE_0_WEIGHT) < self.weight() * OPEN_NS
    }

    /// The list of this queue that `t` is on.
    fn list_of(&self, t: &Thread) -> Option<u32> {
        let list = t.sched.place().wrapping_sub(self.first_place);
        (list < PLACES).then_some(list)
    }

    /// Whether `t` is on this queue.
    pub fn holds(&self, t: &Thread) -> bool {
        self.list_of(t).is_some()
    }

    /// Takes the weight of a thread that leaves the queue out of the sum, and returns it.
    fn leaves(&mut self, t: &Thread) -> u64 {
        t.sched.set_place(0);
        let weight = t.sched.counted();
        self.queued_weight = self.queued_weight.saturating_sub(weight);
        weight
    }

    /// Adds a thread at virtual time `vt`. Returns the virtual time that the thread has got: `vt`, or the beginning of the
    /// list that it was put on if that is later, which the caller stores. A thread whose time is past the ring is put on the last
    /// list, and keeps its time. One that has `woken` and gets on the first list, if that is still open, runs before the others
    /// there.
    pub fn push(&mut self, pin: &CpuPin, t: &Thread, vt: u64, woken: bool) -> u64 {
        // Its own weight counts: a list whose last thread is heavy is open until that thread has had its share.
        self.queued_weight += t.sched.count_weight();
        let first = self.base + u64::from(!self.is_open());
        let b = bucket(vt).clamp(first, self.base + BUCKETS - 1);
        let (number, list) = if woken && b == self.base {
            (WOKEN, &mut self.woken)
        } else {
            let slot = b % BUCKETS;
            self.used |= 1 << slot;
            (slot as u32, &mut self.buckets[slot as usize])
        };
        t.sched.set_place(self.first_place + number);
        list.append(pin, t.tid(), &t.run_links);
        vt.max(b << BUCKET_SHIFT)
    }

    /// Takes the thread that is to run next off the queue, and moves the base to its list. With `running`, the virtual time of a
    /// thread that may go on: `None` if that one is to run first. `None`, too, if the queue is empty.
    pub fn pop<'p>(&mut self, pin: &'p CpuPin, running: Option<u64>) -> Option<&'p Thread> {
        let weight = self.running_weight;
        let t = self.pop_first(pin)?;
        if bucket(t.sched.vt()) <= self.base {
            Some(t)
        } else {
            self.pop_later(pin, t, running, weight)
        }
    }

    /// The rest of [`pop`](Self::pop) where `t`, taken off the queue, was past the ring when it was added, and its time has not
    /// come yet. `weight` is that of the thread that may go on.
    #[cold]
    fn pop_later<'p>(
        &mut self,
        pin: &'p CpuPin,
        mut t: &'p Thread,
        running: Option<u64>,
        weight: u64,
    ) -> Option<&'p Thread> {
        let before = |due| running.is_some_and(|vt| bucket(vt) < due);
        for _ in 0..PUT_BACK {
            let due = bucket(t.sched.vt());
            if due <= self.base || self.used == 0 && !before(due) {
                break;
            }
            self.push(pin, t, t.sched.vt(), false);
            if self.first().is_some_and(before) {
                self.running_weight = weight;
                return None;
            }
            t = self.pop_first(pin)?;
        }
        Some(t)
    }

    #[inline]
    fn pop_first<'p>(&mut self, pin: &'p CpuPin) -> Option<&'p Thread> {
        let tid = match self.woken.pop_front(pin) {
            Some(tid) => tid,
            None => {
                let first = self.first()?;
                self.move_base(first);
                let slot = (first % BUCKETS) as usize;
                let tid = self.buckets[slot].pop_front(pin)?;
                self.note_if_empty(slot);
                tid
            }
        };
        let t = ids::thread(pin, tid)?;
        self.running_weight = self.leaves(t);
        Some(t)
    }

    /// Adds a thread to the list of its real-time priority, at its end or at its beginning. The thread's virtual time is relative, and
    /// stays so.
    pub fn push_urgent(&mut self, pin: &CpuPin, t: &Thread, priority: u8, first: bool) {
        t.sched
            .set_place(self.first_place + URGENT + u32::from(priority));
        self.urgent.push(pin, t, priority, first);
    }

    /// Takes the first thread of the highest real-time priority off the queue, and makes its virtual time that of the queue.
    pub fn pop_urgent<'p>(&mut self, pin: &'p CpuPin) -> Option<&'p Thread> {
        let t = ids::thread(pin, self.urgent.pop(pin)?)?;
        t.sched.set_place(0);
        t.sched.set_vt(self.base_vt() + t.sched.vt());
        self.running_weight = 0;
        Some(t)
    }

    /// Takes a queued thread with a real-time priority that `fits` accepts, of the highest first, for another CPU. Looks at no more
    /// than `limit` threads.
    pub fn steal_urgent<'p>(
        &mut self,
        pin: &'p CpuPin,
        limit: usize,
        fits: impl Fn(&Thread) -> bool,
    ) -> Option<&'p Thread> {
        let fits = |tid| ids::thread(pin, tid).is_some_and(&fits);
        let t = ids::thread(pin, self.urgent.find(pin, limit, fits)?)?;
        self.remove(pin, t);
        Some(t)
    }

    /// Takes `t`, which is on this queue, off it, and makes its virtual time relative.
    pub fn withdraw(&mut self, pin: &CpuPin, t: &Thread) {
        let relative = self.is_urgent(t);
        self.remove(pin, t);
        if !relative {
            t.sched.set_vt(t.sched.vt().saturating_sub(self.base_vt()));
        }
    }

    /// Whether `t` is on the list of a real-time priority of this queue.
    pub fn is_urgent(&self, t: &Thread) -> bool {
        self.list_of(t).is_some_and(|list| list > URGENT)
    }

    /// Takes `t`, which is on this queue, off it.
    pub fn remove(&mut self, pin: &CpuPin, t: &Thread) {
        match self.list_of(t) {
            Some(list @ URGENT..) => {
                self.urgent.remove(pin, t, (list - URGENT) as u8);
                t.sched.set_place(0);
                return;
            }
            Some(WOKEN) => self.woken.remove(pin, t.tid()),
            Some(slot) => {
                self.buckets[slot as usize].remove(pin, t.tid());
                self.note_if_empty(slot as usize);
            }
            None => debug_assert!(false, "thread {} is not on this queue", t.tid()),
        }
        self.leaves(t);
    }

    /// Removes a thread that `fits` accepts from the queue, for another CPU. Begins with the list that is farthest from the base,
    /// whose threads would wait longest here. Looks at no more than `limit` threads, at least one.
    pub fn steal(&mut self, pin: &CpuPin, limit: usize, fits: impl Fn(u32) -> bool) -> Option<u32> {
        let mut left = limit;
        let far_first = (1..=BUCKETS).map(|back| ((self.base + BUCKETS - back) % BUCKETS) as usize);
        let used = far_first.filter(|&slot| self.used & 1 << slot != 0);
        let lists = used.map(|slot| &self.buckets[slot]).chain([&self.woken]);
        let mut found = None;
        for list in lists {
            list.each(pin, |tid| {
                left -= 1;
                if fits(tid) {
                    found = Some(tid);
                }
                found.is_none() && left > 0
            });
            if found.is_some() || left == 0 {
                break;
            }
        }
        if let Some(t) = ids::thread(pin, found?) {
            self.remove(pin, t);
        }
        found
    }

    fn note_if_empty(&mut self, slot: usize) {
        if self.buckets[slot].is_empty() {
            self.used &= !(1 << slot);
        }
    }
}
