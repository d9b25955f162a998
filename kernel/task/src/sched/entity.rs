//! The scheduling state of a thread: policy and priorities, weight, affinity, virtual time.

use ksync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::class::{Class, LockLoan, Policy, RR_NS, Setting};
use super::mask::CpuMask;

/// Weight of nice 0.
pub const NICE_0_WEIGHT: u64 = 1024;

/// Weights of nice -20..=19: each step is a factor of 1.25, ten per cent of CPU time between two
/// threads, as setpriority(2) users expect.
const WEIGHTS: [u32; 40] = weights();

const fn weights() -> [u32; 40] {
    let mut w = [0u32; 40];
    let mut x = NICE_0_WEIGHT * 1000;
    let mut i = 20;
    while i > 0 {
        i -= 1;
        x = x * 5 / 4;
        w[i] = (x / 1000) as u32;
    }
    let mut x = NICE_0_WEIGHT * 1000;
    let mut i = 20;
    while i < 40 {
        w[i] = (x / 1000) as u32;
        x = x * 4 / 5;
        i += 1;
    }
    w
}

/// Weight of SCHED_IDLE, below every nice value.
const IDLE_WEIGHT: u32 = 3;
/// Weight of a thread with a real-time priority: its virtual time stands nearly still, and other CPUs take what is queued beside it.
const REAL_TIME_WEIGHT: u32 = u32::MAX;

/// The scheduling state of a thread. The virtual time may be changed by the CPU that runs the thread; under the queue's lock
/// while the thread is queued (it is then absolute, in that queue's time); and otherwise by the waker (it is then relative to
/// the base of the queue that the thread left).
pub struct Entity {
    vt: AtomicU64,
    /// When the thread was last given the CPU or charged, or gave the CPU up; in nanoseconds.
    since: AtomicU64,
    /// Nanoseconds that the thread has run; written by the CPU that runs it.
    runtime: AtomicU64,
    cpu: AtomicU32,
    /// By nice value and policy; see [`Self::weight`].
    weight: AtomicU32,
    /// The weight with which its queue has counted it. Under that queue's lock.
    counted: AtomicU32,
    /// The queue that it is on, and the list of that: see `Queue`. Written under that queue's lock, so under another queue's lock
    /// it says for certain that the thread is not on that one.
    place: AtomicU32,
    /// A [`Class`]. After a change by which the thread's priority is another one, the caller looks for the thread's queue: see
    /// `real_time::changed`.
    class: AtomicU32,
    /// A [`LockLoan`]. Atomic; each change of it is followed by one of the class: see `real_time::follow_lock_loan`.
    lock_loan: AtomicU64,
    /// 20 plus the nice value.
    nice: AtomicU8,
    /// Nanoseconds that are left of a time slice of SCHED_RR. Written by the CPU that runs the thread, under its queue's lock.
    slice: AtomicU64,
    /// Nanoseconds that the thread has run with a real-time priority since it last slept, or a loan ended with which it had one. The CPU that runs
    /// the thread adds; any other one sets it to 0.
    unslept: AtomicU64,
    /// The timer slack of PR_SET_TIMERSLACK, in nanoseconds. It is reported and has no effect, because timers are exact.
    slack: AtomicU64,
    /// The slack that setting 0 restores: the creator's. Constant.
    usual_slack: u64,
    /// Why it counts as of nice 0 at least, whatever its nice value and policy: [`HURRIED`], [`LENT`], both or neither. Atomic.
    raised: AtomicU8,
    affinity: CpuMask,
}

/// It stays raised.
const HURRIED: u8 = 1;
/// It is raised until it enters user mode.
const LENT: u8 = 2;

/// The timer slack of the first threads, in nanoseconds.
const SLACK_NS: u64 = 50_000;

impl Entity {
    /// The state of a new thread that has not run. `policy` is none of the real-time ones.
    pub fn new(cpu: usize, nice: i8, policy: Policy, affinity: &CpuMask) -> Self {
        Self::with_setting(cpu, nice, Setting::ordinary(policy), affinity)
    }

    fn with_setting(cpu: usize, nice: i8, setting: Setting, affinity: &CpuMask) -> Self {
        let e = Entity {
            vt: AtomicU64::new(0),
            since: AtomicU64::new(crate::time::monotonic_ns()),
            runtime: AtomicU64::new(0),
            cpu: AtomicU32::new(cpu as u32),
            weight: AtomicU32::new(NICE_0_WEIGHT as u32),
            counted: AtomicU32::new(0),
            place: AtomicU32::new(0),
            class: AtomicU32::new(Class::of(setting).word()),
            lock_loan: AtomicU64::new(LockLoan::NONE.word()),
            nice: AtomicU8::new((nice + 20) as u8),
            slice: AtomicU64::new(RR_NS),
            unslept: AtomicU64::new(0),
            slack: AtomicU64::new(SLACK_NS),
            usual_slack: SLACK_NS,
            raised: AtomicU8::new(0),
            affinity: affinity.copy(),
        };
        e.reweigh();
        e
    }

    /// The state of a forked thread: a copy of its creator's, with no time run, neither raised nor lent a priority, and without
    /// SCHED_RESET_ON_FORK, which makes a real-time policy SCHED_OTHER of nice 0, and a negative nice value 0. The creator's
    /// timer slack is also the one that setting 0 restores. All as in Linux.
    pub fn forked(&self, cpu: usize) -> Self {
        let mut setting = self.setting();
        let mut nice = self.nice();
        if setting.reset_on_fork {
            if setting.policy.is_real_time() {
                (setting, nice) = (Setting::ordinary(Policy::Other), 0);
            }
            nice = nice.max(0);
            setting.reset_on_fork = false;
        }
        let mut e = Entity::with_setting(cpu, nice, setting, &self.affinity);
        e.slack = AtomicU64::new(self.slack());
        e.usual_slack = self.slack();
        e
    }

    /// Timer slack in nanoseconds.
    pub fn slack(&self) -> u64 {
        self.slack.load(Ordering::Relaxed)
    }

    /// Sets the timer slack, in nanoseconds; 0 restores the creator's.
    pub fn set_slack(&self, ns: u64) {
        let ns = if ns == 0 { self.usual_slack } else { ns };
        self.slack.store(ns, Ordering::Relaxed);
    }

    /// Stores the weight by nice value and policy, which have been stored. Where others change these meanwhile, the last one that
    /// stores the weight does so by what is in force.
    fn reweigh(&self) {
        let now = || (self.class(), self.nice.load(Ordering::SeqCst));
        let mut seen = now();
        loop {
            let weight = match seen.0.policy() {
                _ if seen.0.is_real_time() => REAL_TIME_WEIGHT,
                Policy::Idle => IDLE_WEIGHT,
                _ => WEIGHTS[usize::from(seen.1).min(39)],
            };
            self.weight.store(weight, Ordering::SeqCst);
            let then = core::mem::replace(&mut seen, now());
            if then == seen {
                return;
            }
        }
    }

    /// The weight by nice value and policy, but at least that of nice 0 while the thread is hurried or lent weight.
    pub(super) fn weight(&self) -> u64 {
        let weight = self.weight.load(Ordering::Relaxed).into();
        if self.is_hurried() {
            NICE_0_WEIGHT.max(weight)
        } else {
            weight
        }
    }

    /// Gives the thread at least the weight of nice 0 from now on. Returns whether it had less.
    pub(super) fn hurry(&self) -> bool {
        let had_less = self.weight() < NICE_0_WEIGHT;
        // In any case: its nice value and policy may still change.
        self.raised.fetch_or(HURRIED, Ordering::SeqCst);
        had_less
    }

    /// Whether the thread has at least the weight of nice 0, whatever its nice value and policy.
    pub(super) fn is_hurried(&self) -> bool {
        self.raised.load(Ordering::Relaxed) != 0
    }

    /// As [`Self::hurry`], until [`Self::give_back`], but only if the thread has less. Returns whether this call has raised it.
    pub(super) fn lend(&self) -> bool {
        self.weight() < NICE_0_WEIGHT && self.raised.fetch_or(LENT, Ordering::SeqCst) & LENT == 0
    }

    /// Ends [`Self::lend`].
    pub(super) fn give_back(&self) {
        self.raised.fetch_and(!LENT, Ordering::SeqCst);
    }

    /// The nice value, -20..=19.
    pub fn nice(&self) -> i8 {
        self.nice.load(Ordering::Relaxed) as i8 - 20
    }

    /// Sets the nice value, -20..=19; other values are clamped.
    pub fn set_nice(&self, nice: i8) {
        self.nice
            .store((nice.clamp(-20, 19) + 20) as u8, Ordering::SeqCst);
        self.reweigh();
    }

    /// Policy and priorities.
    #[inline]
    pub(super) fn class(&self) -> Class {
        Class::from_word(self.class.load(Ordering::SeqCst))
    }

    /// Policy, priority, and whether children are reset.
    pub fn setting(&self) -> Setting {
        self.class().setting()
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.class().policy()
    }

    /// The real-time priority with which the thread runs, 1..=99: the highest of its own one and those that it has been lent. 0 if
    /// there is none.
    pub fn priority(&self) -> u8 {
        self.class().priority()
    }

    /// Replaces the class by what `new` makes of it, which may be asked more than once. Returns the priority before and after. The
    /// caller tells the thread's queue of a change.
    pub(super) fn change_class(&self, new: impl Fn(Class) -> Class) -> [u8; 2] {
        let change = self.change_class_if(|_| true, new);
        change.unwrap_or_default()
    }

    /// As [`Self::change_class`], if `accepts` holds for the class; otherwise nothing has changed.
    pub(super) fn change_class_if(
        &self,
        accepts: impl Fn(Class) -> bool,
        new: impl Fn(Class) -> Class,
    ) -> Option<[u8; 2]> {
        let changed = |word| {
            let class = Class::from_word(word);
            accepts(class).then(|| new(class).word())
        };
        let order = Ordering::SeqCst;
        let before = self.class.fetch_update(order, order, changed).ok()?;
        self.reweigh();
        let before = Class::from_word(before);
        Some([before.priority(), new(before).priority()])
    }

    /// What it has been lent for locks of the kernel.
    pub(super) fn lock_loan(&self) -> LockLoan {
        LockLoan::from_word(self.lock_loan.load(Ordering::SeqCst))
    }

    /// Replaces that by what `new` makes of it, if it makes something.
    pub(super) fn change_lock_loan(&self, new: impl Fn(LockLoan) -> Option<LockLoan>) -> bool {
        let order = Ordering::SeqCst;
        let changed = |word| new(LockLoan::from_word(word)).map(LockLoan::word);
        self.lock_loan.fetch_update(order, order, changed).is_ok()
    }

    /// The thread has run for `ns` with a real-time priority. By its CPU, under that CPU's queue's lock.
    pub(super) fn ran_real_time(&self, ns: u64) {
        self.slice
            .store(self.slice_left().saturating_sub(ns), Ordering::Relaxed);
        // A read-modify-write, so that no reset is lost.
        self.unslept.fetch_add(ns, Ordering::Relaxed);
    }

    /// Nanoseconds that are left of the thread's time slice of SCHED_RR.
    pub(super) fn slice_left(&self) -> u64 {
        self.slice.load(Ordering::Relaxed)
    }

    /// Whether it is another thread's turn: the policy is SCHED_RR, and the time slice is used up.
    pub(super) fn slice_is_over(&self) -> bool {
        self.slice_left() == 0 && self.policy() == Policy::RoundRobin
    }

    /// Gives the thread a new time slice of SCHED_RR.
    pub(super) fn renew_slice(&self) {
        self.slice.store(RR_NS, Ordering::Relaxed);
    }

    /// Nanoseconds that the thread has run with a real-time priority since it last slept, or a loan ended with which it had one; up to the last
    /// tick or switch.
    pub fn unslept_ns(&self) -> u64 {
        self.unslept.load(Ordering::Relaxed)
    }

    /// The thread has slept, or has no real-time priority any more because a loan has ended.
    pub(super) fn has_slept(&self) {
        // Most threads never have one, and the line is not written for them.
        if self.unslept_ns() != 0 {
            self.unslept.store(0, Ordering::Relaxed);
        }
    }

    /// The CPUs that the thread may run on.
    pub fn affinity(&self) -> &CpuMask {
        &self.affinity
    }

    /// The CPU that the thread runs on or ran on last, or whose queue it is on.
    pub fn cpu(&self) -> usize {
        self.cpu.load(Ordering::Relaxed) as usize
    }

    pub(super) fn set_cpu(&self, cpu: usize) {
        self.cpu.store(cpu as u32, Ordering::Relaxed);
    }

    /// Nanoseconds of CPU time, up to the last switch or tick.
    pub fn runtime_ns(&self) -> u64 {
        self.runtime.load(Ordering::Relaxed)
    }

    pub(super) fn vt(&self) -> u64 {
        self.vt.load(Ordering::Relaxed)
    }

    pub(super) fn set_vt(&self, vt: u64) {
        self.vt.store(vt, Ordering::Relaxed);
    }

    /// The weight of the thread now. Records it as the one with which the queue counts the thread until it leaves.
    pub(super) fn count_weight(&self) -> u64 {
        let weight = self.weight();
        self.counted.store(weight as u32, Ordering::Relaxed);
        weight
    }

    /// The weight with which the queue has counted the thread.
    pub(super) fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed).into()
    }

    /// The queue and the list that the thread is on; 0 for none.
    pub(super) fn place(&self) -> u32 {
        self.place.load(Ordering::Relaxed)
    }

    pub(super) fn set_place(&self, place: u32) {
        self.place.store(place, Ordering::Relaxed);
    }

    pub(super) fn start_running(&self, now: u64) {
        self.since.store(now, Ordering::Relaxed);
    }

    /// Charges the running thread for the time since the last charge; returns its virtual time. By its CPU, with interrupts off.
    pub(crate) fn charge(&self, now: u64) -> u64 {
        let ran = now.saturating_sub(self.since.load(Ordering::Relaxed));
        self.since.store(now, Ordering::Relaxed);
        self.runtime
            .store(self.runtime_ns() + ran, Ordering::Relaxed);
        let weight = self.weight().max(1);
        // The idle thread is charged for all of an idle period.
        let vt = self
            .vt()
            .saturating_add(ran.saturating_mul(NICE_0_WEIGHT) / weight);
        self.set_vt(vt);
        vt
    }

    /// Nanoseconds since the thread gave up the CPU.
    pub(crate) fn rested(&self, now: u64) -> u64 {
        now.saturating_sub(self.since.load(Ordering::Relaxed))
    }
}
