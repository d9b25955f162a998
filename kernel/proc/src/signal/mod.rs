//! Signals.
//!
//! A signal is *posted* to a thread or to a process (`send`), *taken* by a thread on its way to user mode or in
//! sigtimedwait (`deliver`), and *acted on* as the process's action says (`action`). The process's signal lock orders
//! posting, taking, stopping and changes of actions. Atomic words show whether a signal is pending, without a lock.

mod action;
mod deliver;
mod frame;
mod info;
mod pending;
mod send;
mod stop;

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use task::current::current;
use task::park::Deadline;
use task::thread::{Thread, flag};

use super::itimer;
use super::process::Process;
use crate::UserThreadExt;

pub use action::{Action, ActionTable, SA_NOCLDSTOP};
pub use deliver::{before_user_return, deliver_fault, may_want_restart};
pub use frame::sigreturn;
pub use info::{SigFields, SigInfo, code};
pub use pending::Pending;
pub(super) use send::leave;
pub use send::{SendError, force, kill_process};
pub use send::{
    may_signal, queue_parent, queue_process, send_parent, send_process, send_thread, signal_group,
    signal_whole_group,
};
pub(super) use stop::{StopReport, notify_parent_stopped};

/// Signals pending for one thread.
pub type ThreadPending = Pending;
/// Signals pending for a whole process.
pub type SharedPending = Pending;

/// Signal numbers.
#[allow(missing_docs, reason = "signal(7) explains each")]
pub mod sig {
    pub const HUP: u8 = 1;
    pub const INT: u8 = 2;
    pub const QUIT: u8 = 3;
    pub const ILL: u8 = 4;
    pub const TRAP: u8 = 5;
    pub const ABRT: u8 = 6;
    pub const BUS: u8 = 7;
    pub const FPE: u8 = 8;
    pub const KILL: u8 = 9;
    pub const SEGV: u8 = 11;
    pub const PIPE: u8 = 13;
    pub const ALRM: u8 = 14;
    pub const CHLD: u8 = 17;
    pub const CONT: u8 = 18;
    pub const STOP: u8 = 19;
    pub const TSTP: u8 = 20;
    pub const TTIN: u8 = 21;
    pub const TTOU: u8 = 22;
    pub const URG: u8 = 23;
    pub const XCPU: u8 = 24;
    pub const XFSZ: u8 = 25;
    pub const VTALRM: u8 = 26;
    pub const PROF: u8 = 27;
    pub const WINCH: u8 = 28;
    pub const SYS: u8 = 31;
    /// The first real-time signal.
    pub const RTMIN: u8 = 32;
    /// The last signal.
    pub const MAX: u8 = 64;
}

/// A set of signals, bit `n - 1` for signal `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SigSet(pub u64);

impl SigSet {
    /// SIGKILL and SIGSTOP, which can be neither blocked, caught nor ignored.
    pub const UNMASKABLE: SigSet = SigSet::of(&[sig::KILL, sig::STOP]);
    /// Signals that stop a process.
    pub const STOPS: SigSet = SigSet::of(&[sig::STOP, sig::TSTP, sig::TTIN, sig::TTOU]);
    /// Signals that an instruction of the thread itself causes; they are taken before others.
    pub const SYNCHRONOUS: SigSet =
        SigSet::of(&[sig::SEGV, sig::BUS, sig::ILL, sig::TRAP, sig::FPE, sig::SYS]);

    /// The set of `signals`.
    pub const fn of(signals: &[u8]) -> SigSet {
        let mut bits = 0;
        let mut i = 0;
        while i < signals.len() {
            bits |= 1 << (signals[i] - 1);
            i += 1;
        }
        SigSet(bits)
    }

    /// The set of one signal.
    pub const fn one(signal: u8) -> SigSet {
        SigSet(1 << (signal - 1))
    }

    /// Whether `signal` is in it.
    pub const fn has(self, signal: u8) -> bool {
        self.0 & 1 << (signal - 1) != 0
    }
}

/// The state that the signal lock of a process guards.
pub struct Shared {
    /// The actions. Two processes share them only by CLONE_SIGHAND without CLONE_THREAD.
    pub(super) actions: Arc<ActionTable>,
    /// The state of job control.
    pub(super) stop: stop::StopState,
    /// The mask of the leader when it exited: whether a signal is kept is still decided by the leader's mask.
    left_mask: SigSet,
}

impl Shared {
    /// The state of a process that has `actions` and is not stopped.
    pub fn new(actions: Arc<ActionTable>) -> Self {
        Shared {
            actions,
            stop: stop::StopState::default(),
            left_mask: SigSet::default(),
        }
    }
}

/// The alternate stack of sigaltstack(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltStack {
    /// Lowest address.
    pub sp: u64,
    /// Bytes; 0 for none.
    pub size: u64,
    /// SS_AUTODISARM or 0.
    pub flags: u32,
}

impl AltStack {
    /// No alternate stack.
    pub const NONE: AltStack = AltStack {
        sp: 0,
        size: 0,
        flags: 0,
    };

    /// Whether `sp` lies on it.
    pub fn contains(&self, sp: u64) -> bool {
        self.size != 0 && sp > self.sp && sp - self.sp <= self.size
    }
}

/// What restart_syscall(2) continues.
#[derive(Clone, Copy, Debug)]
pub enum RestartBlock {
    /// Nothing: the call fails with EINTR.
    None,
    /// A sleep until a monotonic time; if it is interrupted again, the time left is written to `rem`.
    Sleep {
        /// Monotonic nanoseconds.
        until: u64,
        /// The address where the time left is written, 0 for nowhere.
        rem: u64,
    },
    /// A poll(2).
    Poll {
        /// The address of the list of descriptors.
        addr: u64,
        /// How many descriptors there are.
        count: u32,
        /// When the call times out.
        deadline: Deadline,
    },
    /// A futex wait with a timeout.
    Futex {
        /// The address of the futex word.
        addr: u64,
        /// The value that the word must hold.
        value: u32,
        /// When the wait times out, in monotonic nanoseconds.
        until: u64,
        /// The waiter's bitset.
        bits: u32,
        /// Whether the futex is shared between processes.
        shared: bool,
    },
}

/// What signals add to a thread.
pub trait SignalExt {
    /// The alternate stack of sigaltstack(2).
    fn altstack(&self) -> AltStack;

    /// Sets the alternate stack. Called by the thread itself.
    fn set_altstack(&self, stack: AltStack);

    /// Whether something must be done before the thread enters user mode. True whenever
    /// [`signal_pending`](Thread::signal_pending) is, and as cheap.
    fn has_work(&self) -> bool;

    /// Replaces the signal mask; SIGKILL and SIGSTOP stay unblocked. Called by the thread itself.
    fn set_blocked(&self, set: SigSet);

    /// Unblocks the signals of `set` for sigtimedwait, so that they end a sleep. Such signals are kept pending as if
    /// they were still blocked, whatever their actions. Called by the thread itself; [`Self::end_sigwait`] undoes it.
    fn begin_sigwait(&self, set: SigSet);

    /// Restores the mask from before [`Self::begin_sigwait`].
    fn end_sigwait(&self);

    /// Replaces the mask for one system call (ppoll, pselect, sigsuspend). The old mask is restored when the thread
    /// returns to user mode, after the handlers of signals that only the old mask blocks.
    fn set_temporary_mask(&self, set: SigSet);

    /// Restores the mask from before [`Self::set_temporary_mask`] at once, for a call that was not interrupted.
    fn restore_mask(&self);

    /// Stores what restart_syscall(2) is to continue.
    fn set_restart(&self, block: RestartBlock);

    /// Takes what restart_syscall(2) is to continue; a second call gets [`RestartBlock::None`].
    fn take_restart(&self) -> RestartBlock;
}

impl SignalExt for Thread {
    fn altstack(&self) -> AltStack {
        *self.user().altstack.lock()
    }

    fn set_altstack(&self, stack: AltStack) {
        *self.user().altstack.lock() = stack;
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.has(
            flag::KILLED
                | flag::ATTENTION
                | flag::RESTORE_MASK
                | flag::RECLAIM
                | flag::CPU_TIMERS
                | flag::USED_RESERVE,
        ) || unblocked_signal(self)
    }

    fn set_blocked(&self, set: SigSet) {
        replace_mask(self, set, None);
    }

    fn begin_sigwait(&self, set: SigSet) {
        // Room for a signal that another thread may pass on.
        self.user().pending.reserve();
        let old = self.blocked();
        replace_mask(self, SigSet(old.0 & !set.0), Some(old));
    }

    fn end_sigwait(&self) {
        self.set_blocked(SigSet(self.user().saved_mask.load(Ordering::Relaxed)));
    }

    fn set_temporary_mask(&self, set: SigSet) {
        let old = self.user().blocked.load(Ordering::Relaxed);
        self.user().saved_mask.store(old, Ordering::Relaxed);
        self.set(flag::RESTORE_MASK);
        self.set_blocked(set);
    }

    fn restore_mask(&self) {
        if self.has(flag::RESTORE_MASK) {
            self.clear(flag::RESTORE_MASK);
            self.set_blocked(SigSet(self.user().saved_mask.load(Ordering::Relaxed)));
        }
    }

    fn set_restart(&self, block: RestartBlock) {
        *self.user().restart.lock() = block;
    }

    fn take_restart(&self) -> RestartBlock {
        core::mem::replace(&mut *self.user().restart.lock(), RestartBlock::None)
    }
}

/// Whether the thread's interruptible sleep must end: by a signal, a kill or a stop.
#[inline]
pub(super) fn signal_pending(t: &Thread) -> bool {
    unblocked_signal(t) || t.has(flag::KILLED | flag::ATTENTION)
}

#[inline]
fn unblocked_signal(t: &Thread) -> bool {
    let user = t.user();
    let bits = user.pending.bits() | user.process.pending.bits();
    bits & !user.blocked.load(Ordering::Relaxed) != 0
}

/// Whether a signal is kept pending even if its action is to ignore it: it is blocked, or was before sigtimedwait.
/// Exact under the process's signal lock.
fn keeps(t: &Thread, signo: u8) -> bool {
    let waits = t.has(flag::SIGWAIT);
    t.blocked().has(signo)
        || waits && SigSet(t.user().saved_mask.load(Ordering::Relaxed)).has(signo)
}

/// Whether init, if it has no handler for the signal, ignores it. It ignores all but those that an instruction of its own has
/// caused: a program sends no code above 0.
fn spares_init(info: &SigInfo) -> bool {
    !(SigSet::SYNCHRONOUS.has(info.signo) && info.code > 0)
}

/// Replaces the mask of `t`, the caller. In sigtimedwait, `held_back` is the mask from before: its signals count as
/// blocked still.
fn replace_mask(t: &Thread, set: SigSet, held_back: Option<SigSet>) {
    let guard = t.process().signals.lock();
    let new = set.0 & !SigSet::UNMASKABLE.0;
    let old = t.user().blocked.swap(new, Ordering::SeqCst);
    match held_back {
        Some(mask) => {
            t.user().saved_mask.store(mask.0, Ordering::Relaxed);
            t.set(flag::SIGWAIT);
        }
        None if t.has(flag::SIGWAIT) => t.clear(flag::SIGWAIT),
        None => {}
    }
    drop(guard);
    // Signals pending for the process that this thread does not take any more go to another thread.
    let lost = t.process().pending.bits() & new & !old;
    if lost != 0 && t.process().thread_count() > 1 {
        send::retarget(t.process(), SigSet(lost));
    }
}

/// Sends the calling thread a signal that its own system call caused.
pub fn raise(signo: u8) {
    // If the signal cannot be queued, it is pending already.
    let _ = send_thread(&current(), SigInfo::kernel(signo));
}

/// The action of `signo` in the process.
pub fn action(p: &Process, signo: u8) -> Action {
    let actions = p.signals.lock().actions.clone();
    actions.get(signo)
}

/// sigaction(2): sets the action of `signo`; returns the old one. Pending signals that are ignored from now on are
/// dropped.
pub fn set_action(p: &Process, signo: u8, new: Action) -> Action {
    let actions = p.signals.lock().actions.clone();
    let old = actions.set(signo, new);
    if actions.ignores(signo) {
        let set = SigSet::one(signo);
        p.pending.flush(set);
        p.pending.shrink();
        p.each_thread(|t| {
            t.user().pending.flush(set);
            t.user().pending.shrink();
            true
        });
    }
    old
}

/// The signals pending for `t` or for its process.
pub fn pending(t: &Thread) -> SigSet {
    SigSet(t.user().pending.bits() | t.process().pending.bits())
}

/// Takes a pending signal of `set` for `t`, the calling thread; signals sent to the thread come before those sent to
/// the process.
pub fn take(t: &Thread, set: SigSet) -> Option<SigInfo> {
    let order = t.process().signals.lock();
    let info = loop {
        let info = t.user().pending.take(set).map(|info| (info, false));
        match info.or_else(|| Some((t.process().pending.take(set)?, true))) {
            Some((info, true)) if send::hand_over(&order, t, info) => {}
            info => break info.map(|(info, _)| info),
        }
    };
    if info.is_some_and(|info| SigSet::STOPS.has(info.signo)) {
        t.set(flag::STOP_DUE);
    }
    drop(order);
    t.user().pending.shrink();
    t.process().pending.shrink();
    if info.is_some_and(|info| info.signo == sig::ALRM) {
        itimer::taken(t.process());
    }
    info
}

/// The words of a `stack_t` for sigaltstack(2), for a thread whose stack pointer is `sp`.
pub fn altstack_words(stack: &AltStack, sp: u64) -> [u64; 3] {
    frame::stack_words(stack, sp)
}
