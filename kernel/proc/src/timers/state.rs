//! What a process keeps of its POSIX timers.

use alloc::vec::Vec;

use cred::{Charge, Payer};
use ksync::IrqSpin;
use task::timer::TimerNode;

use super::watch::{self, CpuClock, Handle};
use crate::lock;
use crate::signal::ENTRY_BYTES;

/// The most timers of one process: each expiry looks at all of them.
pub const MOST: usize = 1024;

/// Set beside a pid in the id of `Timers::node` on a timer wheel, where the id alone stands for ITIMER_REAL.
pub const OF_TIMERS: u32 = 1 << 30;

/// The tid of a timer's thread that has ended. No thread has it.
pub(super) const GONE: u32 = 0;

/// Why no timer was made or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerError {
    /// The process has as many timers, or its user as many signals, as it may have.
    Again,
    /// No memory.
    NoMemory,
    /// There is no such timer.
    NoTimer,
    /// What its clock measures has been reaped.
    Gone,
}

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
    /// The number of its clock, as proc(5) shows it.
    pub clock: i32,
}

/// Where a timer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not set.
    Off,
    /// Expires at that time of its clock, in nanoseconds; the monotonic one, if it has none of CPU time.
    Armed(u64),
    /// Expired at that time, and its signal has not been taken.
    Fired(u64),
}

/// What a timer has that is set by CPU time.
pub(super) struct CpuTimer {
    pub clock: CpuClock,
    pub handle: Handle,
}

/// A timer. It is charged as a pending signal.
pub(super) struct Timer {
    pub id: u32,
    pub spec: Spec,
    /// The clock of CPU time by which it is set, and its entry there.
    pub cpu: Option<CpuTimer>,
    pub phase: Phase,
    /// Nanoseconds between expiries, 0 for one expiry.
    pub interval: u64,
    /// How often it was set.
    pub setting: u32,
    /// Expiries between the last one that was told of and its signal's being taken.
    pub overrun: u32,
    payer: Payer,
}

/// Bytes that are charged for a timer: the list keeps up to four times the room that it needs, and a queue has room for the signal.
const BYTES: usize = 4 * size_of::<Timer>() + ENTRY_BYTES;

/// As [`BYTES`], for one that has a clock of CPU time or not.
const fn bytes(cpu: bool) -> usize {
    if cpu {
        BYTES + watch::ENTRY_BYTES
    } else {
        BYTES
    }
}

impl Timer {
    /// A timer that has no id yet and is not set; `None` if `payer` would pay for more than `limit` signals.
    pub fn new(spec: Spec, cpu: Option<CpuTimer>, payer: Payer, limit: u64) -> Option<Timer> {
        payer.charge(Charge::Signals, 1);
        payer.charge(Charge::Memory, bytes(cpu.is_some()));
        let timer = Timer {
            id: 0,
            spec,
            cpu,
            setting: 0,
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
        self.payer
            .give_back(Charge::Memory, bytes(self.cpu.is_some()));
    }
}

/// The timers, in order of creation, and the id of the next.
#[derive(Default)]
pub(super) struct List {
    pub timers: Vec<Timer>,
    pub next_id: u32,
    /// No timer expires before this time: after an interrupt that has left some to the next, or an attempt to send that found no room.
    pub not_before: u64,
    /// Where the next interrupt begins.
    pub from: usize,
}

impl List {
    /// An id that no timer has.
    pub fn take_id(&mut self) -> u32 {
        loop {
            let id = self.next_id;
            self.next_id = (id + 1) & i32::MAX as u32;
            if self.timers.iter().all(|timer| timer.id != id) {
                return id;
            }
        }
    }
}

/// The POSIX timers of a process.
#[derive(Default)]
pub struct Timers {
    pub(super) list: IrqSpin<List, lock::TimersLock>,
    /// Armed for the first expiry. Guarded by the wheel's lock; armed with the list's held as well.
    pub node: TimerNode,
}
