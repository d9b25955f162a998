//! The signal actions of a process. Only actions that differ from the default take memory.

use alloc::vec::Vec;
use ksync::atomic::{AtomicU64, Ordering};

use ksync::Spin;

use super::set::{SigSet, sig};
use crate::lock;

/// The parent gets no SIGCHLD when a child stops or is continued.
pub const SA_NOCLDSTOP: u64 = 1;
/// Children that end do not become zombies.
pub const SA_NOCLDWAIT: u64 = 2;
pub(super) const SA_RESTORER: u64 = 0x0400_0000;
pub(super) const SA_ONSTACK: u64 = 0x0800_0000;
pub(super) const SA_RESTART: u64 = 0x1000_0000;
pub(super) const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;

const SIG_DFL: u64 = 0;
const SIG_IGN: u64 = 1;

/// The kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// SIG_DFL, SIG_IGN or the handler's address.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: u64,
    /// Signals that are blocked while the handler runs.
    pub mask: u64,
}

/// What a signal does by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Ends the process.
    Terminate,
    /// Ends the process; Linux would write a core file if the limit lets it.
    Core,
    /// Stops the process.
    Stop,
    /// Has no effect.
    Ignore,
}

impl Disposition {
    /// The default disposition of `signal`.
    pub fn of(signal: u8) -> Self {
        match signal {
            sig::CHLD | sig::CONT | sig::URG | sig::WINCH => Disposition::Ignore,
            sig::STOP | sig::TSTP | sig::TTIN | sig::TTOU => Disposition::Stop,
            sig::QUIT
            | sig::ILL
            | sig::TRAP
            | sig::ABRT
            | sig::BUS
            | sig::FPE
            | sig::SEGV
            | sig::XCPU
            | sig::XFSZ
            | sig::SYS => Disposition::Core,
            _ => Disposition::Terminate,
        }
    }
}

/// The actions of all signals of a process.
pub struct ActionTable {
    /// Signals with SIG_IGN. Written under the lock, read without it.
    ignored: AtomicU64,
    /// Signals with SIG_IGN or a handler. Written under the lock, read without it. A change from the one to the other leaves this
    /// alone, so that no reader takes the action for the default one meanwhile.
    replaced: AtomicU64,
    /// The actions that are not plain SIG_DFL, by signal number.
    entries: Spin<Vec<(u8, Action)>, lock::ActionLock>,
}

impl Default for ActionTable {
    fn default() -> Self {
        Self::new()
    }
}

impl ActionTable {
    /// All signals at their defaults.
    pub const fn new() -> Self {
        ActionTable {
            ignored: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            entries: Spin::new(Vec::new()),
        }
    }

    /// A copy for a forked process. Allocates.
    pub fn fork(&self) -> Self {
        loop {
            let want = self.entries.lock().len();
            let mut copy = Vec::with_capacity(want);
            let entries = self.entries.lock();
            if entries.len() > want {
                continue;
            }
            copy.extend_from_slice(&entries);
            return ActionTable {
                ignored: AtomicU64::new(self.ignored.load(Ordering::Relaxed)),
                replaced: AtomicU64::new(self.replaced.load(Ordering::Relaxed)),
                entries: Spin::new(copy),
            };
        }
    }

    /// What execve does to the actions: ignored signals stay ignored, all others get their default, and no action keeps
    /// flags or a mask.
    pub fn reset_for_exec(&self) {
        let mut entries = self.entries.lock();
        entries.retain(|(_, a)| a.handler == SIG_IGN);
        for (_, a) in entries.iter_mut() {
            *a = Action {
                handler: SIG_IGN,
                ..Action::default()
            };
        }
        let ignored = self.ignored.load(Ordering::Relaxed);
        self.replaced.store(ignored, Ordering::Relaxed);
    }

    /// The action of `signal`.
    pub fn get(&self, signal: u8) -> Action {
        let entries = self.entries.lock();
        entries
            .iter()
            .find(|(s, _)| *s == signal)
            .map_or(Action::default(), |(_, a)| *a)
    }

    /// Sets the action of `signal`, which is neither SIGKILL nor SIGSTOP; returns the old one. Allocates; no lock held.
    pub fn set(&self, signal: u8, new: Action) -> Action {
        // Allocates room before it takes the lock: the allocator must not be entered with the lock held.
        let len = self.entries.lock().len();
        let mut room = Vec::with_capacity(len + 1);
        let mut entries = self.entries.lock();
        let at = entries.iter().position(|(s, _)| *s == signal);
        let old = match at {
            Some(i) => core::mem::replace(&mut entries[i].1, new),
            None => {
                if entries.len() == entries.capacity() {
                    if entries.len() >= room.capacity() {
                        // Other threads have filled the table meanwhile.
                        drop(entries);
                        return self.set(signal, new);
                    }
                    room.append(&mut entries);
                    core::mem::swap(&mut *entries, &mut room);
                }
                entries.push((signal, new));
                Action::default()
            }
        };
        self.note(signal, new.handler);
        drop(entries);
        old
    }

    /// The action on which a thread that has taken `signal` is to act. With SA_RESETHAND its handler runs once: the action becomes the
    /// default one, with its flags, in the same step, so that neither another thread gets the handler as well, nor an action that
    /// is set meanwhile is lost.
    pub(super) fn take(&self, signal: u8) -> Action {
        self.reset_if(signal, |action| {
            action.handler > SIG_IGN && action.flags & SA_RESETHAND != 0
        })
    }

    /// Sets the handler of `signal` to SIG_DFL; the flags stay.
    pub(super) fn reset(&self, signal: u8) {
        self.reset_if(signal, |_| true);
    }

    /// Sets the handler of `signal` to SIG_DFL if `applies` to its action. Returns the action from before.
    fn reset_if(&self, signal: u8, applies: fn(&Action) -> bool) -> Action {
        let mut entries = self.entries.lock();
        let Some((_, entry)) = entries.iter_mut().find(|(s, _)| *s == signal) else {
            return Action::default();
        };
        let action = *entry;
        if applies(&action) {
            entry.handler = SIG_DFL;
            self.note(signal, SIG_DFL);
        }
        action
    }

    /// Notes the handler of `signal` in the words that are read without the lock of the entries, which the caller holds.
    fn note(&self, signal: u8, handler: u64) {
        let bit = SigSet::one(signal).0;
        let put = |word: &AtomicU64, on: bool| {
            let w = word.load(Ordering::Relaxed);
            word.store(if on { w | bit } else { w & !bit }, Ordering::Relaxed);
        };
        put(&self.replaced, handler != SIG_DFL);
        put(&self.ignored, handler == SIG_IGN);
    }

    /// Signals with SIG_IGN.
    pub fn ignored(&self) -> SigSet {
        SigSet(self.ignored.load(Ordering::Relaxed))
    }

    /// Signals with a handler.
    pub fn caught(&self) -> SigSet {
        SigSet(self.replaced.load(Ordering::Relaxed) & !self.ignored().0)
    }

    /// Whether `signal` has no effect where it is not blocked.
    pub fn ignores(&self, signal: u8) -> bool {
        self.ignored().has(signal)
            || !self.caught().has(signal) && Disposition::of(signal) == Disposition::Ignore
    }

    /// Whether `signal` has its default action.
    pub fn is_default(&self, signal: u8) -> bool {
        !SigSet(self.replaced.load(Ordering::Relaxed)).has(signal)
    }

    /// Whether `signal`, where it is not blocked, ends the process without a core file.
    pub fn ends_process(&self, signal: u8) -> bool {
        self.is_default(signal) && Disposition::of(signal) == Disposition::Terminate
    }

    /// Whether children that end do not become zombies: SIGCHLD is ignored, or has SA_NOCLDWAIT. Takes the lock of the actions.
    pub fn discards_children(&self) -> bool {
        let action = self.get(sig::CHLD);
        action.handler == SIG_IGN || action.flags & SA_NOCLDWAIT != 0
    }
}
