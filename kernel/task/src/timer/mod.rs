//! Timers: a wheel for each CPU, over the machine's one-shot timer.
//!
//! Guarantee: arming and cancelling take constant time, allocate nothing and may be done on any CPU. A timer expires at its
//! exact time, not at a multiple of the wheel's grain. Mechanism: eight levels of 64 lists; a list of level `l` covers
//! 2^(16+6l) ns. A timer is put on the lowest level that reaches as far as its time. When time gets to its list it moves down
//! a level or more. On the lowest level the machine's timer is armed for the earliest exact time in the list. Lists link by
//! id, so a timer is a field of its thread or process.
//!
//! However many timers share a list or a moment, the work in one hold of the wheel's lock is bounded, and so is the work in
//! one interrupt. For each list of the lowest level the wheel keeps a time before which none of its timers is due. Once that
//! time has come, the list is swept once, a few timers at a time; timers that are not due yet are moved to the list's end,
//! and give the list its next such time.

pub mod node;

use ksync::atomic::{AtomicU64, Ordering};

use ksync::{CpuPin, IrqSpin, Once, PerCpu};

use self::node::NOWHERE;
pub use self::node::TimerNode;
use crate::idlist::{IdLinks, IdList, Role};
use crate::thread::Thread;
use crate::{ids, lock, sched, time, upcalls};

/// 2^16 ns: the grain of the lowest level.
const GRAIN: u32 = 16;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Eight levels reach 2^64 ns.
const LEVELS: usize = 8;
/// Set in the ids on a wheel's lists for the timer of a process.
const OF_PROCESS: u32 = 1 << 31;
/// Set in them for the timer of an open file.
const OF_FILE: u32 = 1 << 30;
/// The most timers handled in one hold of the wheel's lock.
const BATCH: usize = 16;
/// Timers handled in one interrupt after which the rest is left to another interrupt.
const ENOUGH: usize = 128;
/// Nanoseconds of one interrupt after which the rest is left to another.
const ENOUGH_NS: u64 = 100_000;

/// Whether more hangs on a timer than a thread that is woken: after it `run` looks how much time has passed.
fn may_take_long(id: u32) -> bool {
    id & (OF_PROCESS | OF_FILE) != 0
}

enum OnWheel {}

fn node(pin: &CpuPin, id: u32) -> Option<&TimerNode> {
    if id & OF_PROCESS != 0 {
        (upcalls::get().process_timer)(pin, id & !OF_PROCESS)
    } else if id & OF_FILE != 0 {
        (FILES.get()?.node)(pin, id & !OF_FILE)
    } else {
        ids::thread(pin, id).map(|t| &t.timer)
    }
}

/// The functions of the crate whose open files have timers, by their numbers.
pub struct FileTimers {
    /// The timer of a file; `None` if there is none with that number. A timer is off the wheel before its number is void.
    pub node: for<'p> fn(&'p CpuPin, u32) -> Option<&'p TimerNode>,
    /// That timer has expired and is off the wheel. Called in the timer interrupt.
    pub expired: fn(&CpuPin, u32),
}

hal::machine_static! {
    static FILES: Once<&'static FileTimers> = Once::new();
}

/// Sets the functions for timers of files. Called once, before there are any.
pub fn set_file_timers(timers: &'static FileTimers) {
    FILES.get_or_init(|| timers);
}

impl Role for OnWheel {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        node(pin, id).map(|n| &n.links)
    }
}

struct Level {
    slots: [IdList<OnWheel>; SLOTS],
    /// Bit set of the lists that have a timer.
    used: u64,
}

/// What the wheel keeps for a list of the lowest level.
#[derive(Clone, Copy)]
struct Known {
    /// None of the timers is due before this time. If there are none, `u64::MAX`, or an earlier time, which costs a look.
    earliest: u64,
    /// The number of timers on the list.
    count: u32,
}

/// A sweep of a list of the lowest level that has begun and not ended.
struct Sweep {
    slot: usize,
    /// Timers, from the head of the list on, that may not have been looked at.
    left: u32,
    /// None of the other timers is due before this time.
    earliest: u64,
}

struct Wheel {
    /// The time up to which all lists have been emptied, in nanoseconds.
    now: u64,
    levels: [Level; LEVELS],
    /// One for each list of the lowest level.
    known: [Known; SLOTS],
    sweep: Option<Sweep>,
    /// When the scheduler's tick is due, in nanoseconds; `u64::MAX` for never.
    tick_at: u64,
    /// The time for which the machine's timer is armed, in nanoseconds.
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
            known: [Known {
                earliest: u64::MAX,
                count: 0,
            }; SLOTS],
            sweep: None,
            tick_at: u64::MAX,
            armed: u64::MAX,
        }
    }

    /// The level and the list for a timer due at `at`: on the lowest level on which `at` is less than one turn ahead.
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

    /// Puts timer `id` on the list for its time, `n.at`. Does not arm the machine's timer.
    fn insert(&mut self, pin: &CpuPin, id: u32, n: &TimerNode) {
        let at = n.at.load(Ordering::Relaxed);
        let (level, slot) = self.place(at);
        n.place
            .store((level * SLOTS + slot) as u32, Ordering::Relaxed);
        self.levels[level].slots[slot].push_back(pin, id);
        self.levels[level].used |= 1 << slot;
        if level == 0 {
            let known = &mut self.known[slot];
            known.count += 1;
            known.earliest = known.earliest.min(at);
            // The timer is put at the list's end, which this sweep does not reach.
            if let Some(sweep) = self.sweep.as_mut().filter(|sweep| sweep.slot == slot) {
                sweep.earliest = sweep.earliest.min(at);
            }
        }
    }

    /// Takes timer `id`, which is on this wheel, off it. The machine's timer stays armed, so its interrupt may find nothing due.
    fn remove(&mut self, pin: &CpuPin, id: u32, n: &TimerNode) {
        let place = n.place.load(Ordering::Relaxed) as usize;
        let (level, slot) = (place / SLOTS, place % SLOTS);
        let list = &mut self.levels[level].slots[slot];
        list.remove(pin, id);
        let empty = list.is_empty();
        if empty {
            self.levels[level].used &= !(1 << slot);
        }
        if level == 0 {
            let known = &mut self.known[slot];
            known.count -= 1;
            if empty {
                known.earliest = u64::MAX;
                self.sweep.take_if(|sweep| sweep.slot == slot);
            }
        }
    }

    /// The first list of a level, at or after the present one, that has a timer, and the time at which that list begins.
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

    /// Arms the machine's timer for `at` unless it is armed for an earlier time.
    fn arm_for(&mut self, at: u64) {
        if at < self.armed {
            self.armed = at;
            hal::timer::arm(at);
        }
    }

    /// The next time at which the wheel has work: the earliest time of the first list of level 0, or the beginning of a list
    /// of an upper level.
    fn next(&self) -> u64 {
        let mut next = u64::MAX;
        if let Some((slot, _)) = self.first(0) {
            next = self.known[slot].earliest;
        }
        for level in 1..LEVELS {
            if let Some((_, begin)) = self.first(level) {
                next = next.min(begin.max(self.now));
            }
        }
        next
    }

    /// Moves up to `room` timers down from lists of upper levels whose time has come; returns how many.
    fn lower(&mut self, pin: &CpuPin, room: usize) -> usize {
        let mut moved = 0;
        for level in (1..LEVELS).rev() {
            let Some((slot, begin)) = self.first(level) else {
                continue;
            };
            if begin > self.now {
                continue;
            }
            while moved < room {
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
        moved
    }

    /// Looks at up to `room` timers of the first list of level 0, and none after one that may take long; returns how many. Those due by `now` are taken off the
    /// wheel and stored in `out` from `*taken` on.
    fn look(
        &mut self,
        pin: &CpuPin,
        now: u64,
        room: usize,
        out: &mut [u32; BATCH],
        taken: &mut usize,
    ) -> usize {
        let Some((slot, _)) = self.first(0) else {
            return 0;
        };
        let known = self.known[slot];
        if known.earliest > now {
            return 0;
        }
        let mut sweep = match self.sweep.take() {
            Some(sweep) if sweep.slot == slot => sweep,
            // A sweep of another list is given up; that list is swept from its beginning when its turn comes.
            _ => Sweep {
                slot,
                left: known.count,
                earliest: u64::MAX,
            },
        };
        let mut looked = 0;
        while looked < room && sweep.left > 0 {
            let list = &mut self.levels[0].slots[slot];
            let Some(id) = list.first() else { break };
            looked += 1;
            sweep.left -= 1;
            let Some(n) = node(pin, id) else { break };
            let at = n.at.load(Ordering::Relaxed);
            if at > now {
                list.rotate(pin);
                sweep.earliest = sweep.earliest.min(at);
                continue;
            }
            self.remove(pin, id, n);
            n.cpu.store(NOWHERE, Ordering::SeqCst);
            out[*taken] = id;
            *taken += 1;
            if may_take_long(id) {
                break;
            }
        }
        // Also of a list that has become empty: timers that come to it tell the sweep their times.
        if sweep.left > 0 {
            self.sweep = Some(sweep);
        } else {
            self.known[slot].earliest = sweep.earliest;
        }
        looked
    }

    /// Takes timers due by `now` off the wheel, and moves timers down from lists that time has reached. Returns how many it
    /// took and how many it handled. It stops when it has handled a batch, or taken a timer that may take long: the caller then calls it again.
    fn expire(&mut self, pin: &CpuPin, now: u64, out: &mut [u32; BATCH]) -> (usize, usize) {
        let (mut taken, mut touched) = (0, 0);
        loop {
            let due = self.next();
            if due > now {
                self.now = self.now.max(now);
                return (taken, touched);
            }
            if touched >= BATCH {
                return (taken, touched);
            }
            self.now = self.now.max(due);
            touched += self.lower(pin, BATCH - touched);
            touched += self.look(pin, now, BATCH - touched, out, &mut taken);
            if taken > 0 && may_take_long(out[taken - 1]) {
                return (taken, touched);
            }
        }
    }
}

hal::machine_static! {
    static WHEELS: Once<PerCpu<IrqSpin<Wheel, lock::TimerLock>>> = Once::new();
}

/// Sets the wheels up. Called once, by the boot CPU, before any thread is made.
#[inline(never)]
pub(crate) fn init(ncpus: usize) {
    WHEELS.get_or_init(|| PerCpu::new(ncpus, |_| IrqSpin::new(Wheel::new())));
}

fn wheels() -> &'static PerCpu<IrqSpin<Wheel, lock::TimerLock>> {
    WHEELS.get().expect("timers are set up before any thread")
}

/// Puts `n` on this CPU's wheel, whose lock it takes. A time in the past expires by the next timer interrupt, which comes at
/// once.
fn arm(id: u32, n: &TimerNode, at: u64) {
    debug_assert!(!n.armed(), "arming a timer that is armed");
    let pin = ksync::pin();
    let cpu = pin.cpu();
    let mut wheel = wheels().get(&pin).lock();
    n.at.store(at, Ordering::Relaxed);
    n.cpu.store(cpu as u32, Ordering::SeqCst);
    // A wheel on which nothing happened for long is behind the clock; one without timers may jump.
    if wheel.levels.iter().all(|l| l.used == 0) {
        wheel.now = wheel.now.max(time::monotonic_ns().min(at));
    }
    wheel.insert(&pin, id, n);
    wheel.arm_for(at);
}

/// Takes `n` off the wheel that it is on, whose lock it takes. False if it is on none: its expiry may still be on its way.
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

/// Arms the calling thread's timer to wake it at `at`. If the timer was armed by an outer sleep, that time is dropped.
pub fn arm_thread(t: &Thread, at: u64) {
    cancel_thread(t);
    arm(t.tid(), &t.timer, at);
}

/// Disarms the thread's timer, if it is armed. A wake-up by an expiry that a CPU is handling may still come.
pub fn cancel_thread(t: &Thread) {
    cancel(t.tid(), &t.timer);
}

/// Arms `n`, the timer of process `pid`, for `at`. The timer must be disarmed, and the caller holds the lock that guards it.
pub fn arm_process(pid: u32, n: &TimerNode, at: u64) {
    arm(pid | OF_PROCESS, n, at);
}

/// Disarms `n`, the timer of process `pid`, if it is armed. The caller holds the lock that guards it. An expiry that a CPU is
/// handling may still come, once that lock is free.
pub fn cancel_process(pid: u32, n: &TimerNode) {
    cancel(pid | OF_PROCESS, n);
}

/// As [`arm_process`], for the timer of the file with that number, which is below 2^30.
pub fn arm_file(number: u32, n: &TimerNode, at: u64) {
    arm(number | OF_FILE, n, at);
}

/// As [`cancel_process`], for the timer of a file.
pub fn cancel_file(number: u32, n: &TimerNode) {
    cancel(number | OF_FILE, n);
}

hal::machine_static! {
    /// Nanoseconds between timer interrupts that are made only to look for sections without preemption; 0 for no such interrupts.
    /// Atomic, set at boot.
    static PROBE_NS: AtomicU64 = AtomicU64::new(0);
}

/// Makes each CPU's timer interrupt at least every `ns` nanoseconds, beginning with its next interrupt.
pub fn probe_every(ns: u64) {
    PROBE_NS.store(ns, Ordering::Relaxed);
}

fn probe_after(now: u64) -> u64 {
    match PROBE_NS.load(Ordering::Relaxed) {
        0 => u64::MAX,
        ns => now + ns,
    }
}

/// Handles the timers that are due on this CPU, and arms the machine's timer for the next. Called by the timer interrupt,
/// with interrupts off. Returns whether the scheduler's tick was due.
///
/// Takes the wheel's lock for a batch at a time, and runs what the timers are for without it.
///
/// After [`ENOUGH`] timers, or [`ENOUGH_NS`], it leaves the rest to another interrupt, which comes after as much time as this one has taken: so
/// other code gets half of the CPU.
pub(crate) fn run(pin: &CpuPin) -> bool {
    let wheel = wheels().get(pin);
    let mut ticked = false;
    let begun = time::monotonic_ns();
    let mut touched = 0;
    loop {
        let mut due = [0; BATCH];
        let now = time::monotonic_ns();
        let spent = now - begun;
        let mut taken = 0;
        let mut w = wheel.lock();
        if spent < ENOUGH_NS {
            let more;
            (taken, more) = w.expire(pin, now, &mut due);
            touched += more;
        }
        if w.tick_at <= now {
            w.tick_at = u64::MAX;
            ticked = true;
        }
        let mut next = w.next().min(w.tick_at).min(probe_after(now));
        if touched >= ENOUGH || spent >= ENOUGH_NS {
            next = next.max(now + spent.max(1));
        }
        w.armed = u64::MAX;
        if next > now {
            w.arm_for(next);
        }
        drop(w);
        for &id in &due[..taken] {
            fire(pin, id);
        }
        if next > now {
            return ticked;
        }
    }
}

fn fire(pin: &CpuPin, id: u32) {
    if id & OF_PROCESS != 0 {
        (upcalls::get().process_timer_expired)(pin, id & !OF_PROCESS);
    } else if id & OF_FILE != 0 {
        if let Some(files) = FILES.get() {
            (files.expired)(pin, id & !OF_FILE);
        }
    } else if let Some(t) = ids::thread(pin, id) {
        sched::wake(pin, t);
    }
}

/// Asks for the scheduler's tick on this CPU at `at`; `u64::MAX` cancels the request.
pub(crate) fn set_tick(pin: &CpuPin, at: u64) {
    let mut wheel = wheels().get(pin).lock();
    wheel.tick_at = at;
    wheel.arm_for(at);
}
