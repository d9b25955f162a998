//! Numbers of threads, processes, process groups and sessions.
//!
//! Guarantee: a number is not given out again while a thread, process, group or session bears
//! it, and looking one up writes nothing and takes no lock.  Mechanism: a three-level radix
//! table of slots that is only ever extended; a slot points to what bears its number, through
//! pointers whose old values are freed after a grace period.  Each CPU takes numbers from a
//! batch of its own, so that fork writes a shared line once in a batch.
//!
//! Numbers wrap at a *span* of 32768 that doubles, up to four million, whenever more than a
//! quarter of it is in use: the table stays as small as the number of live processes allows.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, Ordering};

use ksync::{ArcBorrow, Counter, CpuPin, EpochPtr, Once, PerCpu, Round, Spin};

use super::group::Group;
use super::idlist::{IdLinks, Role};
use super::lock;
use super::process::Process;
use super::thread::Thread;

/// One more than the largest number (Linux's limit on 64-bit machines).
pub const ID_LIMIT: u32 = 1 << 22;
/// Where numbers wrap at first (Linux's default pid_max).
const FIRST_SPAN: u32 = 1 << 15;
/// Numbers a CPU takes at a time.
const BATCH: u32 = 64;
/// Slots of a leaf: one page.
const LEAF: usize = 128;
const MID: usize = 256;
const TOP: usize = ID_LIMIT as usize / LEAF / MID;

/// What bears a number.
struct Slot {
    /// [`Id`] values alive.
    users: AtomicU32,
    /// Where the waiting rounds of the next thread of this number begin; see [`Round::after`].  Written by the last one's end.
    rounds: AtomicU32,
    thread: EpochPtr<Arc<Thread>>,
    process: EpochPtr<Arc<Process>>,
    group: EpochPtr<Arc<Group>>,
}

impl Slot {
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "a pattern for array elements, never used in place"
    )]
    const VACANT: Slot = Slot {
        users: AtomicU32::new(0),
        rounds: AtomicU32::new(0),
        thread: EpochPtr::empty(),
        process: EpochPtr::empty(),
        group: EpochPtr::empty(),
    };

    /// Takes the number if nobody bears it.
    fn take(&self) -> bool {
        self.users
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

type Leaf = [Slot; LEAF];
type Mid = [EpochPtr<Box<Leaf>>; MID];

/// A CPU's unused numbers: `next..end`.
struct Batch {
    next: u32,
    end: u32,
}

struct Ids {
    top: Box<[EpochPtr<Box<Mid>>]>,
    /// Where the next batch begins.
    cursor: AtomicU32,
    span: AtomicU32,
    batches: PerCpu<Spin<Batch, lock::IdTableLock>>,
    live: Counter,
}

static IDS: Once<Ids> = Once::new();

/// Sets the table up.  Called once, by the boot CPU, before any thread is made.
#[inline(never)]
pub(super) fn init(ncpus: usize) {
    IDS.get_or_init(|| Ids {
        top: (0..TOP).map(|_| EpochPtr::empty()).collect(),
        // 1 is init's, given out by `take`.
        cursor: AtomicU32::new(0),
        span: AtomicU32::new(FIRST_SPAN),
        batches: PerCpu::new(ncpus, |_| Spin::new(Batch { next: 0, end: 0 })),
        live: Counter::new(ncpus),
    });
}

fn ids() -> &'static Ids {
    IDS.get().expect("the id table is set up before any thread")
}

impl Ids {
    fn leaf<'p>(&'p self, pin: &'p CpuPin, id: u32) -> Option<&'p Leaf> {
        let i = id as usize;
        let mid = self.top.get(i / (LEAF * MID))?.load(pin)?;
        mid[i / LEAF % MID].load(pin)
    }

    #[inline]
    fn slot<'p>(&'p self, pin: &'p CpuPin, id: u32) -> Option<&'p Slot> {
        Some(&self.leaf(pin, id)?[id as usize % LEAF])
    }

    /// Extends the table so that it has a slot for `id`.  Allocates.
    fn grow(&self, id: u32) {
        let i = id as usize;
        let pin = ksync::pin();
        if self.leaf(&pin, id).is_some() {
            return;
        }
        let top = &self.top[i / (LEAF * MID)];
        if top.is_none() {
            // Losing the race to another CPU is as good as winning it.
            let _ = top.set_if_none(on_heap(EpochPtr::empty));
        }
        if let Some(mid) = top.load(&pin) {
            let _ = mid[i / LEAF % MID].set_if_none(on_heap(|| Slot::VACANT));
        }
    }

    /// Bytes of the table, which never shrinks.
    fn bytes(&self) -> usize {
        let pin = ksync::pin();
        let mids = self.top.iter().filter_map(|mid| mid.load(&pin));
        mids.map(|mid| {
            let leaves = mid.iter().filter(|leaf| !leaf.is_none()).count();
            size_of::<Mid>() + leaves * size_of::<Leaf>()
        })
        .sum()
    }

    /// A batch that no CPU has.
    fn next_batch(&self) -> Batch {
        let span = self.span.load(Ordering::Relaxed);
        let start = self.cursor.fetch_add(BATCH, Ordering::Relaxed) % span;
        if start == 0 && span < ID_LIMIT && self.live.sum() as u64 > u64::from(span / 4) {
            // The cursor runs over a power of two, so a doubled span needs no other change.
            let _ =
                self.span
                    .compare_exchange(span, span * 2, Ordering::Relaxed, Ordering::Relaxed);
        }
        Batch {
            next: start,
            end: start + BATCH,
        }
    }
}

/// An array made in place: it would not fit a thread's stack.
fn on_heap<T, const N: usize>(mut make: impl FnMut() -> T) -> Box<[T; N]> {
    let slice: Box<[T]> = (0..N).map(|_| make()).collect();
    match slice.try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("{N} elements were made"),
    }
}

/// Bytes of the table of numbers: for the books of the heap.
pub fn table_bytes() -> usize {
    ids().bytes()
}

/// A number that is in use for as long as this value, or a clone of it, lives.
pub struct Id(u32);

impl Id {
    /// A number that nobody bears, or `None` when all are in use.
    pub fn alloc() -> Option<Id> {
        let ids = ids();
        let pin = ksync::pin();
        let mine = ids.batches.get(&pin);
        let span = ids.span.load(Ordering::Relaxed);
        let mut tried = 0;
        loop {
            let mut batch = mine.lock();
            if batch.next >= batch.end {
                *batch = ids.next_batch();
            }
            let id = batch.next;
            batch.next += 1;
            drop(batch);
            if id > 1 {
                ids.grow(id);
                if ids.slot(&pin, id).is_some_and(Slot::take) {
                    ids.live.add(&pin, 1);
                    return Some(Id(id));
                }
            }
            tried += 1;
            if tried > span.max(FIRST_SPAN) * 2 {
                return None;
            }
        }
    }

    /// Number 1, for init; `None` if it was taken before.
    pub(super) fn take_init() -> Option<Id> {
        let ids = ids();
        let pin = ksync::pin();
        ids.grow(1);
        if !ids.slot(&pin, 1)?.take() {
            return None;
        }
        ids.live.add(&pin, 1);
        Some(Id(1))
    }

    /// Number 0 for a CPU's idle thread: stands in no table.
    pub(super) const fn idle() -> Id {
        Id(0)
    }

    /// The number.
    pub fn number(&self) -> u32 {
        self.0
    }
}

impl Clone for Id {
    fn clone(&self) -> Id {
        let pin = ksync::pin();
        if self.0 != 0
            && let Some(slot) = ids().slot(&pin, self.0)
        {
            slot.users.fetch_add(1, Ordering::Relaxed);
        }
        Id(self.0)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if self.0 == 0 {
            return;
        }
        let ids = ids();
        let pin = ksync::pin();
        if let Some(slot) = ids.slot(&pin, self.0)
            && slot.users.fetch_sub(1, Ordering::Release) == 1
        {
            ids.live.add(&pin, -1);
        }
    }
}

/// The thread of that number.
#[inline]
pub fn thread(pin: &CpuPin, tid: u32) -> Option<&Thread> {
    ids().slot(pin, tid)?.thread.load(pin)
}

/// As [`thread`], for callers that may take a count of it.
#[inline]
pub fn borrow_thread(pin: &CpuPin, tid: u32) -> Option<ArcBorrow<'_, Thread>> {
    ids().slot(pin, tid)?.thread.borrow(pin)
}

/// The process of that number, zombies included.
#[inline]
pub fn process(pin: &CpuPin, pid: u32) -> Option<&Process> {
    ids().slot(pin, pid)?.process.load(pin)
}

/// As [`process`], for callers that may take a count of it.
#[inline]
pub fn borrow_process(pin: &CpuPin, pid: u32) -> Option<ArcBorrow<'_, Process>> {
    ids().slot(pin, pid)?.process.borrow(pin)
}

/// The process group of that number.
#[inline]
pub fn group(pin: &CpuPin, pgid: u32) -> Option<&Group> {
    ids().slot(pin, pgid)?.group.load(pin)
}

/// As [`group`], for callers that may take a count of it.
#[inline]
pub fn borrow_group(pin: &CpuPin, pgid: u32) -> Option<ArcBorrow<'_, Group>> {
    ids().slot(pin, pgid)?.group.borrow(pin)
}

/// The thread of that number, held, unless its process has been waited for: the last one may then still be on its way off
/// its CPU, but for others the number leads nowhere.
pub fn find_thread(tid: u32) -> Option<Arc<Thread>> {
    let found = borrow_thread(&ksync::pin(), tid).map(ArcBorrow::hold);
    found.filter(|t| !t.process().is_reaped())
}

/// The process of that number, held; zombies included.
pub fn find_process(pid: u32) -> Option<Arc<Process>> {
    borrow_process(&ksync::pin(), pid).map(ArcBorrow::hold)
}

/// The process group of that number, held.
pub fn find_group(pgid: u32) -> Option<Arc<Group>> {
    borrow_group(&ksync::pin(), pgid).map(ArcBorrow::hold)
}

/// Runs `f` on the slot of a number in use, other than the idle threads'.
fn with_slot(number: u32, f: impl FnOnce(&Slot, &CpuPin)) {
    let pin = ksync::pin();
    if number != 0
        && let Some(slot) = ids().slot(&pin, number)
    {
        f(slot, &pin);
    }
}

/// The waiting rounds of a new thread of that number: none that an earlier one had.
pub(super) fn rounds(id: &Id) -> Round {
    let mut left = 0;
    with_slot(id.0, |slot, _| left = slot.rounds.load(Ordering::Relaxed));
    Round::after(left)
}

pub(super) fn publish_thread(thread: &Arc<Thread>) {
    with_slot(thread.tid(), |slot, pin| {
        slot.thread
            .replace(super::epoch(), pin, Some(thread.clone()))
    });
}

/// Takes a thread that will not wait any more out of the table.
pub(super) fn withdraw_thread(thread: &Thread) {
    with_slot(thread.tid(), |slot, pin| {
        // The number is given out again only after the thread is freed.
        slot.rounds.store(thread.round.heir(), Ordering::Relaxed);
        slot.thread.replace(super::epoch(), pin, None)
    });
}

/// Makes `thread`, the caller and the only one of its process, bear that process's number; false while the last leader does.
/// The number that it has had stays taken until the thread has gone.
pub(super) fn become_leader(thread: &Arc<Thread>) -> bool {
    let (ids, pin) = (ids(), ksync::pin());
    let (tid, pid) = (thread.tid(), thread.process.pid());
    let (Some(old), Some(new)) = (ids.slot(&pin, tid), ids.slot(&pin, pid)) else {
        return false;
    };
    if !new.thread.is_none() {
        return false;
    }
    // Between two rounds, so no registration is lost; later rounds are new for both numbers.  Before the thread is found by its
    // new number: a registration that the last leader has left must not name a round of this one.
    let heir = thread.round.heir();
    old.rounds.store(heir, Ordering::Relaxed);
    let left = new.rounds.load(Ordering::Relaxed);
    thread.round.go_on_after(heir.max(left));
    if let Err(_mine) = new.thread.set_if_none(thread.clone()) {
        return false;
    }
    let mut threads = thread.process.threads.lock();
    threads.remove(&pin, tid);
    thread.tid.store(pid, Ordering::Relaxed);
    super::sched::renumbered(&pin, pid);
    threads.push_back(&pin, pid);
    drop(threads);
    old.thread.replace(super::epoch(), &pin, None);
    true
}

pub(super) fn publish_process(process: &Arc<Process>) {
    with_slot(process.id.0, |slot, pin| {
        slot.process
            .replace(super::epoch(), pin, Some(process.clone()))
    });
}

pub(super) fn withdraw_process(process: &Process) {
    with_slot(process.id.0, |slot, pin| {
        slot.process.replace(super::epoch(), pin, None)
    });
}

/// Makes a group known by its number; false if there is one of that number.
pub(super) fn publish_group(group: &Arc<Group>) -> bool {
    let (ids, pin) = (ids(), ksync::pin());
    let slot = ids.slot(&pin, group.id.0);
    slot.is_some_and(|slot| slot.group.set_if_none(group.clone()).is_ok())
}

pub(super) fn withdraw_group(group: &Group) {
    with_slot(group.id.0, |slot, pin| {
        slot.group.replace(super::epoch(), pin, None)
    });
}

/// Calls `f` with each process from number `from` on, in order, until it returns false.
///
/// No lock is held; `f` runs unpinned and may sleep.  Processes that come or go meanwhile may
/// or may not be seen.
pub fn each_process(from: u32, f: impl FnMut(&Arc<Process>) -> bool) {
    each_process_where(from, |_, _| ControlFlow::Continue(true), f);
}

/// As [`each_process`], for those numbers only for which `wanted`, pinned, says so; it may end the walk, too.
pub fn each_process_where(
    from: u32,
    mut wanted: impl FnMut(&CpuPin, u32) -> ControlFlow<(), bool>,
    mut f: impl FnMut(&Arc<Process>) -> bool,
) {
    let ids = ids();
    let span = ids.span.load(Ordering::Relaxed);
    let mut id = from.max(1);
    while id < span {
        if ids.leaf(&ksync::pin(), id).is_none() {
            id = (id / LEAF as u32 + 1) * LEAF as u32;
            continue;
        }
        let ControlFlow::Continue(wanted) = wanted(&ksync::pin(), id) else {
            return;
        };
        if wanted
            && let Some(p) = find_process(id)
            && !f(&p)
        {
            return;
        }
        id += 1;
    }
}

/// Threads that exist, idle ones left out. Takes time in proportion to the table.
pub fn threads() -> usize {
    let ids = ids();
    let pin = ksync::pin();
    (1..ids.span.load(Ordering::Relaxed))
        .filter(|&id| thread(&pin, id).is_some())
        .count()
}

/// Numbers in use: processes, groups, sessions and further threads.
pub fn live() -> u64 {
    ids().live.sum().max(0) as u64
}

/// Threads on a run queue.
pub(super) enum Runnable {}

impl Role for Runnable {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        thread(pin, id).map(|t| &t.run_links)
    }
}

/// Threads of a process.
pub(super) enum InProcess {}

impl Role for InProcess {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        thread(pin, id).map(|t| &t.group_links)
    }
}

/// Threads that wait for memory.
pub(super) enum NeedsMemory {}

impl Role for NeedsMemory {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        thread(pin, id).map(|t| &t.memory_links)
    }
}

/// Children of a process, living or zombies.
pub(super) enum Sibling {}

impl Role for Sibling {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        process(pin, id).map(|p| &p.siblings)
    }
}

/// Members of a process group's shard.
pub(super) enum InGroup {}

impl Role for InGroup {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        process(pin, id).map(|p| &p.group_links)
    }
}
