//! What a process keeps of its POSIX timers.

use alloc::vec::Vec;

use cred::{Charge, Payer};
use ksync::IrqSpin;
use task::timer::TimerNode;

use crate::lock;

/// The most timers of one process: each expiry looks at all of them.
pub const MOST: usize = 1024;

/// Set beside a pid in the id of `Timers::node` on a timer wheel, where the id alone stands for ITIMER_REAL.
pub const OF_TIMERS: u32 = 1 << 30;

/// How a timer tells that it has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Not at all.
    Nobody,
    /// By a signal to the process.
    Process,
    /// By a signal to the thread with this tid.
    Thread(u32),
}

/// What a new timer is made of.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// How it tells.
    pub notify: Notify,
    /// The signal, 1..=64.
    pub signo: u8,
    /// `si_value`; `None` for the timer's id.
    pub value: Option<u64>,
    /// Whether absolute times that it is set to are in real time.
    pub real: bool,
}

/// Where a timer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not set.
    Off,
    /// Expires at a monotonic time in nanoseconds.
    Armed(u64),
    /// Expired at that time, and its signal has not been taken.
    Fired(u64),
}

/// A timer. It is charged as a pending signal.
pub(super) struct Timer {
    pub id: u32,
    pub spec: Spec,
    pub phase: Phase,
    /// Nanoseconds between expiries, 0 for one expiry.
    pub interval: u64,
    /// Expiries between the last one that was told of and its signal's being taken.
    pub overrun: u32,
    payer: Payer,
}

impl Timer {
    /// A timer that is not set; `None` if `payer` would pay for more than `limit` signals.
    pub fn new(id: u32, spec: Spec, payer: Payer, limit: u64) -> Option<Timer> {
        payer.charge(Charge::Signals, 1);
        payer.charge(Charge::Memory, size_of::<Timer>());
        let timer = Timer {
            id,
            spec,
            phase: Phase::Off,
            interval: 0,
            overrun: 0,
            payer,
        };
        let over = payer.is_limited() && payer.is_over(Charge::Signals, limit);
        (!over).then_some(timer)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.payer.give_back(Charge::Signals, 1);
        self.payer.give_back(Charge::Memory, size_of::<Timer>());
    }
}

/// The timers, in order of creation, and the id of the next.
#[derive(Default)]
pub(super) struct List {
    pub timers: Vec<Timer>,
    pub next_id: u32,
    /// No timer expires before this time: after an attempt to send found no room.
    pub not_before: u64,
}

/// The POSIX timers of a process.
#[derive(Default)]
pub struct Timers {
    pub(super) list: IrqSpin<List, lock::TimersLock>,
    /// Armed for the first expiry. Guarded by the wheel's lock; armed with the list's held as well.
    pub node: TimerNode,
}
