//! Timers: per-CPU wheels over the machine's one-shot timer.
//!
//! Guarantee: arming and cancelling cost O(1), allocate nothing and may be done on any CPU; a
//! timer goes off at its exact time, not at a wheel's grain.  Mechanism: eight levels of 64 lists; level
//! `l` has slots of 2^(16+6l) ns.  A timer waits in the finest level that reaches it; when time
//! gets to its slot it moves down, and in the lowest level the machine's timer is armed for the
//! earliest exact time in the slot.  Lists link by number, so a timer is a field of the
//! thread or process that it belongs to.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ksync::{CpuPin, IrqSpin, Once, PerCpu};

use super::idlist::{IdLinks, IdList, Role};
use super::process::Process;
use super::thread::Thread;
use super::{ids, lock, sched, time};
use crate::arch;

/// 2^16 ns: the grain of the lowest level.
const GRAIN: u32 = 16;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Eight levels reach 2^64 ns.
const LEVELS: usize = 8;
/// Set in a list's numbers that name a process's timer.
const OF_PROCESS: u32 = 1 << 31;
const NOWHERE: u32 = u32::MAX;
/// Timers handled in one hold of the wheel's lock.
const BATCH: usize = 16;

/// A timer, part of what it belongs to.
pub struct TimerNode {
    links: IdLinks,
    /// Its wheel's CPU, or `NOWHERE`.  Written under that wheel's lock.
    cpu: AtomicU32,
    /// Level and slot, `level * 64 + slot`.  The wheel's lock.
    place: AtomicU32,
    /// Monotonic nanoseconds.  The wheel's lock; read without it.
    at: AtomicU64,
}

impl TimerNode {
    /// A timer at rest.
    pub const fn new() -> Self {
        TimerNode {
            links: IdLinks::new(),
            cpu: AtomicU32::new(NOWHERE),
            place: AtomicU32::new(0),
            at: AtomicU64::new(0),
        }
    }

    /// Whether it is still to go off.
    pub fn armed(&self) -> bool {
        self.cpu.load(Ordering::SeqCst) != NOWHERE
    }

    /// When it is to go off, or was, in monotonic nanoseconds.
    pub fn at(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    /// Monotonic nanoseconds left; `None` if at rest.
    pub fn left(&self) -> Option<u64> {
        self.armed().then(|| {
            self.at
                .load(Ordering::Relaxed)
                .saturating_sub(time::monotonic_ns())
                .max(1)
        })
    }
}

enum OnWheel {}

fn node(pin: &CpuPin, id: u32) -> Option<&TimerNode> {
    if id & OF_PROCESS != 0 {
        ids::process(pin, id & !OF_PROCESS).map(|p| &p.real_node)
    } else {
        ids::thread(pin, id).map(|t| &t.timer)
    }
}

impl Role for OnWheel {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        node(pin, id).map(|n| &n.links)
    }
}

struct Level {
    slots: [IdList<OnWheel>; SLOTS],
    /// Slots with a timer.
    used: u64,
}

struct Wheel {
    /// Time up to which slots have been emptied, in nanoseconds.
    now: u64,
    levels: [Level; LEVELS],
    /// When the scheduler wants its tick; `u64::MAX` for never.
    tick_at: u64,
    /// What the machine's timer is armed for.
    armed: u64,
}

fn shift(level: usize) -> u32 {
    GRAIN + SLOT_BITS * level as u32
}

impl Wheel {
    const fn new() -> Self {
        const EMPTY: Level = Level {
            slots: [const { IdList::new() }; SLOTS],
            used: 0,
        };
        Wheel {
            now: 0,
            levels: [EMPTY; LEVELS],
            tick_at: u64::MAX,
            armed: u64::MAX,
        }
    }

    /// The finest place from which `at` is less than a turn away.
    fn place(&self, at: u64) -> (usize, usize) {
        let at = at.max(self.now);
        let mut level = 0;
        while level + 1 < LEVELS
            && (at >> shift(level)) - (self.now >> shift(level)) >= SLOTS as u64
        {
            level += 1;
        }
        let shift = shift(level).min(63);
        (level, (at >> shift) as usize % SLOTS)
    }

    fn insert(&mut self, pin: &CpuPin, id: u32, n: &TimerNode) {
        let (level, slot) = self.place(n.at.load(Ordering::Relaxed));
        n.place
            .store((level * SLOTS + slot) as u32, Ordering::Relaxed);
        self.levels[level].slots[slot].push_back(pin, id);
        self.levels[level].used |= 1 << slot;
    }

    fn remove(&mut self, pin: &CpuPin, id: u32, n: &TimerNode) {
        let place = n.place.load(Ordering::Relaxed) as usize;
        let level = &mut self.levels[place / SLOTS];
        level.slots[place % SLOTS].remove(pin, id);
        if level.slots[place % SLOTS].is_empty() {
            level.used &= !(1 << (place % SLOTS));
        }
    }

    /// The first used slot of a level at or after the present one: its beginning in nanoseconds.
    fn first(&self, level: usize) -> Option<(usize, u64)> {
        let used = self.levels[level].used;
        if used == 0 {
            return None;
        }
        let shift = shift(level).min(63);
        let here = self.now >> shift;
        let ahead = used
            .rotate_right((here % SLOTS as u64) as u32)
            .trailing_zeros();
        let index = here + u64::from(ahead);
        Some(((index % SLOTS as u64) as usize, index << shift))
    }

    /// Arms the machine for `at` unless it is armed for something earlier.
    fn arm_for(&mut self, at: u64) {
        if at < self.armed {
            self.armed = at;
            arch::timer::arm(at);
        }
    }

    /// When something is to be done next: a timer of level 0 at its time, an upper slot at its
    /// beginning.
    fn next(&self, pin: &CpuPin) -> u64 {
        let mut next = u64::MAX;
        if let Some((slot, _)) = self.first(0) {
            self.levels[0].slots[slot].each(pin, |id| {
                if let Some(n) = node(pin, id) {
                    next = next.min(n.at.load(Ordering::Relaxed));
                }
                true
            });
        }
        for level in 1..LEVELS {
            if let Some((_, begin)) = self.first(level) {
                next = next.min(begin.max(self.now));
            }
        }
        next
    }

    /// Takes off up to a batch of timers whose time has come by `now`, moving others down as
    /// their slots are reached.  A full batch means: call again.
    fn expire(&mut self, pin: &CpuPin, now: u64, out: &mut [u32; BATCH]) -> usize {
        let mut count = 0;
        let mut moved = 0;
        loop {
            let due = self.next(pin);
            if due > now || count == BATCH || moved == BATCH {
                if due > now {
                    self.now = self.now.max(now);
                }
                return count;
            }
            self.now = self.now.max(due);
            for level in (1..LEVELS).rev() {
                let Some((slot, begin)) = self.first(level) else {
                    continue;
                };
                if begin > self.now {
                    continue;
                }
                while moved < BATCH {
                    let Some(id) = self.levels[level].slots[slot].pop_front(pin) else {
                        break;
                    };
                    moved += 1;
                    if let Some(n) = node(pin, id) {
                        self.insert(pin, id, n);
                    }
                }
                if self.levels[level].slots[slot].is_empty() {
                    self.levels[level].used &= !(1 << slot);
                }
            }
            let Some((slot, _)) = self.first(0) else {
                continue;
            };
            let mut at = self.levels[0].slots[slot].first();
            while let (Some(id), true) = (at, count < BATCH) {
                at = self.levels[0].slots[slot].after(pin, id);
                let Some(n) = node(pin, id) else { break };
                if n.at.load(Ordering::Relaxed) <= now {
                    self.remove(pin, id, n);
                    n.cpu.store(NOWHERE, Ordering::SeqCst);
                    out[count] = id;
                    count += 1;
                }
            }
        }
    }
}

static WHEELS: Once<PerCpu<IrqSpin<Wheel, lock::TimerLock>>> = Once::new();

#[inline(never)]
pub(super) fn init(ncpus: usize) {
    WHEELS.get_or_init(|| PerCpu::new(ncpus, |_| IrqSpin::new(Wheel::new())));
}

fn wheels() -> &'static PerCpu<IrqSpin<Wheel, lock::TimerLock>> {
    WHEELS.get().expect("timers are set up before any thread")
}

fn arm(id: u32, n: &TimerNode, at: u64) {
    debug_assert!(!n.armed(), "arming a timer that is armed");
    let pin = ksync::pin();
    let cpu = pin.cpu();
    let mut wheel = wheels().get(&pin).lock();
    n.at.store(at, Ordering::Relaxed);
    n.cpu.store(cpu as u32, Ordering::SeqCst);
    // A wheel that was idle for long lags behind; an empty one may jump.
    if wheel.levels.iter().all(|l| l.used == 0) {
        wheel.now = wheel.now.max(time::monotonic_ns().min(at));
    }
    wheel.insert(&pin, id, n);
    wheel.arm_for(at);
}

fn cancel(id: u32, n: &TimerNode) -> bool {
    let pin = ksync::pin();
    loop {
        let cpu = n.cpu.load(Ordering::SeqCst);
        if cpu == NOWHERE {
            return false;
        }
        let mut wheel = wheels().of(cpu as usize).lock();
        if n.cpu.load(Ordering::SeqCst) == cpu {
            wheel.remove(&pin, id, n);
            n.cpu.store(NOWHERE, Ordering::SeqCst);
            return true;
        }
    }
}

/// Arms the calling thread's own timer: it is woken at `at`, and not at what an outer sleep had set.
pub(super) fn arm_thread(t: &Thread, at: u64) {
    cancel_thread(t);
    arm(t.tid(), &t.timer, at);
}

/// Puts the thread's timer to rest.
pub(super) fn cancel_thread(t: &Thread) {
    cancel(t.tid(), &t.timer);
}

/// Arms the process's ITIMER_REAL for `at`.  The timer must be at rest; its lock is held.
pub(super) fn arm_process(p: &Process, at: u64) {
    arm(p.pid() | OF_PROCESS, &p.real_node, at);
}

/// Puts the process's ITIMER_REAL to rest; its lock is held.
pub(super) fn cancel_process(p: &Process) {
    cancel(p.pid() | OF_PROCESS, &p.real_node);
}

/// Nanoseconds between interrupts that look for sections without preemption; 0 for none but those that are due anyway.
/// Atomic, set at boot.
static PROBE_NS: AtomicU64 = AtomicU64::new(0);

/// Has each CPU's timer interrupt at least every `ns` nanoseconds from its next interrupt on.
pub fn probe_every(ns: u64) {
    PROBE_NS.store(ns, Ordering::Relaxed);
}

fn probe_after(now: u64) -> u64 {
    match PROBE_NS.load(Ordering::Relaxed) {
        0 => u64::MAX,
        ns => now + ns,
    }
}

/// Carries out what is due on this CPU and arms the machine for what comes next.  Called by the
/// timer interrupt, with interrupts off.  Returns whether the scheduler's tick was due.
pub(super) fn run(pin: &CpuPin) -> bool {
    let wheel = wheels().get(pin);
    let mut ticked = false;
    loop {
        let mut due = [0; BATCH];
        let now = time::monotonic_ns();
        let mut w = wheel.lock();
        let n = w.expire(pin, now, &mut due);
        if w.tick_at <= now {
            w.tick_at = u64::MAX;
            ticked = true;
        }
        let next = w.next(pin).min(w.tick_at).min(probe_after(now));
        w.armed = u64::MAX;
        if next > now {
            w.arm_for(next);
        }
        drop(w);
        for &id in &due[..n] {
            fire(pin, id);
        }
        if next > now {
            return ticked;
        }
    }
}

fn fire(pin: &CpuPin, id: u32) {
    if id & OF_PROCESS != 0 {
        if let Some(p) = ids::process(pin, id & !OF_PROCESS) {
            super::itimer::expired(p);
        }
    } else if let Some(t) = ids::thread(pin, id) {
        sched::wake(pin, t);
    }
}

/// Asks for the scheduler's tick on this CPU at `at`; `u64::MAX` takes the wish back.
pub(super) fn set_tick(pin: &CpuPin, at: u64) {
    let mut wheel = wheels().get(pin).lock();
    wheel.tick_at = at;
    wheel.arm_for(at);
}

const _: () = assert!(size_of::<TimerNode>() <= 24 + 8);
