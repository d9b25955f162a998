//! What a wait queue keeps of a sleeper.

use super::{Round, Sleepers};
use crate::percpu::CpuPin;

/// Set in a registration's `tid` if it is of a listener.
const LISTENER: u32 = 1 << 31;
/// Set beside [`LISTENER`] for an exclusive one.
const EXCLUSIVE: u32 = 1 << 30;
/// The bits of the [`Cause`]s that a listener is not called for.
const CAUSES: u32 = 7 << 27;
/// Set beside [`LISTENER`] for a standing one.
const STANDING: u32 = 1 << 26;

/// Why the sleepers of a queue are woken, where a queue serves several kinds of them, or a listener asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Cause {
    /// There is something to read.
    Input = 1 << 28,
    /// There is room to write.
    Room = 1 << 29,
    /// The other side is gone.
    HangUp = 1 << 27,
    /// There is room to write, for a writer that has found none. No listener excepts that.
    Relief = 0,
}

/// A thread's registration on a queue: its tid and the round in which it registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// 0: none. Else a tid, or the number of a listener and its bits.
    pub(super) tid: u32,
    /// The low and the high half: this alignment makes a queue smaller.
    round: [u32; 2],
}

pub(super) const VACANT: Registration = Registration {
    tid: 0,
    round: [0; 2],
};

impl Registration {
    /// The registration of thread `tid` in its round `round`.
    pub fn new(tid: u32, round: u64) -> Self {
        Registration {
            tid,
            round: [round as u32, (round >> 32) as u32],
        }
    }

    /// The registration of a listener, whose number is below 2^26, in its round `round`.
    pub fn listener(number: u32, round: u64, exclusive: bool) -> Self {
        let exclusive = if exclusive { EXCLUSIVE } else { 0 };
        Registration::new(number | LISTENER | exclusive, round)
    }

    /// The same, if of a listener, but not for wake-ups with that cause.
    pub fn except(self, cause: Cause) -> Self {
        let bit = if self.is_listener() { cause as u32 } else { 0 };
        let tid = self.tid | bit;
        Registration { tid, ..self }
    }

    /// The same, of a listener that stays until its round ends.
    pub fn standing(self) -> Self {
        let tid = self.tid | STANDING;
        Registration { tid, ..self }
    }

    pub(super) fn stays(self) -> bool {
        self.is_listener() && self.tid & STANDING != 0
    }

    /// Whether it is of a listener.
    #[inline]
    pub fn is_listener(self) -> bool {
        self.tid & LISTENER != 0
    }

    pub(super) fn is_exclusive(self) -> bool {
        self.tid & EXCLUSIVE != 0
    }

    /// The number of a listener.
    fn number(self) -> u32 {
        self.tid & !(LISTENER | EXCLUSIVE | CAUSES | STANDING)
    }

    #[inline]
    fn rounds<S: Sleepers>(self, pin: &CpuPin) -> Option<&Round> {
        if self.is_listener() {
            S::listener_round(pin, self.number())
        } else {
            S::round(pin, self.tid)
        }
    }

    fn round(self) -> u64 {
        u64::from(self.round[1]) << 32 | u64::from(self.round[0])
    }

    /// The thread's tid.
    pub fn tid(self) -> u32 {
        self.tid
    }

    /// That of the two, which are of one thread or listener, whose round is the later one. Two looks at a listener's file may be in progress at
    /// once, and the earlier one, whose round is over, may register last.
    pub(super) fn later(self, other: Self) -> Self {
        if other.round() < self.round() {
            self
        } else {
            other
        }
    }

    /// Whether the round is not over and was not notified.
    pub(super) fn live<S: Sleepers>(self, pin: &CpuPin) -> bool {
        self.rounds::<S>(pin).is_some_and(|r| r.is(self.round()))
    }

    /// Notifies and wakes the thread; false if the registration is void or another waker was first. A listener is called; then
    /// returns whether that has woken a thread.
    pub fn notify<S: Sleepers>(self, pin: &CpuPin) -> bool {
        self.notify_of::<S>(pin, None)
    }

    pub(super) fn notify_of<S: Sleepers>(self, pin: &CpuPin, cause: Option<Cause>) -> bool {
        let stays = self.stays();
        let told = self.rounds::<S>(pin).is_some_and(|r| {
            if stays {
                r.is(self.round())
            } else {
                r.notify(self.round())
            }
        });
        if told {
            if self.is_listener() {
                return S::call(pin, self.number(), cause);
            }
            S::wake(pin, self.tid);
        }
        told
    }
}
